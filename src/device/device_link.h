// SPDX-License-Identifier: Apache-2.0
//
// DeviceLink: what a peer of an endpoint on a GPU has for device memory: the GPU, the segment
// as the GPU sees it, and streams of its own. A copy ends with a word that the device writes behind
// it, so a waiter polls memory and makes no driver call.
//
// Threading: any thread; calls that reach the driver are made without the link's lock.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "device/batches.h"
#include "device/stream_gate.h"
#include "device/worker.h"
#include "memory/gpu_memory.h"
#include "platform/cuda/gpu.h"
#include "transport/shm/segment.h"

namespace oh {

// One copy by the engine; afterwards the device writes `value` into `word`.
struct EngineCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t size = 0;
  cuda::Event after = nullptr;  // null: at once
  cuda::DevicePtr word = 0;     // as the device sees it; 0: nothing is written
  uint64_t value = 0;
};

class DeviceLink {
 public:
  static Result<std::unique_ptr<DeviceLink>> create(std::shared_ptr<cuda::Gpu> gpu,
                                                    Segment& segment);
  // Waits until the device writes no more into the segment; what does not end within a second keeps
  // its memory for ever.
  ~DeviceLink();

  cuda::Gpu& gpu() { return *gpu_; }
  const std::shared_ptr<cuda::Gpu>& shared_gpu() const { return gpu_; }

  // A stream that only its holder uses, until it is given back. Streams run in order, so one may be
  // given back before its work is done.
  Result<cuda::Stream> take_stream();
  void give_stream(cuda::Stream stream);
  Status enqueue(cuda::Stream stream, const EngineCopy& copy);
  // What a stream of the application gets from now on waits until the word, of the segment, is at
  // least `value`. The segment stays until it has passed, whatever becomes of the link.
  Status enqueue_wait(cuda::Stream stream, cuda::DevicePtr word, uint64_t value);
  // After a failure to enqueue: until what was enqueued before it on the stream has ended, or the
  // context is lost. For streams that wait for nothing of the application's.
  void quiesce(cuda::Stream stream);
  // Held until no stream can touch it any more.
  void keep(std::shared_ptr<void> memory);
  // The device's address of a word in the segment, or in its pipes.
  cuda::DevicePtr address_of(const std::atomic<uint64_t>& word);
  // The stream that fills (or drains) the pipes, for all transfers, as no line waits for anything
  // of the application's. One, so that a span is drained while the next is copied: on two
  // streams they share the link and end together. Makes the pipes known to the device, once.
  Result<cuda::Stream> line_stream(bool fills);
  // The GPU's worker; null: small copies go by the engine, too.
  Worker* worker() const { return worker_.get(); }
  void use(std::shared_ptr<Worker> worker) { worker_ = std::move(worker); }
  // A buffer for a batch, empty; null if there can be none.
  std::unique_ptr<BatchBuffer> take_batch_buffer();
  // Not before the device has read it.
  void give_batch_buffer(std::unique_ptr<BatchBuffer> buffer);
  // The slab for what the other side stages to us: made on first use, null if it cannot be.
  std::shared_ptr<const GpuExport> slab();
  // False once making it has failed.
  bool may_have_slab() const { return !no_slab_.load(std::memory_order_relaxed); }
  bool has_slab() const { return slab_ != 0; }
  uint8_t* slab_part(uint64_t line) const {
    return reinterpret_cast<uint8_t*>(slab_) + line * kSlabChunk;
  }

 private:
  DeviceLink(std::shared_ptr<cuda::Gpu> gpu, Segment& segment)
      : gpu_(std::move(gpu)), segment_(segment) {}

  std::shared_ptr<cuda::Gpu> gpu_;
  Segment& segment_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<PinnedSegment> pinned_;
  // Held while the driver makes something; never taken with the link's lock held.
  Mutex setup_mutex_;
  std::shared_ptr<cuda::Pinned> pinned_pipes_ OH_GUARDED_BY(setup_mutex_);
  cuda::Stream line_streams_[2] OH_GUARDED_BY(setup_mutex_) = {};
  Mutex mutex_;
  std::vector<std::shared_ptr<void>> kept_ OH_GUARDED_BY(mutex_);
  std::vector<cuda::Stream> idle_ OH_GUARDED_BY(mutex_);
  std::vector<cuda::Stream> all_ OH_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<BatchBuffer>> batch_buffers_ OH_GUARDED_BY(mutex_);  // idle
  cuda::DevicePtr slab_ = 0;  // written once, before it is published
  std::shared_ptr<const GpuExport> slab_export_ OH_GUARDED_BY(setup_mutex_);
  std::atomic<bool> no_slab_{false};  // written under setup_mutex_
  std::atomic<bool> no_batch_buffers_{false};
};

}  // namespace oh
