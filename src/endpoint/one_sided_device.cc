// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations that touch device memory: the caller's thread sets the engine to work, or
// for many blocks a kernel, and waits for the word behind the last one.
#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "endpoint/batches.h"
#include "endpoint/one_sided.h"

namespace oh {
namespace {

// Longer ones go to the engine, which then needs nothing of the device's processors.
constexpr uint64_t kLongestForKernel = 2 * 1024 * 1024;

// A stream, a done word and buffers for the time of one operation.
class Lease {
 public:
  // by_kernel: there is one, and it may touch the memory of both sides.
  Lease(DeviceLink& device, bool by_kernel) : device_(device), by_kernel_(by_kernel) {}
  ~Lease() {
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) {
      if (buffer) device_.give_batch_buffer(std::move(buffer));
    }
    if (stream_) device_.give_stream(stream_);
    if (word_.host) device_.gpu().give_word(word_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Status take() {
    OH_ASSIGN_OR_RETURN(stream_, device_.take_stream());
    OH_ASSIGN_OR_RETURN(word_, device_.gpu().take_word());
    value_ = word_.host->load(std::memory_order_relaxed);
    return {};
  }
  // The only copy of the operation, if the GPU's worker takes it.
  bool copy_by_worker(void* to, const void* from, uint64_t size) {
    if (!for_worker(size)) return false;
    bool taken = device_.worker()->copy({reinterpret_cast<uint64_t>(to),
                                         reinterpret_cast<uint64_t>(from), size, word_.device,
                                         value_ + 1});
    if (taken) ++value_;
    return taken;
  }
  // It went by the engine.
  void call_worker(uint64_t size) {
    if (for_worker(size)) device_.worker()->call();
  }
  // Enqueues a copy, at once or with others; with the last one of the operation, all of them.
  Status copy(void* to, const void* from, uint64_t size, bool last) {
    bool alone = last && !collecting();
    if (alone || size > kLongestForKernel || !device_.gpu().batch_kernel() || !take_buffer()) {
      if (last) OH_RETURN_IF_ERROR(flush());
      return enqueue(to, from, size, last);
    }
    BatchBuffer& buffer = *buffers_[turn_];
    if (buffer.count() == 0) OH_RETURN_IF_ERROR(wait(buffer.in_use_until()));
    buffer.add({reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size});
    return last || buffer.count() >= launch_at_ ? flush() : Status();
  }
  // Until the device has written the word of all that was enqueued.
  Status wait() { return wait(value_); }
  // After a failure to enqueue: until nothing of what was enqueued before it is under way.
  void quiesce() {
    while (stream_ && !device_.gpu().is_lost()) {
      Result<bool> idle = device_.gpu().is_idle(stream_);
      if (idle.ok() && *idle) return;
      sched_yield();
    }
  }

 private:
  bool for_worker(uint64_t size) const {
    return device_.worker() && by_kernel_ && size <= Worker::kLongest;
  }
  bool collecting() const { return buffers_[turn_] && buffers_[turn_]->count() > 0; }
  // Whether there is a buffer to collect in. Without a second one the first takes all turns.
  bool take_buffer() {
    if (!by_kernel_) return false;
    if (!buffers_[turn_]) buffers_[turn_] = device_.take_batch_buffer();
    if (!buffers_[turn_]) turn_ ^= 1;
    by_kernel_ = buffers_[turn_] != nullptr;
    return by_kernel_;
  }
  Status enqueue(void* to, const void* from, uint64_t size, bool last) {
    return device_.enqueue(stream_,
                           {to, from, size, nullptr, last ? word_.device : 0, last ? ++value_ : 0});
  }
  // Launches the kernel for what has been collected.
  Status flush() {
    if (!collecting()) return {};
    BatchBuffer& buffer = *buffers_[turn_];
    turn_ ^= 1;
    launch_at_ = std::min(launch_at_ * 4, BatchBuffer::kMostBlocks);
    return buffer.launch(stream_, word_.device, ++value_);
  }
  // What was enqueued waits for nothing but room on the device, so this ends.
  Status wait(uint64_t value) {
    int64_t looked = now_ns();
    // acquire: the device's bytes are in place.
    while (word_.host->load(std::memory_order_acquire) < value) {
      cpu_relax();
      if (now_ns() - looked < kAskForErrors) continue;
      // A context that is lost writes no word; any other error is of the question.
      (void)device_.gpu().is_idle(stream_).ok();
      if (device_.gpu().is_lost()) return device_.gpu().loss();
      looked = now_ns();
    }
    return {};
  }

  DeviceLink& device_;
  bool by_kernel_;
  cuda::Stream stream_ = nullptr;
  cuda::DoneWord word_;
  uint64_t value_ = 0;                       // the last one that was enqueued
  std::unique_ptr<BatchBuffer> buffers_[2];  // one is filled while the device reads the other
  int turn_ = 0;
  // Blocks: the first kernel soon, so that the device works while the rest is prepared.
  size_t launch_at_ = 1024;
};

}  // namespace

Status OneSided::wait_for_producer(LocalMemory& local, Deadline deadline) {
  while (local.after.pending()) {
    OH_ASSIGN_OR_RETURN(bool complete, local.after.is_complete());
    if (complete) {
      local.after.reset();
      return {};
    }
    if (deadline.passed()) {
      return error(
          OH_ERR_TIMEOUT,
          "the deadline passed: earlier work on the memory that is copied to or from %s has "
          "not ended",
          pair_.name.c_str());
    }
    sched_yield();
  }
  return {};
}

Status OneSided::copy_by_device(bool put, const RemoteTarget& target, LocalMemory& local,
                                const ImportedBlock* import, std::span<const Block> blocks) {
  Lease lease(*pair_.device, local.for_kernels);
  OH_RETURN_IF_ERROR(lease.take());
  Status status;
  bool first = true;
  while (!blocks.empty() && status.ok()) {
    Block whole = blocks.front();
    blocks = blocks.subspan(1);
    // Neighbours on both sides become one copy.
    while (!blocks.empty() && blocks.front().local == whole.local + whole.size &&
           blocks.front().remote_offset == whole.remote_offset + whole.size) {
      whole.size += blocks.front().size;
      blocks = blocks.subspan(1);
    }
    uint64_t address = target.base + whole.remote_offset;
    uint8_t* remote =
        import ? import->translate(address, whole.size) : reinterpret_cast<uint8_t*>(address);
    if (!remote) {
      status = error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
      break;
    }
    uint8_t* to = put ? remote : whole.local;
    uint8_t* from = put ? whole.local : remote;
    bool alone = std::exchange(first, false) && blocks.empty();
    local.by_worker = alone && lease.copy_by_worker(to, from, whole.size);
    if (local.by_worker) break;
    status = lease.copy(to, from, whole.size, blocks.empty());
    if (alone) lease.call_worker(whole.size);
  }
  if (status.ok()) return lease.wait();
  // Those that were enqueued before still run: nobody is told that all is over before they are.
  lease.quiesce();
  return status;
}

}  // namespace oh
