// SPDX-License-Identifier: Apache-2.0
//
// A listening socket on the watcher: accepts a bounded number of connections per turn, and pauses
// when accept() fails, as when the process is out of descriptors.
//
// Threading: on_ready() runs on the watcher's thread.
#pragma once

#include <errno.h>
#include <sys/epoll.h>

#include <functional>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "control/watcher.h"
#include "platform/os/os.h"

namespace oh {

class Accepting final : public Watcher::Handler, public std::enable_shared_from_this<Accepting> {
 public:
  using Admit = std::function<void(UniqueFd)>;
  Accepting(Watcher& watcher, UniqueFd fd, Admit admit)
      : watcher_(watcher), fd_(std::move(fd)), admit_(std::move(admit)) {}

  static constexpr int kAtOnce = 32;

  Status start() {
    return watcher_.add(fd_.get(), EPOLLIN, shared_from_this(), Watcher::Who::kStranger);
  }
  // Closes the socket and accepts no more connections. On the watcher's thread.
  void stop() {
    watcher_.remove(fd_.get());
    fd_.reset();
  }

  void on_ready(uint32_t) override {
    for (int i = 0; i < kAtOnce && fd_.valid(); ++i) {
      int result = os().accept(fd_.get());
      if (result >= 0) {
        admit_(UniqueFd(result));
        continue;
      }
      if (result == -EINTR || result == -ECONNABORTED) continue;
      if (result != -EAGAIN) rest(-result);
      return;
    }
  }

 private:
  static constexpr int64_t kRest = 100 * kMillisecond;
  static constexpr int64_t kWarningInterval = 10 * kSecond;

  // Stops polling for a while: the socket stays ready, so the watcher would spin.
  void rest(int failure) {
    int64_t now = now_ns();
    if (now >= next_warning_at_) {
      next_warning_at_ = now + kWarningInterval;
      const Status why = Status::from_errno(OH_ERR_SYSTEM, failure, "accept");
      OH_LOG(kWarn, "%s; trying again each 100 ms", why.text().c_str());
    }
    if (!watcher_.modify(fd_.get(), 0).ok()) return;
    watcher_.post_at(now_ns() + kRest, [weak = weak_from_this()] {
      std::shared_ptr<Accepting> self = weak.lock();
      if (self && self->fd_.valid()) (void)self->watcher_.modify(self->fd_.get(), EPOLLIN).ok();
    });
  }

  Watcher& watcher_;
  UniqueFd fd_;
  Admit admit_;
  int64_t next_warning_at_ = 0;
};

}  // namespace oh
