// SPDX-License-Identifier: Apache-2.0
//
// StreamGates: streams that wait, by the driver; no kernel spins. For the end of a request a gate
// is a done word that the stream waits for, and that the thread which ends the request writes:
//
//   take ─▶ enqueue ─▶ open ─▶ the stream has passed ─▶ taken again
//      └──────────▶ give
//
// For a word of a segment, which a device writes, the gate tells only when the stream has passed:
//
//   enqueue ─▶ the stream has passed ─▶ taken again
//
// Gates outlive their endpoint: a stream that is late reaches them after its close. So there is one
// set of them for the process, and a gate keeps its Gpu, and the segment.
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

// A segment that the driver knows. Unregistering it waits for kernels (M5), and maybe for streams
// that stand still: not on a data path.
struct PinnedSegment {
  std::shared_ptr<void> memory;
  std::shared_ptr<cuda::Pinned> pinned;  // goes first
};

// A word of a segment that a stream waits for.
struct SegmentWord {
  cuda::DevicePtr word = 0;
  uint64_t value = 0;  // the least that lets it pass
  std::shared_ptr<PinnedSegment> segment;
};

struct StreamGate {
  static constexpr uint64_t kOpen = 1;
  static constexpr uint64_t kPassed = 2;  // the stream writes it behind its wait
  static constexpr uint64_t kNever = UINT64_MAX;

  std::shared_ptr<cuda::Gpu> gpu;
  cuda::DoneWord word;
  // Once the word has this value no stream and no request accesses the gate any more. seq_cst:
  // written by the thread that enqueues, behind its last look at the gate; read by reap().
  std::atomic<uint64_t> last{kNever};
  StreamGate* next = nullptr;  // of the same request
  // What the stream waits for instead. Never the last to let go: see leave().
  std::shared_ptr<PinnedSegment> segment;

  // Lets the stream pass. The gate may be gone when it returns.
  void open() { word.host->store(kOpen, std::memory_order_release); }
  // All those of a request.
  static void open_all(StreamGate* gate) {
    while (gate) std::exchange(gate, gate->next)->open();
  }
};

class StreamGates {
 public:
  static StreamGates& instance();

  // Returns a closed gate, which no request and no stream has yet.
  Result<StreamGate*> take(const std::shared_ptr<cuda::Gpu>& gpu);
  // Takes one back that no stream and no request knows.
  void give(StreamGate* gate);
  // What the stream gets from now on waits for the gate, which goes back by itself once it is open
  // and passed. After an error, too, the request has to open it.
  Status enqueue(StreamGate* gate, cuda::Stream stream);
  // What the stream gets from now on waits for a word that a device writes. After an error the
  // stream may wait for it.
  Status enqueue(const std::shared_ptr<cuda::Gpu>& gpu, cuda::Stream stream,
                 const SegmentWord& word);
  // Takes back those that streams have passed.
  void reap();
  // The link of the segment ends: unregistered now, or once no stream waits for any gate.
  void leave(std::shared_ptr<PinnedSegment> segment);
  // Unregisters the segments of ended links, if no stream waits for a gate. Not on a data path.
  void close_unused();

 private:
  StreamGates() = default;

  Mutex mutex_;
  std::vector<std::shared_ptr<PinnedSegment>> left_ OH_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<StreamGate>> gates_ OH_GUARDED_BY(mutex_);  // that are in use
};

}  // namespace oh
