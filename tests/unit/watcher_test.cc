// SPDX-License-Identifier: Apache-2.0
#include "control/watcher.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <future>

#include "control/accepting.h"
#include "control/address.h"
#include "platform/os/crypto.h"
#include "platform/os/net.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace watcher_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

class WatcherTest : public ::testing::Test {
 protected:
  WatcherTest() {
    Result<std::unique_ptr<Watcher>> made = Watcher::start();
    EXPECT_TRUE(is_ok(made));
    watcher_ = std::move(*made);
  }
  // Runs `body` on the watcher's thread; returns when it is done.
  void on_watcher(const std::function<void()>& body) {
    std::promise<void> done;
    watcher_->post([&] {
      body();
      done.set_value();
    });
    done.get_future().wait();
  }
  std::unique_ptr<Watcher> watcher_;
};

// Calls a function; counts the live objects of its kind.
class Calls : public Watcher::Handler {
 public:
  explicit Calls(std::function<void(uint32_t)> body) : body_(std::move(body)) { ++alive; }
  ~Calls() override { --alive; }
  void on_ready(uint32_t events) override { body_(events); }
  static inline std::atomic<int> alive{0};

 private:
  std::function<void(uint32_t)> body_;
};

void drain(int fd) {
  char bytes[64];
  [[maybe_unused]] ssize_t got = read(fd, bytes, sizeof(bytes));
}

TEST_F(WatcherTest, TasksRunInTheOrderOfTheirTimes) {
  std::vector<int> order;
  std::promise<void> last;
  int64_t now = now_ns();
  watcher_->post([&] {
    // Posted from the watcher's thread itself, before any of them is due.
    watcher_->post_at(now + 6 * kMillisecond, [&] {
      order.push_back(4);
      last.set_value();
    });
    watcher_->post_at(now + 2 * kMillisecond, [&] { order.push_back(2); });
    watcher_->post_at(now + 4 * kMillisecond, [&] { order.push_back(3); });
    watcher_->post([&] { order.push_back(0); });
    watcher_->post([&] { order.push_back(1); });
  });
  last.get_future().wait();
  EXPECT_THAT(order, ::testing::ElementsAre(0, 1, 2, 3, 4));
  EXPECT_GE(now_ns(), now + 6 * kMillisecond);
}

TEST_F(WatcherTest, ATaskIsNeverEarly) {
  for (int i = 0; i < 10; ++i) {
    std::promise<int64_t> ran;
    int64_t at = now_ns() + kMillisecond;
    watcher_->post_at(at, [&] { ran.set_value(now_ns()); });
    EXPECT_GE(ran.get_future().get(), at);
  }
}

TEST_F(WatcherTest, HandlersRunOnItsThread) {
  auto [one, two] = unit::socket_pair();
  std::promise<bool> on_thread;
  int fd = one.get();
  auto handler = std::make_shared<Calls>([&, fd](uint32_t events) {
    EXPECT_TRUE(events & EPOLLIN);
    drain(fd);
    on_thread.set_value(watcher_->on_thread());
  });
  ASSERT_TRUE(is_ok(watcher_->add(fd, EPOLLIN, handler)));
  ASSERT_EQ(write(two.get(), "x", 1), 1);
  EXPECT_TRUE(on_thread.get_future().get());
  EXPECT_FALSE(watcher_->on_thread());
  watcher_->remove(fd);
}

TEST_F(WatcherTest, AHandlerLivesUntilItsCallbackIsOver) {
  auto [one, two] = unit::socket_pair();
  std::promise<int> alive_inside;
  int fd = one.get();
  auto handler = std::make_shared<Calls>([&, fd](uint32_t) {
    watcher_->remove(fd);  // the last reference apart from the callback's
    alive_inside.set_value(Calls::alive.load());
  });
  ASSERT_TRUE(is_ok(watcher_->add(fd, EPOLLIN, std::move(handler))));
  ASSERT_EQ(write(two.get(), "x", 1), 1);
  EXPECT_EQ(alive_inside.get_future().get(), 1);
  EXPECT_TRUE(unit::eventually([] { return Calls::alive.load() == 0; }));
}

TEST_F(WatcherTest, CallbacksAreAwaitedWithWhatTheyHold) {
  auto [one, two] = unit::socket_pair();
  int fd = one.get();
  std::promise<void> runs;
  auto handler = std::make_shared<Calls>([&, fd](uint32_t) {
    watcher_->remove(fd);
    runs.set_value();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    watcher_->await_callbacks();  // its own thread does not wait for itself
  });
  ASSERT_TRUE(is_ok(watcher_->add(fd, EPOLLIN, std::move(handler))));
  ASSERT_EQ(write(two.get(), "x", 1), 1);
  runs.get_future().wait();
  watcher_->await_callbacks();
  EXPECT_EQ(Calls::alive.load(), 0);
  watcher_->await_callbacks();  // none runs
}

TEST_F(WatcherTest, ACallRunsOnItsThreadAndReturnsAfterTheTurn) {
  for (int round = 0; round < 500; ++round) {
    bool on_thread = false;
    bool nested = false;
    watcher_->run([&] {
      on_thread = watcher_->on_thread();
      watcher_->run([&] { nested = true; });
    });
    ASSERT_TRUE(on_thread && nested);
  }
}

TEST_F(WatcherTest, NoCallbackHoldsWhatWasReleasedBeforeTheWait) {
  for (int round = 0; round < 2000; ++round) {
    auto object = std::make_shared<int>(round);
    std::weak_ptr<int> weak = object;
    watcher_->post([weak] {
      if (std::shared_ptr<int> held = weak.lock()) sched_yield();
    });
    object.reset();
    watcher_->await_callbacks();
    // A reference that a callback still held would count.
    ASSERT_EQ(weak.use_count(), 0) << round;
  }
}

TEST_F(WatcherTest, InterestCanBeSwitchedOffAndOn) {
  auto [one, two] = unit::socket_pair();
  std::atomic<int> count{0};
  int fd = one.get();
  auto handler = std::make_shared<Calls>([&, fd](uint32_t) {
    drain(fd);
    ++count;
  });
  ASSERT_TRUE(is_ok(watcher_->add(fd, 0, handler)));
  ASSERT_EQ(write(two.get(), "x", 1), 1);
  on_watcher([] {});
  on_watcher([] {});
  EXPECT_EQ(count.load(), 0);
  ASSERT_TRUE(is_ok(watcher_->modify(fd, EPOLLIN)));
  EXPECT_TRUE(unit::eventually([&] { return count.load() == 1; }));
  watcher_->remove(fd);
  watcher_->remove(fd);
  EXPECT_TRUE(is_ok(watcher_->modify(fd, EPOLLIN)));  // it was removed: nothing happens
}

// Two descriptors are ready at once; the first callback closes the second and opens another one
// that gets the same number. The event of the closed one must not reach the new one.
TEST_F(WatcherTest, AReusedNumberHearsNothingOfTheFormerOne) {
  for (int round = 0; round < 20; ++round) {
    auto first = unit::socket_pair();
    auto second = unit::socket_pair();
    auto fresh = unit::socket_pair();
    std::atomic<int> wrong{0};
    std::atomic<bool> replaced{false};
    int reused = second.first.get();
    auto replace = [&](uint32_t) {
      if (replaced.exchange(true)) return;
      watcher_->remove(first.first.get());
      watcher_->remove(second.first.get());
      // dup2 puts the new socket, which is not readable, under the number.
      ASSERT_EQ(dup2(fresh.first.get(), reused), reused);
      auto quiet = std::make_shared<Calls>([&](uint32_t) { ++wrong; });
      ASSERT_TRUE(is_ok(watcher_->add(reused, EPOLLIN, quiet)));
    };
    on_watcher([&] {
      // Whichever of the two is handled first.
      ASSERT_TRUE(
          is_ok(watcher_->add(first.first.get(), EPOLLIN, std::make_shared<Calls>(replace))));
      ASSERT_TRUE(is_ok(watcher_->add(reused, EPOLLIN, std::make_shared<Calls>(replace))));
      ASSERT_EQ(write(first.second.get(), "x", 1), 1);
      ASSERT_EQ(write(second.second.get(), "x", 1), 1);
    });
    EXPECT_TRUE(unit::eventually([&] { return replaced.load(); }));
    on_watcher([] {});
    on_watcher([] {});
    EXPECT_EQ(wrong.load(), 0);
    watcher_->remove(reused);
  }
}

TEST_F(WatcherTest, AnyThreadMayAddRemoveAndPost) {
  unit::Threads threads;
  std::atomic<int> ran{0};
  for (int i = 0; i < 4; ++i) {
    threads.start([&] {
      for (int round = 0; round < 50; ++round) {
        auto [one, two] = unit::socket_pair();
        int fd = one.get();
        ASSERT_TRUE(is_ok(
            watcher_->add(fd, EPOLLIN, std::make_shared<Calls>([fd](uint32_t) { drain(fd); }))));
        ASSERT_EQ(write(two.get(), "x", 1), 1);
        watcher_->post([&] { ++ran; });
        watcher_->remove(fd);
        // A callback may still run: the descriptor is closed after it.
        on_watcher([] {});
      }
    });
  }
  threads.join();
  EXPECT_TRUE(unit::eventually([&] { return ran.load() == 200; }));
}

TEST_F(WatcherTest, AfterStopNothingRunsAndNothingIsHeld) {
  auto [one, two] = unit::socket_pair();
  std::atomic<int> count{0};
  ASSERT_TRUE(is_ok(
      watcher_->add(one.get(), EPOLLIN, std::make_shared<Calls>([&](uint32_t) { ++count; }))));
  auto held = std::make_shared<int>(0);
  watcher_->post_at(now_ns() + 3600 * kSecond, [held] {});
  watcher_->stop();
  watcher_->stop();
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_EQ(Calls::alive.load(), 0);
  ASSERT_EQ(write(two.get(), "x", 1), 1);
  EXPECT_EQ(count.load(), 0);
}

// Strangers are always ready, more than are served in one turn. A link that becomes ready while one
// of them is served is handled before the rest.
TEST_F(WatcherTest, AFloodOfStrangersDelaysALinkByOneTurnAtMost) {
  constexpr int kStrangers = 5 * Watcher::kStrangersAtOnce;
  auto link = unit::socket_pair();
  std::vector<std::pair<UniqueFd, UniqueFd>> strangers;
  int served = 0;
  int served_before_link = -1;
  std::promise<void> done;
  auto on_stranger = [&](uint32_t) {
    // Not drained: it stays ready.
    if (++served == 1) {
      ASSERT_EQ(write(link.second.get(), "x", 1), 1);
    }
    if (served > 1000 && served_before_link < 0) {
      served_before_link = served;
      done.set_value();
    }
  };
  auto on_link = [&](uint32_t) {
    drain(link.first.get());
    if (served_before_link < 0) {
      served_before_link = served;
      done.set_value();
    }
  };
  on_watcher([&] {
    for (int i = 0; i < kStrangers; ++i) {
      strangers.push_back(unit::socket_pair());
      ASSERT_EQ(write(strangers.back().second.get(), "x", 1), 1);
      ASSERT_TRUE(
          is_ok(watcher_->add(strangers.back().first.get(), EPOLLIN,
                              std::make_shared<Calls>(on_stranger), Watcher::Who::kStranger)));
    }
    ASSERT_TRUE(is_ok(watcher_->add(link.first.get(), EPOLLIN, std::make_shared<Calls>(on_link))));
  });
  done.get_future().wait();
  watcher_->stop();
  EXPECT_LE(served_before_link, Watcher::kStrangersAtOnce);
}

// The same for callers: each accepted caller calls again at once, so that one is always waiting.
TEST_F(WatcherTest, AFloodOfCallersDelaysALinkByOneTurnAtMost) {
  const SocketAddress address =
      SocketAddress::unix_abstract("onehop-unit-" + id_text(*random_id()));
  Result<UniqueFd> listening = listen_on(address);
  ASSERT_TRUE(is_ok(listening));
  auto link = unit::socket_pair();
  int admitted = 0;
  int admitted_before_link = -1;
  std::promise<void> done;
  auto finish = [&] {
    if (admitted_before_link >= 0) return;
    admitted_before_link = admitted;
    done.set_value();
  };
  auto call = [&] { ASSERT_TRUE(is_ok(connect_to({address}, Deadline::after(20 * kSecond)))); };
  auto on_link = [&](uint32_t) {
    drain(link.first.get());
    finish();
  };
  ASSERT_TRUE(is_ok(watcher_->add(link.first.get(), EPOLLIN, std::make_shared<Calls>(on_link))));
  auto accepting = std::make_shared<Accepting>(*watcher_, std::move(*listening), [&](UniqueFd) {
    if (++admitted == 1) {
      ASSERT_EQ(write(link.second.get(), "x", 1), 1);
    }
    if (admitted_before_link < 0) call();
    if (admitted > 1000) finish();
  });
  call();
  on_watcher([&] { ASSERT_TRUE(is_ok(accepting->start())); });
  done.get_future().wait();
  watcher_->stop();
  EXPECT_LE(admitted_before_link, Accepting::kAtOnce);
}

// A handler that calls the watcher while it is destroyed.
class Farewell : public Watcher::Handler {
 public:
  Farewell(Watcher& watcher, int fd) : watcher_(watcher), fd_(fd) {}
  ~Farewell() override {
    watcher_.remove(fd_);
    watcher_.post([] {});
  }
  void on_ready(uint32_t) override {}

 private:
  Watcher& watcher_;
  int fd_;
};

TEST_F(WatcherTest, AHandlerMayCallItWhileItGoes) {
  auto [one, two] = unit::socket_pair();
  ASSERT_TRUE(
      is_ok(watcher_->add(one.get(), EPOLLIN, std::make_shared<Farewell>(*watcher_, one.get()))));
  watcher_->stop();
}

TEST(WatcherFaultTest, AFailedStartSaysWhyAndLeaksNothing) {
  FaultyOs faulty;
  size_t before = unit::open_fds();
  faulty.arm(Call::epoll_create, 0, EMFILE);
  EXPECT_TRUE(fails_with(Watcher::start(), OH_ERR_SYSTEM, "epoll_create1: EMFILE"));
  faulty.arm(Call::eventfd, 0, EMFILE);
  EXPECT_TRUE(fails_with(Watcher::start(), OH_ERR_SYSTEM, "eventfd: EMFILE"));
  faulty.arm(Call::epoll_ctl, 0, ENOSPC);
  EXPECT_TRUE(fails_with(Watcher::start(), OH_ERR_SYSTEM, "epoll_ctl: ENOSPC"));
  EXPECT_EQ(unit::open_fds(), before);
}

TEST(WatcherFaultTest, InterruptsDoNotEndIt) {
  FaultyOs faulty;
  faulty.interrupt_all_but(10);
  Result<std::unique_ptr<Watcher>> watcher = Watcher::start();
  ASSERT_TRUE(is_ok(watcher));
  std::promise<void> ran;
  (*watcher)->post_at(now_ns() + kMillisecond, [&] { ran.set_value(); });
  ran.get_future().wait();
  (*watcher)->stop();
}

TEST(WatcherFaultTest, ACallReturnsOnceTheThreadHasEnded) {
  FaultyOs faulty;
  Result<std::unique_ptr<Watcher>> watcher = Watcher::start();
  ASSERT_TRUE(is_ok(watcher));
  faulty.arm(Call::epoll_wait, 0, EBADF);
  (*watcher)->run([] {});  // in this turn or in none
  bool ran = false;
  (*watcher)->run([&] { ran = true; });
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace watcher_test
