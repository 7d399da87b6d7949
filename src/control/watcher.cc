// SPDX-License-Identifier: Apache-2.0
#include "control/watcher.h"

#include <errno.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <limits>

#include "base/clock.h"
#include "base/log.h"
#include "platform/os/os.h"
#include "platform/os/process.h"

namespace oh {

namespace {

// Adds one of the watcher's own descriptors. Its serial is zero, which no handler has.
Status watch_own(int epoll, int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = static_cast<uint32_t>(fd);
  int result = os().epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
  return result < 0 ? Status::from_errno(OH_ERR_SYSTEM, -result, "epoll_ctl") : Status();
}

}  // namespace

Result<std::unique_ptr<Watcher>> Watcher::start() {
  std::unique_ptr<Watcher> watcher(new Watcher);
  for (UniqueFd* epoll : {&watcher->epoll_, &watcher->strangers_}) {
    int result = os().epoll_create();
    if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "epoll_create1");
    *epoll = UniqueFd(result);
  }
  int result = os().eventfd();
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "eventfd");
  watcher->event_ = UniqueFd(result);
  OH_RETURN_IF_ERROR(watch_own(watcher->epoll_.get(), watcher->event_.get()));
  OH_RETURN_IF_ERROR(watch_own(watcher->epoll_.get(), watcher->strangers_.get()));
  OH_RETURN_IF_ERROR(start_thread("onehop-watcher", run_loop, watcher.get(), &watcher->thread_));
  return watcher;
}

void Watcher::stop() {
  if (!thread_ || stopping_.exchange(true)) return;
  wake();
  join_thread(thread_);
  // Destroyed after the lock is released: destructors of handlers may call the watcher.
  std::unordered_map<int, Entry> entries;
  std::multimap<int64_t, Task> tasks;
  MutexLock lock(mutex_);
  entries.swap(entries_);
  tasks.swap(tasks_);
}

void Watcher::await_callbacks() {
  if (on_thread()) return;
  // Orders the caller's release of a reference before the load. Pairs with the fence in loop(): a
  // callback of a turn that this load does not see finds the object gone.
  full_fence();
  // acquire: pairs with the release at the end of the turn in loop().
  const int turn = turn_.load(std::memory_order_acquire);
  if (turn % 2 != 0) turn_.wait(turn, std::memory_order_acquire);
}

void Watcher::run(const Task& task) {
  if (on_thread()) return task();
  auto ran = std::make_shared<std::atomic<bool>>(false);
  post([task, ran] {
    task();
    ran->store(true, std::memory_order_release);
  });
  // acquire, twice: pairs with the task, and with run_loop().
  int turn = turn_.load(std::memory_order_acquire);
  while (!ran->load(std::memory_order_acquire) && !ended_.load(std::memory_order_acquire)) {
    turn_.wait(turn, std::memory_order_acquire);
    turn = turn_.load(std::memory_order_acquire);
  }
  await_callbacks();
}

bool Watcher::on_thread() const { return pthread_equal(pthread_self(), thread_) != 0; }

void Watcher::move_to(int numa_node) {
  post([this, numa_node] { place_.move_to(numa_node); });
}

Status Watcher::add(int fd, uint32_t events, std::shared_ptr<Handler> handler, Who who) {
  MutexLock lock(mutex_);
  uint64_t serial = ++last_serial_;
  epoll_event event{};
  event.events = events;
  event.data.u64 = serial << 32 | static_cast<uint32_t>(fd);
  int result = os().epoll_ctl(epoll_of(who), EPOLL_CTL_ADD, fd, &event);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "epoll_ctl");
  entries_[fd] = Entry{serial, std::move(handler), who};
  return {};
}

Status Watcher::modify(int fd, uint32_t events) {
  MutexLock lock(mutex_);
  auto found = entries_.find(fd);
  if (found == entries_.end()) return {};
  epoll_event event{};
  event.events = events;
  event.data.u64 = found->second.serial << 32 | static_cast<uint32_t>(fd);
  int result = os().epoll_ctl(epoll_of(found->second.who), EPOLL_CTL_MOD, fd, &event);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "epoll_ctl");
  return {};
}

void Watcher::remove(int fd) {
  std::shared_ptr<Handler> last;  // destroyed after the lock is released
  MutexLock lock(mutex_);
  auto found = entries_.find(fd);
  if (found == entries_.end()) return;
  os().epoll_ctl(epoll_of(found->second.who), EPOLL_CTL_DEL, fd, nullptr);
  last = std::move(found->second.handler);
  entries_.erase(found);
}

void Watcher::post_at(int64_t at, Task task) {
  {
    MutexLock lock(mutex_);
    tasks_.emplace(at, std::move(task));
  }
  wake();
}

void Watcher::wake() {
  uint64_t one = 1;
  // EAGAIN means that a wake-up is already pending.
  [[maybe_unused]] ssize_t written = write(event_.get(), &one, sizeof(one));
}

int64_t Watcher::until_next_task() {
  MutexLock lock(mutex_);
  if (tasks_.empty()) return std::numeric_limits<int64_t>::max();
  return std::max<int64_t>(tasks_.begin()->first - now_ns(), 0);
}

void Watcher::run_due_tasks() {
  std::vector<Task> due;
  {
    MutexLock lock(mutex_);
    int64_t now = now_ns();
    while (!tasks_.empty() && tasks_.begin()->first <= now) {
      due.push_back(std::move(tasks_.begin()->second));
      tasks_.erase(tasks_.begin());
    }
  }
  for (Task& task : due) task();
}

void Watcher::run_loop(void* context) {
  auto* watcher = static_cast<Watcher*>(context);
  watcher->loop();
  watcher->ended_.store(true, std::memory_order_release);
  watcher->turn_.fetch_add(2, std::memory_order_release);
  watcher->turn_.notify_all();
}

void Watcher::loop() {
  epoll_event events[64];
  while (!stopping_.load()) {
    int count = os().epoll_wait(epoll_.get(), events, 64, until_next_task());
    if (count < 0 && count != -EINTR) {
      OH_LOG(kError, "the watcher stops: epoll_wait failed with errno %d", -count);
      return;
    }
    turn_.fetch_add(1, std::memory_order_relaxed);
    full_fence();  // pairs with await_callbacks()
    bool strangers = false;
    for (int i = 0; i < count; ++i) {
      if (events[i].data.u64 == static_cast<uint32_t>(strangers_.get())) {
        strangers = true;
      } else if (events[i].data.u64 == static_cast<uint32_t>(event_.get())) {
        uint64_t ignored;
        [[maybe_unused]] ssize_t got = read(event_.get(), &ignored, sizeof(ignored));
      } else {
        serve(events[i]);
      }
    }
    run_due_tasks();
    if (strangers) serve_strangers();
    turn_.fetch_add(1, std::memory_order_release);  // pairs with await_callbacks()
    turn_.notify_all();
  }
}

void Watcher::serve_strangers() {
  epoll_event events[kStrangersAtOnce];
  int count = os().epoll_wait(strangers_.get(), events, kStrangersAtOnce, 0);
  for (int i = 0; i < count; ++i) serve(events[i]);
}

void Watcher::serve(const epoll_event& event) {
  auto fd = static_cast<int>(static_cast<uint32_t>(event.data.u64));
  std::shared_ptr<Handler> handler;
  {
    MutexLock lock(mutex_);
    auto found = entries_.find(fd);
    if (found == entries_.end() || found->second.serial != event.data.u64 >> 32) return;
    handler = found->second.handler;
  }
  handler->on_ready(event.events);
}

}  // namespace oh
