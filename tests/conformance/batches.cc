// SPDX-License-Identifier: Apache-2.0
//
// Batches: lists, strides, packed; posted at once and prepared; and batches that are rejected.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "base/sync.h"
#include "conformance/batches.h"

namespace conformance::batches {
namespace {

using namespace std::chrono_literals;

// Non-contiguous lists of blocks, in the opposite order on the remote side.
struct Lists {
  explicit Lists(size_t blocks) {
    for (size_t i = 0; i < blocks; ++i) {
      local.push_back(i * 600);
      remote.push_back((blocks - 1 - i) * 611);
      lengths.push_back(i % 7 == 0 ? 0 : i * 37 % 600);
    }
  }
  size_t space() const { return local.size() * 611; }
  oh_batch of(Buffer& buffer) const {
    oh_batch batch = batch_of(buffer);
    batch.count = local.size();
    batch.local_offsets = local.data();
    batch.remote_offsets = remote.data();
    batch.lengths = lengths.data();
    return batch;
  }
  // Whether the blocks of `from` are at their places in `there`, and all other bytes are unchanged.
  ::testing::AssertionResult moved(const onehop::Bytes& there, const onehop::Bytes& from) const {
    return placed(there, remote, from);
  }
  // The same for bytes that were put and then got into poisoned memory.
  ::testing::AssertionResult came_back(const onehop::Bytes& here, const onehop::Bytes& from) const {
    return placed(here, local, from);
  }
  ::testing::AssertionResult placed(const onehop::Bytes& memory,
                                    const std::vector<uint64_t>& places,
                                    const onehop::Bytes& from) const {
    onehop::Bytes expected(memory.size(), 0xee);
    for (size_t i = 0; i < local.size(); ++i) {
      std::memcpy(expected.data() + places[i], from.data() + local[i], lengths[i]);
    }
    if (expected == memory) return ::testing::AssertionSuccess();
    auto [at, wanted] = std::mismatch(memory.begin(), memory.end(), expected.begin());
    return ::testing::AssertionFailure() << "byte " << at - memory.begin() << " is " << int{*at};
  }
  std::vector<uint64_t> local, remote, lengths;
};

TEST_P(OneSided, BatchesMoveEveryBlock) {
  const Lists lists(3000);
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(lists.space());
        buffer.fill(1);
        onehop::Bytes notify = {'o', 'k'};
        side.peer().put_batch(remote, lists.of(buffer), &notify).wait();
        buffer.poison();
        side.peer().get_batch(remote, lists.of(buffer)).wait();
        EXPECT_TRUE(lists.came_back(buffer.bytes(), pattern(1, lists.space())));
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(lists.space());
        buffer.poison();
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        std::optional<std::pair<onehop::Message, onehop::Bytes>> notification;
        while (!notification) notification = side.endpoint().notification();
        EXPECT_EQ(notification->second, (onehop::Bytes{'o', 'k'}));
        EXPECT_EQ(notification->first.peer_id, side.peer().info().id);
        // The notification arrives after the bytes.
        EXPECT_TRUE(lists.moved(buffer.bytes(), pattern(1, lists.space())));
        side.sync();
      });
}

TEST_P(OneSided, StridedBatchesNeedNoLists) {
  constexpr size_t kRows = 500;
  Lists rows(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    rows.local[i] = i * 128;
    rows.remote[i] = 16 + i * 200;
    rows.lengths[i] = 100;
  }
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kRows * 128);
        out.fill(4);
        oh_batch batch = batch_of(out);
        batch.count = kRows;
        batch.local_stride = 128;
        batch.remote_base = 16;
        batch.remote_stride = 200;
        batch.length = 100;
        side.peer().put_batch(remote, batch).wait();
        batch.count = kRows + 1;
        EXPECT_EQ(status_of([&] { side.peer().put_batch(remote, batch); }), OH_ERR_RANGE);
        EXPECT_NE(std::string(oh_error_text()).find("block 500"), std::string::npos);
        batch.count = 2;
        batch.remote_stride = UINT64_MAX;
        EXPECT_EQ(status_of([&] { side.peer().put_batch(remote, batch); }), OH_ERR_RANGE);
        batch.count = 0;
        side.peer().put_batch(remote, batch).wait();
        show(side);
      },
      owner(kRows * 200 + 16, 1, [&](size_t, const onehop::Bytes& there) {
        EXPECT_TRUE(rows.moved(there, pattern(4, kRows * 128)));
      }));
}

TEST_P(OneSided, PreparedBatchesArePostedAgain) {
  const Lists lists(500);
  run(
      [&](Side& side) {
        Buffer out = side.buffer(lists.space());
        std::optional<onehop::PreparedBatch> put;
        std::optional<onehop::PreparedBatch> get;
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          put = side.peer().prepare_put(remote, lists.of(out));
          get = side.peer().prepare_get(remote, lists.of(out));
        }
        // The remote region was detached: a prepared batch does not depend on it.
        size_t bytes = 0;
        for (uint64_t length : lists.lengths) bytes += length;
        for (uint64_t round = 0; round < 3; ++round) {
          out.fill(round);
          EXPECT_EQ(put->post().wait().size, bytes);
          // A get returns the bytes of the put to their places.
          onehop::Bytes sent = out.bytes();
          out.poison();
          onehop::Message message = get->post().wait();
          EXPECT_EQ(message.size, bytes);
          EXPECT_EQ(message.path, side.kind().one_sided_path());
          ASSERT_TRUE(lists.came_back(out.bytes(), sent));
          show(side);
        }
      },
      owner(lists.space(), 3, [&](size_t round, const onehop::Bytes& there) {
        EXPECT_TRUE(lists.moved(there, pattern(round, lists.space()))) << round;
      }));
}

TEST_P(OneSided, PreparedBatchesNotifyAndAreCounted) {
  const Lists lists(50);
  auto operations = [](const oh_peer_stats& stats) {
    uint64_t count = 0;
    for (uint64_t of_path : stats.sent_operations) count += of_path;
    return count;
  };
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(lists.space());
        out.fill(1);
        onehop::PreparedBatch put = side.peer().prepare_put(remote, lists.of(out));
        uint64_t before = operations(side.peer().stats());
        side.peer().put_batch(remote, lists.of(out)).wait();
        uint64_t of_one = operations(side.peer().stats()) - before;
        put.post().wait();
        EXPECT_EQ(operations(side.peer().stats()) - before, 2 * of_one);
        onehop::Bytes notify = {'o', 'k'};
        put.post(&notify).wait();
        onehop::PreparedBatch get = side.peer().prepare_get(remote, lists.of(out));
        get.post(&notify).wait();
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(lists.space());
        buffer.poison();
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        std::optional<std::pair<onehop::Message, onehop::Bytes>> notification;
        while (!notification) notification = side.endpoint().notification();
        EXPECT_EQ(notification->second, (onehop::Bytes{'o', 'k'}));
        EXPECT_TRUE(lists.moved(buffer.bytes(), pattern(1, lists.space())));
        EXPECT_EQ(side.endpoint().wait_notification().second, (onehop::Bytes{'o', 'k'}));
        side.sync();
      });
}

TEST_P(OneSided, PreparedBatchesOfARetiredRegion) {
  const Lists lists(20);
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(lists.space());
        onehop::PreparedBatch put = side.peer().prepare_put(remote, lists.of(out));
        onehop::PreparedBatch get = side.peer().prepare_get(remote, lists.of(out));
        put.post().wait();
        side.sync();
        side.sync();
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(status_of([&] { put.post().wait(); }), OH_ERR_RETIRED);
          EXPECT_EQ(status_of([&] { get.post().wait(); }), OH_ERR_RETIRED);
        }
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(lists.space());
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        region.deregister();
        buffer.poison();
        // Another region of the same memory reuses its index.
        onehop::Region fresh = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.sync();
        side.sync();
        EXPECT_EQ(buffer.bytes(), onehop::Bytes(lists.space(), 0xee));
      });
}

TEST_P(OneSided, ThreadsPostOnePreparedBatch) {
#if defined(OH_THREAD_SANITIZER)
  GTEST_SKIP() << "all posts of a batch write the same bytes, which ThreadSanitizer calls a race";
#endif
  const Lists lists(100);
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(lists.space());
        out.fill(3);
        onehop::PreparedBatch put = side.peer().prepare_put(remote, lists.of(out));
        std::vector<std::thread> threads;
        for (int i = 0; i < 4; ++i) {
          threads.emplace_back([&] {
            for (int post = 0; post < 5; ++post) {
              EXPECT_EQ(status_of([&] { put.post().wait(20s); }), OH_OK);
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        show(side);
      },
      owner(lists.space(), 1, [&](size_t, const onehop::Bytes& there) {
        EXPECT_TRUE(lists.moved(there, pattern(3, lists.space())));
      }));
}

TEST_P(OneSided, ScatterAndGather) {
  const size_t count = 100;
  Lists lists(count);
  uint64_t packed = 7;  // offset of the first packed block
  for (size_t i = 0; i < count; ++i) {
    lists.local[i] = packed;
    packed += lists.lengths[i];
  }
  Lists strided(count);
  for (size_t i = 0; i < count; ++i) {
    strided.local[i] = i * 50;
    strided.remote[i] = 3 + i * 90;
    strided.lengths[i] = 50;
  }
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(lists.space());
        out.fill(1);
        oh_batch batch = batch_of(out);
        batch.local_base = 7;
        batch.count = count;
        batch.remote_offsets = lists.remote.data();
        batch.lengths = lists.lengths.data();
        side.peer().scatter(remote, batch).wait();
        Buffer in = side.buffer(lists.space());
        in.poison();
        batch.local = in.data();
        side.peer().gather(remote, batch).wait();
        onehop::Bytes came = in.bytes();
        onehop::Bytes sent = out.bytes();
        EXPECT_EQ(std::memcmp(came.data() + 7, sent.data() + 7, packed - 7), 0);
        EXPECT_EQ(came[6], 0xee);
        EXPECT_EQ(came[packed], 0xee);
        show(side);
        // Prepared, and without lists.
        oh_batch even = batch_of(out);
        even.packed = 1;
        even.count = count;
        even.remote_base = 3;
        even.remote_stride = 90;
        even.length = 50;
        onehop::PreparedBatch prepared = side.peer().prepare_put(remote, even);
        prepared.post().wait();
        show(side);
      },
      owner(lists.space(), 2, [&](size_t round, const onehop::Bytes& there) {
        const Lists& of = round == 0 ? lists : strided;
        EXPECT_TRUE(of.moved(there, pattern(1, lists.space()))) << round;
      }));
}

}  // namespace
}  // namespace conformance::batches
