// SPDX-License-Identifier: Apache-2.0
//
// Messages longer than a pipe, between buffers that neither side can map: they are staged, with
// several lines per copy.
#include <atomic>
#include <chrono>
#include <thread>

#include "conformance/fake_driver.h"
#include "transport/pipe_layout.h"

namespace conformance::gpu_pipes {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 40'000'001;
constexpr uint64_t kLinesOfAMessage = (kSize + oh::kSlabChunk - 1) / oh::kSlabChunk;

uint64_t copies() { return fake_driver().calls("cuMemcpyAsync"); }

// Concurrent messages; the receiver makes no progress until the pipe is full.
struct Messages {
  std::vector<Buffer> buffers;
  std::vector<onehop::Request> requests;

  void send(Side& side, int count) {
    side.sync();
    for (int i = 0; i < count; ++i) {
      buffers.push_back(side.buffer(kSize));
      buffers.back().fill(i);
    }
    uint64_t before = copies();
    for (int i = 0; i < count; ++i) {
      requests.push_back(side.peer().isend(buffers[i].data(), kSize, i));
    }
    // As much as the pipe holds, with two copies.
    EXPECT_TRUE(eventually([&] {
      for (onehop::Request& request : requests) (void)oh_request_poll(request.get(), 1'000'000);
      return copies() >= before + oh::kPipeLines / oh::kMostOfSpan;
    }));
    side.sync();
  }

  void receive(Side& side, int count) {
    for (int i = 0; i < count; ++i) {
      buffers.push_back(side.buffer(kSize));
      buffers.back().poison();
      requests.push_back(side.peer().irecv(buffers[i].data(), kSize, i));
    }
    side.sync();
    side.sync();
  }
};

LinkKind staged_kind() {
  LinkKind kind = between_gpus(MemoryKind::kAsync);
  kind.env["ONEHOP_PROGRESS_THREAD"] = "off";
  return kind;
}

void pass_messages(int count) {
  auto sender = [&](Side& side) {
    side.connect();
    Messages messages;
    messages.send(side, count);
    for (onehop::Request& request : messages.requests) request.wait(20s);
    side.sync();
    side.disconnect();
  };
  auto receiver = [&](Side& side) {
    side.connect();
    Messages messages;
    messages.receive(side, count);
    uint64_t before = copies();
    for (onehop::Request& request : messages.requests) request.wait(20s);
    uint64_t made = copies() - before;
    EXPECT_GE(made, count * (kLinesOfAMessage / oh::kMostOfSpan));
    EXPECT_LE(made, count * kLinesOfAMessage - 6);  // the eight queued ones took two copies
    for (int i = 0; i < count; ++i) EXPECT_TRUE(messages.buffers[i].holds(i, kSize)) << i;
    side.sync();
    side.disconnect();
  };
  run_apart(staged_kind(), sender, receiver);
}

TEST(GpuPipes, SeveralLinesTakeOneCopy) { pass_messages(1); }
TEST(GpuPipes, SeveralMessagesShareThePipe) { pass_messages(3); }

// The lines of a failed copy return to the sender, and its message fails too.
TEST(GpuPipes, ACopyOfSeveralLinesFails) {
  auto sender = [&](Side& side) {
    side.connect();
    {
      Messages failing;
      failing.send(side, 1);
      EXPECT_EQ(status_of([&] { failing.requests[0].wait(20s); }), OH_ERR_NO_RESOURCE);
    }
    Messages messages;
    messages.send(side, 1);
    messages.requests[0].wait(20s);
    side.sync();
    side.disconnect();
  };
  auto receiver = [&](Side& side) {
    side.connect();
    {
      Messages failing;
      failing.receive(side, 1);
      ASSERT_EQ(fake_driver().fail("cuMemcpyAsync", 1, 2), 0);
      EXPECT_EQ(status_of([&] { failing.requests[0].wait(20s); }), OH_ERR_NO_RESOURCE);
      fake_driver().clear_failures();
    }
    Messages messages;
    messages.receive(side, 1);
    messages.requests[0].wait(20s);
    EXPECT_TRUE(messages.buffers[0].holds(0, kSize));
    side.sync();
    side.disconnect();
  };
  run_apart(staged_kind(), sender, receiver);
}

// If only a part of a copy was enqueued, its receive ends after the engine, however late that is.
TEST(GpuPipes, AReceiveWhoseCopyFailedHalfwayEndsBehindTheEngine) {
  constexpr size_t kOneLine = 100'000;
  run_apart(
      staged_kind(),
      [](Side& side) {
        side.connect();
        Buffer buffer = side.buffer(kOneLine);
        side.sync();
        EXPECT_EQ(status_of([&] { side.peer().send(buffer.data(), kOneLine, 1, 20s); }),
                  OH_ERR_NO_RESOURCE);
        side.sync();
        side.disconnect();
      },
      [](Side& side) {
        side.connect();
        Buffer buffer = side.buffer(kOneLine);
        std::atomic<bool> released{false};
        ASSERT_EQ(fake_driver().fail("cuStreamWriteValue64_v2", 1, 2), 0);
        fake_driver().hold_all();
        side.sync();
        std::thread engine([&] {
          std::this_thread::sleep_for(1500ms);
          released = true;
          fake_driver().release_all();
        });
        EXPECT_EQ(status_of([&] { side.peer().recv(buffer.data(), kOneLine, 1, 20s); }),
                  OH_ERR_NO_RESOURCE);
        EXPECT_TRUE(released);
        engine.join();
        side.sync();
        side.disconnect();
      });
}

// The same if the sender's copy fails: its lines are sent empty.
TEST(GpuPipes, ACopyIntoSeveralLinesFails) {
  auto sender = [&](Side& side) {
    side.connect();
    Buffer buffer = side.buffer(kSize);
    buffer.fill(1);
    side.sync();
    ASSERT_EQ(fake_driver().fail("cuMemcpyAsync", 2, 2), 0);
    onehop::Request request = side.peer().isend(buffer.data(), kSize, 1);
    EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_NO_RESOURCE);
    fake_driver().clear_failures();
    side.peer().send(buffer.data(), kSize, 2, 20s);
    side.sync();
    side.disconnect();
  };
  auto receiver = [&](Side& side) {
    side.connect();
    Buffer buffer = side.buffer(kSize);
    side.sync();
    onehop::Request request = side.peer().irecv(buffer.data(), kSize, 1);
    EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_NO_RESOURCE);
    buffer.poison();
    side.peer().recv(buffer.data(), kSize, 2, 20s);
    EXPECT_TRUE(buffer.holds(1, kSize));
    side.sync();
    side.disconnect();
  };
  run_apart(staged_kind(), sender, receiver);
}

}  // namespace
}  // namespace conformance::gpu_pipes
