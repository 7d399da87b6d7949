// SPDX-License-Identifier: Apache-2.0
//
// Batches of the stream domain: by kernels if the regions are mapped, by the copy engine for long
// blocks and host memory, otherwise by proxy.
#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "conformance/batches.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_batches {
namespace {

constexpr uint32_t kMoved = 4;
constexpr size_t kStep = 211;

// A stream's wait with a deadline, in case the peer has failed.
void await(Side& side, void* stream, uint32_t slot) {
  side.peer().on(stream).wait_signal(slot, 1, std::chrono::seconds(20));
}

// Blocks of all lengths up to their distance; some are empty and many are adjacent.
Blocks many_blocks(size_t count) {
  std::mt19937_64 random(count);
  Blocks blocks;
  for (size_t i = 0; i < count; ++i) {
    const uint64_t length = i % 13 == 0 ? 0 : i % 7 == 0 ? kStep : 1 + random() % (kStep - 1);
    blocks.add(i * kStep, length);
  }
  return blocks;
}

class GpuStreamBatches : public ::testing::TestWithParam<LinkKind> {};

// In both directions, directly and in a graph whose arrays are gone when it is launched; the bytes
// in between stay unchanged. The buffers have `space_of_one` bytes for each block.
template <typename BlocksOf>
void put_and_get(const LinkKind& kind, const BlocksOf& blocks_of, size_t space_of_one) {
  run_streams(kind, [&](Side& side, StreamSide& here) {
    const Blocks blocks = blocks_of(side);
    const size_t space = blocks.offsets.size() * space_of_one;
    Buffer out = side.buffer(space);
    Buffer in = side.buffer(space);
    Buffer got = side.buffer(space);
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    onehop::OnStream stream = side.peer().on(here.stream());
    auto exchange = [&] {
      const Blocks passing = blocks;
      stream.put_batch(remote, passing.batch(out));
      stream.signal(kMoved);
      await(side, here.stream(), kMoved);
      stream.get_batch(remote, passing.batch(got));
    };
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    void* graph = capture_graph(here.stream(), exchange);
    for (uint64_t round = 0; round < 4; ++round) {
      const auto ours = static_cast<uint64_t>(side.number());
      out.fill(2 * round + ours);
      in.poison();
      got.poison();
      side.sync();
      round % 2 == 0 ? exchange() : launch_graph(graph, here.stream());
      here.finish();
      const onehop::Bytes theirs = pattern(2 * round + 1 - ours, space);
      EXPECT_TRUE(in.bytes() == blocks.moved(theirs)) << round;
      EXPECT_TRUE(got.bytes() == blocks.moved(pattern(2 * round + ours, space))) << round;
      EXPECT_EQ(oh_peer_async_error(side.peer().get()), OH_OK) << oh_error_text();
      side.sync();
    }
    destroy_graph(graph);
    here.end();
  });
}

// More blocks than one kernel takes.
TEST_P(GpuStreamBatches, PutsAndGetsManyBlocksAlsoInGraphs) {
  auto blocks_of = [](Side& side) {
    return many_blocks(stream_path(side.kind()) == OH_PATH_PROXY ? 140 : 2300);
  };
  put_and_get(GetParam(), blocks_of, kStep);
}

// Up to as many as the kernel for few blocks takes, and one more; the longest are for several of
// its thread blocks.
TEST_P(GpuStreamBatches, PutsAndGetsAFewBlocksAlsoInGraphs) {
  constexpr size_t kSpace = 40'000;
  for (size_t count : {2, 10, 12}) {  // one of four is empty
    auto blocks_of = [&](Side&) {
      Blocks blocks;
      for (size_t i = 0; i < count; ++i) {
        blocks.add(i * kSpace + i % 3, i % 4 == 3 ? 0 : i % 2 == 0 ? kSpace - 7 : 1 + i);
      }
      return blocks;
    };
    put_and_get(GetParam(), blocks_of, kSpace);
  }
}

void scatter_and_gather(const LinkKind& kind, size_t count, uint64_t length) {
  run_streams(kind, [&](Side& side, StreamSide& here) {
    const uint64_t step = 3 * length;
    Buffer out = side.buffer(count * length);
    Buffer back = side.buffer(count * length + 5);
    Buffer in = side.buffer(count * step);
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    const auto ours = static_cast<uint64_t>(side.number());
    out.fill(ours);
    in.poison();
    back.poison();
    side.sync();
    oh_batch batch = batch_of(out);
    batch.count = count;
    batch.remote_stride = step;
    batch.length = length;
    onehop::OnStream stream = side.peer().on(here.stream());
    stream.scatter(remote, batch);
    stream.signal(kMoved);
    await(side, here.stream(), kMoved);
    batch.local = back.data();
    batch.local_size = back.size();
    batch.local_base = 5;
    stream.gather(remote, batch);
    here.finish();
    const onehop::Bytes theirs = pattern(1 - ours, count * length);
    onehop::Bytes expected(count * step, kPoison);
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(&expected[i * step], &theirs[i * length], length);
    }
    EXPECT_TRUE(in.bytes() == expected);
    const onehop::Bytes gathered = back.bytes();
    EXPECT_EQ(gathered[4], kPoison);
    EXPECT_TRUE(std::equal(gathered.begin() + 5, gathered.end(), out.bytes().begin()));
    here.end();
  });
}

// The blocks have another alignment on each side; the kernel for few blocks gives long ones to
// several of its thread blocks.
TEST_P(GpuStreamBatches, ScattersAndGathers) {
  scatter_and_gather(GetParam(), 30, 73);
  scatter_and_gather(GetParam(), 3, 73);
  scatter_and_gather(GetParam(), 7, 200'003);
}

// Two regions and two pieces of local memory.
TEST_P(GpuStreamBatches, OfSeveralRegions) {
  constexpr size_t kSpace = 4096;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out[2] = {side.buffer(kSpace), side.buffer(kSpace)};
    Buffer in[2] = {side.buffer(kSpace), side.buffer(kSpace)};
    const auto ours = static_cast<uint64_t>(side.number());
    std::vector<onehop::Region> regions;
    for (size_t i = 0; i < 2; ++i) {
      out[i].fill(10 * ours + i);
      in[i].poison();
      regions.push_back(side.endpoint().register_memory(in[i].data(), kSpace));
      side.tell(regions.back().descriptor());
    }
    std::vector<onehop::RemoteRegion> remotes;
    for (size_t i = 0; i < 2; ++i) remotes.push_back(side.peer().attach(side.hear()));
    const oh_memory locals[] = {{out[0].data(), kSpace}, {out[1].data(), kSpace}};
    oh_remote_region* const there[] = {remotes[0].get(), remotes[1].get()};
    const std::vector<uint32_t> local = {0, 1, 1, 0}, remote = {1, 0, 1, 0};
    const std::vector<uint64_t> from = {5, 0, 1000, 200}, to = {900, 33, 0, 2000};
    const std::vector<uint64_t> lengths = {100, 900, 77, 1};
    oh_region_batch batch{};
    batch.locals = locals;
    batch.local_count = 2;
    batch.remotes = there;
    batch.remote_count = 2;
    batch.count = lengths.size();
    batch.local_index = local.data();
    batch.remote_index = remote.data();
    batch.local_offsets = from.data();
    batch.remote_offsets = to.data();
    batch.lengths = lengths.data();
    side.sync();
    onehop::OnStream stream = side.peer().on(here.stream());
    stream.put_regions(batch);
    stream.signal(kMoved);
    await(side, here.stream(), kMoved);
    here.finish();
    onehop::Bytes expected[2] = {onehop::Bytes(kSpace, kPoison), onehop::Bytes(kSpace, kPoison)};
    for (size_t i = 0; i < lengths.size(); ++i) {
      const onehop::Bytes theirs = pattern(10 * (1 - ours) + local[i], kSpace);
      std::memcpy(&expected[remote[i]][to[i]], &theirs[from[i]], lengths[i]);
    }
    EXPECT_TRUE(in[0].bytes() == expected[0]);
    EXPECT_TRUE(in[1].bytes() == expected[1]);
    side.sync();
    const onehop::Bytes before[2] = {out[0].bytes(), out[1].bytes()};
    out[0].poison();
    out[1].poison();
    stream.get_regions(batch);
    here.finish();
    for (size_t i = 0; i < lengths.size(); ++i) {
      const onehop::Bytes now = out[local[i]].bytes();
      EXPECT_EQ(std::memcmp(&now[from[i]], &before[local[i]][from[i]], lengths[i]), 0) << i;
    }
    here.end();
  });
}

// A rejected batch moves nothing; an empty batch is a no-op.
TEST_P(GpuStreamBatches, RefusesWhatIsOutside) {
  constexpr size_t kSpace = 4000;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kSpace);
    Buffer in = side.buffer(kSpace);
    in.poison();
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    onehop::Region fixed = side.endpoint().register_read_only(in.data(), in.size());
    side.tell(region.descriptor());
    side.tell(fixed.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    onehop::RemoteRegion only_read = side.peer().attach(side.hear());
    Blocks blocks({0, 500, 3900}, {100, 100, 101});
    oh_batch batch = blocks.batch(out);
    batch.struct_size = sizeof(batch);
    oh_peer* peer = side.peer().get();
    EXPECT_EQ(oh_peer_stream_put_batch(peer, here.stream(), remote.get(), &batch), OH_ERR_RANGE);
    EXPECT_NE(std::string(oh_error_text()).find("block 2"), std::string::npos) << oh_error_text();
    EXPECT_EQ(oh_peer_stream_get_batch(peer, here.stream(), remote.get(), &batch), OH_ERR_RANGE);
    blocks.lengths[2] = 100;
    EXPECT_EQ(oh_peer_stream_put_batch(peer, here.stream(), only_read.get(), &batch),
              OH_ERR_READ_ONLY);
    EXPECT_EQ(oh_peer_stream_get_batch(peer, here.stream(), only_read.get(), &batch), OH_OK);
    batch.count = 0;
    EXPECT_EQ(oh_peer_stream_put_batch(peer, here.stream(), remote.get(), &batch), OH_OK);
    here.finish();
    EXPECT_TRUE(in.bytes() == onehop::Bytes(kSpace, kPoison));
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamBatches, ::testing::ValuesIn([] {
                           std::vector<LinkKind> kinds = proxy_kinds();
                           for (const LinkKind& kind : kernel_kinds()) {
                             if (kind.memory[0] != MemoryKind::kAsync) kinds.push_back(kind);
                           }
                           return kinds;
                         }()),
                         name_of);

// Blocks too long for a kernel between short ones, and blocks of host memory.
TEST(GpuStreamLongBatches, ByTheEngineAndTheKernel) {
  constexpr size_t kLong = (2 << 20) + 4096;
  constexpr size_t kSpace = 2 * kLong;
  run_streams(with_stream(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kSpace);
    Buffer in = side.buffer(kSpace);
    onehop::Region region = side.endpoint().register_memory(in.data(), in.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    onehop::OnStream stream = side.peer().on(here.stream());
    const auto ours = static_cast<uint64_t>(side.number());
    out.fill(ours);
    in.poison();
    side.sync();
    const Blocks blocks({0, 100, kLong + 300}, {50, kLong - 1, 2000});
    stream.put_batch(remote, blocks.batch(out));
    stream.signal(kMoved);
    await(side, here.stream(), kMoved);
    here.finish();
    const onehop::Bytes theirs = pattern(1 - ours, kSpace);
    EXPECT_TRUE(in.bytes() == blocks.moved(theirs));
    onehop::Bytes host(kSpace, 0xee);
    oh_batch into_host = blocks.batch(out);
    into_host.local = host.data();
    stream.get_batch(remote, into_host);
    here.finish();
    EXPECT_TRUE(host == blocks.moved(out.bytes()));
    here.end();
  });
}

}  // namespace
}  // namespace conformance::gpu_stream_batches
