// SPDX-License-Identifier: Apache-2.0
//
// StreamGates: streams that wait by stream memory operations of the driver; no kernel spins. For
// the end of a request, a gate is a done word: the stream waits for it, and the thread that ends
// the request writes it:
//
//   take ─▶ enqueue ─▶ open ─▶ the stream has passed ─▶ reused
//      └──────────▶ give
//
// For a word in a segment, which a device writes, the gate only records when the stream has passed:
//
//   enqueue ─▶ the stream has passed ─▶ reused
//
// Gates outlive their endpoint: a slow stream may reach a gate after the endpoint is closed. So the
// process has one set of gates, and a gate keeps its Gpu and the segment.
//
// Threading: any thread. take(), enqueue(), reap() and close_unused() call the driver: not under a
// link's lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "platform/cuda/gpu.h"

namespace oh {

// A segment registered with the driver. Unregistering it waits for kernels (M5), and possibly for
// blocked streams: not on a data path.
struct PinnedSegment {
  std::shared_ptr<void> memory;
  std::shared_ptr<cuda::Pinned> pinned;  // destroyed first
};

// A word of a segment that a stream waits for.
struct SegmentWord {
  cuda::DevicePtr word = 0;
  uint64_t value = 0;  // the least value that lets the stream pass
  std::shared_ptr<PinnedSegment> segment;
};

struct StreamGate {
  static constexpr uint64_t kOpen = 1;
  static constexpr uint64_t kPassed = 2;  // the stream writes it after its wait
  static constexpr uint64_t kNever = UINT64_MAX;

  std::shared_ptr<cuda::Gpu> gpu;
  cuda::DoneWord word;
  // Once the word has this value no stream and no request accesses the gate any more. seq_cst: the
  // enqueueing thread writes it after its last access to the gate; reap() reads it.
  std::atomic<uint64_t> last{kNever};
  StreamGate* next = nullptr;  // the next gate of the same request
  // Holds the word that the stream waits for. Never the last reference: see leave().
  std::shared_ptr<PinnedSegment> segment;

  // Lets the stream pass. The gate may be gone when it returns.
  void open() { word.host->store(kOpen, std::memory_order_release); }
  // Opens all gates of a request.
  static void open_all(StreamGate* gate) {
    while (gate) std::exchange(gate, gate->next)->open();
  }
};

class StreamGates {
 public:
  static StreamGates& instance();

  // Returns a closed gate, which no request and no stream uses yet.
  Result<StreamGate*> take(const std::shared_ptr<cuda::Gpu>& gpu);
  // Takes back a gate that no stream and no request uses.
  void give(StreamGate* gate);
  // Makes later work of the stream wait for the gate. reap() takes the gate back once the stream
  // has passed it. The request must open the gate even after an error.
  Status enqueue(StreamGate* gate, cuda::Stream stream);
  // Makes later work of the stream wait for a word that a device writes. After an error the stream
  // may still wait for it.
  Status enqueue(const std::shared_ptr<cuda::Gpu>& gpu, cuda::Stream stream,
                 const SegmentWord& word);
  // Takes back the gates that their streams have passed.
  void reap();
  // Call when the segment's link ends. Unregisters the segment now, or once no stream waits for any
  // gate.
  void leave(std::shared_ptr<PinnedSegment> segment);
  // Unregisters the segments of ended links, if no stream waits for a gate. Not on a data path.
  void close_unused();

 private:
  StreamGates() = default;

  Mutex mutex_;
  std::vector<std::shared_ptr<PinnedSegment>> left_ OH_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StreamGate>> gates_ OH_GUARDED_BY(mutex_);  // gates in use
};

}  // namespace oh
