// SPDX-License-Identifier: Apache-2.0
//
// What disturbs the capture of streams into graphs.
//
// Threading: under World::mutex.
#pragma once

#include "world.h"

namespace oh::cuda::fake {

// An unsafe call by a thread of this capture mode: invalidates the captures that it must not
// happen in. kStreamCaptureUnsupported: there are such.
Code disturb_captures(World& world, int thread_mode);
// A use of the context's default stream. kStreamCaptureImplicit: a stream that synchronises with it
// is captured.
Code disturb_by_default_stream(World& world, const ContextState& context);
// A call about the stream that its capture forbids.
Code disturb(StreamState& stream);
bool is_active(const World& world, const std::shared_ptr<Capture>& capture);

}  // namespace oh::cuda::fake
