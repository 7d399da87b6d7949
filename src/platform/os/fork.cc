// SPDX-License-Identifier: Apache-2.0
#include "platform/os/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>

#include "base/metrics.h"

namespace oh {
namespace {

// Never destroyed: threads may still run when static destructors do.
struct State {
  std::mutex mutex;
  std::set<int> fds;
};

void before_fork();
void after_fork_parent();
void after_fork_child();

State& state() {
  static State* const instance = [] {
    auto* made = new State;
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    return made;
  }();
  return *instance;
}

void before_fork() { state().mutex.lock(); }
void after_fork_parent() { state().mutex.unlock(); }
void after_fork_child() {
  State& all = state();
  g_fork_generation.fetch_add(1, std::memory_order_relaxed);
  for (int fd : all.fds) close(fd);
  all.fds.clear();
  all.mutex.unlock();
  g_metrics.reset();
}

}  // namespace

void fork_watch() { state(); }

void fork_watch_fd(int fd) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  all.fds.insert(fd);
}

void fork_forget_fd(int fd) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  all.fds.erase(fd);
}

}  // namespace oh
