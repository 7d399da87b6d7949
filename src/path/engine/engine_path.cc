// SPDX-License-Identifier: Apache-2.0
#include "path/engine/engine_path.h"

#include <algorithm>

#include "base/log.h"
#include "device/batch_plan.h"
#include "device/batches.h"

namespace oh {
namespace {

// The copies of one operation: block by block, or collected for the kernel.
class Copies {
 public:
  // by_kernel: a kernel may access the memory of both sides.
  Copies(DeviceLink& device, CopyTicket ticket, bool by_kernel)
      : device_(device), ticket_(std::move(ticket)), by_kernel_(by_kernel) {}
  ~Copies() {
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) {
      if (buffer) device_.give_batch_buffer(std::move(buffer));
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  CopyTicket& ticket() { return ticket_; }

  // Enqueues a copy, at once or with others; with the last one of the operation, all of them.
  Status add(void* to, const void* from, uint64_t size, bool last) {
    bool alone = last && !collecting();
    if (alone || size > kLongestForKernel || !device_.gpu().kernels().batch() || !take_buffer()) {
      if (last) OH_RETURN_IF_ERROR(flush());
      return ticket_.copy(to, from, size, last ? ticket_.next_value() : 0);
    }
    BatchBuffer& buffer = *buffers_[turn_];
    if (buffer.count() == 0) OH_RETURN_IF_ERROR(ticket_.wait(buffer.in_use_until()));
    buffer.add({reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size});
    return last || buffer.count() >= launch_at_ ? flush() : Status();
  }

 private:
  bool collecting() const { return buffers_[turn_] && buffers_[turn_]->count() > 0; }
  // Whether there is a buffer to collect in. Without a second one the first takes all turns.
  bool take_buffer() {
    if (!by_kernel_) return false;
    if (!buffers_[turn_]) buffers_[turn_] = device_.take_batch_buffer();
    if (!buffers_[turn_]) turn_ ^= 1;
    by_kernel_ = buffers_[turn_] != nullptr;
    return by_kernel_;
  }
  // Launches the kernel for what has been collected.
  Status flush() {
    if (!collecting()) return {};
    BatchBuffer& buffer = *buffers_[turn_];
    turn_ ^= 1;
    launch_at_ = std::min(launch_at_ * 4, BatchBuffer::kMostBlocks);
    return buffer.launch(ticket_.stream(), ticket_.word(), ticket_.next_value());
  }

  DeviceLink& device_;
  CopyTicket ticket_;
  bool by_kernel_;
  std::unique_ptr<BatchBuffer> buffers_[2];  // one is filled while the device reads the other
  int turn_ = 0;
  // Blocks: the first kernel soon, so that the device works while the rest is prepared.
  size_t launch_at_ = 1024;
};

// Where the block is at the other side, as the device reaches it; null: outside of what is mapped.
uint8_t* place_of(const RemoteTarget& target, const ImportedBlock* import, const Block& block) {
  uint64_t address = target.base + block.remote_offset;
  return import ? import->translate(address, block.size) : reinterpret_cast<uint8_t*>(address);
}

Status outside() { return error(OH_ERR_RANGE, "the block lies outside of the mapped memory"); }

}  // namespace

Estimate estimate_engine(const LinkFacts& facts, const Ends& ends) {
  const bool device = on_device(ends.local) || on_device(ends.remote);
  if (!device || !facts.segment || !facts.our_gpu || !facts.why_no_device.empty() ||
      ends.remote == MemoryKind::kDevicePrivate) {
    return {};
  }
  Estimate estimate{.cost = {.viable = true, .latency_us = 8, .bytes_per_us = 200e3F}};
  const std::string way =
      on_device(ends.local) && on_device(ends.remote) ? over(facts) : std::string();
  if (facts.same_process) {
    estimate.choice = {
        OH_PATH_LOCAL, Method::kDirect,
        "one copy by our engine, by plain addresses" + plain_only(facts, ends.remote) + way};
    return estimate;
  }
  if (ends.remote != MemoryKind::kDevice || !facts.why_no_peer_access.empty()) return {};
  estimate.choice = {OH_PATH_CUDA_IPC, Method::kDirect,
                     "one copy by our engine, the region being mapped" + way};
  if (!on_device(ends.local)) return estimate;
  estimate.small_max = facts.worker_max;
  estimate.small = or_by_worker(ends.local, ends.remote, estimate.choice);
  return estimate;
}

// An import stays mapped for our device while we hold it. Memory of this process may have been
// freed; of other devices our kernels reach what cudaMalloc allocates.
bool kernels_reach(cuda::Gpu& gpu, const RemoteTarget& target) {
  if (target.imported) return true;
  const auto* base = reinterpret_cast<const void*>(target.base);
  Result<MemoryFacts> facts = classify(gpu.driver(), base, target.length);
  if (!facts.ok() || facts->placement != Placement::kDevice) return false;
  Result<std::shared_ptr<const GpuExport>> there =
      GpuExports::instance().find(gpu.driver(), base, target.length);
  if (!there.ok()) return false;
  bool plain = (*there)->record.chunks.front().kind == ChunkKind::kCudaIpc;
  return facts->device == gpu.facts().ordinal || (plain && gpu.reach(facts->device));
}

bool EnginePath::admits_kernels(const RemoteTarget& target, LocalBuffer& local,
                                const Movement& movement) const {
  cuda::Gpu& gpu = link_.device->gpu();
  const bool batch = movement.blocks.size() > 1 && gpu.kernels().batch();
  const bool small =
      link_.device->worker() && target.imported && movement.bytes <= Worker::kLongest;
  if (!local.near || !target.on_device || !(batch || small)) return false;
  // This queries every piece of the memory. The export is kept, and messages need it, too.
  if (!find_export(gpu, &local).ok()) return false;
  return local.exported->for_kernels && kernels_reach(gpu, target);
}

Result<oh_path> EnginePath::copy(const RemoteTarget& target, const ImportedBlock* import,
                                 LocalBuffer& local, const Movement& movement) {
  const oh_path path = link_.path == OH_PATH_LOCAL ? OH_PATH_LOCAL : OH_PATH_CUDA_IPC;
  const bool for_kernels = admits_kernels(target, local, movement);
  OH_ASSIGN_OR_RETURN(CopyTicket opened, CopyTicket::open(link_.device->gpu()));
  Copies copies(*link_.device, std::move(opened), for_kernels);
  CopyTicket& ticket = copies.ticket();
  if (for_kernels && movement.plan) {
    BatchPlan::Post post(*movement.plan);
    if (post.valid()) {
      OH_RETURN_IF_ERROR(ticket.end(post.enqueue(ticket)));
      return path;
    }
  }
  // Within the process the worker is not faster than the engine.
  bool small = import && for_kernels && movement.blocks.size() == 1 &&
               movement.blocks.front().size <= Worker::kLongest;
  Worker* worker = small ? link_.device->worker() : nullptr;
  Status status;
  bool by_worker = false;
  for (const Block& block : movement.blocks) {
    uint8_t* remote = place_of(target, import, block);
    bool last = &block == &movement.blocks.back();
    status = remote ? Status() : outside();
    if (!status.ok()) break;
    uint8_t* to = movement.put ? remote : block.local;
    const uint8_t* from = movement.put ? block.local : remote;
    by_worker =
        worker && worker->copy({reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from),
                                block.size, ticket.word(), ticket.next_value()});
    if (by_worker) break;
    status = copies.add(to, from, block.size, last);
    if (!status.ok()) break;
    if (worker) worker->call();
  }
  OH_RETURN_IF_ERROR(ticket.end(status));
  return by_worker ? OH_PATH_WORKER : path;
}

std::unique_ptr<BatchPlan> EnginePath::plan(const RemoteTarget& target, const ImportedBlock* import,
                                            LocalBuffer& local, const Movement& movement) {
  if (movement.blocks.size() < 2 || !link_.device->gpu().kernels().batch() ||
      !admits_kernels(target, local, movement)) {
    return nullptr;
  }
  std::vector<kernels::BatchBlock> blocks;
  blocks.reserve(movement.blocks.size());
  for (const Block& block : movement.blocks) {
    const uint8_t* place = place_of(target, import, block);
    if (!place) return nullptr;
    auto there = reinterpret_cast<uint64_t>(place);
    auto here = reinterpret_cast<uint64_t>(block.local);
    blocks.push_back({movement.put ? there : here, movement.put ? here : there, block.size});
  }
  Result<std::unique_ptr<BatchPlan>> made =
      BatchPlan::create(link_.device->shared_gpu(), std::move(blocks));
  if (made.ok()) return std::move(*made);
  OH_LOG(kWarn, "a prepared batch of %llu blocks is divided anew at each post, which is slower: %s",
         static_cast<unsigned long long>(movement.count), made.status().text().c_str());
  return nullptr;
}

}  // namespace oh
