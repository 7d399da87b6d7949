// SPDX-License-Identifier: Apache-2.0
//
// Captures of streams into graphs.
//
// Threading: any thread.
#include "capture.h"

#include <algorithm>
#include <utility>

namespace oh::cuda {
namespace fake {
namespace {

// Whether all nodes were joined into the stream in which the capture began.
bool is_joined(const Capture& capture) {
  const auto& nodes = capture.graph.nodes;
  std::vector<bool> joined(nodes.size());
  for (size_t node : capture.origin->after) joined[node] = true;
  for (size_t i = nodes.size(); i-- > 0;) {
    for (size_t next : nodes[i].next) joined[i] = joined[i] || joined[next];
    if (!joined[i]) return false;
  }
  return true;
}

// Whether a use of the context's default stream would wait for work that the stream captures.
bool is_in_the_way(const StreamState& stream, const ContextState& context) {
  return stream.capture != nullptr && stream.context.get() == &context &&
         (stream.flags & kStreamNonBlocking) == 0;
}

// A query of a default stream fails where a use of the stream would fail, but invalidates nothing.
Code ask(Call& call, Stream handle, int* status, uint64_t* id) {
  *status = kCaptureNone;
  const auto& streams = call.world().streams;
  if (is_legacy(handle)) {
    const bool is_usable = std::none_of(streams.begin(), streams.end(), [&](const auto& one) {
      return is_in_the_way(*one.second, *call.context());
    });
    return is_usable ? kSuccess : kStreamCaptureImplicit;
  }
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess || stream->capture == nullptr) return code;
  *status = stream->capture->invalid ? kCaptureInvalid : kCaptureActive;
  if (id != nullptr) *id = stream->capture->id;
  return kSuccess;
}

}  // namespace

Code record(StreamState& stream, Operation operation) {
  Capture& capture = *stream.capture;
  if (capture.invalid) return kCaptureInvalidated;
  auto& nodes = capture.graph.nodes;
  for (size_t before : stream.after) nodes[before].next.push_back(nodes.size());
  nodes.push_back({std::move(operation), stream.context, stream.after.size(), {}});
  stream.after = {nodes.size() - 1};
  return kSuccess;
}

void add_order(StreamState& stream, const std::vector<size_t>& nodes) {
  for (size_t node : nodes) {
    if (std::count(stream.after.begin(), stream.after.end(), node) == 0) {
      stream.after.push_back(node);
    }
  }
}

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
    if (!is_in_the_way(*stream, context)) continue;
    stream->capture->invalid = true;
    code = kStreamCaptureImplicit;
  }
  return code;
}

Code disturb(Capture& capture) {
  capture.invalid = true;
  return kStreamCaptureUnsupported;
}

bool is_active(const World& world, const std::shared_ptr<Capture>& capture) {
  return std::count(world.captures.begin(), world.captures.end(), capture) != 0;
}

}  // namespace fake

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
  return ask(call, handle, status, nullptr);
}

Code cuStreamGetCaptureInfo_v2(Stream handle, int* status, uint64_t* id, Graph* graph,
                               const GraphNode** nodes, size_t* count) {
  Call call(Symbol::cuStreamGetCaptureInfo_v2, kContext);
  if (!call.ok()) return call.code();
  if (status == nullptr) return kInvalidValue;
  if (graph != nullptr || nodes != nullptr || count != nullptr)
    return kNotSupported;  // not supported by the fake
  return ask(call, handle, status, id);
}

Code cuStreamBeginCapture_v2(Stream handle, int mode) {
  Call call(Symbol::cuStreamBeginCapture_v2, kContext);
  if (!call.ok()) return call.code();
  if (mode < kCaptureGlobal || mode > kCaptureRelaxed) return kInvalidValue;
  const auto found = call.world().streams.find(handle);
  if (found == call.world().streams.end()) return kStreamCaptureUnsupported;  // a default stream
  if (found->second->capture != nullptr) return kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->id = call.world().next_capture_id++;
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
  if (capture->mode != kCaptureRelaxed && capture->owner != std::this_thread::get_id()) {
    return kCaptureWrongThread;
  }
  const bool joined = is_joined(*capture);
  for (const auto& [other, stream] : world.streams) {
    if (stream->capture != capture) continue;
    stream->capture.reset();
    stream->after.clear();
  }
  std::erase(world.captures, capture);
  *graph = nullptr;
  if (capture->invalid) return kCaptureInvalidated;
  if (!joined) return kCaptureUnjoined;
  *graph = world.new_handle<Graph>();
  world.graphs.emplace(*graph, std::make_shared<GraphState>(std::move(capture->graph)));
  return kSuccess;
}

}  // namespace oh::cuda
