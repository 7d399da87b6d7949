// SPDX-License-Identifier: Apache-2.0
//
// Waiting so that Ctrl-C ends it: waits are cut into slices, and between them Python's signal
// handlers run. Only the main thread runs them, but all threads wait alike.
//
// Threading: called with the GIL held; it is given up while waiting.
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

// How long a wait may be deaf to signals.
inline constexpr int64_t kSliceNs = 100'000'000;
// How long a cancelled call is waited for.
inline constexpr int kSlicesToEnd = 50;

// Nanoseconds from a timeout argument: seconds, None for ever, `...` (left out) the default.
int64_t timeout_ns(nb::handle timeout, int64_t default_ns);

// Runs Python's signal handlers; raises what they raise.
inline void check_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}
bool on_main_thread();

// The slices of one wait. The clock is first read when the first slice has passed in vain.
class Patience {
 public:
  explicit Patience(int64_t timeout_ns) : timeout_ns_(timeout_ns) {}
  // Length of the first slice.
  int64_t first() const { return timeout_ns_ < kSliceNs ? timeout_ns_ : kSliceNs; }
  // Once the first slice has passed.
  void first_has_passed();
  // Length of the slice that is to come.
  int64_t slice() const { return end_ == 0 ? first() : next(); }
  // Once the first slice has passed: whether time is left, with signals looked at.
  bool more();
  // Length of the next slice.
  int64_t next() const;
  // Of an error's text: where it tells of our deadline, with the seconds of all slices.
  std::string of_all_slices(const std::string& text) const;
  // How the text of every timeout begins.
  std::string deadline_passed() const;

 private:
  static int64_t now();
  int64_t timeout_ns_;
  int64_t end_ = 0;  // 0: not known yet
  bool over_ = false;
};

// A function that runs in a thread of its own, and what becomes of it.
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
  // Without the GIL; false when it has not ended after a slice.
  bool wait() {
    WithoutGil release;
    std::unique_lock lock(mutex_);
    return ended_.wait_for(lock, std::chrono::nanoseconds(kSliceNs), [&] { return done_; });
  }
  // Once it has ended.
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

// A call of the library that cannot be cut into slices: on the main thread it runs in a thread of
// its own, so that Ctrl-C ends the wait for it. What it still brings then is dropped: `function`
// owns what it uses, and touches nothing of Python.
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

// The same for a call that can be cancelled, by a word that `function` is given: Ctrl-C ends it
// before it is raised, and nothing of it is left.
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
    // A name server may keep it; what comes then finds the word, and ends too.
    for (int slices = 0; slices < kSlicesToEnd && !call->wait(); ++slices) continue;
    throw;
  }
  return call->take();
}

// The same for a call that ends with OH_ERR_TIMEOUT and no other effect at its deadline, and so may
// be made again: `attempt` takes a timeout and returns a status.
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
    // Made before signals are looked at: their handlers may call the library.
    std::string text = oh_error_text();
    if (status != OH_ERR_TIMEOUT) raise(status);
    if (!patience.more()) throw TimeoutError(status, patience.of_all_slices(text));
    slice = patience.next();
  }
}

}  // namespace onehop::python
