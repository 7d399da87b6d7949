// SPDX-License-Identifier: Apache-2.0
//
// Graphs: failed captures, launches that end in an error, and object lifetimes.
//
// Threading: one thread, but where a test starts another.
#include <thread>

#include "graphs.h"

namespace fake_test {
namespace {

constexpr Code kInvalidated = 901;
constexpr Code kUnjoined = 904;
constexpr Code kWrongThread = 908;
constexpr size_t kBytes = 4096;

using FakeGraphLife = GraphTest;

TEST_F(FakeGraphLife, AnUnjoinedForkIsRefused) {
  auto graph = reinterpret_cast<Graph>(1);
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  fill(streams_[0], memory_[0], 1);
  order(streams_[0], streams_[1]);
  fill(streams_[1], memory_[1], 1);
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), kUnjoined);
  EXPECT_EQ(graph, nullptr);
  // Work on the fork after the join.
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  order(streams_[0], streams_[1]);
  fill(streams_[1], memory_[1], 1);
  order(streams_[1], streams_[0]);
  fill(streams_[1], memory_[1], 1);
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), kUnjoined);
  // Both streams have left the capture.
  fill(streams_[0], memory_[0], 7);
  fill(streams_[1], memory_[1], 7);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  EXPECT_EQ(peek(memory_[1], kSize), std::vector<char>(kSize, 7));
  const char* name = nullptr;
  EXPECT_EQ(driver().error_name(kUnjoined, &name), kSuccess);
  EXPECT_STREQ(name, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED");
}

TEST_F(FakeGraphLife, NothingIsRecordedIntoAnInvalidCapture) {
  Graph graph = nullptr;
  int status = -1;
  uint64_t first = 0;
  uint64_t second = 0;
  auto info = [&](uint64_t* id) {
    return driver().stream_capture_info(streams_[0], &status, id, nullptr, nullptr, nullptr);
  };
  EXPECT_EQ(info(&first), kSuccess);
  EXPECT_EQ(status, kCaptureNone);
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  EXPECT_EQ(info(&first), kSuccess);
  EXPECT_EQ(status, kCaptureActive);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kStreamCaptureUnsupported);
  EXPECT_EQ(info(nullptr), kSuccess);
  EXPECT_EQ(status, kCaptureInvalid);
  EXPECT_EQ(driver().memset8_async(memory_[0], 1, kSize, streams_[0]), kInvalidated);
  EXPECT_EQ(driver().memcpy_async(memory_[0], memory_[1], kSize, streams_[0]), kInvalidated);
  EXPECT_EQ(driver().stream_write64(streams_[0], memory_[0], 1, 0), kInvalidated);
  EXPECT_EQ(driver().event_record(event_, streams_[0]), kInvalidated);
  EXPECT_EQ(spin_.launch(streams_[0], {go_.address(), 0, 0}), kInvalidated);
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), kInvalidated);
  EXPECT_EQ(graph, nullptr);
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  EXPECT_EQ(info(&second), kSuccess);
  EXPECT_NE(first, second);
  std::thread([&] {
    EXPECT_EQ(driver().context_push(current_.context()), kSuccess);
    EXPECT_EQ(driver().capture_end(streams_[0], &graph), kWrongThread);
    EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
  }).join();
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), kSuccess);
  EXPECT_EQ(driver().graph_destroy(graph), kSuccess);
}

TEST_F(FakeGraphLife, AskingAboutTheDefaultStreamHarmsNoCapture) {
  Stream blocking = nullptr;
  Graph graph = nullptr;
  int status = -1;
  ASSERT_EQ(driver().stream_create(&blocking, 0), kSuccess);
  ASSERT_EQ(driver().capture_begin(blocking, kCaptureThreadLocal), kSuccess);
  EXPECT_EQ(driver().stream_is_capturing(nullptr, &status), kStreamCaptureImplicit);
  EXPECT_EQ(driver().capture_end(blocking, &graph), kSuccess);
  EXPECT_EQ(driver().stream_is_capturing(nullptr, &status), kSuccess);
  EXPECT_EQ(status, kCaptureNone);
  EXPECT_EQ(driver().graph_destroy(graph), kSuccess);
  EXPECT_EQ(driver().stream_destroy(blocking), kSuccess);
}

TEST_F(FakeGraphLife, WhatIsGoneCannotBeUsed) {
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  fill(streams_[0], memory_[0], 1);
  ASSERT_EQ(driver().capture_end(streams_[0], &graph), kSuccess);
  EXPECT_EQ(driver().graph_instantiate(&exec, graph, 1 << 20), kInvalidValue);
  ASSERT_EQ(driver().graph_instantiate(&exec, graph, 0), kSuccess);
  FakeCudaCounts counts;
  driver().counts(&counts);
  EXPECT_EQ(counts.graphs, 1u);
  EXPECT_EQ(counts.graph_execs, 1u);
  EXPECT_EQ(driver().graph_destroy(graph), kSuccess);
  EXPECT_EQ(driver().graph_destroy(graph), kInvalidValue);
  GraphExec none = nullptr;
  EXPECT_EQ(driver().graph_instantiate(&none, graph, 0), kInvalidValue);
  driver().counts(&counts);
  EXPECT_EQ(counts.graphs, 0u);
  EXPECT_EQ(counts.graph_execs, 1u);
  // A queued launch outlives its handle.
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  EXPECT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
  EXPECT_EQ(driver().graph_exec_destroy(exec), kSuccess);
  EXPECT_EQ(driver().graph_exec_destroy(exec), kInvalidValue);
  EXPECT_EQ(driver().graph_launch(exec, streams_[0]), kInvalidValue);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(peek(memory_[0], kSize), std::vector<char>(kSize, 1));
  driver().counts(&counts);
  EXPECT_EQ(counts.graph_execs, 0u);
}

TEST_F(FakeGraphLife, NodesAreOperationsAndLaunchesAreNot) {
  const GraphExec exec = capture([&] {
    fill(streams_[0], memory_[0], 1);
    copy(streams_[0], memory_[1], memory_[0]);
  });
  const uint64_t operations = driver().calls("operation");
  const uint64_t copies = driver().calls("copy");
  for (int round = 0; round < 10; ++round) replay(exec);
  EXPECT_EQ(driver().calls("operation"), operations + 20);
  EXPECT_EQ(driver().calls("copy"), copies + 10);
}

// Captures work on a stream into a graph that lives until the process ends.
GraphExec record(Stream stream, const std::function<void()>& work) {
  Graph graph = nullptr;
  GraphExec exec = nullptr;
  EXPECT_EQ(driver().capture_begin(stream, kCaptureThreadLocal), kSuccess);
  work();
  EXPECT_EQ(driver().capture_end(stream, &graph), kSuccess);
  EXPECT_EQ(driver().graph_instantiate(&exec, graph, 0), kSuccess);
  return exec;
}

FAKE_ROLE(fail_in_a_replay) {
  Current current;
  Stream stream = nullptr;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  EXPECT_EQ(driver().memory_alloc(&memory, kBytes), kSuccess);
  const GraphExec exec = record(stream, [&] {
    EXPECT_EQ(driver().memset8_async(memory, 1, 100, stream), kSuccess);
    EXPECT_EQ(driver().memcpy_async(memory + 100, memory, 100, stream), kSuccess);
    EXPECT_EQ(driver().memset8_async(memory, 2, 100, stream), kSuccess);
  });
  EXPECT_EQ(driver().graph_launch(exec, stream), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
  EXPECT_EQ(driver().fail("copy", 1, kIllegalAddress), 0);
  EXPECT_EQ(driver().graph_launch(exec, stream), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(driver().graph_launch(exec, stream), kIllegalAddress);
  EXPECT_EQ(peek(memory, 100), std::vector<char>(100, 1));  // the last node did not run
  return 0;
}

TEST(FakeErrors, AFailedNodeEndsItsReplayAndBreaksTheContext) {
  Child child("fail_in_a_replay");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(kill_a_replay) {
  Context context = nullptr;
  EXPECT_EQ(driver().init(0), kSuccess);
  EXPECT_EQ(driver().primary_retain(&context, 0), kSuccess);
  EXPECT_EQ(driver().context_push(context), kSuccess);
  static const Spin* const kSpin = new Spin;
  static const Word* const kNever = new Word;
  static const Word* const kRuns[] = {new Word, new Word, new Word};
  Stream streams[2] = {};
  Event event = nullptr;
  for (Stream& stream : streams) {
    EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  }
  EXPECT_EQ(driver().event_create(&event, kEventDisableTiming), kSuccess);
  const GraphExec exec = record(streams[0], [&] {
    EXPECT_EQ(driver().event_record(event, streams[0]), kSuccess);
    EXPECT_EQ(driver().stream_wait_event(streams[1], event, 0), kSuccess);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(kSpin->launch(streams[i / 2], {kNever->address(), kRuns[i]->address(), 0}),
                kSuccess);
    }
    EXPECT_EQ(driver().event_record(event, streams[1]), kSuccess);
    EXPECT_EQ(driver().stream_wait_event(streams[0], event, 0), kSuccess);
  });
  const uint64_t operations = driver().calls("operation");
  EXPECT_EQ(driver().graph_launch(exec, streams[0]), kSuccess);
  EXPECT_TRUE(eventually([&] { return kRuns[0]->is_set() && kRuns[2]->is_set(); }));
  EXPECT_EQ(driver().running(), 2u);
  EXPECT_EQ(driver().primary_release(0), kSuccess);
  EXPECT_EQ(driver().running(), 0u);
  EXPECT_EQ(driver().calls("operation"), operations + 2);  // the third did not start
  return 0;
}

TEST(FakeProcess, KernelsOfAReplayAreKilledWithTheirContext) {
  Child child("kill_a_replay");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(leave_in_a_replay) {
  static const auto* const current = new Current;  // must outlive this function
  EXPECT_NE(current->context(), nullptr);
  static const Spin* const kSpin = new Spin;
  static const Word* const kNever = new Word;
  static const Word* const kRuns = new Word;
  Stream stream = nullptr;
  EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  const GraphExec exec = record(stream, [&] {
    EXPECT_EQ(kSpin->launch(stream, {kNever->address(), kRuns->address(), 0}), kSuccess);
  });
  EXPECT_EQ(driver().graph_launch(exec, stream), kSuccess);
  EXPECT_TRUE(eventually([&] { return kRuns->is_set(); }));
  return 0;
}

TEST(FakeProcess, ExitDoesNotWaitForAReplay) {
  Child child("leave_in_a_replay");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace fake_test
