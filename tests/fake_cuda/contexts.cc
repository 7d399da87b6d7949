// SPDX-License-Identifier: Apache-2.0
//
// Primary contexts, each thread's stack of current contexts, and access between contexts.
//
// Threading: any thread.
#include "call.h"
#include "streams.h"

namespace oh::cuda {
using namespace fake;

namespace {

bool is_device(Device device) {
  return device >= 0 && static_cast<size_t>(device) < config().visible.size();
}

// Releases everything the context has. Its kernels are killed, not completed; they have ended
// before their memory is freed.
void destroy(Call& call, std::shared_ptr<ContextState> context) {
  World& world = call.world();
  world.contexts[static_cast<size_t>(context->ordinal)].reset();
  context->killed = true;
  world.changed.wait(call.lock(), [&] { return context->running == 0; });
  for (auto at = world.streams.begin(); at != world.streams.end();) {
    if (at->second->context == context) {
      close_stream(*at->second);
      world.free_streams.push_back(at->first);
      at = world.streams.erase(at);
    } else {
      ++at;
    }
  }
  for (const auto& [thread, stream] : context->default_streams) close_stream(*stream);
  context->default_streams.clear();  // breaks the reference cycle
  std::erase_if(world.events, [&](const auto& one) { return one.second->context == context; });
  std::vector<DevicePtr> gone;
  for (const auto& [base, range] : world.ranges) {
    if (range.context == context) gone.push_back(base);
  }
  for (DevicePtr base : gone) world.remove(base);
  world.changed.notify_all();
}

}  // namespace

Code cuDevicePrimaryCtxRetain(Context* out, Device device) {
  Call call(Symbol::cuDevicePrimaryCtxRetain, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  auto& context = call.world().contexts[static_cast<size_t>(device)];
  if (context == nullptr) {
    context = std::make_shared<ContextState>();
    Context& handle = call.world().context_handles[device];
    if (handle == nullptr) handle = call.world().new_handle<Context>();
    context->handle = handle;
    context->id = call.world().next_context_id++;
    context->ordinal = device;
    context->physical = config().visible[static_cast<size_t>(device)];
  }
  ++context->retained;
  *out = context->handle;
  return kSuccess;
}

Code cuDevicePrimaryCtxRelease_v2(Device device) {
  Call call(Symbol::cuDevicePrimaryCtxRelease_v2, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  const auto context = call.world().contexts[static_cast<size_t>(device)];
  if (context == nullptr) return kInvalidContext;
  if (--context->retained == 0) destroy(call, context);
  return kSuccess;
}

Code cuDevicePrimaryCtxGetState(Device device, unsigned* flags, int* active) {
  Call call(Symbol::cuDevicePrimaryCtxGetState, kAnything);
  if (!call.ok()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  *flags = 0;
  *active = call.world().contexts[static_cast<size_t>(device)] != nullptr ? 1 : 0;
  return kSuccess;
}

Code cuCtxGetCurrent(Context* out) {
  Call call(Symbol::cuCtxGetCurrent, kAnything);
  if (!call.ok()) return call.code();
  const ContextStack& stack = thread_state().stack;
  *out = stack.size == 0 ? nullptr : stack.contexts[stack.size - 1];
  return kSuccess;
}

Code cuCtxGetId(Context context, uint64_t* id) {
  Call call(Symbol::cuCtxGetId, kAnything);
  if (!call.ok()) return call.code();
  const auto found = call.world().context(context);
  if (found == nullptr) return kContextIsDestroyed;
  *id = found->id;
  return kSuccess;
}

Code cuCtxPushCurrent_v2(Context context) {
  Call call(Symbol::cuCtxPushCurrent_v2, kAnything);
  if (!call.ok()) return call.code();
  ContextStack& stack = thread_state().stack;
  if (call.world().context(context) == nullptr) return kInvalidContext;
  if (stack.size == ContextStack::kDepth) return kInvalidValue;  // a push without a pop
  stack.contexts[stack.size++] = context;
  return kSuccess;
}

Code cuCtxPopCurrent_v2(Context* out) {
  Call call(Symbol::cuCtxPopCurrent_v2, kAnything);
  if (!call.ok()) return call.code();
  ContextStack& stack = thread_state().stack;
  if (stack.size == 0) return kInvalidContext;
  const Context top = stack.contexts[--stack.size];
  if (out != nullptr) *out = top;
  return kSuccess;
}

Code cuCtxEnablePeerAccess(Context peer, unsigned flags) {
  Call call(Symbol::cuCtxEnablePeerAccess, kContext);
  if (!call.ok()) return call.code();
  if (flags != 0) return kInvalidValue;
  const auto other = call.world().context(peer);
  if (other == nullptr || other == call.context()) return kInvalidContext;
  if (!config().can_access(call.context()->physical, other->physical)) {
    return kPeerAccessUnsupported;
  }
  const bool is_new = call.context()->peers.insert(other->ordinal).second;
  return is_new ? kSuccess : kPeerAccessAlreadyEnabled;
}

Code cuCtxSynchronize() {
  Call call(Symbol::cuCtxSynchronize, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  const auto context = call.context();
  const Code code = call.wait_for_kernels(context);  // also those of destroyed streams
  if (code != kSuccess) return code;
  std::vector<std::shared_ptr<StreamState>> all;
  for (const auto& [thread, stream] : context->default_streams) all.push_back(stream);
  for (const auto& [handle, stream] : call.world().streams) {
    if (stream->context == context) all.push_back(stream);
  }
  for (const auto& stream : all) wait_for(call.lock(), *stream, stream->submitted);
  return context->sticky;
}

}  // namespace oh::cuda
