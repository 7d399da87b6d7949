// SPDX-License-Identifier: Apache-2.0
//
// VMM addresses: reservations, and memory mapped into them.
//
// Threading: any thread.
#include <algorithm>

#include "call.h"

namespace oh::cuda {
using namespace fake;

namespace {

// Returns the reservation that contains [base, base + size), or 0.
DevicePtr reservation_of(const World& world, DevicePtr base, size_t size) {
  auto after = world.reservations.upper_bound(base);
  if (after == world.reservations.begin()) return 0;
  --after;
  const size_t offset = base - after->first;
  return offset <= after->second && size <= after->second - offset ? after->first : 0;
}

// Collects the mappings in [base, base + size). False: one lies only partly in it, there is none,
// or, with `whole`, there is a gap.
bool mappings_in(World& world, DevicePtr base, size_t size, bool whole, std::vector<Range*>* out) {
  if (size == 0 || reservation_of(world, base, size) == 0) return false;
  size_t sum = 0;
  const Range* first = world.find(base);
  if (first != nullptr && first->base != base) return false;
  for (auto at = world.ranges.lower_bound(base);
       at != world.ranges.end() && at->first < base + size; ++at) {
    if (at->first + at->second.size > base + size) return false;
    sum += at->second.size;
    out->push_back(&at->second);
  }
  return !out->empty() && (!whole || sum == size);
}

}  // namespace

Code cuMemAddressReserve(DevicePtr* out, size_t size, size_t alignment, DevicePtr, uint64_t flags) {
  Call call(Symbol::cuMemAddressReserve, kAnything);
  if (!call.ok()) return call.code();
  if (!config().vmm) return kNotSupported;
  if (size == 0 || size % kGranularity != 0 || flags != 0) return kInvalidValue;
  if ((alignment & (alignment - 1)) != 0) return kInvalidValue;
  const DevicePtr base = Arena::instance().take(size, std::max(alignment, kGranularity));
  if (base == 0) return kOutOfMemory;
  call.world().reservations.emplace(base, size);
  *out = base;
  return kSuccess;
}

Code cuMemAddressFree(DevicePtr base, size_t size) {
  Call call(Symbol::cuMemAddressFree, kAnything);
  if (!call.ok()) return call.code();
  World& world = call.world();
  const auto found = world.reservations.find(base);
  if (found == world.reservations.end() || found->second != size) return kInvalidValue;
  const auto first = world.ranges.lower_bound(base);
  if (first != world.ranges.end() && first->first < base + size) return kInvalidValue;
  world.reservations.erase(found);
  Arena::instance().give(base, size);
  return kSuccess;
}

Code cuMemMap(DevicePtr base, size_t size, size_t offset, AllocationHandle handle, uint64_t flags) {
  Call call(Symbol::cuMemMap, kAnything);
  if (!call.ok()) return call.code();
  World& world = call.world();
  const auto found = world.vmm_handles.find(handle);
  if (found == world.vmm_handles.end() || offset != 0 || flags != 0) return kInvalidValue;
  const auto memory = found->second;
  if (base % kGranularity != 0 || size != memory->backing->facts().size) return kInvalidValue;
  Range range;
  range.reservation = reservation_of(world, base, size);
  const auto next = world.ranges.lower_bound(base);
  const bool is_free =
      world.find(base) == nullptr && (next == world.ranges.end() || next->first >= base + size);
  if (range.reservation == 0 || !is_free) return kInvalidValue;
  range.base = base;
  range.size = size;
  range.kind = Kind::kVmm;
  range.bytes = memory->backing->bytes();
  range.keep = memory->backing;
  range.backing = memory->backing;
  range.ordinal = memory->prop.location.id;
  range.imported = memory->imported;
  range.vmm = memory;
  world.place(std::move(range));
  return kSuccess;
}

Code cuMemUnmap(DevicePtr base, size_t size) {
  Call call(Symbol::cuMemUnmap, kAnything);
  if (!call.ok()) return call.code();
  std::vector<Range*> mappings;
  if (!mappings_in(call.world(), base, size, false, &mappings)) return kInvalidValue;
  for (const Range* mapping : mappings) call.world().remove(mapping->base);
  return kSuccess;
}

Code cuMemSetAccess(DevicePtr base, size_t size, const AccessDesc* rights, size_t count) {
  Call call(Symbol::cuMemSetAccess, kAnything);
  if (!call.ok()) return call.code();
  std::vector<Range*> mappings;
  if (!mappings_in(call.world(), base, size, true, &mappings)) return kInvalidValue;
  const auto devices = static_cast<int>(config().visible.size());
  for (size_t i = 0; i < count; ++i) {
    const Location& location = rights[i].location;
    if (location.type != kLocationDevice || location.id < 0 || location.id >= devices) {
      return kInvalidDevice;
    }
    const int physical = config().visible[static_cast<size_t>(location.id)];
    for (Range* mapping : mappings) {
      if (!config().can_access(physical, mapping->backing->facts().physical)) {
        return kInvalidDevice;
      }
      if (rights[i].flags == 0) {
        mapping->access.erase(location.id);
      } else {
        mapping->access.insert(location.id);
      }
    }
  }
  return kSuccess;
}

}  // namespace oh::cuda
