// SPDX-License-Identifier: Apache-2.0
//
// A lane that is being reset: nothing is lost silently, and other lanes are not disturbed.
#include <atomic>
#include <functional>
#include <thread>

#include "base/fault.h"
#include "conformance/gpu_stream.h"
#include "onehop/detail/lane.h"

namespace conformance::gpu_stream_resets {
namespace {

constexpr int64_t kShort = 50'000'000;
constexpr int64_t kLong = 20'000'000'000;

void reset(Side& side, uint32_t lane = 0) {
  onehop::check(oh_peer_reset_lane(side.peer().get(), lane, kLong));
}

// Side 1: holds all work of its device until side 0 says so, then receives its message.
void receive_after_reset(Side& side) {
  StreamSide here(side);
  Buffer buffer = side.buffer(1'000);
  buffer.poison();
  onehop::check(oh_peer_warmup(side.peer().get(), kLong));
  fake_driver().hold_all();
  side.sync();
  side.hear_number();
  fake_driver().release_all();
  // In the old epoch or in the new one: it is reported, or it gets the message.
  oh_status status = OH_OK;
  do {
    here.recv(buffer, 1'000);
    here.finish();
    status = error_of(side);
  } while (status == OH_ERR_CANCELLED);
  EXPECT_EQ(status, OH_OK);
  EXPECT_TRUE(buffer.holds(7, 1'000));
  here.end();
}

// Side 1 holds all work of its device, so the reset that side 0 requests cannot end. Meanwhile side
// 0's calls must wait for it, and those in a graph are reported as rejected.
TEST(GpuHeldStream, CallsWaitForTheEndOfAReset) {
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [](Side& side) {
        StreamSide here(side);
        Buffer buffer = side.buffer(1'000);
        buffer.fill(7);
        onehop::check(oh_peer_warmup(side.peer().get(), kLong));
        void* graph = capture_graph(here.stream(), [&] { here.recv(buffer, 1'000); });
        here.recv(buffer, 1'000);
        side.sync();
        std::thread resets([&] { reset(side); });
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_CANCELLED) << "of a receive that the reset has ended";
        launch_graph(graph, here.stream());
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_CANCELLED) << "of one that came meanwhile";
        oh_stream_options hurried = within(kShort);
        EXPECT_EQ(
            oh_peer_stream_send(side.peer().get(), here.stream(), buffer.data(), 1'000, &hurried),
            OH_ERR_TIMEOUT);
        EXPECT_NE(std::string(oh_error_text()).find("being reset"), std::string::npos)
            << oh_error_text();
        side.tell_number(1);
        here.send(buffer, 1'000);
        resets.join();
        destroy_graph(graph);
        here.end();
      },
      receive_after_reset);
}

// The state of the lane's send half, in device memory.
uint64_t sender_state(Side& side, uint32_t lane) {
  namespace detail = onehop::detail;
  oh_lane_handle handle;
  onehop::check(oh_peer_device_handle(side.peer().get(), lane, &handle));
  const uint64_t at =
      handle.mine + offsetof(detail::LaneMemory, tx) + offsetof(detail::LaneHalf, state);
  uint64_t state = 0;
  read_device(&state, reinterpret_cast<void*>(at), sizeof(state));
  return state;
}

// Runs `work` once, when a call is about to take the turns of its launch.
std::function<void()>& before_turns() {
  static std::function<void()> work;
  return work;
}
void on_fault_point(const char* point) {
  if (std::string(point) != "stream.turns" || !before_turns()) return;
  std::exchange(before_turns(), nullptr)();
}

// The reset begins after the call has seen that there is none. Side 1 holds all work of its device,
// so the reset cannot end before side 0's call waits for it.
TEST(GpuHeldStream, ACallWaitsForAResetThatOvertakesIt) {
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [](Side& side) {
        StreamSide here(side);
        Buffer buffer = side.buffer(1'000);
        buffer.fill(7);
        onehop::check(oh_peer_warmup(side.peer().get(), kLong));
        side.sync();
        before_turns() = [&] {
          EXPECT_EQ(oh_peer_reset_lane(side.peer().get(), 0, kShort), OH_ERR_TIMEOUT);
          EXPECT_TRUE(
              eventually([&] { return (sender_state(side, 0) & onehop::detail::kFailed) != 0; }));
          side.tell_number(1);
        };
        oh::g_fault_hook = on_fault_point;
        here.send(buffer, 1'000);
        oh::g_fault_hook = nullptr;
        here.finish();
        EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
        here.end();
      },
      receive_after_reset);
}

TEST(GpuHeldStream, AStepThatCannotBeLaunchedIsLaunchedLater) {
  auto both = [](Side& side) {
    StreamSide here(side);
    Buffer buffer = side.buffer(1'000);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    side.sync();
    for (uint64_t nth : {1, 2, 3}) {
      constexpr int kOutOfMemory = 2;
      if (side.number() == 0) {
        ASSERT_EQ(fake_driver().fail("cuLaunchKernelEx", nth, kOutOfMemory), 0);
        reset(side);
        fake_driver().clear_failures();
        buffer.fill(nth);
        side.sync();
        here.send(buffer, 1'000);
      } else {
        side.sync();
        here.recv(buffer, 1'000);
        here.finish();
        EXPECT_TRUE(buffer.holds(nth, 1'000));
      }
      side.sync();
    }
    here.end();
  };
  run_apart(between_gpus(MemoryKind::kMalloc), both, both);
}

// As an application's kernel that has taken both halves of the lane and never releases them.
void leave_taken(Side& side, uint32_t lane) {
  namespace detail = onehop::detail;
  oh_lane_handle handle;
  onehop::check(oh_peer_device_handle(side.peer().get(), lane, &handle));
  for (size_t half : {offsetof(detail::LaneMemory, tx), offsetof(detail::LaneMemory, rx)}) {
    const uint64_t state = handle.mine + half + offsetof(detail::LaneHalf, state);
    uint64_t taken = 0;
    read_device(&taken, reinterpret_cast<void*>(state), sizeof(taken));
    ASSERT_EQ(taken & detail::kBusy, 0u);
    taken |= detail::kBusy;
    write_device(reinterpret_cast<void*>(state), &taken, sizeof(taken));
  }
}

// That kernel has ended: a reset by either side takes the lane from it, without waiting for it for
// ever.
TEST(GpuStreamHolders, ALaneThatAKernelHasLeftTakenIsReset) {
  auto both = [](Side& side) {
    StreamSide here(side);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    for (int resetter : {0, 1}) {
      exchange(side, here, 10, 3);
      side.sync();
      if (side.number() == 0) leave_taken(side, 3);
      side.sync();
      if (side.number() == resetter) reset(side, 3);
      side.sync();
      EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
      for (uint64_t round = 0; round < 3; ++round) exchange(side, here, 20 + round, 3);
      side.sync();
    }
    here.end();
  };
  run_pair(with_stream(), both, both);
}

// The kernel may still run: any running kernel may hold the lane.
TEST(GpuStreamHolders, AResetWaitsForWhoMayHaveTheLane) {
  run_streams(with_stream(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(1'000);
    buffer.fill(4);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    if (side.number() == 0) {
      here.recv(buffer, 1'000, 5);
      leave_taken(side, 3);
      EXPECT_EQ(oh_peer_reset_lane(side.peer().get(), 3, 6 * kShort), OH_ERR_TIMEOUT);
      side.sync();
      here.finish();
      reset(side, 3);
    } else {
      side.sync();
      here.send(buffer, 1'000, 5);
    }
    here.finish();
    side.sync();
    exchange(side, here, 30, 3);
    here.end();
  });
}

// A link's resources are released when it is closed, even if a kernel has left a lane taken.
TEST(GpuHeldStream, ALinkGoesThoughAKernelHasLeftALaneTaken) {
  auto both = [](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    Open before{};
    for (int round = 0; round < 2; ++round) {
      if (round == 1) before = Open::settled();  // the process's permanent resources are allocated
      {
        StreamSide here(side);
        onehop::check(oh_peer_warmup(side.peer().get(), kLong));
        side.sync();
        if (round == 1) leave_taken(side, 3);
        side.sync();
        side.disconnect();
      }
      side.sync();
    }
    EXPECT_TRUE(comes_back_to(before));
  };
  run_apart(between_gpus(MemoryKind::kMalloc), both, both);
}

class GpuStreamResets : public ::testing::TestWithParam<LinkKind> {};

// A fault is still reported after the other side has reset the lane.
TEST_P(GpuStreamResets, AFaultOutlivesTheReset) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(1'000);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    if (side.number() == 0) {
      oh_stream_options hurried = within(kShort, 2);
      onehop::check(
          oh_peer_stream_recv(side.peer().get(), here.stream(), buffer.data(), 1'000, &hurried));
      here.finish();
    }
    side.sync();
    if (side.number() == 1) reset(side, 2);
    side.sync();
    if (side.number() == 0) {
      buffer.fill(3);
      here.send(buffer, 1'000, 2);
      EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT);
    } else {
      here.recv(buffer, 1'000, 2);
      here.finish();
      EXPECT_TRUE(buffer.holds(3, 1'000));
    }
    here.end();
  });
}

// Signals belong to the peer, not to lane 0.
TEST_P(GpuStreamResets, WaitsForSignalsGoOn) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    if (side.number() == 0) {
      oh_stream_options options = within(kLong);
      onehop::check(oh_peer_stream_wait_signal(side.peer().get(), here.stream(), 3, 1, &options));
      for (uint32_t lane : {0, 5}) reset(side, lane);
    }
    side.sync();
    if (side.number() == 1) {
      onehop::check(oh_peer_stream_signal(side.peer().get(), here.stream(), 3, 1));
    }
    here.end();
  });
}

// Either side can use the lane as soon as its own or the other side's reset has returned.
TEST_P(GpuStreamResets, ALaneIsUsedAtOnceWhereTheOtherSideHasResetIt) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(1'000);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    side.sync();
    for (uint64_t round = 0; round < 100; ++round) {
      if (static_cast<uint64_t>(side.number()) == round % 2) {
        reset(side, 4);
        buffer.fill(round);
        side.sync();
        here.send(buffer, 1'000, 4);
        here.finish();
      } else {
        side.sync();
        here.recv(buffer, 1'000, 4);
        here.finish();
        EXPECT_TRUE(buffer.holds(round, 1'000)) << "round " << round;
      }
      side.sync();
    }
    here.end();
  });
}

// Both operations that wait when the other side resets the lane, and those behind them on the
// stream.
TEST_P(GpuStreamResets, WhatAResetEndsIsTold) {
  constexpr size_t kSize = 300'000;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(kSize);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    if (side.number() == 0) {
      here.recv(buffer, kSize, 1);
      here.recv(buffer, kSize, 1);
    }
    side.sync();
    if (side.number() == 1) reset(side, 1);
    here.finish();
    EXPECT_EQ(error_of(side), side.number() == 0 ? OH_ERR_CANCELLED : OH_OK) << oh_error_text();
    // The work behind it begins before the reset has ended, or after it, when it is reported
    // separately.
    const oh_status behind = error_of(side);
    EXPECT_TRUE(behind == OH_OK || (side.number() == 0 && behind == OH_ERR_CANCELLED)) << behind;
    EXPECT_EQ(error_of(side), OH_OK);
    side.sync();
    if (side.number() == 1) {
      buffer.fill(9);
      here.send(buffer, kSize, 1);
    } else {
      here.recv(buffer, kSize, 1);
      here.finish();
      EXPECT_TRUE(buffer.holds(9, kSize));
    }
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamResets, ::testing::ValuesIn(way_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_resets
