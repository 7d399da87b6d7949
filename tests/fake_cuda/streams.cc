// SPDX-License-Identifier: Apache-2.0
//
// Streams and their workers.
//
// Threading: any thread; one detached worker per stream. When the process ends, workers sleep on
// the world, which is never destroyed.
#include "streams.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <thread>

#include "capture.h"
#include "graphs.h"

namespace oh::cuda::fake {
namespace {

Code execute(const Operation& operation) {
  Code code = Faults::instance().visit(Symbol::kOperation);
  if (operation.is_copy) {
    const Code copy = Faults::instance().visit(Symbol::kCopy);
    if (code == kSuccess) code = copy;
  }
  if (code == kSuccess) code = operation.work();
  return code;
}

bool is_due(const Operation& operation) {
  for (const auto& [stream, ticket] : operation.after) {
    if (stream->done < ticket) return false;
  }
  return operation.graph == nullptr || operation.graph->done == operation.turn;
}

void run(const std::shared_ptr<StreamState>& stream) {
  World& world = World::instance();
  std::unique_lock<std::mutex> lock(world.mutex);
  for (;;) {
    const bool stands = stream->held || world.hold_all;
    if (stream->queue.empty()) {
      if (stream->closed) return;
      stream->wake.wait(lock);
      continue;
    }
    if (stands || !is_due(stream->queue.front())) {
      world.stalled.push_back(stream.get());
      stream->wake.wait(lock);
      std::erase(world.stalled, stream.get());
      continue;
    }
    Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (operation.graph == nullptr) {
      perform(lock, *stream->context, operation);
    } else {
      replay(lock, *operation.graph->graph);
      ++operation.graph->done;
    }
    ++stream->done;
    wake_stalled(world);
    world.changed.notify_all();
  }
}

void start(const std::shared_ptr<StreamState>& stream) {
  stream->started = true;
  // The worker must not handle the program's signals.
  sigset_t all;
  sigset_t former;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  std::thread([stream] { run(stream); }).detach();
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
}

// Orders the legacy default stream and the blocking streams of its context, among them the
// per-thread default streams, after each other's earlier work.
void order_by_legacy_stream(const World& world, const std::shared_ptr<StreamState>& stream,
                            Operation& operation) {
  if (stream->flags != 0) return;
  const ContextState& context = *stream->context;
  const auto legacy = context.default_streams.find(0);
  if (legacy == context.default_streams.end()) return;
  auto follow = [&](const std::shared_ptr<StreamState>& other) {
    if (other == nullptr || other == stream || other->flags != 0) return;
    if (other->done < other->submitted) operation.after.emplace_back(other, other->submitted);
  };
  if (stream != legacy->second) return follow(legacy->second);
  for (const auto& [thread, other] : context.default_streams) follow(other);
  for (const auto& [handle, other] : world.streams) {
    if (other->context == stream->context) follow(other);
  }
  for (const auto& other : context.closed_streams) follow(other.lock());
}

}  // namespace

Code submit(World& world, const std::shared_ptr<StreamState>& stream, Operation operation) {
  if (stream->capture != nullptr) return record(*stream, std::move(operation));
  order_by_legacy_stream(world, stream, operation);
  stream->queue.push_back(std::move(operation));
  ++stream->submitted;
  if (!stream->started) start(stream);
  stream->wake.notify_one();
  return kSuccess;
}

void perform(std::unique_lock<std::mutex>& lock, ContextState& context,
             const Operation& operation) {
  // After a sticky error nothing runs.
  const bool skip = context.sticky != kSuccess || (operation.is_kernel && context.killed);
  if (operation.is_kernel) ++context.running;
  const unsigned delay = World::instance().delay_us;
  lock.unlock();
  if (delay != 0) usleep(delay);
  const Code code = skip ? kSuccess : execute(operation);
  lock.lock();
  if (code != kSuccess && context.sticky == kSuccess) context.sticky = code;
  if (operation.is_kernel && --context.running == 0) ++context.idle;
}

void wait_for(std::unique_lock<std::mutex>& lock, const StreamState& stream, uint64_t ticket) {
  World::instance().changed.wait(lock, [&] { return stream.done >= ticket; });
}

void close_stream(StreamState& stream) {
  stream.closed = true;
  stream.held = false;
  if (stream.capture != nullptr) stream.capture->invalid = true;
  stream.wake.notify_one();
}

void wake_stalled(const World& world) {
  for (StreamState* stream : world.stalled) stream->wake.notify_one();
}

std::shared_ptr<StreamState> default_stream(World& world,
                                            const std::shared_ptr<ContextState>& context,
                                            bool per_thread) {
  ThreadState& thread = thread_state();
  if (per_thread && thread.number == 0) thread.number = world.next_thread++;
  std::shared_ptr<StreamState>& stream = context->default_streams[per_thread ? thread.number : 0];
  if (stream == nullptr) {
    stream = std::make_shared<StreamState>();
    stream->id = world.next_stream_id++;
    stream->context = context;
  }
  return stream;
}

}  // namespace oh::cuda::fake

namespace oh::cuda {
using namespace fake;

Code cuStreamCreate(Stream* out, unsigned flags) {
  Call call(Symbol::cuStreamCreate, kContext);
  if (!call.ok()) return call.code();
  if (flags > kStreamNonBlocking) return kInvalidValue;
  auto stream = std::make_shared<StreamState>();
  std::vector<Stream>& free = call.world().free_streams;
  if (free.empty()) free.push_back(call.world().new_handle<Stream>());
  stream->handle = free.back();
  free.pop_back();
  stream->id = call.world().next_stream_id++;
  stream->context = call.context();
  stream->flags = flags;
  *out = stream->handle;
  call.world().streams.emplace(stream->handle, std::move(stream));
  return kSuccess;
}

Code cuStreamDestroy_v2(Stream handle) {
  Call call(Symbol::cuStreamDestroy_v2, kContext);
  if (!call.ok()) return call.code();
  const auto found = call.world().streams.find(handle);
  if (found == call.world().streams.end()) return kInvalidHandle;
  close_stream(*found->second);
  auto& closed = found->second->context->closed_streams;
  std::erase_if(closed, [](const auto& one) { return one.expired(); });
  closed.push_back(found->second);
  call.world().streams.erase(found);
  call.world().free_streams.push_back(handle);
  return kSuccess;
}

Code cuStreamGetId(Stream handle, uint64_t* id) {
  Call call(Symbol::cuStreamGetId, kContext);
  if (!call.ok()) return call.code();
  if (id == nullptr) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  if (is_legacy(handle)) {  // uses nothing of it
    stream = default_stream(call.world(), call.context(), false);
  } else if (const Code code = call.find(handle, &stream); code != kSuccess) {
    return code;
  }
  *id = stream->id;
  return kSuccess;
}

Code cuStreamQuery(Stream handle) {
  Call call(Symbol::cuStreamQuery, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  if (stream->capture != nullptr) return disturb(*stream->capture);
  return stream->done == stream->submitted ? kSuccess : kNotReady;
}

Code cuStreamSynchronize(Stream handle) {
  Call call(Symbol::cuStreamSynchronize, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  if (stream->capture != nullptr) return disturb(*stream->capture);
  wait_for(call.lock(), *stream, stream->submitted);
  return stream->context->sticky;
}

Code cuLaunchHostFunc(Stream handle, void (*function)(void*), void* argument) {
  Call call(Symbol::cuLaunchHostFunc, kContext);
  if (!call.ok()) return call.code();
  if (function == nullptr) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  return submit(call.world(), stream, {[function, argument] {
                  thread_state().in_callback = true;
                  function(argument);
                  thread_state().in_callback = false;
                  return kSuccess;
                }});
}

}  // namespace oh::cuda
