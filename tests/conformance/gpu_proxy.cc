// SPDX-License-Identifier: Apache-2.0
//
// Properties of the proxy in the stream domain: when it is used, what it keeps in flight, and how
// its waits end. gpu_stream.cc and gpu_stream_failures.cc have the contract, which covers the
// proxy, too.
#include <algorithm>

#include "conformance/fake_driver.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_proxy {
namespace {

constexpr size_t kBuffered = 16'384;  // stream_buffered
constexpr int kUnderWay = 4;          // unreceived messages of a lane

oh_stream_info info_of(Side& side) {
  auto info = onehop::detail::sized<oh_stream_info>();
  onehop::check(oh_peer_get_stream_info(side.peer().get(), &info));
  return info;
}

std::string text_of_error() { return oh_error_text(); }

// The reason in the table of paths.
std::string why_of_streams(Side& side) {
  auto row = onehop::detail::sized<oh_path_row>();
  for (size_t i = 0; oh_peer_get_path(side.peer().get(), i, &row) == OH_OK; ++i) {
    if (row.operation != std::string("stream")) continue;
    EXPECT_EQ(row.path, OH_PATH_PROXY);
    return row.why;
  }
  return "no such row";
}

class GpuProxy : public ::testing::TestWithParam<LinkKind> {
 protected:
  // The peer accepts nothing before its receive: messages in flight stay on this side.
  static LinkKind without_credit() {
    LinkKind kind = GetParam();
    kind.env["ONEHOP_EAGER_CREDIT"] = "0";
    return kind;
  }
};

TEST_P(GpuProxy, ItIsToldThatItIsTheWay) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    EXPECT_EQ(info_of(side).path, OH_PATH_PROXY);
    EXPECT_EQ(info_of(side).ready, 0);
    if (side.kind().name != without_atomics().name) {
      EXPECT_NE(why_of_streams(side).find(why_by_proxy(side.kind())), std::string::npos);
    }
    side.sync();
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    const oh_stream_info info = info_of(side);
    EXPECT_EQ(info.path, OH_PATH_PROXY);
    EXPECT_EQ(info.ready, 1);
    EXPECT_EQ(info.small_max, 0u);
    EXPECT_EQ(info.stream_buffered, kBuffered);
    EXPECT_GT(info.device_memory, 0u);
    EXPECT_STREQ(info.why_not, "");
    exchange(side, here, 1);
    here.end();
  });
}

// Device handles are unavailable, and the error has the reason.
TEST_P(GpuProxy, KernelsGetNoHandle) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    oh_lane_handle handle{};
    EXPECT_EQ(oh_peer_device_handle(side.peer().get(), 0, &handle), OH_ERR_NOT_VIABLE);
    const std::string reason = why_by_proxy(side.kind());
    EXPECT_NE(text_of_error().find(reason), std::string::npos) << text_of_error();
    EXPECT_NE(std::string(info_of(side).why_no_kernels).find(reason), std::string::npos);
    EXPECT_NE(why_of_streams(side).find(reason), std::string::npos) << why_of_streams(side);
    here.end();
  });
}

// As many messages of the reported size as reported are buffered without a receive; then they
// arrive in order.
TEST_P(GpuProxy, SmallSendsDoNotWaitForTheirReceives) {
  run_streams(without_credit(), [](Side& side, StreamSide& here) {
    std::vector<Buffer> out;
    for (int i = 0; i < kUnderWay; ++i) {
      out.push_back(side.buffer(kBuffered));
      out.back().fill(static_cast<uint64_t>(10 * side.number() + i));
      here.send(out.back(), kBuffered, 3);
      here.send(out.back(), 100, 4);
    }
    // They have been read: their buffers may be overwritten.
    here.finish();
    for (Buffer& buffer : out) buffer.poison();
    side.sync();
    Buffer in = side.buffer(kBuffered);
    for (int i = 0; i < kUnderWay; ++i) {
      here.recv(in, kBuffered, 3);
      here.finish();
      EXPECT_TRUE(in.holds(static_cast<uint64_t>(10 * (1 - side.number()) + i), kBuffered));
      here.recv(in, 100, 4);
      here.finish();
      EXPECT_TRUE(in.holds(static_cast<uint64_t>(10 * (1 - side.number()) + i), 100));
    }
    here.end();
  });
}

// One more message waits for room; at its deadline the half fails. A reset discards all of them.
TEST_P(GpuProxy, ASendWithoutRoomEndsAtItsDeadline) {
  run_streams(without_credit(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(100);
    oh_peer* peer = side.peer().get();
    if (side.number() == 0) {
      for (int i = 0; i < kUnderWay; ++i) here.send(buffer, 100);
      const oh_stream_options hurried = within(50'000'000);
      onehop::check(oh_peer_stream_send(peer, here.stream(), buffer.data(), 100, &hurried));
      here.finish();
      EXPECT_TRUE(eventually([&] { return oh_peer_async_error(peer) == OH_ERR_TIMEOUT; }));
      EXPECT_EQ(oh_peer_stream_send(peer, here.stream(), buffer.data(), 100, nullptr),
                OH_ERR_TIMEOUT);
    }
    side.sync();
    exchange(side, here, 1, 5);
    if (side.number() == 0) onehop::check(oh_peer_reset_lane(peer, 0, OH_TIMEOUT_DEFAULT));
    side.sync();
    for (uint64_t round = 0; round < 6; ++round) exchange(side, here, 10 * round, 0, 1'000);
    here.end();
  });
}

// A large receive of one lane blocks neither small nor large messages of other lanes, each on its
// own stream, nor signals.
TEST_P(GpuProxy, WhatWaitsHoldsUpNothingElse) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    StreamSide late(side, /*connects=*/false);
    StreamSide later(side, /*connects=*/false);
    oh_peer* peer = side.peer().get();
    Buffer in = side.buffer(400'000);
    Buffer out = side.buffer(400'000);
    // Allocated before any wait: freeing memory would wait for the waiting kernels.
    Buffer near = side.buffer(100'000);
    Buffer far = side.buffer(100'000);
    in.poison();
    out.fill(7);
    late.recv(in, 400'000, 1);
    onehop::check(oh_peer_stream_wait_signal(peer, later.stream(), 3, 2, nullptr));
    for (uint64_t round = 0; round < 5; ++round) {
      exchange(side, here, near, far, 10 * round, 100'000, 0);
      exchange(side, here, near, far, 10 * round, 100, 2);
    }
    onehop::check(oh_peer_stream_signal(peer, here.stream(), 4, 1));
    onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), 4, 1, nullptr));
    onehop::check(oh_peer_stream_signal(peer, here.stream(), 3, 2));
    here.send(out, 400'000, 1);
    here.finish();
    late.finish();
    later.finish();
    EXPECT_TRUE(in.holds(7, 400'000));
    here.end();
  });
}

// Two streams consume one count, whichever comes first; a wait for a count of 0 returns at once.
TEST_P(GpuProxy, SignalsAreCountedAndTaken) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    StreamSide other(side, /*connects=*/false);
    oh_peer* peer = side.peer().get();
    for (int round = 0; round < 20; ++round) {
      onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), 9, 3, nullptr));
      onehop::check(oh_peer_stream_wait_signal(peer, other.stream(), 9, 4, nullptr));
      onehop::check(oh_peer_stream_wait_signal(peer, other.stream(), 10, 0, nullptr));
      StreamSide third(side, /*connects=*/false);
      for (int i = 0; i < 7; ++i) {
        onehop::check(oh_peer_stream_signal(peer, third.stream(), 9, 1));
      }
      third.finish();
      here.finish();
      other.finish();
      side.sync();
    }
    // Nothing is left, and the host domain has its own count.
    const oh_stream_options hurried = within(20'000'000);
    onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), 9, 1, &hurried));
    here.finish();
    EXPECT_EQ(oh_peer_async_error(peer), OH_ERR_TIMEOUT);
    here.end();
  });
}

// Receives with any tag match only messages of the host domain.
TEST_P(GpuProxy, TheHostDomainIsAnother) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    uint8_t mine = static_cast<uint8_t>(side.number());
    uint8_t theirs = 9;
    onehop::Request receive = side.peer().irecv(&theirs, 1, OH_ANY_TAG);
    exchange(side, here, 1);
    exchange(side, here, 2, 0, 100);
    EXPECT_FALSE(receive.test());
    side.sync();
    side.peer().send(&mine, 1, 5);
    receive.wait();
    EXPECT_EQ(theirs, 1 - mine);
    here.end();
  });
}

// The length of a message is reported although its receive was too short.
TEST_P(GpuProxy, TheSizeOfWhatDidNotFitIsTold) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(300'000);
    Buffer size = side.buffer(8);
    for (size_t bytes : {size_t{2'000}, size_t{20'000}, size_t{300'000}}) {
      if (side.number() == 0) {
        here.send(buffer, bytes);
        here.finish();
        (void)oh_peer_async_error(side.peer().get());
      } else {
        oh_stream_options options = within(OH_TIMEOUT_DEFAULT);
        options.size_to = reinterpret_cast<uint64_t*>(size.data());
        onehop::check(
            oh_peer_stream_recv(side.peer().get(), here.stream(), buffer.data(), 1'000, &options));
        here.finish();
        EXPECT_EQ(oh_peer_async_error(side.peer().get()), OH_ERR_TRUNCATED);
        uint64_t told = 0;
        read_device(&told, size.data(), sizeof(told));
        EXPECT_EQ(told, bytes);
      }
      side.sync();
    }
    here.end();
  });
}

// When the link is closed all waits end, also in a graph that is replayed.
TEST_P(GpuProxy, ClosingTheLinkEndsWaitsAndGraphs) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    StreamSide second(side, /*connects=*/false);
    oh_peer* peer = side.peer().get();
    onehop::check(oh_peer_warmup(peer, OH_TIMEOUT_DEFAULT));
    Buffer buffer = side.buffer(400'000);
    oh_stream_options never = within(OH_TIMEOUT_NEVER, 2);
    void* graph = capture_graph(here.stream(), [&] {
      onehop::check(oh_peer_stream_recv(peer, here.stream(), buffer.data(), 400'000, &never));
      onehop::check(oh_peer_stream_signal(peer, here.stream(), 1, 1));
    });
    side.sync();
    launch_graph(graph, here.stream());
    onehop::check(oh_peer_stream_wait_signal(peer, second.stream(), 5, 1, nullptr));
    side.sync();
    side.drop_peer();
    here.finish();
    second.finish();
    launch_graph(graph, here.stream());
    here.finish();
    destroy_graph(graph);
    side.sync();
    side.disconnect();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuProxy, ::testing::ValuesIn(proxy_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_proxy
