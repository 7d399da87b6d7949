// SPDX-License-Identifier: Apache-2.0
//
// Library calls without the GIL, also during interpreter exit. A daemon thread that tries to take
// the GIL then would be terminated by Python in the middle of C++ frames, which aborts the process.
// Such a thread parks instead; the process is about to end.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>

namespace onehop::python {

// Number of threads within a WithoutGil; whether the interpreter is exiting (set once).
inline std::atomic<long> g_threads_without_gil{0};
inline std::atomic<bool> g_exiting{false};

// Parks the calling thread forever, unless it is the exiting thread.
void park_if_exiting();
// begin_exit() marks the calling thread, which holds the GIL, as the exiting one. After
// await_parked() no other thread is about to take the GIL.
void begin_exit();
void await_parked();

class WithoutGil {
 public:
  WithoutGil() {
    g_threads_without_gil.fetch_add(1, std::memory_order_relaxed);
    state_ = PyEval_SaveThread();
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    // seq_cst: pairs with begin_exit(), which waits for counted threads that have not seen it.
    if (g_exiting.load()) park_if_exiting();
    PyEval_RestoreThread(state_);
    g_threads_without_gil.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  PyThreadState* state_;
};

}  // namespace onehop::python
