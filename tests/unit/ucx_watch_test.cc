// SPDX-License-Identifier: Apache-2.0
//
// The share of the watcher's time that one busy endpoint takes.
#include "link/ucx_watch.h"

#include <future>

#include "ucx_listener.h"
#include "unit/support.h"

namespace ucx_watch_test {
namespace {

using namespace oh;
using unit::is_ok;

// Its peers always have work, and take their time.
TEST(UcxWatchTest, ABusyEndpointLetsOthersHaveTheirTurn) {
  Result<const UcxContext*> context = UcxContext::get("", /*rma=*/false);
  if (!context.ok()) GTEST_SKIP() << "no UCX here: " << context.status().text();
  const UcxPoolLimits limits{64 * 1024, 1, 1, 1};
  auto worker = UcxWorker::create(**context, limits, std::make_shared<NoListener>());
  ASSERT_TRUE(is_ok(worker));
  auto node = *Node::get(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}));
  int calls = 0;
  std::atomic<bool> busy{true};
  auto watch = std::make_shared<UcxWatch>(node, *worker, [&] {
    if (!busy.load()) return false;
    ++calls;
    for (Deadline end = Deadline::after(kMillisecond); !end.passed();) {
    }
    return true;
  });
  std::promise<int> first;
  std::promise<int> second;
  node->watcher().post([&] {
    watch->on_ready(0);
    first.set_value(calls);
    // Runs after the work that the endpoint has left for another turn.
    node->watcher().post([&] { second.set_value(calls); });
  });
  EXPECT_EQ(first.get_future().get(), 1);
  EXPECT_EQ(second.get_future().get(), 2);
  busy.store(false);
  watch->stop();
  std::promise<void> idle;
  node->watcher().post([&] { idle.set_value(); });
  idle.get_future().wait();
}

// A watch that counts its calls of serve, from start to stop.
class CountedWatch : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<const UcxContext*> context = UcxContext::get("", /*rma=*/false);
    if (!context.ok()) GTEST_SKIP() << "no UCX here: " << context.status().text();
    auto made = UcxWorker::create(**context, {64 * 1024, 1, 1, 1}, std::make_shared<NoListener>());
    ASSERT_TRUE(is_ok(made));
    worker = *made;
    node = *Node::get(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}));
    watch = std::make_shared<UcxWatch>(node, worker, [this] { return ++calls == busy_at.load(); });
    ASSERT_TRUE(is_ok(watch->start()));
  }
  void TearDown() override {
    if (!watch) return;
    watch->stop();
    std::promise<void> idle;
    node->watcher().post([&] { idle.set_value(); });
    idle.get_future().wait();
  }
  void look() {
    node->watcher().post([this] { watch->on_ready(0); });
  }
  bool reaches(int count) {
    return unit::eventually([&] { return calls.load() >= count; });
  }

  std::shared_ptr<UcxWorker> worker;
  std::shared_ptr<Node> node;
  std::shared_ptr<UcxWatch> watch;
  std::atomic<int> calls{0};
  std::atomic<int> busy_at{0};
};

// Once the event is armed, requests by look_soon() were ignored: the watch polls again by itself.
TEST_F(CountedWatch, WhatWasLeftWhileItArmedTheEventIsSeen) {
  busy_at.store(2);
  look();
  EXPECT_TRUE(reaches(3));
}

TEST_F(CountedWatch, ItLooksAgainAndAgainWhileUcxHoldsSomething) {
  look();
  ASSERT_TRUE(reaches(2));
  {
    SpinGuard guard(worker->lock);
    worker->note_held(1);
  }
  watch->look_soon();
  const int before = calls.load();
  EXPECT_TRUE(reaches(before + 20));
  SpinGuard guard(worker->lock);
  worker->note_held(-1);
}

// In each round the watch is armed, and UCX holds data.
TEST_F(CountedWatch, AThreadThatAsksInEachRoundAddsNoFurtherLooks) {
  {
    SpinGuard guard(worker->lock);
    worker->note_held(1);
  }
  watch->look_soon();
  for (int round = 0; round < 1000; ++round) watch->look_before_sleep();
  constexpr int kTurns = 10;  // one poll per millisecond
  std::promise<int> done;
  node->watcher().post([&] {
    const int before = calls.load();
    node->watcher().post_at(now_ns() + kTurns * kMillisecond,
                            [&done, before, this] { done.set_value(calls.load() - before); });
  });
  EXPECT_LE(done.get_future().get(), 2 * kTurns * 64);
  SpinGuard guard(worker->lock);
  worker->note_held(-1);
}

}  // namespace
}  // namespace ucx_watch_test
