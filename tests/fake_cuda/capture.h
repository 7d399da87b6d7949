// SPDX-License-Identifier: Apache-2.0
//
// Capture: what streams record instead of running it, and what disturbs that.
//
// Threading: under World::mutex.
#pragma once

#include "graphs.h"

namespace oh::cuda::fake {

struct Capture {
  uint64_t id = 0;
  int mode = kCaptureGlobal;
  std::thread::id owner;
  bool invalid = false;
  StreamState* origin = nullptr;
  GraphState graph;
};

// Adds a node behind what the stream has recorded. A code: the capture is invalid.
Code record(StreamState& stream, Operation operation);
// What the stream records next comes after these, too.
void add_order(StreamState& stream, const std::vector<size_t>& nodes);

// An unsafe call by a thread of this capture mode: invalidates the captures that it must not
// happen in. kStreamCaptureUnsupported: there are such.
Code disturb_captures(World& world, int thread_mode);
// A use of the context's default stream. kStreamCaptureImplicit: a stream that synchronises with it
// is captured.
Code disturb_by_default_stream(World& world, const ContextState& context);
// A call about a stream that its capture forbids.
Code disturb(Capture& capture);
bool is_active(const World& world, const std::shared_ptr<Capture>& capture);

}  // namespace oh::cuda::fake
