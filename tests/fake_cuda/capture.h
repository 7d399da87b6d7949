// SPDX-License-Identifier: Apache-2.0
//
// Capture: operations that streams record instead of running them, and calls that invalidate it.
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

// Adds a node after the stream's recorded work. An error: the capture is invalid.
Code record(StreamState& stream, Operation operation);
// Makes the stream's next node depend on these nodes, too.
void add_order(StreamState& stream, const std::vector<size_t>& nodes);

// An unsafe call by a thread with this capture mode: invalidates the captures that forbid it.
// kStreamCaptureUnsupported: there are such captures.
Code disturb_captures(World& world, int thread_mode);
// A use of the context's default stream. kStreamCaptureImplicit: a stream that synchronises with it
// is being captured.
Code disturb_by_default_stream(World& world, const ContextState& context);
// Invalidates a capture after a call that is forbidden on a captured stream.
Code disturb(Capture& capture);
bool is_active(const World& world, const std::shared_ptr<Capture>& capture);

}  // namespace oh::cuda::fake
