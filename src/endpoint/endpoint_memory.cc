// SPDX-License-Identifier: Apache-2.0
#include "endpoint/endpoint_memory.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>

#include "endpoint/endpoint.h"
#include "path/message_selection.h"
#include "platform/cuda/topology.h"
#include "platform/os/os.h"

namespace oh {
namespace {

// A copy from or to unmapped memory would crash this process, or fail the peer's operation.
Status check_mapped(const void* base, uint64_t length) {
  const auto first = reinterpret_cast<uintptr_t>(base);
  const uintptr_t last = first + (length - 1);
  if (last >= first && os().find_page(first) != -ENOMEM && os().find_page(last) != -ENOMEM) {
    return {};
  }
  return error(OH_ERR_FAULT,
               "cannot register %llu bytes at %p: they are not all mapped in this process; pass "
               "memory that is, for as long as the region lives",
               static_cast<unsigned long long>(length), base);
}

// A region may be on another GPU than its endpoint, to whose GPU the link was found to have native
// atomics.
std::string why_no_atomics(const Endpoint& ours, const Peer& peer, const cuda::Uuid& where) {
  const std::string theirs = cuda::uuid_text(where);
  const std::shared_ptr<cuda::Gpu>& gpu = ours.device().gpu();
  if (!gpu || theirs == peer.identity().gpu) return {};
  if (std::optional<cuda::Device> device = cuda::find_device(gpu->driver(), theirs)) {
    return cuda::why_no_native_atomics(gpu->driver(), gpu->facts().ordinal, *device);
  }
  return cuda::why_not_nvlink(ours.config().nvml_library, cuda::uuid_text(gpu->facts().uuid),
                              theirs);
}

}  // namespace

Result<std::shared_ptr<RegionRecord>> EndpointMemory::register_region(void* base, uint64_t length,
                                                                      RegionAccess access) {
  OH_RETURN_IF_ERROR(endpoint_.usable());
  std::shared_ptr<const GpuExport> exported;
  MemoryFacts memory;
  const std::shared_ptr<cuda::Gpu>& gpu = endpoint_.device().gpu();
  if (gpu && base && length) {
    OH_ASSIGN_OR_RETURN(memory, classify(gpu->driver(), base, length));
    if (memory.placement != Placement::kHost) {
      OH_ASSIGN_OR_RETURN(exported, GpuExports::instance().find(gpu->driver(), base, length));
      OH_RETURN_IF_ERROR(check_device(*gpu, *exported));
    }
  }
  if (!exported && base && length) OH_RETURN_IF_ERROR(check_mapped(base, length));
  return regions_.add(base, length, std::move(exported), access, memory.pinned);
}

Status EndpointMemory::deregister(const RegionRecord& region, Deadline deadline) {
  if (!endpoint_.is_of_this_process()) return endpoint_.why_unusable();
  // Also while close() runs: it may not have retired this region yet.
  regions_.retire(region);
  if (region.exported) endpoint_.device().retire_exports(region.base, region.length);
  const std::vector<std::shared_ptr<Peer>> inside = may_be_inside();
  // Notify all peers before waiting for any: one of them may be stopped.
  for (const std::shared_ptr<Peer>& peer : inside)
    peer->operations().one_sided().retire_region(region);
  Status status;
  for (const std::shared_ptr<Peer>& peer : inside) {
    Status left = peer->operations().one_sided().wait_until_retired(
        region, deadline, [&] { return peer->liveness().unresponsive_for(); });
    if (status.ok()) status = std::move(left);
  }
  // Forget only the peers that have left: another thread may be waiting for the others.
  MutexLock lock(mutex_);
  std::erase_if(closed_inside_, [this](const std::shared_ptr<Peer>& peer) {
    return is_outside(*peer, Deadline::after(0));
  });
  return status.ok() && !endpoint_.is_usable() ? endpoint_.why_unusable() : status;
}

std::vector<std::shared_ptr<Peer>> EndpointMemory::may_be_inside() const {
  std::vector<std::shared_ptr<Peer>> all = *endpoint_.peers();
  MutexLock lock(mutex_);
  std::ranges::copy(closed_inside_, std::back_inserter(all));
  return all;
}

bool EndpointMemory::is_outside(Peer& peer, Deadline deadline) const {
  const bool by_engines =
      endpoint_.device().gpu() != nullptr || peer.link().selection->opens_blocks();
  return peer.operations().one_sided().wait_until_outside(deadline, by_engines) &&
         !peer.operations().left_to_engines();
}

// Peers that share a segment with us but cannot access our memory send their puts and gets as
// messages, which a local thread must handle.
void EndpointMemory::serve_exports() {
  if (!exported_.load()) return;
  bool needed = false;
  endpoint_.for_each_peer([&needed](Peer& peer) {
    needed = needed || (peer.link().segment && !peer.link().they_reach_us);
  });
  if (needed) endpoint_.progress_thread().serve();
}

void EndpointMemory::link_closed(const std::shared_ptr<Peer>& peer) {
  if (is_outside(*peer, Deadline::after(0))) return;
  MutexLock lock(mutex_);
  closed_inside_.push_back(peer);
}

void EndpointMemory::forget_closed() {
  std::vector<std::shared_ptr<Peer>> dropped;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  dropped.swap(closed_inside_);
}

Bytes EndpointMemory::export_region(const RegionRecord& region) {
  exported_.store(true);
  serve_exports();
  return describe(region);
}

Bytes EndpointMemory::describe(const RegionRecord& region) const {
  RegionDescriptor descriptor;
  descriptor.process = endpoint_.own_address().process;
  descriptor.endpoint = endpoint_.own_address().endpoint;
  descriptor.index = region.index;
  descriptor.version = region.version;
  descriptor.read_only = region.refuses(/*put=*/true);
  descriptor.record.base = reinterpret_cast<uint64_t>(region.base);
  descriptor.record.length = region.length;
  ExportChunk chunk;
  chunk.length = region.length;
  if (region.block) {
    chunk.kind = ChunkKind::kShared;
    Writer(chunk.handle).u32(region.block->number);
  } else if (region.exported) {
    descriptor.record.gpu = region.exported->record.gpu;
    bool mappable = region.exported->mappable();
    chunk.kind = mappable ? ChunkKind::kShared : ChunkKind::kCudaPrivate;
    if (mappable) Writer(chunk.handle).u32(region.exported->number);
  }
  descriptor.record.chunks.push_back(std::move(chunk));
  return descriptor.encode();
}

Result<RemoteTarget> EndpointMemory::attach(Peer& peer, ByteView bytes, Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint_.usable());
  OH_RETURN_IF_ERROR(peer.usable());
  OH_ASSIGN_OR_RETURN(RegionDescriptor descriptor, RegionDescriptor::decode(bytes));
  if (descriptor.endpoint != peer.identity().endpoint) {
    return error(OH_ERR_INVALID,
                 "the region belongs to another endpoint than %s: attach it at the "
                 "peer that described it",
                 peer.link().name.c_str());
  }
  RemoteTarget target;
  target.index = descriptor.index;
  target.version = descriptor.version;
  target.base = descriptor.record.base;
  target.length = descriptor.record.length;
  target.read_only = descriptor.read_only;
  const std::vector<ExportChunk>& chunks = descriptor.record.chunks;
  bool shared = chunks.size() == 1 && chunks[0].kind == ChunkKind::kShared;
  uint32_t number = shared ? Reader(chunks[0].handle).u32() : 0;
  target.on_device = (number & GpuExports::kNumberBit) != 0 ||
                     (chunks.size() == 1 && chunks[0].kind == ChunkKind::kCudaPrivate);
  if (target.on_device) {
    target.why_no_atomics = why_no_atomics(endpoint_, peer, descriptor.record.gpu);
  }
  if (target.on_device && peer.within_process()) {
    std::shared_ptr<const GpuExport> exported = GpuExports::instance().find(number);
    target.plain = exported && (exported->plain() ||
                                (endpoint_.device().gpu() &&
                                 exported->device == endpoint_.device().gpu()->facts().ordinal));
  }
  if (!shared || peer.within_process() || !peer.link().segment) return target;
  if (target.on_device && !peer.link().maps_devices) return target;

  OH_RETURN_IF_ERROR(peer.usable());
  peer.memory().ask_for_block(number);
  bool failed = false;
  std::shared_ptr<ImportedBlock> import;
  auto arrived = [&] {
    import = peer.memory().imported(number, &failed);
    return import || failed || !peer.usable().ok();
  };
  if (!endpoint_.requests().wait_for(arrived, &peer, WaitKind::kOneSided, 0, deadline)) {
    return timed_out(deadline.length(), "%s did not hand over the memory of its region; %s",
                     peer.link().name.c_str(),
                     endpoint_.requests().state_at_timeout(peer, {WaitKind::kOneSided, 0}).c_str());
  }
  OH_RETURN_IF_ERROR(peer.usable());
  if (import &&
      (import->on_device != target.on_device || !import->translate(target.base, target.length))) {
    return error(OH_ERR_PROTOCOL, "the region of %s lies outside of the memory it handed over",
                 peer.link().name.c_str());
  }
  if (import) import->attached.fetch_add(1, std::memory_order_relaxed);
  target.imported = import != nullptr;
  target.import = import;
  return target;
}

void EndpointMemory::detach(const RemoteTarget& target) {
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  if (import) import->attached.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace oh
