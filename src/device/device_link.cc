// SPDX-License-Identifier: Apache-2.0
#include "device/device_link.h"

#include <sched.h>

#include "base/clock.h"
#include "base/log.h"

namespace oh {
namespace {
constexpr int64_t kPatience = kSecond;
}

Result<std::unique_ptr<DeviceLink>> DeviceLink::create(std::shared_ptr<cuda::Gpu> gpu,
                                                       Segment& segment) {
  std::unique_ptr<DeviceLink> link(new DeviceLink(std::move(gpu), segment));
  link->pinned_ = std::make_shared<PinnedSegment>();
  link->pinned_->memory = segment.keep();
  OH_ASSIGN_OR_RETURN(link->pinned_->pinned,
                      cuda::Pinned::of(link->gpu_, &segment.layout(), kSegmentSize));
  return link;
}

DeviceLink::~DeviceLink() {
  MutexLock setup(setup_mutex_);
  MutexLock lock(mutex_);
  bool all_idle = true;
  Deadline deadline = Deadline::after(kPatience);
  for (cuda::Stream stream : all_) {
    bool idle = gpu_->wait_idle(stream, deadline);
    if (idle) gpu_->give_stream(stream);
    all_idle = all_idle && idle;
  }
  // The worker has its own stream, and may still copy from or to the link's memory.
  while (worker_ && !worker_->is_idle() && !deadline.passed()) sched_yield();
  all_idle = all_idle && (!worker_ || worker_->is_idle());
  if (!all_idle) {
    OH_LOG(
        kWarn,
        "a copy on %s still waits for earlier work of the application after its link was closed: "
        "%llu bytes of host memory are kept for it",
        gpu_->facts().name.c_str(), static_cast<unsigned long long>(kSegmentSize + kPipesSize));
    new std::shared_ptr<PinnedSegment>(pinned_);
    new std::shared_ptr<cuda::Pinned>(pinned_pipes_);
    new std::vector<std::shared_ptr<void>>(kept_);
    // Freeing them would wait for the device.
    new std::vector<std::unique_ptr<BatchBuffer>>(std::move(batch_buffers_));
  }
  StreamGates::instance().leave(std::move(pinned_));
  // The next sweep of exports notifies the peer.
  if (slab_export_) slab_export_->regions.fetch_sub(1, std::memory_order_release);
  if (slab_ && all_idle) gpu_->free(slab_);
}

std::shared_ptr<const GpuExport> DeviceLink::slab() {
  MutexLock lock(setup_mutex_);
  if (slab_export_ || !may_have_slab()) return slab_export_;
  Result<cuda::DevicePtr> memory = gpu_->allocate(kSlabSize);
  Status status = memory.status();
  if (memory.ok()) {
    Result<std::shared_ptr<const GpuExport>> exported =
        GpuExports::instance().find(gpu_->driver(), reinterpret_cast<void*>(*memory), kSlabSize);
    status = exported.status();
    if (exported.ok() && (*exported)->mappable()) {
      slab_ = *memory;
      slab_export_ = std::move(*exported);
      slab_export_->regions.fetch_add(1, std::memory_order_relaxed);
      return slab_export_;
    }
    gpu_->free(*memory);
  }
  OH_LOG(kWarn, "no slab on %s, so memory that cannot be mapped goes through the host: %s",
         gpu_->facts().name.c_str(), status.ok() ? "it cannot be mapped" : status.text().c_str());
  no_slab_.store(true, std::memory_order_relaxed);
  return nullptr;
}

Result<cuda::Stream> DeviceLink::take_stream() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      cuda::Stream stream = idle_.back();
      idle_.pop_back();
      return stream;
    }
  }
  OH_ASSIGN_OR_RETURN(cuda::Stream stream, gpu_->take_stream());
  MutexLock lock(mutex_);
  all_.push_back(stream);
  return stream;
}

void DeviceLink::give_stream(cuda::Stream stream) {
  MutexLock lock(mutex_);
  idle_.push_back(stream);
}

std::unique_ptr<BatchBuffer> DeviceLink::take_batch_buffer() {
  {
    MutexLock lock(mutex_);
    if (!batch_buffers_.empty()) {
      std::unique_ptr<BatchBuffer> buffer = std::move(batch_buffers_.back());
      batch_buffers_.pop_back();
      return buffer;
    }
  }
  if (no_batch_buffers_.load(std::memory_order_relaxed)) return nullptr;
  Result<std::unique_ptr<BatchBuffer>> made = BatchBuffer::create(gpu_);
  if (made.ok()) return std::move(*made);
  if (!no_batch_buffers_.exchange(true)) {
    OH_LOG(kWarn, "batches between devices go block by block, which is slower: no buffer on %s: %s",
           gpu_->facts().name.c_str(), made.status().text().c_str());
  }
  return nullptr;
}

void DeviceLink::give_batch_buffer(std::unique_ptr<BatchBuffer> buffer) {
  buffer->clear();
  MutexLock lock(mutex_);
  batch_buffers_.push_back(std::move(buffer));
}

Status DeviceLink::enqueue(cuda::Stream stream, const EngineCopy& copy) {
  return gpu_->copy(stream, reinterpret_cast<cuda::DevicePtr>(copy.to),
                    reinterpret_cast<cuda::DevicePtr>(copy.from), copy.size, copy.after, copy.word,
                    copy.value);
}

Status DeviceLink::enqueue_wait(cuda::Stream stream, cuda::DevicePtr word, uint64_t value) {
  return StreamGates::instance().enqueue(gpu_, stream, {word, value, pinned_});
}

void DeviceLink::quiesce(cuda::Stream stream) { (void)gpu_->wait_idle(stream, Deadline::never()); }

cuda::DevicePtr DeviceLink::address_of(const std::atomic<uint64_t>& word) {
  auto place = reinterpret_cast<uint64_t>(&word);
  auto begin = reinterpret_cast<uint64_t>(&segment_.layout());
  if (place >= begin && place < begin + kSegmentSize) return pinned_->pinned->device(&word);
  MutexLock lock(setup_mutex_);
  return pinned_pipes_->device(&word);
}

Result<cuda::Stream> DeviceLink::line_stream(bool fills) {
  MutexLock setup(setup_mutex_);
  if (!pinned_pipes_) {
    OH_ASSIGN_OR_RETURN(pinned_pipes_, cuda::Pinned::of(gpu_, segment_.pipes(), kPipesSize));
  }
  cuda::Stream& stream = line_streams_[fills ? 0 : 1];
  if (!stream) {
    OH_ASSIGN_OR_RETURN(stream, gpu_->take_stream());
    MutexLock lock(mutex_);
    all_.push_back(stream);
  }
  return stream;
}

void DeviceLink::keep(std::shared_ptr<void> memory) {
  MutexLock lock(mutex_);
  kept_.push_back(std::move(memory));
}

}  // namespace oh
