// SPDX-License-Identifier: Apache-2.0
//
// A peer's counters for the stream domain: operations enqueued by calls, and how kernels sent
// messages too long for the ring.
#include <chrono>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_counts {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLarge = 1'000'003;

class GpuStreamCounts : public ::testing::TestWithParam<LinkKind> {};

oh_peer_stats stats_of(Side& side) { return side.peer().stats(); }
bool is_mapped(const LinkKind& kind) { return kind.memory[0] != MemoryKind::kAsync; }

TEST_P(GpuStreamCounts, ACallCountsWhatItGivesToAStream) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kLarge);
    Buffer in = side.buffer(kLarge);
    const oh_peer_stats before = stats_of(side);
    EXPECT_EQ(before.sent_operations[OH_PATH_NVLINK], 0u);
    here.send(out, 10, 0);
    here.send(out, 1'000, 3);
    here.recv(in, 200, 0);
    here.recv(in, 3'000, 3);
    oh_peer_stats now = stats_of(side);
    EXPECT_EQ(now.sent_operations[OH_PATH_NVLINK], 2u);
    EXPECT_EQ(now.sent_bytes[OH_PATH_NVLINK], 1'010u);
    EXPECT_EQ(now.received_operations[OH_PATH_NVLINK], 2u);
    EXPECT_EQ(now.received_bytes[OH_PATH_NVLINK], 3'200u);
    // Counted at the end of the group, which launches them.
    onehop::Group group;
    here.send(out, kLarge);
    here.recv(in, kLarge);
    EXPECT_EQ(stats_of(side).sent_operations[OH_PATH_NVLINK], 2u);
    group.end();
    now = stats_of(side);
    EXPECT_EQ(now.sent_bytes[OH_PATH_NVLINK], 1'010u + kLarge);
    EXPECT_EQ(now.received_bytes[OH_PATH_NVLINK], 3'200u + kLarge);
    // A rejected call counts nothing.
    EXPECT_EQ(oh_peer_stream_send(side.peer().get(), here.stream(), nullptr, 1, nullptr),
              OH_ERR_INVALID);
    EXPECT_EQ(stats_of(side).sent_operations[OH_PATH_NVLINK], 3u);
    here.end();
  });
}

TEST_P(GpuStreamCounts, APutIsTheCopyEngines) {
  if (!is_mapped(GetParam())) return;  // puts use the proxy
  const oh_path path = GetParam().processes ? OH_PATH_CUDA_IPC : OH_PATH_LOCAL;
  run_streams(
      GetParam(),
      [path](Side& side, StreamSide& here) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kLarge);
        const oh_peer_stats before = stats_of(side);
        onehop::check(oh_peer_stream_put(side.peer().get(), here.stream(), buffer.data(),
                                         remote.get(), 0, kLarge));
        const oh_peer_stats now = stats_of(side);
        EXPECT_EQ(now.sent_operations[path], before.sent_operations[path] + 1);
        EXPECT_EQ(now.sent_bytes[path], before.sent_bytes[path] + kLarge);
        here.finish();
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kLarge);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kLarge);
        side.tell(region.descriptor());
        here.end();
      });
}

// Large messages into one buffer: each is counted once, whichever way it takes. The buffer is
// mapped after the first of them, if it can be; then all go straight into it.
TEST_P(GpuStreamCounts, LargeMessagesAreCountedByTheWayTheyGo) {
  const bool mapped = is_mapped(GetParam());
  run_streams(
      GetParam(),
      [mapped](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kLarge);
        buffer.fill(1);
        const auto end = std::chrono::steady_clock::now() + 20s;
        uint64_t sent = 0;
        auto send = [&] {
          side.tell_number(1);
          here.send(buffer, 100);
          here.send(buffer, kLarge);
          here.finish();
          const oh_peer_stats now = stats_of(side);
          EXPECT_EQ(now.stream_put + now.stream_staged, ++sent);
        };
        send();
        while (mapped && stats_of(side).stream_put == 0 && std::chrono::steady_clock::now() < end) {
          send();
        }
        const oh_peer_stats before = stats_of(side);
        for (int i = 0; i < 3; ++i) send();
        const oh_peer_stats now = stats_of(side);
        EXPECT_EQ(now.stream_put - before.stream_put, mapped ? 3u : 0u);
        EXPECT_EQ(now.stream_staged - before.stream_staged, mapped ? 0u : 3u);
        side.tell_number(0);
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kLarge);
        while (side.hear_number() == 1) {
          here.recv(buffer, 100);
          here.recv(buffer, kLarge);
          here.finish();
          EXPECT_TRUE(buffer.holds(1, kLarge));
        }
        EXPECT_EQ(stats_of(side).stream_put + stats_of(side).stream_staged, 0u);
        here.end();
      });
}

// The receive of a large message needs all its blocks until the sender is known to put the message
// into the buffer, also in a graph. From then on it waits in one.
TEST(GpuStreamBlocks, AReceiveThatIsPutWaitsInOneBlock) {
  run_streams(
      between_gpus(MemoryKind::kMalloc),
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kLarge);
        buffer.fill(1);
        while (side.hear_number() == 1) here.send(buffer, kLarge);
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kLarge);
        auto blocks = [&](auto&& enqueue) {
          buffer.poison();
          side.tell_number(1);
          enqueue();
          here.finish();
          EXPECT_TRUE(buffer.holds(1, kLarge));
          return fake_driver().blocks("onehop_stream_large");
        };
        auto recv = [&] { here.recv(buffer, kLarge); };
        EXPECT_EQ(blocks(recv), 8u);
        EXPECT_TRUE(eventually([&] { return blocks(recv) == 1; }));
        void* graph = nullptr;
        EXPECT_EQ(blocks([&] {
                    graph = capture_graph(here.stream(), recv);
                    launch_graph(graph, here.stream());
                  }),
                  1u);
        destroy_graph(graph);
        // A shorter message goes by lines, which more threads read sooner.
        Buffer size = side.buffer(sizeof(uint64_t));
        oh_stream_options asks = within(20'000'000'000);
        asks.size_to = reinterpret_cast<uint64_t*>(size.data());
        EXPECT_EQ(blocks([&] {
                    onehop::check(oh_peer_stream_recv(side.peer().get(), here.stream(),
                                                      buffer.data(), kLarge, &asks));
                  }),
                  8u);
        Buffer other = side.buffer(kLarge);
        side.tell_number(1);
        here.recv(other, kLarge);
        here.finish();
        EXPECT_EQ(fake_driver().blocks("onehop_stream_large"), 8u) << "another buffer";
        side.tell_number(0);
        here.end();
      });
}

TEST_P(GpuStreamCounts, AGraphIsSeenByTheDeviceAlone) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kLarge);
    Buffer in = side.buffer(kLarge);
    side.peer().warmup(20s);
    void* graph = capture_graph(here.stream(), [&] {
      onehop::Group group;
      here.send(out, kLarge);
      here.recv(in, kLarge);
      group.end();
    });
    for (uint64_t round = 1; round <= 3; ++round) {
      launch_graph(graph, here.stream());
      here.finish();
      const oh_peer_stats now = stats_of(side);
      EXPECT_EQ(now.stream_put + now.stream_staged, round);
      EXPECT_EQ(now.sent_operations[OH_PATH_NVLINK], 0u);
    }
    side.sync();
    destroy_graph(graph);
    here.end();
  });
}

TEST_P(GpuStreamCounts, AResetForgetsNoCount) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kLarge);
    Buffer in = side.buffer(kLarge);
    for (uint64_t round = 1; round <= 2; ++round) {
      onehop::Group group;
      here.send(out, kLarge);
      here.recv(in, kLarge);
      group.end();
      here.finish();
      const oh_peer_stats now = stats_of(side);
      EXPECT_EQ(now.stream_put + now.stream_staged, round);
      side.sync();
      onehop::check(oh_peer_reset_lane(side.peer().get(), 0, 20'000'000'000));
      side.sync();
    }
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamCounts, ::testing::ValuesIn(kernel_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_counts
