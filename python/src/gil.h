// SPDX-License-Identifier: Apache-2.0
//
// Calls of the library without the GIL, also while the interpreter exits: a daemon thread that then
// wants the GIL back would be ended by Python in the middle of C++ frames, which ends the process.
// So it parks instead; the process is about to end anyway.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>

namespace onehop::python {

// Threads within a WithoutGil; whether the interpreter exits, which is set once.
inline std::atomic<long> g_threads_without_gil{0};
inline std::atomic<bool> g_exiting{false};

// Parks the calling thread for good, unless it is the one that exits.
void park_if_exiting();
// The calling thread, which holds the GIL, exits. Afterwards no thread is about to take the GIL.
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
