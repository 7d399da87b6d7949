// SPDX-License-Identifier: Apache-2.0
//
// Captures: operations are counted, not run; graphs cannot be launched.
//
// Threading: any thread.
#include "capture.h"

#include <algorithm>
#include <utility>

#include "streams.h"

namespace oh::cuda::fake {

Code disturb_captures(World& world, int thread_mode) {
  Code code = kSuccess;
  for (const auto& capture : world.captures) {
    const bool mine = capture->owner == std::this_thread::get_id();
    const bool hit =
        (thread_mode == kCaptureGlobal &&
         (capture->mode == kCaptureGlobal || (mine && capture->mode == kCaptureThreadLocal))) ||
        (thread_mode == kCaptureThreadLocal && mine && capture->mode != kCaptureRelaxed);
    if (!hit) continue;
    capture->invalid = true;
    code = kStreamCaptureUnsupported;
  }
  return code;
}

Code disturb_by_default_stream(World& world, const ContextState& context) {
  Code code = kSuccess;
  if (world.captures.empty()) return code;
  for (const auto& [handle, stream] : world.streams) {
    if (stream->capture == nullptr || stream->context.get() != &context) continue;
    if ((stream->flags & kStreamNonBlocking) != 0) continue;
    stream->capture->invalid = true;
    code = kStreamCaptureImplicit;
  }
  return code;
}

Code disturb(StreamState& stream) {
  stream.capture->invalid = true;
  return kStreamCaptureUnsupported;
}

bool is_active(const World& world, const std::shared_ptr<Capture>& capture) {
  return std::count(world.captures.begin(), world.captures.end(), capture) != 0;
}

}  // namespace oh::cuda::fake

namespace oh::cuda {
using namespace fake;

Code cuThreadExchangeStreamCaptureMode(int* mode) {
  Call call(Symbol::cuThreadExchangeStreamCaptureMode, kAnything);
  if (!call.ok()) return call.code();
  if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, thread_state().capture_mode);
  return kSuccess;
}

Code cuStreamIsCapturing(Stream handle, int* status) {
  Call call(Symbol::cuStreamIsCapturing, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  *status = stream->capture == nullptr ? 0 : stream->capture->invalid ? 2 : 1;
  return kSuccess;
}

Code cuStreamBeginCapture_v2(Stream handle, int mode) {
  Call call(Symbol::cuStreamBeginCapture_v2, kContext);
  if (!call.ok()) return call.code();
  if (mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
  const auto found = call.world().streams.find(handle);
  if (found == call.world().streams.end()) return kStreamCaptureUnsupported;  // a default stream
  if (found->second->capture != nullptr) return kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  capture->origin = found->second.get();
  call.world().captures.push_back(capture);
  found->second->capture = std::move(capture);
  return kSuccess;
}

Code cuStreamEndCapture(Stream handle, Graph* graph) {
  Call call(Symbol::cuStreamEndCapture, kContext);
  if (!call.ok()) return call.code();
  World& world = call.world();
  const auto found = world.streams.find(handle);
  if (found == world.streams.end()) return kInvalidHandle;
  const auto capture = found->second->capture;
  if (capture == nullptr) return kInvalidValue;
  if (capture->origin != found->second.get()) return kCaptureUnmatched;
  for (const auto& [other, stream] : world.streams) {
    if (stream->capture == capture) stream->capture.reset();
  }
  std::erase(world.captures, capture);
  *graph = nullptr;
  if (capture->invalid) return kCaptureInvalidated;
  *graph = world.new_handle<Graph>();
  world.graphs.emplace(*graph, capture->operations);
  return kSuccess;
}

Code cuGraphDestroy(Graph graph) {
  Call call(Symbol::cuGraphDestroy, kAnything);
  if (!call.ok()) return call.code();
  return call.world().graphs.erase(graph) != 0 ? kSuccess : kInvalidValue;
}

}  // namespace oh::cuda
