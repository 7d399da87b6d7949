// SPDX-License-Identifier: Apache-2.0
//
// StreamGates: streams that wait for the end of a request. A gate is a done word that the stream
// waits for, by the driver, and that the thread which ends the request writes; no kernel spins.
//
//   take ─▶ enqueue ─▶ open ─▶ the stream has passed ─▶ taken again
//      └──────────▶ give
//
// Gates outlive their endpoint: a stream that is late reaches them after its close. So there is one
// set of them for the process, and a gate keeps its Gpu.
//
// Threading: any thread. take(), enqueue() and reap() call the driver: not under a link's lock.
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

struct StreamGate {
  static constexpr uint64_t kOpen = 1;
  static constexpr uint64_t kPassed = 2;  // the stream writes it behind its wait
  static constexpr uint64_t kNever = UINT64_MAX;

  std::shared_ptr<cuda::Gpu> gpu;
  cuda::DoneWord word;
  // Once the word has this value nobody touches the gate any more. seq_cst: written by the thread
  // that enqueues, behind its last look at the gate; read by reap().
  std::atomic<uint64_t> last{kNever};
  StreamGate* next = nullptr;  // of the same request

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

  // One that is closed, and nobody knows.
  Result<StreamGate*> take(const std::shared_ptr<cuda::Gpu>& gpu);
  // Takes one back that no stream and no request knows.
  void give(StreamGate* gate);
  // What the stream gets from now on waits for the gate, which goes back by itself once it is open
  // and passed. After an error, too, the request has to open it.
  Status enqueue(StreamGate* gate, cuda::Stream stream);
  // Takes back those that streams have passed.
  void reap();

 private:
  StreamGates() = default;

  Mutex mutex_;
  std::vector<std::unique_ptr<StreamGate>> gates_ OH_GUARDED_BY(mutex_);  // that are in use
};

}  // namespace oh
