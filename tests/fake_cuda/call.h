// SPDX-License-Identifier: Apache-2.0
//
// Call: what every entry point does first: is the driver usable, shall the call fail, is there a
// context, may it happen while a stream is captured. Holds the world's lock from then on.
//
// Threading: one per call, on the caller's thread.
#pragma once

#include <functional>

#include "faults.h"
#include "world.h"

namespace oh::cuda::fake {

enum Needs : unsigned {
  kAnything = 0,    // an initialised driver
  kNothing = 1,     // not even that
  kContext = 2,     // a current context
  kUnsafeCall = 4,  // it would disturb a capture
};

// The contexts that were made current, the last on top. No destructor: also used at thread exit.
struct ContextStack {
  static constexpr int kDepth = 64;
  Context contexts[kDepth];
  int size;
};

struct ThreadState {
  ContextStack stack;
  int capture_mode;  // as exchanged; global first
  bool in_callback;  // a host function runs: no call is allowed
  uint64_t number;   // never another thread's; 0: not given yet
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
  // Of a call that needs one.
  const std::shared_ptr<ContextState>& context() const { return context_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }

  // The stream of a handle; of default streams that of the current context, and thread.
  Code find(Stream handle, std::shared_ptr<StreamState>* out);
  Code find(Event handle, std::shared_ptr<EventState>* out) const;
  Code find(MemoryPool handle, std::shared_ptr<Pool>* out) const;

  // What a running kernel blocks: lets the lock go until, once since the call, none of the context
  // runs. What was looked up before may be gone then. A code: of the context, by now.
  Code wait_for_kernels(std::shared_ptr<ContextState> context);
  // The same for a function's first launch, which may wait for all of the device, and keep other
  // calls waiting meanwhile: control.h.
  Code wait_to_load(const std::shared_ptr<ContextState>& context);

 private:
  Code begin(Symbol symbol, unsigned needs);
  void wait_until(const std::function<bool()>& condition);

  std::unique_lock<std::mutex> lock_;
  std::shared_ptr<ContextState> context_;
  Code code_;
};

}  // namespace oh::cuda::fake
