// SPDX-License-Identifier: Apache-2.0
//
// Launches of the stream domain of which something fails beside the launch itself. What can fail
// before the launch does, so an error means that nothing was enqueued. Where the event behind a
// launch cannot be recorded the kernel runs all the same: it is served, and its memory stays. So
// does that of a kernel that has not begun when its link is closed.
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_launch_faults {
namespace {

constexpr int kOutOfMemory = 2;
constexpr uint32_t kSlot = 6;

uint64_t launches() {
  return fake_driver().calls("cuLaunchKernelEx") + fake_driver().calls("cuLaunchKernel");
}

class GpuLaunchFaults : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    if (std::getenv("REAL_GPUS")) GTEST_SKIP() << "needs the fake driver";
  }
};

// Of calls on all lanes one needs an event that there is not yet.
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
      // It can be done again.
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
    // Each stream has an event of its own: until none is spare.
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
    // None is left.
    const oh_stream_options hurried = within(20'000'000);
    onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), kSlot, 1, &hurried));
    here.finish();
    EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT) << oh_error_text();
    here.end();
  });
}

// A lane whose last launch may end at any time: another stream cannot follow it, its own one can.
TEST_P(GpuLaunchFaults, WhatFollowsALaunchOfUnknownEndIsRefused) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_peer* peer = side.peer().get();
    StreamSide other(side, /*connects=*/false);
    Buffer out = side.buffer(100);
    Buffer in = side.buffer(100);
    out.fill(3);
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    ASSERT_EQ(fake_driver().fail("cuEventRecord", 1, kOutOfMemory), 0);
    EXPECT_NE(oh_peer_stream_send(peer, here.stream(), out.data(), 100, nullptr), OH_OK);
    EXPECT_NE(std::string(oh_error_text()).find("cuEventRecord"), std::string::npos);
    fake_driver().clear_failures();
    EXPECT_NE(oh_peer_stream_send(peer, other.stream(), out.data(), 100, nullptr), OH_OK);
    EXPECT_NE(std::string(oh_error_text()).find("its end is not known"), std::string::npos)
        << oh_error_text();
    here.send(out, 100);
    onehop::check(oh_peer_stream_send(peer, other.stream(), out.data(), 100, nullptr));
    other.finish();
    // The kernel of the call that failed ran.
    for (int i = 0; i < 3; ++i) {
      in.poison();
      here.recv(in, 100);
      here.finish();
      EXPECT_TRUE(in.holds(3, 100));
    }
    here.end();
  });
}

// Though the link is closed before the kernel has begun.
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

INSTANTIATE_TEST_SUITE_P(Kinds, GpuLaunchFaults,
                         ::testing::Values(by_proxy(), between_gpus(MemoryKind::kMalloc)), name_of);

}  // namespace
}  // namespace conformance::gpu_launch_faults
