// SPDX-License-Identifier: Apache-2.0
//
// Failures in the stream domain: every wait of a kernel ends, the context stays usable, and a
// failed lane works again after a reset.
#include <signal.h>

#include <chrono>
#include <thread>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_failures {
namespace {

using namespace std::chrono_literals;

class GpuStreamFailures : public ::testing::TestWithParam<LinkKind> {};

// One call with its own deadline.
oh_stream_options hurried(uint32_t lane = 0) { return within(50'000'000, lane); }

// The context is intact: another local kernel runs, and the other lanes work.
TEST_P(GpuStreamFailures, ADeadlineEndsTheWaitAndAResetBringsTheLaneBack) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(600'000);
    exchange(side, here, 10);
    for (bool sends : {false, true}) {
      // A receive without a send on both sides; then a large send by one side.
      const bool waits = !sends || side.number() == 0;
      auto call = [&](size_t size, const oh_stream_options* options) {
        return sends ? oh_peer_stream_send(side.peer().get(), here.stream(), buffer.data(), size,
                                           options)
                     : oh_peer_stream_recv(side.peer().get(), here.stream(), buffer.data(), size,
                                           options);
      };
      if (waits) {
        oh_stream_options options = hurried();
        onehop::check(call(600'000, &options));
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT) << oh_error_text();
        EXPECT_EQ(error_of(side), OH_OK) << "is told once";
        // The half rejects further calls at once.
        EXPECT_EQ(call(1, nullptr), OH_ERR_TIMEOUT);
        EXPECT_NE(std::string(oh_error_text()).find("reset"), std::string::npos) << oh_error_text();
      }
      side.sync();
      exchange(side, here, 20, 5);
      side.sync();
      // One side's reset suffices, and two count as one.
      if (!sends || side.number() == 1) {
        onehop::check(oh_peer_reset_lane(side.peer().get(), 0, OH_TIMEOUT_DEFAULT));
      }
      side.sync();
      for (uint64_t round = 0; round < 3; ++round) exchange(side, here, 30 + round);
    }
    here.end();
  });
}

TEST(GpuStreamFailures, WhatNoPeerSendsIsAProtocolFault) {
  run_streams(with_stream(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(1000);
    exchange(side, here, 10);
    side.sync();
    if (side.number() == 1) {
      // As if the peer had corrupted the memory: a line of the first lap and epoch with an invalid
      // kind.
      oh_lane_handle lane;
      onehop::check(oh_peer_device_handle(side.peer().get(), 3, &lane));
      const uint32_t line[4] = {3u << 30 | 8, 0, 0, 1u << 24};
      write_device(reinterpret_cast<void*>(lane.mine + lane.lines_at), line, sizeof(line));
      here.recv(buffer, 1000, 3);
      here.finish();
      EXPECT_EQ(error_of(side), OH_ERR_PROTOCOL) << oh_error_text();
      onehop::check(oh_peer_reset_lane(side.peer().get(), 3, OH_TIMEOUT_DEFAULT));
    }
    side.sync();
    here.end();
  });
}

// Often enough for epochs to wrap.
TEST_P(GpuStreamFailures, ALaneIsResetManyTimes) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    for (uint64_t round = 0; round < 300; ++round) {
      onehop::check(oh_peer_reset_lane(side.peer().get(), 3, OH_TIMEOUT_DEFAULT));
      side.sync();
      if (round % 50 == 49) exchange(side, here, round, 3);
      side.sync();
    }
    here.end();
  });
}

// An unreceived message is discarded, and graphs stay valid.
TEST_P(GpuStreamFailures, AGraphIsReplayedAfterAReset) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(5'000);
    Buffer in = side.buffer(5'000);
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    void* graph = capture_graph(here.stream(), [&] {
      here.send(out, 5'000);
      here.recv(in, 5'000);
    });
    for (uint64_t round = 0; round < 5; ++round) {
      out.fill(round);
      in.poison();
      launch_graph(graph, here.stream());
      here.finish();
      EXPECT_TRUE(in.holds(round, 5'000));
      side.sync();
      if (side.number() == 0) here.send(out, 700);
      here.finish();
      side.sync();
      onehop::check(oh_peer_reset_lane(side.peer().get(), 0, OH_TIMEOUT_DEFAULT));
      side.sync();
    }
    destroy_graph(graph);
    here.end();
  });
}

// With waits of every kind in flight when the peer dies.
TEST_P(GpuStreamFailures, APeersDeathEndsEveryWait) {
  auto survivor = [](Side& side, Side&) {
    StreamSide here(side);
    StreamSide second(side, /*connects=*/false);
    StreamSide third(side, /*connects=*/false);
    Buffer buffer = side.buffer(400'000);
    here.recv(buffer, 100, 1);
    second.send(buffer, 400'000, 2);
    onehop::check(oh_peer_stream_wait_signal(side.peer().get(), third.stream(), 5, 1, nullptr));
    side.sync();
    here.finish();
    second.finish();
    third.finish();
    EXPECT_EQ(error_of(side), OH_ERR_PEER_LOST) << oh_error_text();
    EXPECT_EQ(status_of([&] { here.send(buffer, 100); }), OH_ERR_PEER_LOST);
    // The context is intact.
    Buffer other = side.buffer(1'000);
    buffer.fill(1);
    copy_on(here.stream(), other.data(), buffer.data(), 1'000);
    here.finish();
    EXPECT_TRUE(other.holds(1, 1'000));
  };
  run_apart_with_victim(
      GetParam(), survivor,
      [](Side& side) {
        StreamSide here(side);
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        side.sync();
        kill(getpid(), SIGKILL);
      },
      [](Side&) {});
}

TEST_P(GpuStreamFailures, ASignalThatDoesNotComeEndsAtItsDeadline) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    // The deadline of a call also bounds connecting the lanes: 50 ms are too short on a busy host.
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    side.sync();
    if (side.number() == 0) {
      oh_stream_options options = hurried();
      onehop::check(oh_peer_stream_wait_signal(side.peer().get(), here.stream(), 9, 2, &options));
      here.finish();
      EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT);
      EXPECT_NE(std::string(oh_error_text()).find("slot 9"), std::string::npos) << oh_error_text();
    }
    side.sync();
    // No signal was consumed, and the next wait finds both.
    if (side.number() == 1) {
      onehop::check(oh_peer_stream_signal(side.peer().get(), here.stream(), 9, 2));
    } else {
      onehop::check(oh_peer_stream_wait_signal(side.peer().get(), here.stream(), 9, 2, nullptr));
    }
    here.end();
  });
}

// Puts hold the peer's memory until they have completed: many at little cost, and the last ones are
// released when the peer asks for it, even if no further put follows.
TEST(GpuHeldStream, WhatPutsHoldIsLetGo) {
  constexpr uint64_t kPuts = 300;
  run_streams(
      between_gpus(MemoryKind::kMalloc),
      [](Side& side, StreamSide& here) {
        Buffer out = side.buffer(100);
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        const size_t before = Open::settled().driver.imports;
        side.sync();
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        fake_driver().hold_all();
        const uint64_t asked = fake_driver().calls("cuEventQuery");
        for (uint64_t i = 0; i < kPuts; ++i) {
          onehop::check(oh_peer_stream_put(side.peer().get(), here.stream(), out.data(),
                                           remote.get(), 0, 100));
        }
        EXPECT_LE(fake_driver().calls("cuEventQuery") - asked, 4 * kPuts);
        fake_driver().release_all();
        here.finish();
        EXPECT_EQ(Open::now().driver.imports, before + 1);
        side.sync();
        EXPECT_TRUE(eventually([&] { return Open::now().driver.imports == before; }));
        here.end();
      },
      [](Side& side, StreamSide& here) {
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        Buffer in = side.buffer(100);
        side.sync();
        onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
        side.tell(region.descriptor());
        side.sync();
        region.deregister(20s);
        {
          Buffer gone = std::move(in);
        }
        here.end();
      });
}

// Invalid calls are rejected with a remedy.
TEST(GpuStream, CallsThatMakeNoSenseAreRefused) {
  run_streams(with_stream(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(100);
    std::vector<uint8_t> host(100);
    oh_stream_options options = hurried(16);
    oh_peer* peer = side.peer().get();
    EXPECT_EQ(oh_peer_stream_send(peer, here.stream(), buffer.data(), 100, &options),
              OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_stream_send(peer, here.stream(), nullptr, 100, nullptr), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_stream_recv(peer, here.stream(), host.data(), 100, nullptr), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_stream_signal(peer, here.stream(), 64, 1), OH_ERR_INVALID);
    EXPECT_EQ(oh_group_end(), OH_ERR_INVALID);
    auto info = onehop::detail::sized<oh_stream_info>();
    onehop::check(oh_peer_get_stream_info(peer, &info));
    EXPECT_EQ(info.path, OH_PATH_NVLINK);
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamFailures, ::testing::ValuesIn(way_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_failures
