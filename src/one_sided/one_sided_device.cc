// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations that touch device memory: the caller's thread sets the engine to work, or
// for many blocks a kernel, and waits for the word behind the last one.
#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "device/batch_plan.h"
#include "device/batches.h"
#include "one_sided/one_sided.h"

namespace oh {
namespace {

// The copies of one operation: block by block, or collected for the kernel.
class Copies {
 public:
  // by_kernel: there is one, and it may touch the memory of both sides.
  Copies(DeviceLink& device, bool by_kernel)
      : device_(device), lease_(device), by_kernel_(by_kernel) {}
  ~Copies() {
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) {
      if (buffer) device_.give_batch_buffer(std::move(buffer));
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  DeviceLease& lease() { return lease_; }

  // Enqueues a copy, at once or with others; with the last one of the operation, all of them.
  Status add(void* to, const void* from, uint64_t size, bool last) {
    bool alone = last && !collecting();
    if (alone || size > kLongestForKernel || !device_.gpu().batch_kernel() || !take_buffer()) {
      if (last) OH_RETURN_IF_ERROR(flush());
      return lease_.copy(to, from, size, last);
    }
    BatchBuffer& buffer = *buffers_[turn_];
    if (buffer.count() == 0) OH_RETURN_IF_ERROR(lease_.wait(buffer.in_use_until()));
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
    return buffer.launch(lease_.stream(), lease_.word(), lease_.next_value());
  }

  DeviceLink& device_;
  DeviceLease lease_;
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

// Waits for what was enqueued. After a failure, those that were enqueued before still run: nobody
// is told that all is over before they are.
Status end_of(DeviceLease& lease, const Status& enqueued) {
  if (enqueued.ok()) return lease.wait();
  lease.quiesce();
  return enqueued;
}

}  // namespace

Status OneSided::wait_for_producer(LocalMemory& local, Deadline deadline) {
  while (local.after.pending()) {
    OH_ASSIGN_OR_RETURN(bool complete, local.after.is_complete());
    if (complete) {
      local.after.reset();
      return {};
    }
    if (deadline.passed()) {
      return timed_out(deadline.length(),
                       "earlier work on the memory that is copied to or from %s (after=) has not "
                       "ended; if it is only long, give a longer timeout",
                       pair_.name.c_str());
    }
    sched_yield();
  }
  return {};
}

Status OneSided::copy_by_device(const RemoteTarget& target, const ImportedBlock* import,
                                LocalMemory& local, const Movement& movement) {
  Copies copies(*pair_.device, local.for_kernels);
  OH_RETURN_IF_ERROR(copies.lease().take());
  if (local.for_kernels && movement.plan) {
    BatchPlan::Post post(*movement.plan);
    if (post.valid()) return end_of(copies.lease(), post.enqueue(copies.lease()));
  }
  // Within the process the engine is as near.
  bool small = import && local.for_kernels && movement.blocks.size() == 1 &&
               movement.blocks.front().size <= Worker::kLongest;
  Worker* worker = small ? pair_.device->worker() : nullptr;
  Status status;
  for (const Block& block : movement.blocks) {
    uint8_t* remote = place_of(target, import, block);
    bool last = &block == &movement.blocks.back();
    if (!remote) return end_of(copies.lease(), outside());
    uint8_t* to = movement.put ? remote : block.local;
    const uint8_t* from = movement.put ? block.local : remote;
    local.by_worker = worker && copies.lease().copy_by(*worker, to, from, block.size);
    if (local.by_worker) break;
    status = copies.add(to, from, block.size, last);
    if (!status.ok()) break;
    if (worker) worker->call();
  }
  return end_of(copies.lease(), status);
}

std::unique_ptr<BatchPlan> OneSided::plan(const RemoteTarget& target, const Movement& movement) {
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  if (target.imported && !import) return nullptr;
  std::vector<kernels::BatchBlock> blocks;
  blocks.reserve(movement.blocks.size());
  for (const Block& block : movement.blocks) {
    const uint8_t* place = place_of(target, import.get(), block);
    if (!place) return nullptr;
    auto remote = reinterpret_cast<uint64_t>(place);
    auto local = reinterpret_cast<uint64_t>(block.local);
    blocks.push_back({movement.put ? remote : local, movement.put ? local : remote, block.size});
  }
  Result<std::unique_ptr<BatchPlan>> made = BatchPlan::create(*pair_.device, std::move(blocks));
  if (made.ok()) return std::move(*made);
  OH_LOG(kWarn, "a prepared batch of %llu blocks is divided anew at each post, which is slower: %s",
         static_cast<unsigned long long>(movement.count), made.status().text().c_str());
  return nullptr;
}

}  // namespace oh
