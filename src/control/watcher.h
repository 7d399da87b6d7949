// SPDX-License-Identifier: Apache-2.0
//
// The watcher: one thread per process, asleep in epoll on sockets, process descriptors and timers.
// It accepts links, notices deaths and carries control messages. It issues no copies of GPU memory
// and never waits for a peer.
//
// It works in turns: all links, processes and timers that are ready, then a few of the strangers,
// so that a flood of those delays the others by at most one turn. A callback does a bounded
// amount of work; the descriptor, if it is still ready, or a task brings the rest in the next turn.
//
// Threading: any thread may call; callbacks run on the watcher's thread, without any of its locks.
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
  // Kept alive by the watcher while registered, and during a callback.
  class Handler {
   public:
    virtual ~Handler() = default;
    // `events` as of epoll. May still come once after remove() from another thread.
    virtual void on_ready(uint32_t events) = 0;
  };
  using Task = std::function<void()>;
  // Strangers: connections that have not authenticated, and the sockets that they come from.
  enum class Who { kKnown, kStranger };
  static constexpr int kStrangersAtOnce = 16;

  static Result<std::unique_ptr<Watcher>> start();
  ~Watcher() { stop(); }
  // Afterwards no callback runs; idempotent. Not on the watcher's thread.
  void stop();

  Status add(int fd, uint32_t events, std::shared_ptr<Handler> handler, Who who = Who::kKnown);
  Status modify(int fd, uint32_t events);
  void remove(int fd);

  // Runs `task` soon, or not before the monotonic time `at`.
  void post(Task task) { post_at(0, std::move(task)); }
  void post_at(int64_t at, Task task);

  bool on_thread() const;
  // Where its thread runs from now on; -1: wherever it may.
  void move_to(int numa_node);

 private:
  Watcher() = default;
  static void run(void* context);
  void loop();
  void serve(const epoll_event& event);
  void serve_strangers();
  int epoll_of(Who who) const { return who == Who::kKnown ? epoll_.get() : strangers_.get(); }
  void run_due_tasks();
  int64_t until_next_task();
  void wake();

  UniqueFd epoll_;      // of the known, `strangers_` and `event_`
  UniqueFd strangers_;  // an epoll of its own
  UniqueFd event_;
  unsigned long thread_ = 0;
  std::atomic<bool> stopping_{false};
  ThreadPlace place_;  // touched on its thread only

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
