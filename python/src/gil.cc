// SPDX-License-Identifier: Apache-2.0
#include "gil.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace onehop::python {
namespace {

std::atomic<pthread_t> g_exit_thread{};
std::atomic<bool> g_parked{false};

// Some calls need a while to notice that everything is closed, and only then park.
constexpr auto kPatience = std::chrono::seconds(1);

}  // namespace

void park_if_exiting() {
  if (pthread_equal(g_exit_thread.load(), pthread_self())) return;
  g_parked.store(true);
  g_threads_without_gil.fetch_sub(1);
  while (true) pause();
}

void begin_exit() {
  g_exit_thread.store(pthread_self());
  g_exiting.store(true);
}

void await_parked() {
  {
    WithoutGil release;  // for threads that are about to park
    auto end = std::chrono::steady_clock::now() + kPatience;
    while (g_threads_without_gil.load() > 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // Objects that their frames hold stay alive: do not report them as leaks.
  bool others = g_parked.load() || g_threads_without_gil.load() > 0;
  if (others) nanobind::set_leak_warnings(false);
}

}  // namespace onehop::python
