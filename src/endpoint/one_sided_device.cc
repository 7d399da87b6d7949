// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations that touch device memory: the caller's thread sets the engine to work, one
// copy a block, and waits for the word behind the last one.
#include <sched.h>

#include "base/clock.h"
#include "endpoint/one_sided.h"

namespace oh {
namespace {

// A stream and a done word for the time of one operation.
class Lease {
 public:
  explicit Lease(DeviceLink& device) : device_(device) {}
  ~Lease() {
    if (stream_) device_.give_stream(stream_);
    if (word_.host) device_.gpu().give_word(word_);
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Status take() {
    OH_ASSIGN_OR_RETURN(stream_, device_.take_stream());
    OH_ASSIGN_OR_RETURN(word_, device_.gpu().take_word());
    value_ = word_.host->load(std::memory_order_relaxed) + 1;
    return {};
  }
  // Enqueues a copy; the last one of the operation writes the word.
  Status copy(void* to, const void* from, uint64_t size, bool last) {
    return device_.enqueue(stream_, {to, from, size, nullptr, last ? word_.device : 0, value_});
  }
  // Until the device has written the word. What was enqueued waits for nothing, so this ends.
  Status wait() {
    int64_t looked = now_ns();
    // acquire: the device's bytes are in place.
    while (word_.host->load(std::memory_order_acquire) != value_) {
      cpu_relax();
      if (now_ns() - looked < kAskForErrors) continue;
      // A context that is lost writes no word; any other error is of the question.
      (void)device_.gpu().is_idle(stream_).ok();
      if (device_.gpu().is_lost()) return device_.gpu().loss();
      looked = now_ns();
    }
    return {};
  }
  // After a failure to enqueue.
  void quiesce() {
    if (stream_) device_.quiesce(stream_);
  }

 private:
  DeviceLink& device_;
  cuda::Stream stream_ = nullptr;
  cuda::DoneWord word_;
  uint64_t value_ = 0;
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

Status OneSided::copy_by_engine(bool put, const RemoteTarget& target, const ImportedBlock* import,
                                std::span<const Block> blocks) {
  Lease lease(*pair_.device);
  OH_RETURN_IF_ERROR(lease.take());
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
