// SPDX-License-Identifier: Apache-2.0
//
// The checks of every entry point, and the driver's initialisation.
//
// Threading: any thread.
#include "call.h"

#include <execinfo.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "capture.h"
#include "streams.h"

namespace oh::cuda::fake {
namespace {
// A child after fork has no driver. Relaxed: the child writes it before it has other threads.
std::atomic<bool> g_forked{false};
thread_local ThreadState t_state;
constexpr std::chrono::seconds kSuspicious(8);

// A first launch itself waits for the device; these calls only wait likewise and need no lock.
bool needs_the_lock_of_launches(Symbol symbol) {
  return symbol != Symbol::cuStreamSynchronize && symbol != Symbol::cuEventSynchronize;
}

bool is_idle(const World& world, const ContextState& context) {
  auto idle = [&](const std::shared_ptr<StreamState>& stream) {
    return stream == nullptr || stream->context.get() != &context ||
           stream->done == stream->submitted;
  };
  for (const auto& [thread, stream] : context.default_streams) {
    if (!idle(stream)) return false;
  }
  for (const auto& [handle, stream] : world.streams) {
    if (!idle(stream)) return false;
  }
  return std::ranges::all_of(context.closed_streams,
                             [&](const auto& closed) { return idle(closed.lock()); });
}

// Prints the backtrace of a call that is probably in deadlock with the kernels that block it.
void tell_where_we_wait() {
  std::fputs("fake CUDA driver: this call has waited 8 s for running kernels or streams:\n",
             stderr);
  void* frames[32];
  backtrace_symbols_fd(frames, backtrace(frames, 32), STDERR_FILENO);
}
}  // namespace

ThreadState& thread_state() { return t_state; }

Call::Call(Symbol symbol, unsigned needs) : code_(begin(symbol, needs)) {}

Code Call::begin(Symbol symbol, unsigned needs) {
  // Checked before taking any lock: another thread may have held the lock at the fork.
  if (g_forked.load(std::memory_order_relaxed)) return kNotInitialized;
  const Code failure = Faults::instance().visit(symbol);
  if (failure != kSuccess) return failure;
  if (t_state.in_callback && needs != kNothing) return kNotPermitted;
  World& world = World::instance();
  lock_ = std::unique_lock<std::mutex>(world.mutex);
  if (needs == kNothing) return kSuccess;
  if (!world.initialised) return kNotInitialized;
  if ((needs & kContext) != 0) {
    if (needs_the_lock_of_launches(symbol)) {
      world.changed.wait(lock_, [&] { return !world.loading; });
    }
    if (t_state.stack.size == 0) return kInvalidContext;
    context_ = world.context(t_state.stack.contexts[t_state.stack.size - 1]);
    if (context_ == nullptr) return kContextIsDestroyed;
    if (context_->sticky != kSuccess) return context_->sticky;
  }
  return (needs & kUnsafeCall) != 0 ? disturb_captures(world, t_state.capture_mode) : kSuccess;
}

Code Call::find(Stream handle, std::shared_ptr<StreamState>* out) {
  if (is_legacy(handle) || is_per_thread(handle)) {
    if (context_ == nullptr) return kInvalidContext;
    if (is_legacy(handle)) {
      const Code code = disturb_by_default_stream(world(), *context_);
      if (code != kSuccess) return code;
    }
    *out = default_stream(world(), context_, is_per_thread(handle));
    return kSuccess;
  }
  const auto found = world().streams.find(handle);
  if (found == world().streams.end()) return kInvalidHandle;
  *out = found->second;
  return found->second->context->sticky;
}

Code Call::find(Event handle, std::shared_ptr<EventState>* out) const {
  const auto found = world().events.find(handle);
  if (found == world().events.end()) return kInvalidHandle;
  *out = found->second;
  return found->second->context->sticky;
}

Code Call::find(MemoryPool handle, std::shared_ptr<Pool>* out) const {
  const auto found = world().pools.find(handle);
  if (found == world().pools.end()) return kInvalidValue;
  *out = found->second;
  return kSuccess;
}

Code Call::wait_for_kernels(std::shared_ptr<ContextState> context) {
  if (config().blocking == Blocking::kOff || context->running == 0) return kSuccess;
  const uint64_t before = context->idle;
  wait_until([&] { return context->idle != before; });
  return context->killed ? kContextIsDestroyed : context->sticky;
}

Code Call::wait_to_load(const std::shared_ptr<ContextState>& context) {
  if (config().blocking != Blocking::kDevice) return wait_for_kernels(context);
  world().loading = true;
  wait_until([&] { return is_idle(world(), *context); });
  world().loading = false;
  world().changed.notify_all();
  return context->killed ? kContextIsDestroyed : context->sticky;
}

void Call::wait_until(const std::function<bool()>& condition) {
  ++world().blocked;
  if (!world().changed.wait_for(lock_, kSuspicious, condition)) {
    tell_where_we_wait();
    world().changed.wait(lock_, condition);
  }
  --world().blocked;
}

}  // namespace oh::cuda::fake

namespace oh::cuda {
using namespace fake;

Code cuInit(unsigned flags) {
  Call call(Symbol::cuInit, kNothing);
  if (!call.ok()) return call.code();
  if (flags != 0) return kInvalidValue;
  if (config().visible.empty()) return kNoDevice;
  if (!call.world().initialised) {
    call.world().initialised = true;
    pthread_atfork(nullptr, nullptr, [] { g_forked.store(true, std::memory_order_relaxed); });
  }
  return kSuccess;
}

}  // namespace oh::cuda
