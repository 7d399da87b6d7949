// SPDX-License-Identifier: Apache-2.0
//
// Connecting and closing of a link's lanes: both sides agree, a busy GPU only delays, and memory in
// use by a copy or a kernel is not unmapped. Also threads that share a lane.
#include <algorithm>
#include <cstddef>
#include <functional>
#include <thread>

#include "conformance/batches.h"
#include "conformance/gpu_stream.h"
#include "onehop/detail/posting.h"

namespace conformance::gpu_stream_links {
namespace {

constexpr int64_t kShort = 50'000'000;
constexpr int64_t kLong = 20'000'000'000;

oh_status warm_up(Side& side, int64_t timeout_ns = kLong) {
  return oh_peer_warmup(side.peer().get(), timeout_ns);
}

TEST(GpuHeldStream, ABusyDeviceDelaysAndNothingMore) {
  auto both = [](Side& side) {
    StreamSide here(side);
    Buffer buffer = side.buffer(1'000);
    buffer.fill(static_cast<uint64_t>(side.number()));
    side.sync();
    if (side.number() == 0) fake_driver().hold_all();
    side.sync();
    // On a slow machine the other side's kernels have no room either, at first.
    const char* reason = side.number() == 0 ? "no room" : "not answered";
    std::string text;
    EXPECT_TRUE(eventually([&] {
      EXPECT_EQ(warm_up(side, kShort), OH_ERR_TIMEOUT);
      text = oh_error_text();
      return text.find(reason) != std::string::npos;
    })) << text;
    side.sync();
    if (side.number() == 0) fake_driver().release_all();
    onehop::check(warm_up(side));
    side.number() == 0 ? here.send(buffer, 1'000) : here.recv(buffer, 1'000);
    here.finish();
    EXPECT_TRUE(buffer.holds(0, 1'000));
    here.end();
  };
  const LinkKind kind = between_gpus(MemoryKind::kMalloc);
  run_apart(kind, both, both);
  run_apart(without_ipc(kind), both, both);
}

// Closes the link before the work that `put` has enqueued has begun; then poisoned memory must
// become `expected`.
void run_put_that_outlives_its_link(
    const onehop::Bytes& expected,
    const std::function<void(Side&, void* stream, Buffer& out, onehop::RemoteRegion&)>& put) {
  const size_t size = expected.size();
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [&](Side& side) {
        side.connect();
        void* stream = make_stream();
        Buffer out = side.buffer(size);
        out.fill(4);
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          fake_driver().hold_all();
          put(side, stream, out, remote);
        }
        side.drop_peer();
        fake_driver().release_all();
        synchronize_stream(stream);
        side.sync();
        destroy_stream(stream);
        side.disconnect();
      },
      [&](Side& side) {
        side.connect();
        Buffer in = side.buffer(size);
        in.poison();
        onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
        side.tell(region.descriptor());
        side.sync();
        EXPECT_TRUE(in.bytes() == expected);
        side.disconnect();
      });
}

TEST(GpuHeldStream, APutUnderWayOutlivesTheLink) {
  constexpr size_t kSize = 70'000;
  run_put_that_outlives_its_link(
      pattern(4, kSize), [](Side& side, void* stream, Buffer& out, onehop::RemoteRegion& remote) {
        onehop::check(
            oh_peer_stream_put(side.peer().get(), stream, out.data(), remote.get(), 0, kSize));
      });
}

// The first kernel of the batch is enqueued, and the launch of the second fails.
TEST(GpuHeldStream, APartOfABatchUnderWayOutlivesTheLink) {
  constexpr int kOutOfMemory = 2;
  constexpr size_t kCount = 1600;
  constexpr size_t kFirst = 1000;  // per kernel
  constexpr uint64_t kLength = 40;
  constexpr uint64_t kStride = 64;
  run_put_that_outlives_its_link(
      Blocks(kFirst, kStride, kLength).moved(pattern(4, kCount * kStride)),
      [](Side& side, void* stream, Buffer& out, onehop::RemoteRegion& remote) {
        const Blocks blocks(kCount, kStride, kLength);
        const oh_batch batch = blocks.batch(out);
        ASSERT_EQ(fake_driver().fail("cuLaunchKernelEx", 2, kOutOfMemory), 0);
        EXPECT_EQ(oh_peer_stream_put_batch(side.peer().get(), stream, remote.get(), &batch),
                  OH_ERR_NO_RESOURCE)
            << oh_error_text();
        fake_driver().clear_failures();
      });
}

// Captured calls keep the lanes and the peer's mapped memory beyond the link, but not beyond the
// close of the endpoint, which also ends the link.
TEST(GpuHeldStream, AClosedEndpointKeepsNothingForGraphs) {
  auto both = [](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    FakeCudaCounts before{};
    for (int round = 0; round < 2; ++round) {
      if (round == 1) before = Open::settled().driver;  // with the process's permanent resources
      side.connect();
      void* stream = make_stream();
      {
        constexpr size_t kSize = 70'000;
        Buffer buffer = side.buffer(kSize);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
        side.tell(region.descriptor());
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        onehop::check(warm_up(side));
        oh_peer* peer = side.peer().get();
        destroy_graph(capture_graph(stream, [&] {
          onehop::check(oh_peer_stream_send(peer, stream, buffer.data(), kSize, nullptr));
          onehop::check(oh_peer_stream_put(peer, stream, buffer.data(), remote.get(), 0, kSize));
        }));
        side.sync();
      }
      destroy_stream(stream);
      side.sync();
      side.release_peer();
      oh_endpoint_close(side.endpoint().get());
      const auto is_back = [&] {
        const FakeCudaCounts now = Open::now().driver;
        return now.allocations == before.allocations && now.imports == before.imports;
      };
      if (round == 1) {
        EXPECT_TRUE(eventually(is_back)) << Open::now().text();
      }
      side.disconnect();
      side.sync();
    }
  };
  const LinkKind kind = between_gpus(MemoryKind::kMalloc);
  run_apart(kind, both, both);
  run_apart(without_ipc(kind), both, both);
}

// Its allocation stays mapped for the other region.
TEST(GpuStreamLinks, ARegionThatIsDeregisteredIsRefused) {
  constexpr size_t kHalf = 4096;
  const LinkKind between = between_gpus(MemoryKind::kMalloc);
  LinkKind within = between;
  within.processes = false;
  for (const LinkKind& kind : {between, within}) {
    SCOPED_TRACE(kind.processes ? "between processes" : "within the process");
    run_pair(
        kind,
        [](Side& side) {
          void* stream = make_stream();
          Buffer out = side.buffer(kHalf);
          onehop::RemoteRegion kept = side.peer().attach(side.hear());
          onehop::RemoteRegion gone = side.peer().attach(side.hear());
          oh_peer* peer = side.peer().get();
          const Blocks blocks(4, 1000, 100);
          const oh_batch batch = blocks.batch(out);
          EXPECT_EQ(oh_peer_stream_put(peer, stream, out.data(), gone.get(), 0, kHalf), OH_OK);
          synchronize_stream(stream);
          side.sync();
          side.sync();
          EXPECT_EQ(oh_peer_stream_put(peer, stream, out.data(), gone.get(), 0, kHalf),
                    OH_ERR_RETIRED);
          EXPECT_EQ(oh_peer_stream_get(peer, stream, out.data(), gone.get(), 0, kHalf),
                    OH_ERR_RETIRED);
          EXPECT_EQ(oh_peer_stream_put_batch(peer, stream, gone.get(), &batch), OH_ERR_RETIRED);
          oh_remote_memory memory{};
          EXPECT_EQ(oh_remote_region_device(gone.get(), &memory), OH_ERR_RETIRED);
          EXPECT_EQ(oh_peer_stream_put(peer, stream, out.data(), kept.get(), 0, kHalf), OH_OK);
          synchronize_stream(stream);
          side.sync();
          destroy_stream(stream);
        },
        [](Side& side) {
          Buffer in = side.buffer(2 * kHalf);
          onehop::Region kept = side.endpoint().register_memory(in.data(), kHalf);
          onehop::Region gone = side.endpoint().register_memory(in.data() + kHalf, kHalf);
          for (const onehop::Region* region : {&kept, &gone}) side.tell(region->descriptor());
          side.sync();
          gone.deregister();
          in.poison();
          side.sync();
          side.sync();
          EXPECT_NE(in.at(0), kPoison);
          EXPECT_EQ(in.at(kHalf), kPoison);
        });
  }
}

// Memory that the peer's kernels may put into; unmappable memory is reported as none.
TEST(GpuStreamLinks, TargetsOfReceivesByKernels) {
  for (MemoryKind kind : {MemoryKind::kMalloc, MemoryKind::kAsync}) {
    auto both = [kind](Side& side) {
      side.connect();
      Buffer buffer = side.buffer(600'000);
      oh_lane_target target{};
      const oh_status status =
          oh_peer_lane_target(side.peer().get(), buffer.data() + 16, 500'000, &target);
      if (kind == MemoryKind::kAsync) {
        EXPECT_EQ(status, OH_ERR_NOT_VIABLE) << oh_error_text();
      } else {
        onehop::check(status);
        EXPECT_EQ(target.base, reinterpret_cast<uint64_t>(buffer.data() + 16));
        EXPECT_EQ(target.size, 500'000u);
        EXPECT_GE(target.offset, 16u);
        EXPECT_NE(target.region, 0u);
      }
      std::vector<uint8_t> host(100);
      EXPECT_EQ(oh_peer_lane_target(side.peer().get(), host.data(), 100, &target), OH_ERR_INVALID);
      side.sync();
      side.disconnect();
    };
    run_pair(real_if_wanted(between_gpus(kind)), both, both);
  }
}

// Returns the used entries of the table in which kernels look up the peer's memory.
size_t imports_of(const oh_lane_handle& lane) {
  namespace detail = onehop::detail;
  detail::ImportTable table{};
  fake_driver().peek(lane.imports, &table, sizeof(table));
  std::vector<detail::ImportEntry> entries(size_t{1} << table.shift);
  const uint64_t first = lane.imports + offsetof(detail::ImportTable, entries);
  fake_driver().peek(first, entries.data(), entries.size() * sizeof(entries[0]));
  return static_cast<size_t>(std::count_if(entries.begin(), entries.end(),
                                           [](const auto& entry) { return entry.size.high != 0; }));
}

// More allocations than table entries come and go.
TEST(GpuStreamLinks, MemoryThatHasGoneLeavesNoPlaceOfTheImportTableTaken) {
  constexpr size_t kAtOnce = 180;
  constexpr int kRounds = 3;
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [](Side& side) {
        side.connect();
        onehop::check(warm_up(side));
        oh_lane_handle lane{};
        onehop::check(oh_peer_device_handle(side.peer().get(), 0, &lane));
        for (int round = 0; round < kRounds; ++round) {
          side.sync();
          EXPECT_TRUE(eventually([&] { return imports_of(lane) == kAtOnce; })) << imports_of(lane);
          side.sync();
          EXPECT_TRUE(eventually([&] { return imports_of(lane) == 0; })) << imports_of(lane);
          side.sync();
        }
        side.disconnect();
      },
      [](Side& side) {
        side.connect();
        onehop::check(warm_up(side));
        for (int round = 0; round < kRounds; ++round) {
          std::vector<Buffer> buffers;
          for (size_t i = 0; i < kAtOnce; ++i) {
            buffers.push_back(side.buffer(4'096));
            oh_lane_target target{};
            onehop::check(
                oh_peer_lane_target(side.peer().get(), buffers.back().data(), 4'096, &target));
          }
          side.sync();
          side.sync();  // the peer has seen them
          buffers.clear();
          side.sync();  // the peer has seen that they are gone
        }
        side.disconnect();
      });
}

// Two threads, each with a stream: the lane's order is the order of their calls, whatever that is.
class GpuStreamThreads : public ::testing::TestWithParam<LinkKind> {};

TEST_P(GpuStreamThreads, ThreadsShareALane) {
  static constexpr size_t kSize = 3'000;
  static constexpr uint64_t kRounds = 150;
  run_pair(
      GetParam(),
      [](Side& side) {
        StreamSide here(side);
        onehop::check(warm_up(side));
        auto sends = [&side](uint64_t seed) {
          StreamSide ours(side, /*connects=*/false);
          Buffer buffer = side.buffer(kSize);
          buffer.fill(seed);
          for (uint64_t i = 0; i < kRounds; ++i) ours.send(buffer, kSize, 6);
          ours.finish();
        };
        std::thread other([&] {
          use_device(side.kind().driver, side.kind().device[side.number()]);
          sends(1);
        });
        sends(2);
        other.join();
        here.end();
      },
      [](Side& side) {
        StreamSide here(side);
        Buffer buffer = side.buffer(kSize);
        uint64_t ones = 0;
        for (uint64_t i = 0; i < 2 * kRounds; ++i) {
          buffer.poison();
          here.recv(buffer, kSize, 6);
          here.finish();
          const bool one = buffer.holds(1, kSize);
          ones += one ? 1 : 0;
          EXPECT_TRUE(one || buffer.holds(2, kSize)) << "message " << i;
        }
        EXPECT_EQ(ones, kRounds);
        here.end();
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamThreads, ::testing::ValuesIn(way_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_links
