// SPDX-License-Identifier: Apache-2.0
//
// The watcher: one thread per process that waits in epoll for sockets, process descriptors and
// timers. It accepts links, detects dead peers and carries control messages. It issues no copies of
// GPU memory and never waits for a peer.
//
// In each turn it serves all ready links, processes and timers, then a few strangers, so a flood of
// strangers delays the others by at most one turn. A callback does a bounded amount of work; the
// rest follows in the next turn, since the descriptor is still ready or the callback posts a task.
//
// Threading: any thread; callbacks run on the watcher's thread, without the watcher's lock.
#pragma once

#include <sys/epoll.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "platform/os/handles.h"
#include "platform/os/numa.h"

namespace oh {

class Watcher {
 public:
  // The watcher holds a reference while the handler is registered, and during a callback.
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events`: epoll's. May still be called once after remove() from another thread.
    virtual void on_ready(uint32_t events) = 0;
  };
  using Task = std::function<void()>;
  // Strangers: unauthenticated connections, and the listening sockets that accept them.
  enum class Who { kKnown, kStranger };
  static constexpr int kStrangersAtOnce = 16;

  static Result<std::unique_ptr<Watcher>> start();
  ~Watcher() { stop(); }
  // Joins the thread: no callback runs afterwards. Idempotent. Not on the watcher's thread.
  void stop();

  Status add(int fd, uint32_t events, std::shared_ptr<Handler> handler, Who who = Who::kKnown);
  Status modify(int fd, uint32_t events);
  void remove(int fd);

  // Runs `task` soon, or not before the monotonic time `at`.
  void post(Task task) { post_at(0, std::move(task)); }
  void post_at(int64_t at, Task task);

  // Waits until the callbacks that run now have ended and released what they hold. It does not wait
  // for posted tasks and registered handlers. On the watcher's thread it returns at once.
  void await_callbacks();
  // Runs `task` on the watcher's thread, and returns after its turn. Does nothing if the thread has
  // ended by an error.
  void run(const Task& task);

  bool on_thread() const;
  // Moves the thread to the CPUs of a NUMA node; -1: to all CPUs that it may use.
  void move_to(int numa_node);

 private:
  Watcher() = default;
  static void run_loop(void* context);
  void loop();
  void serve(const epoll_event& event);
  void serve_strangers();
  int epoll_of(Who who) const { return who == Who::kKnown ? epoll_.get() : strangers_.get(); }
  void run_due_tasks();
  int64_t until_next_task();
  void wake();

  UniqueFd epoll_;      // epoll of the known descriptors, `strangers_` and `event_`
  UniqueFd strangers_;  // epoll of the strangers
  UniqueFd event_;
  unsigned long thread_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int> turn_{0};        // odd while callbacks run
  std::atomic<bool> ended_{false};  // no further turn comes
  ThreadPlace place_;               // used on the watcher's thread only

  Mutex mutex_;
  struct Entry {
    uint64_t serial;
    std::shared_ptr<Handler> handler;
    Who who;
  };
  std::unordered_map<int, Entry> entries_ OH_GUARDED_BY(mutex_);
  std::multimap<int64_t, Task> tasks_ OH_GUARDED_BY(mutex_);
  uint32_t last_serial_ OH_GUARDED_BY(mutex_) = 0;
};

}  // namespace oh
