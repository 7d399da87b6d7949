// SPDX-License-Identifier: Apache-2.0
//
// Lists of blocks over UCX: frames that are packed together, in buffers of a pool smaller than
// their total.
#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>

#include "conformance/batches.h"
#include "conformance/faults.h"
#include "conformance/faulty_ucx.h"
#include "sanitizers.h"

namespace conformance::ucx_pipeline {
namespace {

// Operation i has three blocks within its place; the bytes in between stay unchanged.
struct Places {
  static constexpr size_t kPlace = 4096;
  static constexpr uint64_t kOffsets[] = {0, 64, 1000};
  static constexpr uint64_t kLengths[] = {40, 700, 3000};

  explicit Places(size_t place) {
    for (uint64_t offset : kOffsets) offsets.push_back(place * kPlace + offset);
  }
  oh_batch of(Buffer& buffer) const {
    oh_batch batch = batch_of(buffer);
    batch.count = std::size(kLengths);
    batch.local_offsets = batch.remote_offsets = offsets.data();
    batch.lengths = kLengths;
    return batch;
  }
  static onehop::Bytes moved(const onehop::Bytes& from) {
    onehop::Bytes expected(from.size(), 0xee);
    for (size_t place = 0; place < from.size(); place += kPlace) {
      for (size_t i = 0; i < std::size(kLengths); ++i) {
        std::memcpy(expected.data() + place + kOffsets[i], from.data() + place + kOffsets[i],
                    kLengths[i]);
      }
    }
    return expected;
  }
  std::vector<uint64_t> offsets;
};

oh_pool_stats pool_of(onehop::Endpoint& endpoint) { return endpoint.pool(OH_POOL_PIPELINE); }

std::vector<LinkKind> small_pools() {
  std::vector<LinkKind> kinds;
  for (LinkKind kind : process_kinds()) {
    if (kind.path != OH_PATH_UCX) continue;
    const std::string name = kind.name;
    kind.name = name + "_one_buffer";
    kind.env["ONEHOP_PIPELINE_BUFFERS"] = "1";
    kind.env["ONEHOP_PIPELINE_DEPTH"] = "1";
    kinds.push_back(kind);
    kind.name = name + "_small_buffers";
    kind.env["ONEHOP_PIPELINE_BUFFER"] = "4096";
    kind.env["ONEHOP_PIPELINE_BUFFERS"] = "3";
    kind.env["ONEHOP_PIPELINE_WINDOW"] = "2";
    kinds.push_back(kind);
  }
  return kinds;
}

class UcxPipeline : public ::testing::TestWithParam<LinkKind> {
 protected:
  static constexpr size_t kThreads = 4;
  static constexpr size_t kEach = kSanitized ? 50 : 250;  // operations per thread

  // Each thread posts all its operations, alternating between both peers, and then waits for them.
  template <typename Begin>
  static void all_at_once(Begin begin) {
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kEach; ++i) requests.push_back(begin(thread * kEach + i));
        for (onehop::Request& request : requests) {
          EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_OK);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

TEST_P(UcxPipeline, AThousandListsAtOnce) {
  constexpr size_t kSpace = kThreads * kEach * Places::kPlace;
  auto second = [](Side& side) {
    if (side.number() == 1) {
      side.tell(side.endpoint().address());
      return side.endpoint().accept(20s);
    }
    return side.endpoint().connect(side.hear(), 20s);
  };
  run_pair(
      GetParam(),
      [&](Side& side) {
        onehop::Peer other = second(side);
        onehop::Peer* peers[] = {&side.peer(), &other};
        const onehop::Bytes descriptor = side.hear();
        const onehop::RemoteRegion remotes[] = {peers[0]->attach(descriptor),
                                                peers[1]->attach(descriptor)};
        Buffer out = side.buffer(kSpace);
        out.fill(1);
        Buffer in = side.buffer(kSpace);
        in.poison();
        all_at_once(
            [&](size_t i) { return peers[i % 2]->put_batch(remotes[i % 2], Places(i).of(out)); });
        side.sync();
        all_at_once(
            [&](size_t i) { return peers[i % 2]->get_batch(remotes[i % 2], Places(i).of(in)); });
        EXPECT_TRUE(in.bytes() == Places::moved(out.bytes()));
        const oh_pool_stats pool = pool_of(side.endpoint());
        EXPECT_GT(pool.buffers, 0u);
        EXPECT_LE(pool.peak, pool.limit);
        EXPECT_LE(pool.buffers, pool.limit);
        EXPECT_EQ(pool.in_use, 0u);
        EXPECT_GT(side.peer().stats().packed, 0u);
        side.sync();
      },
      [&](Side& side) {
        onehop::Peer other = second(side);
        Buffer buffer = side.buffer(kSpace);
        buffer.poison();
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        Buffer expected(kSpace, MemoryKind::kPrivate);
        expected.fill(1);
        EXPECT_TRUE(buffer.bytes() == Places::moved(expected.bytes()));
        side.sync();
      });
}

// Operations after lists see their bytes: notifications, signals, later puts to the same place,
// batches as messages.
TEST_P(UcxPipeline, WhatFollowsAListComesAfterIt) {
  constexpr size_t kRounds = 60;
  constexpr size_t kSpace = 8 * Places::kPlace;
  auto list_of = [](Buffer& buffer) {
    oh_batch batch = batch_of(buffer);
    batch.count = 64;
    batch.local_stride = batch.remote_stride = 512;
    batch.length = 300;
    return batch;
  };
  run_pair(
      GetParam(),
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (size_t round = 0; round < kRounds; ++round) {
          buffers.push_back(side.buffer(kSpace));
          buffers.back().fill(round);
          requests.push_back(side.peer().put(buffers[0].data(), remote, 0, kSpace));
          requests.push_back(side.peer().put_batch(remote, list_of(buffers.back())));
          round % 2 ? side.peer().signal(5) : side.peer().notify({static_cast<uint8_t>(round)});
          side.peer().wait_signal(6, 1, 20s);
        }
        for (onehop::Request& request : requests) request.wait(20s);
        auto blocks = onehop::detail::sized<oh_blocks>();
        blocks.memory = buffers.back().data();
        blocks.memory_size = kSpace;
        blocks.count = 64;
        blocks.stride = 512;
        blocks.length = 300;
        side.peer().send_batch(blocks, 3, 20s);
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        auto came = [&](size_t round) {
          Buffer first(kSpace, MemoryKind::kPrivate);
          Buffer last(kSpace, MemoryKind::kPrivate);
          first.fill(0);
          last.fill(round);
          onehop::Bytes expected = first.bytes();
          for (size_t at = 0; at < kSpace; at += 512) {
            std::copy_n(last.data() + at, 300, expected.begin() + static_cast<ptrdiff_t>(at));
          }
          return buffer.bytes() == expected;
        };
        for (size_t round = 0; round < kRounds; ++round) {
          if (round % 2) {
            side.peer().wait_signal(5, 1, 20s);
          } else {
            auto notification = side.endpoint().notification();
            while (!notification) notification = side.endpoint().notification();
            EXPECT_EQ(notification->second, onehop::Bytes{static_cast<uint8_t>(round)});
          }
          ASSERT_TRUE(came(round)) << "round " << round;
          side.peer().signal(6);
        }
        Buffer in = side.buffer(kSpace);
        auto blocks = onehop::detail::sized<oh_blocks>();
        blocks.memory = in.data();
        blocks.memory_size = kSpace;
        blocks.count = 128;
        blocks.stride = 256;
        blocks.length = 150;
        EXPECT_EQ(side.peer().recv_batch(blocks, 3, 20s).size, 64u * 300);
        Buffer last(kSpace, MemoryKind::kPrivate);
        last.fill(kRounds - 1);
        for (size_t i = 0; i < 64; ++i) {
          ASSERT_EQ(std::memcmp(in.data() + i * 512, last.data() + i * 512, 150), 0) << i;
          ASSERT_EQ(std::memcmp(in.data() + i * 512 + 256, last.data() + i * 512 + 150, 150), 0);
        }
      });
}

// A region that is retired while lists for it are in flight is not written, and the error is
// reported.
TEST_P(UcxPipeline, ARegionThatGoesIsLeftAlone) {
  run_pair(
      GetParam(),
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(64 * Places::kPlace);
        out.fill(1);
        oh_status status = OH_OK;
        for (bool told = false; status == OH_OK; told = true) {
          std::deque<onehop::Request> requests;
          for (size_t i = 0; i < 64; ++i) {
            requests.push_back(side.peer().put_batch(remote, Places(i).of(out)));
          }
          if (!told) side.peer().notify({1});
          for (onehop::Request& request : requests) {
            status = std::min(status, status_of([&] { request.wait(20s); }));
          }
        }
        EXPECT_EQ(status, OH_ERR_RETIRED);
        side.sync();
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(64 * Places::kPlace);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        while (!side.endpoint().notification()) side.endpoint().progress();
        region.deregister(20s);
        buffer.poison();
        side.sync();
        ASSERT_TRUE(buffer.is_poisoned());
        side.sync();
      });
}

const auto kName = [](const ::testing::TestParamInfo<LinkKind>& test) { return test.param.name; };

INSTANTIATE_TEST_SUITE_P(Pools, UcxPipeline, ::testing::ValuesIn(small_pools()), kName);

// A stopped peer holds the data in flight to it, limited by its window.
class UcxPipelineStops : public Faults {};

TEST_P(UcxPipelineStops, AStoppedPeerHasItsWindowAndNoMore) {
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(16 << 20);
        oh_batch batch = batch_of(out);
        batch.count = 4096;
        batch.local_stride = batch.remote_stride = 4096;
        batch.length = 4000;
        side.peer().put_batch(remote, batch).wait(20s);
        side.sync();
        trap().strike(side.other_process(), SIGSTOP);
        await_stop(side.other_process());
        onehop::Request request = side.peer().put_batch(remote, batch);
        EXPECT_EQ(status_of([&] { request.wait(50ms); }), OH_ERR_TIMEOUT);
        const oh_pool_stats pool = pool_of(side.endpoint());
        EXPECT_GT(pool.in_use, 0u);
        EXPECT_LE(pool.in_use, 2u) << "of 4, and so the window is half of that";
        EXPECT_GT(side.peer().stats().deferred, 0u);
        kill(side.other_process(), SIGCONT);
        side.peer().put_batch(remote, batch).wait(20s);
        EXPECT_TRUE(eventually([&] {
          side.endpoint().progress();
          return pool_of(side.endpoint()).in_use == 0;
        }));
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(16 << 20);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        side.sync();
      });
}

INSTANTIATE_TEST_SUITE_P(Tcp, UcxPipelineStops,
                         ::testing::Values(LinkKind{.name = "ucx_tcp",
                                                    .env = {{"ONEHOP_TRANSPORT", "ucx"},
                                                            {"UCX_TLS", "tcp"},
                                                            {"UCX_NET_DEVICES", "lo"},
                                                            {"ONEHOP_PIPELINE_BUFFERS", "4"}},
                                                    .path = OH_PATH_UCX}),
                         kName);

// ---- Failing UCX calls ------------------------------------------------------------------------

class UcxPipelineFaults : public ::testing::Test {
 protected:
  static constexpr size_t kSpace = 64 * Places::kPlace;

  static oh_batch list_of(Buffer& buffer) {
    oh_batch batch = batch_of(buffer);
    batch.count = kSpace / 1024;
    batch.local_stride = batch.remote_stride = 1024;
    batch.length = 700;  // too large for inline data, which needs no buffer
    return batch;
  }
  // Side 0 puts and gets, side 1 offers its memory over both links.
  static void with_regions(
      Side& side, Links& links,
      const std::function<void(Buffer& buffer, onehop::RemoteRegion (&remotes)[2])>& initiator) {
    Buffer buffer = side.buffer(kSpace);
    buffer.fill(1);
    if (side.number() == 1) {
      onehop::Region region = links.endpoint.register_memory(buffer.data(), buffer.size());
      side.tell(region.descriptor());
      side.sync();
      region.deregister(20s);
      return;
    }
    const onehop::Bytes descriptor = side.hear();
    onehop::RemoteRegion remotes[] = {links.peers[0]->attach(descriptor),
                                      links.peers[1]->attach(descriptor)};
    initiator(buffer, remotes);
    side.sync();
  }
};

// A packed message that cannot be sent ends its link with an error, and no other link.
TEST_F(UcxPipelineFaults, APackThatIsLostEndsItsLink) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}}, [](Side& side) {
    for (const char* rules : {"ucp_am_send_nbx:1=-4", "ucp_am_send_nbx:2=-4:later",
                              "ucp_am_send_nbx:2=-25", "ucp_am_send_nbx:1=-80:later"}) {
      SCOPED_TRACE(rules);
      {
        Links links(side);
        with_regions(side, links, [&](Buffer& buffer, onehop::RemoteRegion(&remotes)[2]) {
          set_rules(rules);
          const oh_status lost =
              status_of([&] { links.peers[0]->put_batch(remotes[0], list_of(buffer)).wait(20s); });
          EXPECT_EQ(lost, OH_ERR_PEER_LOST);
          EXPECT_EQ(seam().struck(), 1u);
          set_rules("");
          links.peers[1]->put_batch(remotes[1], list_of(buffer)).wait(20s);
          links.peers[1]->get_batch(remotes[1], list_of(buffer)).wait(20s);
          EXPECT_TRUE(buffer.holds(1, kSpace));
          EXPECT_EQ(pool_of(links.endpoint).in_use, 0u);
        });
      }
      set_rules("");
      EXPECT_TRUE(nothing_is_open());
    }
  });
}

// The only buffer is in UCX, for one peer, and is not returned: lists for the other peer wait for
// it, up to their deadline, and continue when that link ends.
TEST_F(UcxPipelineFaults, WhoWaitsForTheOnlyBufferGetsItWhenItIsFree) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}, {"ONEHOP_PIPELINE_BUFFERS", "1"}}, [](Side& side) {
    {
      Links links(side);
      with_regions(side, links, [&](Buffer& buffer, onehop::RemoteRegion(&remotes)[2]) {
        set_rules("ucp_am_send_nbx:1=0:never");
        onehop::Request stuck = links.peers[0]->put_batch(remotes[0], list_of(buffer));
        EXPECT_EQ(seam().struck(), 1u);
        EXPECT_EQ(pool_of(links.endpoint).in_use, 1u);
        onehop::Request late = links.peers[1]->put_batch(remotes[1], list_of(buffer));
        EXPECT_EQ(status_of([&] { late.wait(30ms); }), OH_ERR_TIMEOUT);
        // Abandoned waiters do not block others; this one is alone in the queue.
        onehop::Request next = links.peers[1]->put_batch(remotes[1], list_of(buffer));
        EXPECT_FALSE(next.test());
        EXPECT_GT(pool_of(links.endpoint).shortages, 0u);
        links.peers[0]->close();
        next.wait(20s);
        EXPECT_EQ(pool_of(links.endpoint).in_use, 0u);
        EXPECT_EQ(pool_of(links.endpoint).buffers, 1u);
        set_rules("");
        links.peers[1]->get_batch(remotes[1], list_of(buffer)).wait(20s);
        EXPECT_TRUE(buffer.holds(1, kSpace));
        EXPECT_EQ(status_of([&] { stuck.wait(20s); }), OH_ERR_CANCELLED);
      });
    }
    EXPECT_TRUE(nothing_is_open());
  });
}

}  // namespace
}  // namespace conformance::ucx_pipeline
