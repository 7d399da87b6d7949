// SPDX-License-Identifier: Apache-2.0
//
// Fixture for tests of graphs: streams, memory, and captures.
//
// Threading: one thread.
#pragma once

#include <functional>
#include <vector>

#include "spin.h"

namespace fake_test {

class GraphTest : public ::testing::Test {
 protected:
  static constexpr size_t kSize = 4096;

  void SetUp() override {
    for (Stream& stream : streams_) {
      ASSERT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
    }
    for (DevicePtr& memory : memory_) {
      ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
    }
    ASSERT_EQ(driver().event_create(&event_, kEventDisableTiming), kSuccess);
  }
  void TearDown() override {
    go_.set();
    runs_.set();
    for (Stream stream : streams_) {
      EXPECT_EQ(driver().release(stream), 0);
      EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
      EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    }
    for (GraphExec exec : execs_) EXPECT_EQ(driver().graph_exec_destroy(exec), kSuccess);
    for (DevicePtr memory : memory_) EXPECT_EQ(driver().memory_free(memory), kSuccess);
    EXPECT_EQ(driver().event_destroy(event_), kSuccess);
    EXPECT_EQ(driver().running(), 0u);
  }

  // Captures `work` on streams_[0], and on streams forked from it; the graph lives as long as the
  // test.
  GraphExec capture(const std::function<void()>& work) {
    Graph graph = nullptr;
    GraphExec exec = nullptr;
    EXPECT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
    work();
    EXPECT_EQ(driver().capture_end(streams_[0], &graph), kSuccess);
    EXPECT_EQ(driver().graph_instantiate(&exec, graph, 0), kSuccess);
    EXPECT_EQ(driver().graph_destroy(graph), kSuccess);
    execs_.push_back(exec);
    return exec;
  }
  // Makes `after` wait for the work enqueued on `before` so far.
  void order(Stream before, Stream after) {
    EXPECT_EQ(driver().event_record(event_, before), kSuccess);
    EXPECT_EQ(driver().stream_wait_event(after, event_, 0), kSuccess);
  }
  void fill(Stream stream, DevicePtr to, unsigned char value, size_t size = kSize) {
    EXPECT_EQ(driver().memset8_async(to, value, size, stream), kSuccess);
  }
  void copy(Stream stream, DevicePtr to, DevicePtr from, size_t size = kSize) {
    EXPECT_EQ(driver().memcpy_async(to, from, size, stream), kSuccess);
  }
  void replay(GraphExec exec) {
    EXPECT_EQ(driver().graph_launch(exec, streams_[0]), kSuccess);
    EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  }

  Current current_;
  Word go_;
  Word runs_;
  Spin spin_;
  Stream streams_[3] = {};
  DevicePtr memory_[3] = {};
  Event event_ = nullptr;
  std::vector<GraphExec> execs_;
};

}  // namespace fake_test
