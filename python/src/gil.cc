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

// Some calls take a while to notice that everything is closed; they park when they do.
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
    WithoutGil release;  // for those on their way to it
    auto end = std::chrono::steady_clock::now() + kPatience;
    while (g_threads_without_gil.load() > 1 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // What their frames hold lives on, and is no leak.
  bool others = g_parked.load() || g_threads_without_gil.load() > 0;
  if (others) nanobind::set_leak_warnings(false);
}

}  // namespace onehop::python
