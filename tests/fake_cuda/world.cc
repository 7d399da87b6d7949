// SPDX-License-Identifier: Apache-2.0
//
// Lookup of memory.
//
// Threading: under World::mutex.
#include "world.h"

#include <unistd.h>

#include <algorithm>

namespace oh::cuda::fake {

World& World::instance() {
  static World* const kWorld = [] {
    auto* world = new World;
    world->delay_us = config().delay_us;
    world->contexts.resize(config().visible.size());
    world->default_pools.resize(config().visible.size());
    return world;
  }();
  return *kWorld;
}

Pool::~Pool() {
  if (fd >= 0) close(fd);
}

std::shared_ptr<ContextState> World::context(Context handle) const {
  for (const auto& one : contexts) {
    if (one != nullptr && one->handle == handle) return one;
  }
  return nullptr;
}

Range* World::find(DevicePtr address) {
  auto after = ranges.upper_bound(address);
  if (after == ranges.begin()) return nullptr;
  Range& range = std::prev(after)->second;
  return address - range.base < range.size ? &range : nullptr;
}

Range* World::find_base(DevicePtr base, Kind kind) {
  const auto found = ranges.find(base);
  return found != ranges.end() && found->second.kind == kind ? &found->second : nullptr;
}

Device World::ordinal_of(int physical, Device otherwise) const {
  const std::vector<int>& visible = config().visible;
  const auto found = std::find(visible.begin(), visible.end(), physical);
  return found == visible.end() ? otherwise : static_cast<Device>(found - visible.begin());
}

DevicePtr World::place(Range range) {
  if (range.base == 0) range.base = Arena::instance().take(range.size, kPage);
  if (range.base == 0) return 0;
  range.buffer_id = next_buffer_id++;
  const DevicePtr base = range.base;
  ranges.emplace(base, std::move(range));
  return base;
}

void World::remove(DevicePtr base) {
  const auto found = ranges.find(base);
  if (found == ranges.end()) return;
  const Range range = std::move(found->second);
  ranges.erase(found);
  // CpuPages and reservations return their addresses themselves; registered memory belongs to the
  // program.
  const bool own = range.kind == Kind::kDevice || range.kind == Kind::kPool ||
                   range.kind == Kind::kImport || range.kind == Kind::kHostAlias;
  const DevicePtr offset = range.base % kPage;  // of an alias
  if (own) Arena::instance().give(range.base - offset, range.size + offset);
}

namespace {

bool may_use(const Range& range, const ContextState& context) {
  if (range.kind == Kind::kVmm) return range.access.count(context.ordinal) != 0;
  if (range.kind == Kind::kPool) return range.pool->access.count(context.ordinal) != 0;
  return true;
}

}  // namespace

bool World::resolve(DevicePtr address, size_t size, const ContextState& context,
                    std::vector<Piece>* out) {
  const DevicePtr within = address;
  const Range* before = nullptr;
  while (size > 0) {
    const Range* range = find(address);
    if (range == nullptr) {
      const auto next = ranges.upper_bound(address);
      const Arena& arena = Arena::instance();
      if (address < kPage || arena.contains(address) || arena.contains(address + size - 1)) {
        return false;
      }
      if (before != nullptr && before->kind != Kind::kHost) return false;
      // Pageable memory, up to the next registered range.
      const size_t take =
          next == ranges.end() ? size : std::min<size_t>(size, next->first - address);
      out->push_back({reinterpret_cast<char*>(address), take, nullptr});
      address += take;
      size -= take;
      continue;
    }
    const bool goes_on = address == within ||
                         (range->kind == Kind::kVmm && before != nullptr &&
                          before->reservation == range->reservation) ||
                         (range->kind == Kind::kHost && range->registered);
    if (!goes_on || !may_use(*range, context)) return false;
    const size_t offset = address - range->base;
    const size_t take = std::min(size, range->size - offset);
    out->push_back({range->bytes + offset, take, range->keep});
    address += take;
    size -= take;
    before = range;
  }
  return true;
}

}  // namespace oh::cuda::fake
