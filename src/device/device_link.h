// SPDX-License-Identifier: Apache-2.0
//
// DeviceLink: what a link needs for device memory when its endpoint is on a GPU: the GPU, the
// segment pinned for it, and streams. The device writes a word after each copy, so a waiter polls
// memory and makes no driver call.
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

// One copy by the copy engine; afterwards the device writes `value` to `word`.
struct EngineCopy {
  void* to = nullptr;
  const void* from = nullptr;
  uint64_t size = 0;
  cuda::Event after = nullptr;  // event to wait for; null: none
  cuda::DevicePtr word = 0;     // device address; 0: nothing is written
  uint64_t value = 0;
};

class DeviceLink {
 public:
  static Result<std::unique_ptr<DeviceLink>> create(std::shared_ptr<cuda::Gpu> gpu,
                                                    Segment& segment);
  // Waits up to 1 s until the device accesses no memory of the link. If work remains, leaks that
  // memory.
  ~DeviceLink();

  cuda::Gpu& gpu() { return *gpu_; }
  const std::shared_ptr<cuda::Gpu>& shared_gpu() const { return gpu_; }

  // A stream for exclusive use until it is given back. Streams run in order, so one may be given
  // back before its work is done.
  Result<cuda::Stream> take_stream();
  void give_stream(cuda::Stream stream);
  Status enqueue(cuda::Stream stream, const EngineCopy& copy);
  // Makes later work of an application's stream wait until the word, in the segment, is at least
  // `value`. The segment is kept until the stream has passed, even if the link ends before.
  Status enqueue_wait(cuda::Stream stream, cuda::DevicePtr word, uint64_t value);
  // After a failed enqueue: waits until earlier work on the stream has ended, or the context is
  // lost. Only for streams that do not wait for work of the application.
  void quiesce(cuda::Stream stream);
  // Holds `memory` until no stream can access it any more.
  void keep(std::shared_ptr<void> memory);
  // The device address of a word in the segment or its pipes.
  cuda::DevicePtr address_of(const std::atomic<uint64_t>& word);
  // The stream that fills (or drains) the pipes, for all transfers: no pipe copy waits for work of
  // the application. A single stream, so that a span is drained while the next one is copied; on
  // two streams both would share the bandwidth and end together. Pins the pipes on first use.
  Result<cuda::Stream> line_stream(bool fills);
  // The GPU's worker; null: the copy engine does small copies, too.
  Worker* worker() const { return worker_.get(); }
  void use(std::shared_ptr<Worker> worker) { worker_ = std::move(worker); }
  // An empty buffer for a batch; null: none can be allocated.
  std::unique_ptr<BatchBuffer> take_batch_buffer();
  // Call only after the device has read the buffer.
  void give_batch_buffer(std::unique_ptr<BatchBuffer> buffer);
  // The slab into which the peer stages, allocated on first use; null: it cannot be allocated or
  // mapped.
  std::shared_ptr<const GpuExport> slab();
  // False: allocating the slab has failed.
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
  // Held during driver allocations; never taken with the link's lock held.
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
