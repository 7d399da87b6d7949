// SPDX-License-Identifier: Apache-2.0
//
// Puts and gets of the stream domain: by the copy engine if the region is mapped, otherwise by
// proxy if the link's streams use it.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_puts {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 70'000;
constexpr int64_t kPatience = 20'000'000'000;

void put(Side& side, void* stream, Buffer& from, onehop::RemoteRegion& remote, size_t offset,
         size_t size) {
  onehop::check(
      oh_peer_stream_put(side.peer().get(), stream, from.data(), remote.get(), offset, size));
}
void signal(Side& side, void* stream, uint32_t slot, uint64_t count = 1) {
  onehop::check(oh_peer_stream_signal(side.peer().get(), stream, slot, count));
}
void await(Side& side, void* stream, uint32_t slot, uint64_t count = 1) {
  const oh_stream_options patient = within(kPatience);
  onehop::check(oh_peer_stream_wait_signal(side.peer().get(), stream, slot, count, &patient));
}

class GpuStreamPuts : public ::testing::TestWithParam<LinkKind> {};

// Puts into a region, followed by a signal; also in graphs.
TEST_P(GpuStreamPuts, PutsAndSignalsInTheOrderOfAStream) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kSize);
    Buffer in = side.buffer(kSize + 100);
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    auto put_one = [&] {
      put(side, here.stream(), out, remote, 100, kSize);
      signal(side, here.stream(), 63, 3);
      await(side, here.stream(), 63, 3);
    };
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    void* graph = capture_graph(here.stream(), put_one);
    for (uint64_t round = 0; round < 8; ++round) {
      out.fill(round);
      in.poison();
      side.sync();
      if (round % 2 == 0) {
        put_one();
      } else {
        launch_graph(graph, here.stream());
      }
      here.finish();
      EXPECT_EQ(in.at(99), kPoison);
      onehop::Bytes bytes = in.bytes();
      EXPECT_TRUE(std::equal(bytes.begin() + 100, bytes.end(), pattern(round, kSize).begin()));
      side.sync();
    }
    EXPECT_EQ(
        oh_peer_stream_put(side.peer().get(), here.stream(), out.data(), remote.get(), 101, kSize),
        OH_ERR_RANGE);
    oh_remote_memory memory{};
    const oh_status mapped = oh_remote_region_device(remote.get(), &memory);
    if (mapped == OH_OK) {
      EXPECT_EQ(memory.size, kSize + 100);
    } else {
      EXPECT_EQ(mapped, OH_ERR_NOT_VIABLE) << oh_error_text();
      EXPECT_EQ(stream_path(side.kind()), OH_PATH_PROXY);
    }
    onehop::Region fixed = side.endpoint().register_read_only(in.data(), in.size());
    side.tell(fixed.descriptor());
    onehop::RemoteRegion only_read = side.peer().attach(side.hear());
    EXPECT_EQ(
        oh_peer_stream_put(side.peer().get(), here.stream(), out.data(), only_read.get(), 0, kSize),
        OH_ERR_READ_ONLY);
    EXPECT_EQ(oh_remote_region_device(only_read.get(), &memory), OH_ERR_READ_ONLY);
    side.sync();
    destroy_graph(graph);
    here.end();
  });
}

// Gets from a region that the peer has written before a signal; also in graphs, and from a
// read-only region.
TEST_P(GpuStreamPuts, GetsInTheOrderOfAStream) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer fresh = side.buffer(kSize + 100);
    Buffer shown = side.buffer(kSize + 100);
    Buffer in = side.buffer(kSize);
    Buffer behind = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_read_only(shown.data(), shown.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    auto get = [&](size_t offset) {
      return oh_peer_stream_get(side.peer().get(), here.stream(), in.data(), remote.get(), offset,
                                kSize);
    };
    auto round_of = [&] {
      copy_on(here.stream(), shown.data(), fresh.data(), fresh.size());
      signal(side, here.stream(), 5);
      await(side, here.stream(), 5);
      onehop::check(get(100));
      copy_on(here.stream(), behind.data(), in.data(), kSize);
    };
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    void* graph = capture_graph(here.stream(), round_of);
    for (uint64_t round = 0; round < 8; ++round) {
      fresh.fill(2 * round + static_cast<uint64_t>(side.number()));
      in.poison();
      behind.poison();
      side.sync();
      round % 2 == 0 ? round_of() : launch_graph(graph, here.stream());
      here.finish();
      const uint64_t theirs = 2 * round + 1 - static_cast<uint64_t>(side.number());
      const onehop::Bytes expected = pattern(theirs, kSize + 100);
      const onehop::Bytes bytes = behind.bytes();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), expected.begin() + 100)) << round;
      EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
      side.sync();
    }
    EXPECT_EQ(get(101), OH_ERR_RANGE);
    EXPECT_EQ(oh_peer_stream_get(side.peer().get(), here.stream(), in.data(), remote.get(), 7, 0),
              OH_OK);
    side.sync();
    destroy_graph(graph);
    here.end();
  });
}

// More than there are tickets, of sizes around a staging buffer's, from two streams.
TEST_P(GpuStreamPuts, ManyPutsUnderWay) {
  constexpr uint64_t kPuts = 12;
  constexpr size_t kMost = (1 << 20) + 1;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    StreamSide other(side, /*connects=*/false);
    std::vector<Buffer> out;
    Buffer in = side.buffer(kPuts * kMost);
    in.poison();
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    const uint64_t ours = 100 * static_cast<uint64_t>(side.number());
    auto size_of = [](uint64_t i) { return i % 3 == 0 ? kMost : i % 3 == 1 ? kMost - 2 : 1; };
    for (uint64_t i = 0; i < kPuts; ++i) {
      out.push_back(side.buffer(kMost));
      out.back().fill(ours + i);
    }
    side.sync();
    for (uint64_t i = 0; i < kPuts; ++i) {
      put(side, (i % 2 ? other : here).stream(), out[i], remote, i * kMost, size_of(i));
    }
    signal(side, here.stream(), 1);
    signal(side, other.stream(), 1);
    await(side, here.stream(), 1, 2);
    here.finish();
    other.finish();
    const onehop::Bytes bytes = in.bytes();
    for (uint64_t i = 0; i < kPuts; ++i) {
      const auto begin = bytes.begin() + static_cast<ptrdiff_t>(i * kMost);
      const onehop::Bytes expected = pattern(100 - ours + i, size_of(i));
      EXPECT_TRUE(std::equal(expected.begin(), expected.end(), begin)) << "put " << i;
      EXPECT_TRUE(size_of(i) == kMost || begin[static_cast<ptrdiff_t>(size_of(i))] == kPoison);
    }
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamPuts, ::testing::ValuesIn([] {
                           std::vector<LinkKind> kinds = proxy_kinds();
                           kinds.push_back(with_stream());
                           return kinds;
                         }()),
                         name_of);

class GpuProxyPuts : public ::testing::TestWithParam<LinkKind> {};

// The owner of memory that no local device maps may be a host.
TEST_P(GpuProxyPuts, IntoHostMemory) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer out = side.buffer(kSize);
        out.fill(5);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        put(side, here.stream(), out, remote, 1, kSize);
        signal(side, here.stream(), 2);
        here.finish();
        here.end();
      },
      [](Side& side, StreamSide& here) {
        onehop::Bytes in(kSize + 1, kPoison);
        onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
        side.tell(region.descriptor());
        await(side, here.stream(), 2);
        here.finish();
        meet_threads(side.peer());
        const onehop::Bytes expected = pattern(5, kSize);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), in.begin() + 1));
        EXPECT_EQ(in[0], kPoison);
        here.end();
      });
}

// A put to a retired region is reported, and later work continues; also in a graph whose region is
// gone and whose index another region has.
TEST_P(GpuProxyPuts, ARegionThatHasGoneIsToldAndTheStreamGoesOn) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer out = side.buffer(kSize);
        out.fill(6);
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        void* graph = nullptr;
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          graph = capture_graph(here.stream(),
                                [&] { put(side, here.stream(), out, remote, 0, kSize); });
          launch_graph(graph, here.stream());
          here.finish();
          EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
          side.sync();
          side.sync();  // the region was deregistered
          put(side, here.stream(), out, remote, 0, kSize);
          here.finish();
          EXPECT_EQ(error_of(side), OH_ERR_RETIRED) << oh_error_text();
          EXPECT_EQ(error_of(side), OH_OK);
          onehop::check(oh_peer_stream_get(side.peer().get(), here.stream(), out.data(),
                                           remote.get(), 0, kSize));
          here.finish();
          EXPECT_EQ(error_of(side), OH_ERR_RETIRED) << oh_error_text();
        }
        onehop::RemoteRegion next = side.peer().attach(side.hear());
        put(side, here.stream(), out, next, 0, kSize);
        here.finish();
        EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
        launch_graph(graph, here.stream());
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_RETIRED) << oh_error_text();
        signal(side, here.stream(), 4);
        here.finish();
        destroy_graph(graph);
        here.end();
      },
      [](Side& side, StreamSide& here) {
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        Buffer in = side.buffer(kSize);
        onehop::Region region = side.endpoint().register_memory(in.data(), kSize);
        side.tell(region.descriptor());
        side.sync();
        EXPECT_TRUE(in.holds(6, kSize));
        region.deregister(20s);
        in.poison();
        side.sync();
        Buffer other = side.buffer(kSize);
        onehop::Region next = side.endpoint().register_memory(other.data(), kSize);
        side.tell(next.descriptor());
        await(side, here.stream(), 4);
        here.finish();
        EXPECT_TRUE(in.bytes() == onehop::Bytes(kSize, kPoison));
        EXPECT_TRUE(other.holds(6, kSize));
        here.end();
      });
}

// A stopped peer: the put ends at its deadline, which is reported, and the caller owns its memory
// then. A dead peer ends it at once.
TEST_P(GpuProxyPuts, APeerThatStandsStillOrDies) {
  LinkKind kind = GetParam();
  kind.env["ONEHOP_TIMEOUT"] = "3";
  run_apart_with_victim(
      kind,
      [](Side& side, Side&) {
        StreamSide here(side);
        oh_peer* peer = side.peer().get();
        Buffer out = side.buffer(kMostBytes);
        onehop::check(oh_peer_warmup(peer, kPatience));
        onehop::RemoteRegion remote = side.peer().attach(side.hear(), 20s);
        put(side, here.stream(), out, remote, 0, kMostBytes);
        here.finish();
        EXPECT_EQ(oh_peer_async_error(peer), OH_OK) << oh_error_text();
        kill(side.other_process(), SIGSTOP);
        await_stopped(side.other_process());
        // The network's buffers may accept some of it.
        put(side, here.stream(), out, remote, 0, kMostBytes);
        here.finish();
        EXPECT_EQ(oh_peer_async_error(peer), OH_ERR_TIMEOUT) << oh_error_text();
        EXPECT_NE(std::string(oh_error_text()).find("a put"), std::string::npos) << oh_error_text();
        out.fill(7);
        kill(side.other_process(), SIGCONT);
        put(side, here.stream(), out, remote, 0, kMostBytes);
        signal(side, here.stream(), 5);
        here.finish();
        const oh_status status = oh_peer_async_error(peer);
        EXPECT_EQ(status, OH_OK) << oh_error_text();
        side.sync();
        kill(side.other_process(), SIGKILL);
        // Rejected at once if the loss is already known.
        oh_status lost =
            oh_peer_stream_put(peer, here.stream(), out.data(), remote.get(), 0, kMostBytes);
        here.finish();
        if (lost == OH_OK) lost = oh_peer_async_error(peer);
        EXPECT_EQ(lost, OH_ERR_PEER_LOST) << oh_error_text();
      },
      [](Side& side) {
        StreamSide here(side);
        onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
        Buffer in = side.buffer(kMostBytes);
        onehop::Region region = side.endpoint().register_memory(in.data(), kMostBytes);
        side.tell(region.descriptor());
        await(side, here.stream(), 5);
        here.finish();
        EXPECT_TRUE(in.holds(7, kMostBytes));
        side.sync();
        side.sync();  // the peer does not return
      },
      [](Side&) {});
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuProxyPuts, ::testing::ValuesIn(apart_by_proxy()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_puts
