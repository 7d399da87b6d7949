// SPDX-License-Identifier: Apache-2.0
#include "device/stream_gate.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace oh {
namespace {

bool is_over(const StreamGate& gate) {
  const uint64_t value = gate.word.host->load(std::memory_order_acquire);
  const uint64_t last = gate.last.load();
  if (value >= last) return true;
  // A lost device never writes the word. Until the gate is open, the request still uses it.
  return last != StreamGate::kNever && value >= StreamGate::kOpen && gate.gpu->is_lost();
}

}  // namespace

StreamGates& StreamGates::instance() {
  // Never destroyed: streams may wait when the process ends.
  static StreamGates* const gates = new StreamGates;
  return *gates;
}

Result<StreamGate*> StreamGates::take(const std::shared_ptr<cuda::Gpu>& gpu) {
  reap();
  auto gate = std::make_unique<StreamGate>();
  OH_ASSIGN_OR_RETURN(gate->word, gpu->take_word());
  gate->gpu = gpu;
  MutexLock lock(mutex_);
  gates_.push_back(std::move(gate));
  return gates_.back().get();
}

void StreamGates::give(StreamGate* gate) {
  gate->last.store(0);
  reap();
}

Status StreamGates::enqueue(StreamGate* gate, cuda::Stream stream) {
  const std::shared_ptr<cuda::Gpu> gpu = gate->gpu;
  const cuda::DevicePtr word = gate->word.device;
  Status status = gpu->wait_word(stream, word, StreamGate::kOpen);
  // After this store the gate may be destroyed.
  gate->last.store(status.ok() ? StreamGate::kPassed : StreamGate::kOpen);
  OH_RETURN_IF_ERROR(status);
  // If this fails, the word is leaked: the host never learns that the stream has passed.
  return gpu->write_word(stream, word, StreamGate::kPassed);
}

Status StreamGates::enqueue(const std::shared_ptr<cuda::Gpu>& gpu, cuda::Stream stream,
                            const SegmentWord& word) {
  OH_ASSIGN_OR_RETURN(StreamGate * gate, take(gpu));
  gate->segment = word.segment;
  const cuda::DevicePtr passed = gate->word.device;
  Status status = gpu->wait_word(stream, word.word, word.value);
  if (!status.ok()) {
    give(gate);
    return status;
  }
  // Opened, so that is_over() releases the gate if the device is lost.
  gate->open();
  gate->last.store(StreamGate::kPassed);
  // If this fails, the word is leaked and the segment is kept, as above.
  return gpu->write_word(stream, passed, StreamGate::kPassed);
}

void StreamGates::leave(std::shared_ptr<PinnedSegment> segment) {
  {
    MutexLock lock(mutex_);
    left_.push_back(std::move(segment));
  }
  reap();
  close_unused();
}

void StreamGates::close_unused() {
  std::vector<std::shared_ptr<PinnedSegment>> unused;
  MutexLock lock(mutex_);
  // Unregistering waits for blocked streams. The watcher, which calls this, unblocks the streams
  // whose peers are lost, so it must not wait for them here.
  if (!gates_.empty()) return;
  // A segment referenced only by left_ gets no new reference: links and gates hold their own.
  auto first = std::partition(left_.begin(), left_.end(),
                              [](const auto& segment) { return segment.use_count() > 1; });
  std::move(first, left_.end(), std::back_inserter(unused));
  left_.erase(first, left_.end());
}

void StreamGates::reap() {
  std::vector<std::unique_ptr<StreamGate>> over;
  {
    MutexLock lock(mutex_);
    auto first = std::partition(gates_.begin(), gates_.end(),
                                [](const auto& gate) { return !is_over(*gate); });
    std::move(first, gates_.end(), std::back_inserter(over));
    gates_.erase(first, gates_.end());
  }
  // Outside the lock: releasing the last reference to a Gpu calls the driver.
  for (const auto& gate : over) gate->gpu->give_word(gate->word);
}

}  // namespace oh
