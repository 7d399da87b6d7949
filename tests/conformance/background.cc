// SPDX-License-Identifier: Apache-2.0
//
// Puts and gets in the background: when their bytes move, their order, and how they end.
#include <chrono>
#include <thread>

#include "conformance/sides.h"

namespace conformance::background {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 4 << 20;
constexpr size_t kSmall = 100;
constexpr uint8_t kPoison = 0xee;

// Covers the whole buffer and region: some short blocks, then one longer than a slice.
class Whole {
 public:
  Whole(Side& side, Buffer& buffer, onehop::RemoteRegion& remote, bool put) {
    for (uint64_t at = 0; at < kSize;) {
      const uint64_t length = at < kSize / 4 ? 1000 : kSize - at;
      offsets_.push_back(at);
      lengths_.push_back(length);
      at += length;
    }
    oh_batch batch{};
    batch.local = buffer.data();
    batch.local_size = buffer.size();
    batch.count = offsets_.size();
    batch.local_offsets = batch.remote_offsets = offsets_.data();
    batch.lengths = lengths_.data();
    prepared_.emplace(put ? side.peer().prepare_put(remote, batch)
                          : side.peer().prepare_get(remote, batch));
  }
  onehop::Request post(const onehop::Bytes* notify = nullptr) {
    return prepared_->post(notify, {}, /*background=*/true);
  }

 private:
  std::vector<uint64_t> offsets_, lengths_;
  std::optional<onehop::PreparedBatch> prepared_;
};

size_t poisoned(const Buffer& buffer) {
  const onehop::Bytes bytes = buffer.bytes();
  return static_cast<size_t>(std::count(bytes.begin(), bytes.end(), kPoison));
}

// Owns a poisoned region, and calls `look` at each sync with the peer.
Role owner(std::function<void(Side&, Buffer&, onehop::Region&)> look, uint64_t seed = 0) {
  return [look = std::move(look), seed](Side& side) {
    Buffer buffer = side.buffer(kSize);
    seed ? buffer.fill(seed) : buffer.poison();
    onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
    side.tell(region.descriptor());
    look(side, buffer, region);
    side.sync();
  };
}

// Operations posted after a background put become visible after it.
TEST_P(OneSided, BackgroundPutsKeepTheirOrder) {
  const onehop::Bytes names[] = {{'a'}, {'b'}, {'c'}};
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSize);
        Buffer small = side.buffer(kSmall);
        Whole whole(side, out, remote, /*put=*/true);
        for (uint64_t round = 0; round < 2; ++round) {
          out.fill(10 + round);
          small.fill(20 + round);
          // Only copies of host memory are queued: others must end before the next is posted.
          auto apart = [&](onehop::Request request) {
            if (side.kind().on_gpu()) request.wait(20s);
            return request;
          };
          onehop::Request first = apart(whole.post(&names[0]));
          onehop::Request second =
              apart(side.peer().put(small.data(), remote, 5, kSmall, &names[1]));
          onehop::Request third = whole.post();
          side.peer().notify(names[2], 20s);
          for (onehop::Request* one : {&first, &second, &third}) one->wait(20s);
          EXPECT_EQ(first.message().size, kSize);
          EXPECT_TRUE(side.kind().takes(first.message().path, side.kind().one_sided_path()));
          EXPECT_GT(first.message().duration_ns, 0);
          side.sync();
          side.sync();
        }
        side.sync();
      },
      owner([&](Side& side, Buffer& buffer, onehop::Region&) {
        for (uint64_t round = 0; round < 2; ++round) {
          for (const onehop::Bytes& name : names) {
            EXPECT_EQ(side.endpoint().wait_notification(20s).second, name);
          }
          EXPECT_TRUE(buffer.holds(10 + round, kSize));
          side.sync();
          side.sync();
        }
      }));
}

TEST_P(OneSided, BackgroundGetsMoveEveryByte) {
  const onehop::Bytes read = {'r'};
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer in = side.buffer(kSize);
        in.poison();
        Whole(side, in, remote, /*put=*/false).post(&read).wait(20s);
        EXPECT_TRUE(in.holds(3, kSize));
        side.sync();
      },
      owner(
          [&](Side& side, Buffer&, onehop::Region&) {
            EXPECT_EQ(side.endpoint().wait_notification(20s).second, read);
          },
          /*seed=*/3));
}

// Where a local thread copies: here only a thread that makes progress.
class Background : public ::testing::TestWithParam<LinkKind> {
 protected:
  void run(const Role& first, const Role& second) { run_pair(GetParam(), first, second); }
};

TEST_P(Background, NothingHasMovedWhenTheCallReturns) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSize);
        Buffer in = side.buffer(kSize);
        out.fill(1);
        in.poison();
        onehop::Request put = Whole(side, out, remote, /*put=*/true).post();
        onehop::Request get = Whole(side, in, remote, /*put=*/false).post();
        EXPECT_EQ(poisoned(in), kSize);
        side.sync();  // the peer checks its memory
        side.sync();
        get.wait(20s);
        EXPECT_TRUE(put.test());  // it was posted before
        EXPECT_TRUE(in.holds(1, kSize));
        side.sync();
      },
      owner([](Side& side, Buffer& buffer, onehop::Region&) {
        side.sync();
        EXPECT_EQ(poisoned(buffer), kSize);
        side.sync();
      }));
}

TEST_P(Background, ASmallPutWaitsForItsTurn) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSize);
        Buffer small = side.buffer(kSmall);
        out.fill(1);
        small.fill(2);
        onehop::Request large = Whole(side, out, remote, /*put=*/true).post();
        // Both write to the same place: the bytes of the later put remain.
        side.peer().put(small.data(), remote, 0, kSmall).wait(20s);
        EXPECT_TRUE(large.test());
        side.sync();  // the peer checks its memory
        side.sync();
        // No operation is queued before it any more.
        small.fill(3);
        onehop::Request now = side.peer().put(small.data(), remote, kSmall, kSmall);
        side.sync();
        now.wait(20s);
        side.sync();
      },
      owner([](Side& side, Buffer& buffer, onehop::Region&) {
        side.sync();
        EXPECT_TRUE(buffer.holds(2, kSmall));
        side.sync();
        side.sync();
        const onehop::Bytes expected = pattern(3, kSmall);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffer.bytes().begin() + kSmall));
      }));
}

TEST_P(Background, CancellingStopsBetweenSlices) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSize);
        out.fill(1);
        const onehop::Bytes never = {'n'}, last = {'l'};
        Whole whole(side, out, remote, /*put=*/true);
        onehop::Request begun = whole.post(&never);
        onehop::Request queued = whole.post(&never);
        EXPECT_FALSE(begun.test());
        for (onehop::Request* one : {&queued, &begun}) {
          EXPECT_TRUE(one->cancel());
          EXPECT_EQ(status_of([&] { one->wait(20s); }), OH_ERR_CANCELLED);
          EXPECT_TRUE(one->buffer_released());
        }
        out.fill(9);
        side.sync();
        side.peer().notify(last, 20s);
        side.sync();
      },
      owner([](Side& side, Buffer& buffer, onehop::Region&) {
        side.sync();  // until then this side makes no progress: within a process it would copy, too
        EXPECT_EQ(side.endpoint().wait_notification(20s).second, onehop::Bytes{'l'});
        const onehop::Bytes bytes = buffer.bytes();
        const onehop::Bytes expected = pattern(1, kSize);
        const auto moved = std::mismatch(bytes.begin(), bytes.end(), expected.begin()).first;
        EXPECT_GT(moved - bytes.begin(), 0);
        EXPECT_LT(moved - bytes.begin(), static_cast<ptrdiff_t>(kSize));
        EXPECT_TRUE(std::all_of(moved, bytes.end(), [](uint8_t one) { return one == kPoison; }));
      }));
}

TEST_P(Background, DeregisteringEndsWhatIsHalfDone) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSize);
        out.fill(1);
        Whole whole(side, out, remote, /*put=*/true);
        onehop::Request begun = whole.post();
        EXPECT_FALSE(begun.test());
        side.sync();
        side.sync();  // the region was deregistered
        EXPECT_EQ(status_of([&] { begun.wait(20s); }), OH_ERR_RETIRED);
        EXPECT_EQ(status_of([&] { whole.post(); }), OH_ERR_RETIRED);
        side.sync();
      },
      owner([](Side& side, Buffer& buffer, onehop::Region& region) {
        side.sync();
        region.deregister(20s);
        buffer.poison();
        side.sync();
      }));
}

TEST_P(Background, TheEndOfTheLinkEndsWhatIsHalfDone) {
  for (const bool ours : {false, true}) {
    run(
        [=](Side& side) {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          Buffer in = side.buffer(kSize);
          onehop::Request begun = Whole(side, in, remote, /*put=*/false).post();
          EXPECT_FALSE(begun.test());
          side.sync();
          side.sync();
          if (ours) side.drop_peer();
          const oh_status status = status_of([&] { begun.wait(20s); });
          EXPECT_EQ(status, ours ? OH_ERR_CANCELLED : OH_ERR_PEER_LOST);
          EXPECT_TRUE(begun.buffer_released());
          side.sync();
        },
        owner([=](Side& side, Buffer&, onehop::Region&) {
          side.sync();
          if (!ours) side.drop_peer();
          side.sync();
        }));
  }
}

// One thread waits, one tests, one cancels: buffers of ended requests are not accessed.
TEST_P(Background, ThreadsShareAndCancel) {
  constexpr int kRounds = 8;
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer in = side.buffer(kSize);
        Buffer other = side.buffer(kSize);
        Whole whole(side, in, remote, /*put=*/false);
        Whole behind(side, other, remote, /*put=*/false);
        for (int round = 0; round < kRounds; ++round) {
          onehop::Request begun = whole.post();
          onehop::Request rest = behind.post();
          std::thread waiter([&] { EXPECT_EQ(status_of([&] { rest.wait(20s); }), OH_OK); });
          for (int i = 0; i < round % 8; ++i) (void)status_of([&] { (void)begun.test(); });
          const bool cancelled = begun.cancel();
          const oh_status status = status_of([&] { begun.wait(20s); });
          EXPECT_TRUE(status == OH_OK || (cancelled && status == OH_ERR_CANCELLED)) << status;
          EXPECT_TRUE(status != OH_OK || in.holds(4, kSize));
          in.poison();
          waiter.join();
          EXPECT_EQ(poisoned(in), kSize);
          EXPECT_TRUE(other.holds(4, kSize));
          other.poison();
        }
        side.sync();
      },
      owner([](Side&, Buffer&, onehop::Region&) {}, /*seed=*/4));
}

std::vector<LinkKind> copied_kinds() {
  const LinkKind processes{.name = "processes"};
  LinkKind shared = processes.with(MemoryKind::kShared);
  shared.name = "shared";
  return {processes, shared, {.name = "threads", .processes = false, .path = OH_PATH_LOCAL}};
}

INSTANTIATE_TEST_SUITE_P(, Background, ::testing::ValuesIn(copied_kinds()), name_of);

}  // namespace
}  // namespace conformance::background
