// SPDX-License-Identifier: Apache-2.0
//
// Waits that Ctrl-C can interrupt: a wait is cut into slices, and Python's signal handlers run
// between them. Only the main thread runs the handlers, but all threads wait in the same way.
//
// Threading: called with the GIL held; it is released while waiting.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "context.h"

namespace onehop::python {

// Longest time that a wait does not handle signals.
inline constexpr int64_t kSliceNs = 100'000'000;
// How many slices a cancelled call may take to end.
inline constexpr int kSlicesToEnd = 50;

// Converts a timeout argument to nanoseconds: seconds, None (no limit), or `...` (omitted: the
// default).
int64_t timeout_ns(nb::handle timeout, int64_t default_ns);

// Runs Python's signal handlers; raises what they raise.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}
bool on_main_thread();

// The slices of one wait. Does not read the clock before the first slice has passed.
class Patience {
 public:
  explicit Patience(int64_t timeout_ns) : timeout_ns_(timeout_ns) {}
  // Length of the first slice.
  int64_t first() const { return timeout_ns_ < kSliceNs ? timeout_ns_ : kSliceNs; }
  // Once the first slice has passed.
  void first_has_passed();
  // Length of the upcoming slice: first() or next().
  int64_t slice() const { return end_ == 0 ? first() : next(); }
  // Handles signals; returns whether time is left. Call after the first slice.
  bool more();
  // Length of the next slice.
  int64_t next() const;
  // If the error's text reports a passed deadline, replaces its seconds with those of all slices.
  std::string of_all_slices(const std::string& text) const;
  // The beginning of every timeout's text.
  std::string deadline_passed() const;

 private:
  static int64_t now();
  int64_t timeout_ns_;
  int64_t end_ = 0;  // 0: not known yet
  bool over_ = false;
};

// Runs a function in its own thread and stores its result.
template <typename Result>
class ThreadedCall {
 public:
  template <typename Function>
  static std::shared_ptr<ThreadedCall> start(Function function) {
    auto call = std::make_shared<ThreadedCall>();
    std::thread([call, function = std::move(function)]() mutable {
      std::optional<Result> result;
      std::exception_ptr failure;
      try {
        result.emplace(function());
      } catch (...) {
        failure = std::current_exception();
      }
      std::lock_guard lock(call->mutex_);
      call->result_ = std::move(result);
      call->failure_ = std::move(failure);
      call->done_ = true;
      call->ended_.notify_one();
    }).detach();
    return call;
  }
  // Waits one slice without the GIL; false if the function has not ended.
  bool wait() {
    WithoutGil release;
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, std::chrono::nanoseconds(kSliceNs), [&] { return done_; });
  }
  // Returns or rethrows its result. Requires that it has ended.
  Result take() {
    if (failure_) std::rethrow_exception(failure_);
    return std::move(*result_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::optional<Result> result_;
  std::exception_ptr failure_;
};

// Makes a library call that cannot be cut into slices. On the main thread it runs in its own
// thread, so that Ctrl-C ends the wait; its result is then dropped. `function` must own what it
// uses and must not touch Python objects.
template <typename Function>
auto call_interruptibly(Function function) {
  if (!on_main_thread()) {
    WithoutGil release;
    return function();
  }
  auto call = ThreadedCall<decltype(function())>::start(std::move(function));
  do {
    check_signals();
  } while (!call->wait());
  return call->take();
}

// As call_interruptibly(), for a call that can be cancelled through the word passed to `function`:
// Ctrl-C cancels it and waits at most kSlicesToEnd slices for its end before it raises.
template <typename Function>
auto call_cancellably(Function function) {
  if (!on_main_thread()) {
    WithoutGil release;
    return function(nullptr);
  }
  auto word = std::make_shared<std::atomic<int>>(0);
  static_assert(sizeof(*word) == sizeof(int));
  auto call = ThreadedCall<decltype(function(nullptr))>::start(
      [word, function = std::move(function)]() mutable {
        return function(reinterpret_cast<const int*>(word.get()));
      });
  try {
    do {
      check_signals();
    } while (!call->wait());
  } catch (...) {
    word->store(1);
    // A name lookup may block longer; the call ends later, when it reads the word.
    for (int slices = 0; slices < kSlicesToEnd && !call->wait(); ++slices) continue;
    throw;
  }
  return call->take();
}

// Repeats a call that has no effect when it ends with OH_ERR_TIMEOUT. `attempt` takes a timeout and
// returns a status.
template <typename Attempt>
void wait_in_slices(int64_t timeout, Attempt attempt) {
  Patience patience(timeout);
  int64_t slice = patience.first();
  while (true) {
    oh_status status;
    {
      WithoutGil release;
      status = attempt(slice);
    }
    if (status == OH_OK) return;
    // Save the text before signal handlers run: they may call the library.
    std::string text = oh_error_text();
    if (status != OH_ERR_TIMEOUT) raise(status);
    if (!patience.more()) throw TimeoutError(status, patience.of_all_slices(text));
    slice = patience.next();
  }
}

}  // namespace onehop::python
