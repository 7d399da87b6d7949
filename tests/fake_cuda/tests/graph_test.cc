// SPDX-License-Identifier: Apache-2.0
//
// Graphs: effects, order and concurrency of a launch.
//
// Threading: one thread, but where a test starts another.
#include <atomic>
#include <chrono>
#include <thread>

#include "graphs.h"

namespace fake_test {
namespace {

// Time in which a stream that is not held would have finished; on a slow machine the test may miss
// a fault, but never fails wrongly.
constexpr std::chrono::milliseconds kWhile{20};

using FakeGraphs = GraphTest;

TEST_F(FakeGraphs, AReplayTakesTheBytesOfItsTime) {
  const DevicePtr word = memory_[2];
  const GraphExec exec = capture([&] {
    copy(streams_[0], memory_[1], memory_[0], 100);
    fill(streams_[0], memory_[1], 9, 1);
    EXPECT_EQ(driver().stream_write64(streams_[0], word, 5, kStreamWriteDefault), kSuccess);
    EXPECT_EQ(driver().captured(streams_[0]), 3);
  });
  EXPECT_EQ(peek(memory_[1], 100), std::vector<char>(100));  // nothing ran yet
  for (unsigned round = 0; round < 1000; ++round) {
    auto bytes = pattern(100, round);
    poke(memory_[0], bytes);
    poke(word, std::vector<char>(8));
    replay(exec);
    bytes[0] = 9;
    ASSERT_EQ(peek(memory_[1], 100), bytes) << round;
    ASSERT_EQ(peek(word, 1)[0], 5) << round;
  }
}

TEST_F(FakeGraphs, BranchesRunAtOnce) {
  // Each kernel waits for the other to run.
  const GraphExec exec = capture([&] {
    fill(streams_[0], go_.address(), 0, 8);
    fill(streams_[0], runs_.address(), 0, 8);
    order(streams_[0], streams_[1]);
    EXPECT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), 0}), kSuccess);
    EXPECT_EQ(spin_.launch(streams_[1], {runs_.address(), go_.address(), 0}), kSuccess);
    order(streams_[1], streams_[0]);
    fill(streams_[0], memory_[0], 1);
  });
  for (int round = 0; round < 100; ++round) {
    poke(memory_[0], std::vector<char>(kSize));
    ASSERT_EQ(driver().graph_launch(exec, streams_[2]), kSuccess);
    ASSERT_TRUE(eventually([&] { return driver().stream_query(streams_[2]) == kSuccess; }));
    ASSERT_EQ(peek(memory_[0], kSize), std::vector<char>(kSize, 1)) << round;
  }
}

TEST_F(FakeGraphs, ManyBranchesMeetAgain) {
  constexpr size_t kPart = kSize / 8;
  const GraphExec exec = capture([&] {
    fill(streams_[0], memory_[0], 1);
    order(streams_[0], streams_[1]);
    order(streams_[0], streams_[2]);
    for (size_t i = 0; i < 8; ++i) {
      copy(streams_[i % 3], memory_[1] + i * kPart, memory_[0] + i * kPart, kPart);
    }
    order(streams_[1], streams_[0]);
    order(streams_[2], streams_[0]);
    copy(streams_[0], memory_[2], memory_[1]);
    fill(streams_[0], memory_[0], 2);
    fill(streams_[0], memory_[1], 2);
    EXPECT_EQ(driver().captured(streams_[2]), 12);
  });
  for (int round = 0; round < 200; ++round) {
    poke(memory_[2], std::vector<char>(kSize));
    replay(exec);
    ASSERT_EQ(peek(memory_[2], kSize), std::vector<char>(kSize, 1)) << round;
    ASSERT_EQ(peek(memory_[1], kSize), std::vector<char>(kSize, 2)) << round;
  }
}

TEST_F(FakeGraphs, KernelsHaveTheArgumentsOfTheCapture) {
  FakeCudaSpin args{go_.address(), runs_.address(), 0};
  const GraphExec exec = capture([&] {
    EXPECT_EQ(spin_.launch(streams_[0], args), kSuccess);
    args = {};
  });
  ASSERT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
  ASSERT_TRUE(eventually([&] { return runs_.is_set(); }));
  EXPECT_EQ(driver().running(), 1u);
  EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
  go_.set();
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
}

TEST_F(FakeGraphs, AKernelOfOneBlocksAFree) {
  const GraphExec exec = capture(
      [&] { EXPECT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), 0}), kSuccess); });
  DevicePtr memory = 0;
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  ASSERT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
  ASSERT_TRUE(eventually([&] { return runs_.is_set(); }));
  std::atomic<int> code{-1};
  std::thread thread([&] {
    EXPECT_EQ(driver().context_push(current_.context()), kSuccess);
    code = driver().memory_free(memory);
    EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
  });
  EXPECT_TRUE(eventually([&] { return driver().blocked() == 1; }));
  EXPECT_EQ(code, -1);
  go_.set();
  thread.join();
  EXPECT_EQ(code, kSuccess);
}

TEST_F(FakeGraphs, ALaunchIsOneOperationOfItsStream) {
  const GraphExec exec = capture([&] {
    copy(streams_[0], memory_[1], memory_[0]);
    order(streams_[0], streams_[1]);
    copy(streams_[1], memory_[2], memory_[0]);
    order(streams_[1], streams_[0]);
  });
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  fill(streams_[0], memory_[0], 1);
  ASSERT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
  fill(streams_[0], memory_[0], 2);
  std::this_thread::sleep_for(kWhile);
  EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
  EXPECT_EQ(driver().stream_query(streams_[1]), kSuccess);  // the capture ran nothing
  EXPECT_EQ(peek(memory_[1], kSize), std::vector<char>(kSize));
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(peek(memory_[0], kSize), std::vector<char>(kSize, 2));
  EXPECT_EQ(peek(memory_[1], kSize), std::vector<char>(kSize, 1));
  EXPECT_EQ(peek(memory_[2], kSize), std::vector<char>(kSize, 1));
}

TEST_F(FakeGraphs, LaunchesOfOneDoNotOverlap) {
  const GraphExec exec = capture(
      [&] { EXPECT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), 0}), kSuccess); });
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
  ASSERT_EQ(driver().graph_launch(exec, streams_[1]), kSuccess);
  std::this_thread::sleep_for(kWhile);
  EXPECT_FALSE(runs_.is_set());  // the later launch does not overtake the earlier one
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_TRUE(eventually([&] { return runs_.is_set(); }));
  std::this_thread::sleep_for(kWhile);
  EXPECT_EQ(driver().running(), 1u);
  go_.set();
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
}

TEST_F(FakeGraphs, HostFunctionsAreCalledByEveryReplay) {
  struct Seen {
    std::atomic<int> calls{0};
    std::atomic<int> code{-1};
  } seen;
  const GraphExec exec = capture([&] {
    EXPECT_EQ(driver().launch_host_func(
                  streams_[0],
                  [](void* out) {
                    ++static_cast<Seen*>(out)->calls;
                    static_cast<Seen*>(out)->code = driver().stream_query(nullptr);
                  },
                  &seen),
              kSuccess);
  });
  EXPECT_EQ(seen.calls, 0);
  for (int round = 0; round < 3; ++round) replay(exec);
  EXPECT_EQ(seen.calls, 3);
  EXPECT_EQ(seen.code, kNotPermitted);
}

TEST_F(FakeGraphs, ABranchMayBeOnAnotherDevice) {
  Current other(1);
  Stream there = nullptr;
  Event event = nullptr;
  DevicePtr memory = 0;
  ASSERT_EQ(driver().stream_create(&there, kStreamNonBlocking), kSuccess);
  ASSERT_EQ(driver().event_create(&event, kEventDisableTiming), kSuccess);
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  const GraphExec exec = capture([&] {
    fill(streams_[0], memory_[0], 1);
    order(streams_[0], there);
    copy(there, memory, memory_[0]);
    EXPECT_EQ(driver().event_record(event, there), kSuccess);
    EXPECT_EQ(driver().stream_wait_event(streams_[0], event, 0), kSuccess);
    fill(streams_[0], memory_[0], 2);
  });
  replay(exec);
  EXPECT_EQ(peek(memory, kSize), std::vector<char>(kSize, 1));
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(driver().event_destroy(event), kSuccess);
  EXPECT_EQ(driver().stream_destroy(there), kSuccess);
}

}  // namespace
}  // namespace fake_test
