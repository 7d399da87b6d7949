// SPDX-License-Identifier: Apache-2.0
//
// Call: the checks that every entry point performs first: whether the driver is usable, whether the
// call shall fail, whether there is a context, whether a capture forbids the call. Holds the
// world's lock afterwards.
//
// Threading: one per call, on the caller's thread.
#pragma once

#include <functional>

#include "faults.h"
#include "world.h"

namespace oh::cuda::fake {

enum Needs : unsigned {
  kAnything = 0,    // requires an initialised driver
  kNothing = 1,     // requires nothing
  kContext = 2,     // requires a current context
  kUnsafeCall = 4,  // invalidates a capture
};

// The stack of current contexts, top last. No destructor: it is also used at thread exit.
struct ContextStack {
  static constexpr int kDepth = 64;
  Context contexts[kDepth];
  int size;
};

struct ThreadState {
  ContextStack stack;
  int capture_mode;  // set by cuThreadExchangeStreamCaptureMode; initially global
  bool in_callback;  // the thread runs a host function: calls are forbidden
  uint64_t number;   // unique, never reused; 0: not assigned yet
};
ThreadState& thread_state();

// CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are 1 and 2.
inline bool is_legacy(Stream handle) { return reinterpret_cast<uint64_t>(handle) <= 1; }
inline bool is_per_thread(Stream handle) { return reinterpret_cast<uint64_t>(handle) == 2; }

class Call {
 public:
  Call(Symbol symbol, unsigned needs);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool ok() const { return code_ == kSuccess; }
  Code code() const { return code_; }
  World& world() const { return World::instance(); }
  // Only for calls with kContext.
  const std::shared_ptr<ContextState>& context() const { return context_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

  // Resolves a stream handle; default streams belong to the current context and thread.
  Code find(Stream handle, std::shared_ptr<StreamState>* out);
  Code find(Event handle, std::shared_ptr<EventState>* out) const;
  Code find(MemoryPool handle, std::shared_ptr<Pool>* out) const;

  // For calls that running kernels block: releases the lock until no kernel of the context runs, at
  // some moment since the call. Objects looked up before may be gone afterwards. Returns the
  // context's error, if any.
  Code wait_for_kernels(std::shared_ptr<ContextState> context);
  // The same for a function's first launch, which may wait for the whole device and block other
  // calls meanwhile: control.h.
  Code wait_to_load(const std::shared_ptr<ContextState>& context);

 private:
  Code begin(Symbol symbol, unsigned needs);
  void wait_until(const std::function<bool()>& condition);

  std::unique_lock<std::mutex> lock_;
  std::shared_ptr<ContextState> context_;
  Code code_;
};

}  // namespace oh::cuda::fake
