// SPDX-License-Identifier: Apache-2.0
//
// Events: a point in the order of a stream.
//
// Threading: any thread.
#include <chrono>

#include "capture.h"
#include "streams.h"

namespace oh::cuda {
using namespace fake;

namespace {
int64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}
}  // namespace

Code cuEventCreate(Event* out, unsigned flags) {
  Call call(Symbol::cuEventCreate, kContext);
  if (!call.ok()) return call.code();
  if (flags > 7) return kInvalidValue;
  auto event = std::make_shared<EventState>();
  event->context = call.context();
  event->is_timed = (flags & kEventDisableTiming) == 0;
  *out = call.world().new_handle<Event>();
  call.world().events.emplace(*out, std::move(event));
  return kSuccess;
}

Code cuEventDestroy_v2(Event handle) {
  Call call(Symbol::cuEventDestroy_v2, kContext);
  if (!call.ok()) return call.code();
  return call.world().events.erase(handle) != 0 ? kSuccess : kInvalidHandle;
}

Code cuEventRecord(Event handle, Stream stream_handle) {
  Call call(Symbol::cuEventRecord, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<EventState> event;
  std::shared_ptr<StreamState> stream;
  Code code = call.find(handle, &event);
  if (code == kSuccess) code = call.find(stream_handle, &stream);
  if (code != kSuccess) return code;
  if (event->context != stream->context) return kInvalidHandle;
  if (stream->capture == nullptr) {
    event->at = std::make_shared<int64_t>(0);
    submit(call.world(), stream, {[at = event->at] {
             *at = now();
             return kSuccess;
           }});
  } else if (stream->capture->invalid) {
    return kCaptureInvalidated;
  }
  event->all.clear();
  event->capture = stream->capture;
  event->nodes = stream->after;
  event->stream = stream->capture == nullptr ? stream : nullptr;
  event->ticket = stream->submitted;
  return kSuccess;
}

// Supports only event_query and event_synchronize: the fake's streams do not wait for such an
// event.
Code cuCtxRecordEvent(Context handle, Event event_handle) {
  Call call(Symbol::cuCtxRecordEvent, kContext);
  if (!call.ok()) return call.code();
  const auto context = call.world().context(handle);
  std::shared_ptr<EventState> event;
  const Code code = call.find(event_handle, &event);
  if (code != kSuccess) return code;
  if (context == nullptr || event->context != context) return kInvalidHandle;
  std::vector<std::shared_ptr<StreamState>> streams;
  for (const auto& [thread, stream] : context->default_streams) streams.push_back(stream);
  for (const auto& [name, stream] : call.world().streams) streams.push_back(stream);
  for (const auto& closed : context->closed_streams) streams.push_back(closed.lock());
  std::erase_if(streams, [&](const auto& one) { return !one || one->context != context; });
  Code captured = kSuccess;
  for (const auto& stream : streams) {
    if (stream->capture != nullptr) captured = disturb(*stream->capture);
  }
  if (captured != kSuccess) return captured;
  *event = EventState{};
  event->context = context;
  for (const auto& stream : streams) event->all.emplace_back(stream, stream->submitted);
  return kSuccess;
}

Code cuEventQuery(Event handle) {
  Call call(Symbol::cuEventQuery, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<EventState> event;
  const Code code = call.find(handle, &event);
  if (code != kSuccess) return code;
  if (event->capture != nullptr) return kCapturedEvent;
  bool is_done = event->stream == nullptr || event->stream->done >= event->ticket;
  for (const auto& [stream, ticket] : event->all) is_done = is_done && stream->done >= ticket;
  return is_done ? kSuccess : kNotReady;
}

Code cuEventSynchronize(Event handle) {
  Call call(Symbol::cuEventSynchronize, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<EventState> event;
  const Code code = call.find(handle, &event);
  if (code != kSuccess) return code;
  if (event->capture != nullptr) return kCapturedEvent;
  const auto stream = event->stream;  // the event may be recorded again during the wait
  if (stream == nullptr) return kSuccess;
  wait_for(call.lock(), *stream, event->ticket);
  return stream->context->sticky;
}

Code cuEventElapsedTime(float* ms, Event start, Event end) {
  Call call(Symbol::cuEventElapsedTime, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<EventState> events[2];
  Code code = call.find(start, &events[0]);
  if (code == kSuccess) code = call.find(end, &events[1]);
  if (code != kSuccess) return code;
  for (const auto& event : events) {
    if (!event->is_timed || event->stream == nullptr) return kInvalidHandle;
    if (event->stream->done < event->ticket) return kNotReady;
  }
  *ms = static_cast<float>(*events[1]->at - *events[0]->at) / 1e6F;
  return kSuccess;
}

Code cuStreamWaitEvent(Stream stream_handle, Event handle, unsigned) {
  Call call(Symbol::cuStreamWaitEvent, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<EventState> event;
  std::shared_ptr<StreamState> stream;
  Code code = call.find(handle, &event);
  if (code == kSuccess) code = call.find(stream_handle, &stream);
  if (code != kSuccess) return code;
  if (event->capture != nullptr) {
    if (!is_active(call.world(), event->capture)) return kCapturedEvent;
    if (stream->handle == nullptr) return disturb(*event->capture);  // a default stream
    if (stream->capture == nullptr)
      stream->capture = event->capture;  // the stream joins the capture
    if (stream->capture != event->capture) return disturb(*stream->capture);
    if (stream->capture->invalid) return kCaptureInvalidated;
    add_order(*stream, event->nodes);
    return kSuccess;
  }
  if (event->stream == nullptr) return kSuccess;  // never recorded
  if (stream->capture != nullptr) {
    stream->capture->invalid = true;
    return kCaptureIsolation;
  }
  return submit(call.world(), stream, {[source = event->stream, ticket = event->ticket] {
                  std::unique_lock<std::mutex> lock(World::instance().mutex);
                  wait_for(lock, *source, ticket);
                  return kSuccess;
                }});
}

}  // namespace oh::cuda
