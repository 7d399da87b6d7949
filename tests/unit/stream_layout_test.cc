// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_layout.h"

#include <array>
#include <vector>

#include "base/config.h"
#include "unit/support.h"

namespace unit::stream_layout_test {
namespace {

using namespace oh;
using kernels::StreamKind;
using kernels::StreamOp;

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kSmall = 256 * kKiB;  // the longest message that goes by lines
constexpr LayoutGpu kGpu{.processors = 132, .clusters = true, .begins_early = true};
constexpr LayoutGpu kOlder{.processors = 108, .clusters = false, .begins_early = false};

// The operations of a launch; token i + 1 is that of operation i.
class Launch {
 public:
  explicit Launch(uint32_t most = 32, uint64_t per_block = 2 * kKiB)
      : most_(most), per_block_(per_block) {}
  Launch& send(uint64_t bytes, uint32_t lane = 0, uint64_t peer = 0) {
    return add(StreamKind::kSend, bytes, lane, peer, false);
  }
  Launch& recv(uint64_t bytes, uint32_t lane = 0, uint64_t peer = 0) {
    return add(StreamKind::kRecv, bytes, lane, peer, false);
  }
  // A receive whose message the peer puts.
  Launch& put(uint64_t bytes, uint32_t lane = 0, uint64_t peer = 0) {
    return add(StreamKind::kRecv, bytes, lane, peer, true);
  }
  // The last operation asks for the size.
  Launch& asks() {
    ops_.back().size_to = 8;
    return *this;
  }
  Launch& signal() { return add(StreamKind::kSignal, 1, 0, 0, false); }
  Launch& all(size_t times, uint64_t bytes) {
    for (uint64_t peer = 0; peer < times; ++peer) send(bytes, 0, 100 + peer);
    return *this;
  }

  Layout lay_out(const LayoutGpu& gpu = kGpu) {
    std::vector<LayoutOp> given;
    for (size_t i = 0; i < ops_.size(); ++i) {
      given.push_back({.op = &ops_[i],
                       .peer = &peers_[peer_[i]],
                       .expects_put = put_[i],
                       .large = ops_[i].bytes > kSmall,
                       .most = most_,
                       .per_block = per_block_});
    }
    const Layout layout = oh::lay_out(given, gpu);
    cluster_ = layout.cluster;
    return layout;
  }
  const StreamOp& operator[](size_t i) const { return ops_[i]; }
  uint32_t blocks(size_t i) const { return ops_[i].teams * cluster_; }

 private:
  Launch& add(StreamKind kind, uint64_t bytes, uint32_t lane, uint64_t peer, bool put) {
    StreamOp op{};
    op.kind = kind;
    op.bytes = bytes;
    op.lane.lane = lane;
    op.lane.token = static_cast<uint32_t>(ops_.size()) + 1;
    op.lane.follows = 77;  // lay_out() sets it
    ops_.push_back(op);
    peer_.push_back(peer);
    put_.push_back(put);
    return *this;
  }

  uint32_t most_;
  uint64_t per_block_;
  std::vector<StreamOp> ops_;
  std::vector<uint64_t> peer_;
  std::vector<bool> put_;
  std::array<char, 256> peers_{};
  uint32_t cluster_ = 0;
};

TEST(StreamLayout, AMessageHasTheBlocksItGainsFrom) {
  struct {
    uint64_t bytes;
    uint32_t teams, of_send, of_receive;  // clusters
  } const cases[] = {
      {0, 1, 1, 1},
      {2 * kKiB, 1, 1, 1},
      {4 * kKiB, 1, 2, 1},
      {6 * kKiB, 1, 2, 1},
      {8 * kKiB, 1, 4, 1},
      {8 * kKiB + 1, 1, 4, 4},
      {16 * kKiB, 1, 8, 4},
      {16 * kKiB + 1, 1, 8, 8},
      {64 * kKiB, 1, 8, 8},
      {kSmall, 1, 8, 8},
      {1024 * kKiB, 1, 8, 8},
      {4096 * kKiB, 1, 8, 8},
      {4096 * kKiB + 1, 4, 8, 8},
      {uint64_t{1} << 40, 4, 8, 8},
  };
  for (const auto& one : cases) {
    for (const bool sends : {true, false}) {
      Launch launch;
      sends ? launch.send(one.bytes) : launch.recv(one.bytes);
      const Layout layout = launch.lay_out();
      EXPECT_EQ(layout.teams, one.teams) << one.bytes;
      EXPECT_EQ(layout.cluster, sends ? one.of_send : one.of_receive) << one.bytes;
      EXPECT_EQ(launch[0].teams, one.teams);
      EXPECT_EQ(launch[0].first, 0U);
      EXPECT_EQ(launch[0].lane.follows, 0U);
    }
  }
}

// Other operations of the launch would have whole clusters, too, and without clusters each block is
// a team.
TEST(StreamLayout, OnlyASendAloneIsDividedBelow16KiB) {
  for (const uint64_t bytes : {4 * kKiB, 16 * kKiB}) {
    Launch group;
    group.send(bytes).recv(bytes);
    const Layout both = group.lay_out();
    EXPECT_EQ(both.cluster, 1U) << bytes;
    EXPECT_EQ(both.teams, 2U) << bytes;
    Launch alone;
    alone.send(bytes);
    EXPECT_EQ(alone.lay_out(kOlder).teams, 1U) << bytes;
  }
}

TEST(StreamLayout, AMessageHasTheThreadsItGainsFrom) {
  struct {
    uint64_t bytes;
    uint32_t of_send, of_receive;
  } const cases[] = {
      {0, 32, 32},
      {384, 32, 32},
      {385, 64, 64},
      {2 * kKiB, 192, 192},
      {4 * kKiB, 192, 352},  // 2 blocks, 1
      {6 * kKiB, 256, 512},
      {8 * kKiB, 192, 704},       // 4 blocks; the most of 1
      {9 * kKiB, 192, 192},       // 4 blocks each
      {16 * kKiB, 192, 352},      // 8 blocks, 4
      {16 * kKiB + 1, 192, 192},  // 8 blocks each
      {32 * kKiB, 352, 352},      // the most of them with one line
      {33 * kKiB + 1, 192, 192},  // two lines
      {64 * kKiB, 352, 352},
      {66 * kKiB + 1, 512, 512},  // three lines
      {kSmall, 512, 512},
      {kSmall + 1, 352, 512},      // may be large
      {4096 * kKiB, 352, 512},     // one cluster
      {4096 * kKiB + 1, 512, 512}  // several
  };
  for (const auto& one : cases) {
    Launch send;
    send.send(one.bytes);
    EXPECT_EQ(send.lay_out().threads, one.of_send) << one.bytes;
    Launch receive;
    receive.recv(one.bytes);
    EXPECT_EQ(receive.lay_out().threads, one.of_receive) << one.bytes;
  }
}

TEST(StreamLayout, AGroupHasTheThreadsOfItsLargestOperation) {
  Launch signal;
  signal.signal();
  EXPECT_EQ(signal.lay_out().threads, 32U);
  Launch put;
  put.put(1 << 20);
  EXPECT_EQ(put.lay_out().threads, 96U);
  Launch asks;
  asks.put(1 << 20).asks();
  EXPECT_EQ(asks.lay_out().threads, 512U);
  Launch small;
  small.send(100).recv(1024, 1).signal();
  EXPECT_EQ(small.lay_out().threads, 96U);
  for (const uint64_t bytes : {8 * kKiB, uint64_t{1} << 20}) {
    Launch group;
    group.send(8).send(bytes, 1).put(1 << 20);
    EXPECT_EQ(group.lay_out().threads, 512U) << bytes;
  }
}

// Of the kernels that launch() would choose.
uint32_t most_threads(bool alone, uint64_t bytes) {
  return alone && bytes <= kSmall ? kernels::kStreamSmallThreads : kernels::kStreamThreads;
}

TEST(StreamLayout, NoBlockHasMoreThreadsThanItsKernelWithAnySettings) {
  for (const LayoutGpu& gpu : {kGpu, kOlder, LayoutGpu{1, true, true}, LayoutGpu{5, true, false}}) {
    for (const uint32_t most : {1U, 3U, 64U}) {
      for (const uint64_t per_block : {uint64_t{384}, 2 * kKiB, 1024 * kKiB}) {
        for (uint64_t bytes = 0; bytes <= 2 * kSmall; bytes += 1 + bytes / 8) {
          for (const bool alone : {true, false}) {
            Launch launch(most, per_block);
            launch.send(bytes);
            if (!alone) launch.recv(bytes).put(bytes, 1);
            const Layout layout = launch.lay_out(gpu);
            EXPECT_GT(layout.threads, 0U) << bytes;
            EXPECT_EQ(layout.threads % 32, 0U) << bytes;
            EXPECT_LE(layout.threads, most_threads(alone, bytes)) << bytes;
            EXPECT_GE(launch.blocks(0), 1U) << bytes;
            EXPECT_LE(launch.blocks(0), std::max(most, layout.cluster)) << bytes;
          }
        }
      }
    }
  }
}

// Only GPUs with clusters have been measured.
TEST(StreamLayout, WithoutClustersABlockHas512Threads) {
  for (const uint64_t bytes : {8 * kKiB, 64 * kKiB, uint64_t{1} << 20}) {
    Launch launch;
    launch.send(bytes);
    EXPECT_EQ(launch.lay_out(kOlder).threads, 512U) << bytes;
  }
}

// The kernel of single small messages has no code for several teams.
TEST(StreamLayout, ASingleSmallMessageHasOneTeamOnEveryGpuWithClusters) {
  constexpr uint64_t kMostOfSmall = Config::kMostStreamSmall;
  for (const uint32_t processors : {1U, 4U, 16U, 31U, 64U, 78U, 114U, 132U, 192U}) {
    for (const bool begins_early : {true, false}) {
      for (uint64_t bytes = 0; bytes <= kMostOfSmall; bytes += kKiB) {
        Launch launch;
        launch.send(bytes);
        const LayoutGpu gpu{processors, /*clusters=*/true, begins_early};
        EXPECT_EQ(launch.lay_out(gpu).teams, 1U) << processors << " processors, " << bytes;
      }
    }
  }
}

TEST(StreamLayout, WithoutClustersEachBlockIsATeam) {
  Launch launch;
  launch.send(1024 * kKiB).recv(1024 * kKiB);
  const Layout layout = launch.lay_out(kOlder);
  EXPECT_EQ(layout.cluster, 1U);
  EXPECT_EQ(layout.teams, 16U);
  EXPECT_EQ(launch[1].first, 8U);
}

// The sender puts the message: the receive has nothing to copy.
TEST(StreamLayout, AReceiveThatIsPutWaitsInOneBlock) {
  Launch launch;
  launch.put(uint64_t{1} << 30);
  const Layout layout = launch.lay_out();
  EXPECT_EQ(layout.teams * layout.cluster, 1U);
  Launch many;
  for (uint32_t lane = 0; lane < 16; ++lane) many.put(uint64_t{1} << 20, lane);
  const Layout both = many.lay_out();
  EXPECT_EQ(both.teams, 16U);
  EXPECT_EQ(both.cluster, 1U);
  EXPECT_EQ(many[15].first, 15U);
}

// It takes one cluster of the size that the send needs.
TEST(StreamLayout, AReceiveThatIsPutDoesNotDivideTheSendBesideIt) {
  Launch launch;
  launch.put(8 << 20).send(8 << 20);
  const Layout layout = launch.lay_out();
  EXPECT_EQ(layout.cluster, 8U);
  EXPECT_EQ(launch[0].teams, 1U);
  EXPECT_EQ(launch[1].teams, 3U);
}

// A short header must not throw a large message onto one block.
TEST(StreamLayout, ASmallMessageDoesNotDivideTheLargeOneBesideIt) {
  for (const uint32_t lane : {0U, 1U}) {
    Launch launch;
    launch.send(8, 0).send(64 << 20, lane);
    const Layout layout = launch.lay_out();
    EXPECT_EQ(layout.cluster, 8U) << lane;
    EXPECT_EQ(launch.blocks(1), lane == 0 ? 32U : 24U) << lane;
    EXPECT_EQ(launch[1].lane.follows, lane == 0 ? 1U : 0U) << lane;
    EXPECT_EQ(launch[0].teams, lane == 0 ? 4U : 1U) << lane;
  }
  Launch behind;
  behind.send(64 << 20).send(8);
  behind.lay_out();
  EXPECT_EQ(behind.blocks(0), 32U);
  EXPECT_EQ(behind[1].teams, behind[0].teams);
}

// Clusters for all would take more than the launch's share. The large message has what is left.
TEST(StreamLayout, ManySmallMessagesLeaveTheRestToTheLargeOne) {
  Launch launch;
  launch.send(64 << 20).all(15, 8);
  const Layout layout = launch.lay_out();
  EXPECT_EQ(layout.cluster, 1U);
  EXPECT_EQ(launch.blocks(0), 18U);
  EXPECT_EQ(layout.teams, 33U);
  Launch most;
  most.send(64 << 20).all(127, 8);
  EXPECT_EQ(most.lay_out().teams, 128U);
}

// A receive that asks for the size may get a short message. One cluster reads it fast enough.
TEST(StreamLayout, AReceiveThatAsksForTheSizeHasOneCluster) {
  for (const uint64_t bytes : {300 * kKiB, uint64_t{1} << 30}) {
    Launch alone;
    alone.put(bytes).asks();
    const Layout layout = alone.lay_out();
    EXPECT_EQ(layout.teams, 1U) << bytes;
    EXPECT_EQ(layout.cluster, 8U) << bytes;
  }
  Launch group;
  group.send(64 << 20).put(64 << 20).asks();
  group.lay_out();
  EXPECT_EQ(group.blocks(0), 24U) << "what is left of 33, in clusters";
  EXPECT_EQ(group.blocks(1), 8U);
}

TEST(StreamLayout, WhatAMessageDoesNotWantIsForTheOthers) {
  Launch launch;
  launch.send(32 * kKiB).send(64 << 20, 1).send(64 << 20, 2);
  launch.lay_out();
  EXPECT_EQ(launch.blocks(0), 8U);
  EXPECT_EQ(launch.blocks(1), 8U);
  EXPECT_EQ(launch.blocks(2), 8U);
  Launch two;
  two.send(32 * kKiB).send(64 << 20, 1);
  two.lay_out();
  EXPECT_EQ(two.blocks(0), 8U);
  EXPECT_EQ(two.blocks(1), 24U);
}

TEST(StreamLayout, LargeMessagesShareTheBlocks) {
  for (const size_t count : {2, 4, 8, 14, 16, 40, 128}) {
    Launch launch;
    launch.all(count, 64 << 20);
    const Layout layout = launch.lay_out();
    const uint32_t each = std::max(33U / static_cast<uint32_t>(count), 1U);
    EXPECT_EQ(launch.blocks(0), each) << count;
    EXPECT_EQ(layout.teams * layout.cluster, each * count) << count;
    EXPECT_EQ(launch[1].first, launch[0].teams) << count;
  }
}

// The GPU begins the first blocks first.
TEST(StreamLayout, SendsAreBeforeReceives) {
  Launch launch;
  launch.recv(100).put(1 << 20, 1).send(100, 2).send(1 << 20, 3).recv(100, 4);
  launch.lay_out();
  const uint32_t first[] = {3, 4, 0, 1, 5};
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(launch[i].first, first[i]) << i;
}

// Operations on one half of a lane run in the same blocks, in order.
TEST(StreamLayout, OneHalfIsUsedByOneAfterTheOther) {
  Launch launch;
  launch.send(100).recv(100).send(200).send(300, 1).send(400, 0, 1).send(500).signal().signal();
  const Layout layout = launch.lay_out();
  EXPECT_EQ(layout.teams, 6U);
  const uint32_t follows[] = {0, 0, 1, 0, 0, 3, 0, 0};
  const uint32_t first[] = {0, 5, 0, 1, 2, 0, 3, 4};
  for (size_t i = 0; i < 8; ++i) {
    EXPECT_EQ(launch[i].lane.follows, follows[i]) << i;
    EXPECT_EQ(launch[i].first, first[i]) << i;
    EXPECT_EQ(launch[i].teams, 1U) << i;
  }
}

}  // namespace
}  // namespace unit::stream_layout_test
