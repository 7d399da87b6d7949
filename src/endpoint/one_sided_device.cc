// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations that touch device memory: the caller's thread sets the engine to work, or
// for many blocks a kernel, and waits for the word behind the last one.
#include <sched.h>

#include <algorithm>

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
  explicit Lease(DeviceLink& device) : device_(device) {}
  ~Lease() {
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) {
      if (!buffer) continue;
      buffer->forget_use();
      device_.give_batch_buffer(std::move(buffer));
    }
    if (stream_) device_.give_stream(stream_);
    if (word_.host) device_.gpu().give_word(word_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  // by_kernel: blocks between two devices, some of them for the kernel, if there is one.
  Status take(bool by_kernel) {
    OH_ASSIGN_OR_RETURN(stream_, device_.take_stream());
    OH_ASSIGN_OR_RETURN(word_, device_.gpu().take_word());
    value_ = word_.host->load(std::memory_order_relaxed);
    if (!by_kernel || !device_.gpu().batch_kernel()) return {};
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) buffer = device_.take_batch_buffer();
    by_kernel_ = buffers_[0] && buffers_[1];
    return {};
  }
  // Enqueues a copy, at once or with others; with the last one of the operation, all of them.
  Status copy(void* to, const void* from, uint64_t size, bool last) {
    if (!by_kernel_ || size > kLongestForKernel) {
      if (last) OH_RETURN_IF_ERROR(flush());
      return enqueue(to, from, size, last);
    }
    BatchBuffer& buffer = *buffers_[turn_];
    if (buffer.count() == 0) OH_RETURN_IF_ERROR(wait(buffer.in_use_until()));
    buffer.add({reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from), size});
    return last || buffer.count() == launch_at_ ? flush() : Status();
  }
  // Until the device has written the word of all that was enqueued.
  Status wait() { return wait(value_); }
  // After a failure to enqueue.
  void quiesce() {
    if (stream_) device_.quiesce(stream_);
  }

 private:
  Status enqueue(void* to, const void* from, uint64_t size, bool last) {
    return device_.enqueue(stream_,
                           {to, from, size, nullptr, last ? word_.device : 0, last ? ++value_ : 0});
  }
  // Launches the kernel for what has been collected.
  Status flush() {
    if (!by_kernel_ || buffers_[turn_]->count() == 0) return {};
    BatchBuffer& buffer = *buffers_[turn_];
    turn_ ^= 1;
    launch_at_ = std::min(launch_at_ * 4, BatchBuffer::kMostBlocks);
    return buffer.launch(stream_, word_.device, ++value_);
  }
  // What was enqueued waits for nothing, so this ends.
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
  cuda::Stream stream_ = nullptr;
  cuda::DoneWord word_;
  uint64_t value_ = 0;  // the last one that was enqueued
  bool by_kernel_ = false;
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

Status OneSided::copy_by_device(bool put, const RemoteTarget& target, bool local_on_device,
                                const ImportedBlock* import, std::span<const Block> blocks) {
  Lease lease(*pair_.device);
  // A kernel needs memory that is mapped for it on both sides.
  bool by_kernel = blocks.size() > 1 && local_on_device && target.on_device && import;
  OH_RETURN_IF_ERROR(lease.take(by_kernel));
  Status status;
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
    status = lease.copy(put ? remote : whole.local, put ? whole.local : remote, whole.size,
                        blocks.empty());
  }
  if (status.ok()) return lease.wait();
  // Those that were enqueued before still run: nobody is told that all is over before they are.
  lease.quiesce();
  return status;
}

}  // namespace oh
