// SPDX-License-Identifier: Apache-2.0
//
// Stream-domain launches during which a call other than the launch fails. Calls that can fail are
// made before the launch, so an error means that nothing was enqueued. If the event after a launch
// cannot be recorded the kernel runs all the same: it is served, and its memory is kept. The same
// holds for a kernel that has not begun when its link is closed.
#include <atomic>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_launch_faults {
namespace {

constexpr int kOutOfMemory = 2;
constexpr uint32_t kSlot = 6;
constexpr int64_t kPatience = 20'000'000'000;

struct Moved {
  Buffer& out;
  Buffer& in;
  oh_remote_region* remote;
  size_t size;
};

uint64_t launches() {
  return fake_driver().calls("cuLaunchKernelEx") + fake_driver().calls("cuLaunchKernel");
}

class GpuLaunchFaults : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    if (std::getenv("REAL_GPUS")) GTEST_SKIP() << "needs the fake driver";
  }
};

// Among calls on all lanes one needs a new event.
TEST_P(GpuLaunchFaults, WithoutAnEventNothingIsEnqueued) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_peer* peer = side.peer().get();
    Buffer buffer = side.buffer(100);
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    side.sync();
    bool struck = false;
    for (uint32_t lane = 0; lane < OH_LANES && !struck; ++lane) {
      const uint64_t before = launches();
      ASSERT_EQ(fake_driver().fail("cuEventCreate", 1, kOutOfMemory), 0);
      const oh_stream_options options = within(OH_TIMEOUT_DEFAULT, lane);
      const oh_status status =
          oh_peer_stream_send(peer, here.stream(), buffer.data(), buffer.size(), &options);
      fake_driver().clear_failures();
      struck = status != OH_OK;
      EXPECT_EQ(launches() - before, struck ? 0u : 1u) << oh_error_text();
      // A retry succeeds.
      if (struck) here.send(buffer, buffer.size(), lane);
    }
    EXPECT_TRUE(struck);
    here.end();
  });
}

TEST_P(GpuLaunchFaults, WithoutAnEventNoSignalIsSent) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_peer* peer = side.peer().get();
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    uint64_t sent = 0;
    bool struck = false;
    // Each stream needs its own event, until no spare event is left.
    std::vector<std::unique_ptr<StreamSide>> streams;
    while (!struck) {
      streams.push_back(std::make_unique<StreamSide>(side, /*connects=*/false));
      ASSERT_EQ(fake_driver().fail("cuEventCreate", 1, kOutOfMemory), 0);
      struck = oh_peer_stream_signal(peer, streams.back()->stream(), kSlot, 1) != OH_OK;
      fake_driver().clear_failures();
      sent += struck ? 0 : 1;
    }
    side.tell_number(static_cast<int64_t>(sent));
    const auto theirs = static_cast<uint64_t>(side.hear_number());
    onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), kSlot, theirs, nullptr));
    here.finish();
    EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
    side.sync();
    // No event is left.
    const oh_stream_options hurried = within(20'000'000);
    onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), kSlot, 1, &hurried));
    here.finish();
    EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT) << oh_error_text();
    here.end();
  });
}

// Another stream cannot follow a launch whose end is unknown until the GPU is idle.
TEST_P(GpuLaunchFaults, WhatFollowsALaunchOfUnknownEndIsRefused) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_peer* peer = side.peer().get();
    StreamSide other(side, /*connects=*/false);
    Buffer out = side.buffer(100);
    Buffer in = side.buffer(100);
    out.fill(3);
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    std::atomic<bool> go{false};
    block_stream(here.stream(), &go);
    ASSERT_EQ(fake_driver().fail("cuEventRecord", 1, kOutOfMemory), 0);
    EXPECT_NE(oh_peer_stream_send(peer, here.stream(), out.data(), 100, nullptr), OH_OK);
    EXPECT_NE(std::string(oh_error_text()).find("cuEventRecord"), std::string::npos);
    fake_driver().clear_failures();
    auto follow = [&] {
      return oh_peer_stream_send(peer, other.stream(), out.data(), 100, nullptr);
    };
    EXPECT_NE(follow(), OH_OK);
    EXPECT_NE(std::string(oh_error_text()).find("its end is not known"), std::string::npos)
        << oh_error_text();
    go = true;
    EXPECT_TRUE(eventually([&] { return follow() == OH_OK; }));
    other.finish();
    // The kernel of the failed call ran.
    for (int i = 0; i < 2; ++i) {
      in.poison();
      here.recv(in, 100);
      here.finish();
      EXPECT_TRUE(in.holds(3, 100));
    }
    here.end();
  });
}

// Even if the link is closed before the kernel has begun.
TEST_P(GpuLaunchFaults, AKernelOfUnknownEndKeepsItsMemory) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_peer* peer = side.peer().get();
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    side.sync();
    if (side.number() == 0) {
      fake_driver().hold_all();
      ASSERT_EQ(fake_driver().fail("cuEventRecord", 1, kOutOfMemory), 0);
      EXPECT_NE(oh_peer_stream_signal(peer, here.stream(), kSlot, 1), OH_OK);
      fake_driver().clear_failures();
    }
    side.sync();
    side.drop_peer();
    fake_driver().release_all();
    here.finish();
    side.sync();
    side.disconnect();
  });
}

// Nothing fails here: the link is closed while its kernel still waits for the application's work.
void close_before_the_kernel(const LinkKind& kind,
                             const std::function<void(Side&, StreamSide&, Buffer&)>& launch) {
  run_streams(kind, [&](Side& side, StreamSide& here) {
    std::atomic<bool> go{false};
    Buffer buffer = side.buffer(100);
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    side.sync();
    if (side.number() == 0) {
      block_stream(here.stream(), &go);
      launch(side, here, buffer);
    }
    side.sync();
    side.drop_peer();
    go = true;
    here.finish();
    side.sync();
    side.disconnect();
  });
}

TEST_P(GpuLaunchFaults, ASendThatHasNotBegunKeepsItsMemory) {
  close_before_the_kernel(GetParam(),
                          [](Side&, StreamSide& here, Buffer& buffer) { here.send(buffer, 100); });
}

TEST_P(GpuLaunchFaults, ASignalThatHasNotBegunKeepsItsMemory) {
  close_before_the_kernel(GetParam(), [](Side& side, StreamSide& here, Buffer&) {
    onehop::check(oh_peer_stream_signal(side.peer().get(), here.stream(), kSlot, 1));
  });
}

// Enqueues a message in each direction, a put, a signal and a wait, on two streams. Returns which
// of them failed.
int64_t enqueue_all(Side& side, StreamSide& here, StreamSide& other, uint32_t lane,
                    const Moved& moved) {
  const oh_stream_options hurried = within(700'000'000, lane);
  oh_peer* peer = side.peer().get();
  int64_t failed = 0;
  auto note = [&](oh_status status) { failed = 2 * failed + (status == OH_OK ? 0 : 1); };
  note(oh_peer_stream_send(peer, here.stream(), moved.out.data(), moved.size, &hurried));
  note(oh_peer_stream_recv(peer, other.stream(), moved.in.data(), moved.size, &hurried));
  note(oh_peer_stream_put(peer, here.stream(), moved.out.data(), moved.remote, 0, moved.size));
  note(oh_peer_stream_signal(peer, here.stream(), kSlot, 1));
  note(oh_peer_stream_wait_signal(peer, other.stream(), kSlot, 1, &hurried));
  here.finish();
  other.finish();
  return failed;
}

// Consumes all asynchronous errors; returns the first.
oh_status take_errors(Side& side) {
  const oh_status first = error_of(side);
  while (error_of(side) != OH_OK) {
  }
  return first;
}

void take_left_signals(Side& side, StreamSide& here) {
  const oh_stream_options now = within(1);
  for (oh_status left = OH_OK; left == OH_OK; left = error_of(side)) {
    onehop::check(oh_peer_stream_wait_signal(side.peer().get(), here.stream(), kSlot, 1, &now));
    here.finish();
  }
}

// Each driver call fails once: every wait ends, the context stays usable, and everything works
// after a reset of the lane.
TEST_P(GpuLaunchFaults, EveryCallToTheDriverFailsOnce) {
  constexpr const char* kCalls[] = {
      "cuStreamIsCapturing",    "cuStreamGetId", "cuLaunchKernelEx",  "cuEventCreate",
      "cuEventRecord",          "cuEventQuery",  "cuStreamWaitEvent", "cuStreamQuery",
      "cuPointerGetAttributes", "cuMemcpyAsync", "cuStreamCreate",    "cuStreamWriteValue64_v2"};
  constexpr int kCodes[] = {2, 801, 400, 999};
  constexpr size_t kSize = 300'000;
  run_streams(GetParam(), [&](Side& side, StreamSide& here) {
    StreamSide other(side, /*connects=*/false);
    Buffer out = side.buffer(kSize);
    Buffer in = side.buffer(kSize);
    Buffer target = side.buffer(kSize);
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    const auto ours = static_cast<uint64_t>(side.number());
    uint64_t round = 0;
    for (const char* call : kCalls) {
      for (uint64_t nth = 1; nth <= 2; ++nth) {
        ++round;
        const auto lane = static_cast<uint32_t>(round % OH_LANES);
        const size_t size = round % 2 == 0 ? kSize : 1'000;
        SCOPED_TRACE(std::string(call) + ", call " + std::to_string(nth) + ", " +
                     std::to_string(size) + " bytes, side " + std::to_string(ours));
        out.fill(2 * round + ours);
        side.sync();
        const int code = kCodes[round % std::size(kCodes)];
        if (side.number() == 0) {
          ASSERT_EQ(fake_driver().fail(call, nth, code), 0);
        }
        const int64_t failed = enqueue_all(side, here, other, lane, {out, in, remote.get(), size});
        fake_driver().clear_failures();
        side.sync();
        const bool well = take_errors(side) == OH_OK && failed == 0;
        side.tell_number(well ? 1 : 0);
        if (side.hear_number() == 1 && well) {
          EXPECT_TRUE(in.holds(2 * round + 1 - ours, size));
          EXPECT_TRUE(target.holds(2 * round + 1 - ours, size));
        }
        take_left_signals(side, here);
        side.sync();
        if (side.number() == 0)
          onehop::check(oh_peer_reset_lane(side.peer().get(), lane, kPatience));
        side.sync();
        (void)take_errors(side);
        exchange(side, here, out, in, 1'000 * round, size, lane);
        EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
      }
    }
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuLaunchFaults,
                         ::testing::Values(by_proxy(), between_gpus(MemoryKind::kMalloc)), name_of);

}  // namespace
}  // namespace conformance::gpu_launch_faults
