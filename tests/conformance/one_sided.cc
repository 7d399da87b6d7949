// SPDX-License-Identifier: Apache-2.0
//
// Put, get, batches, notifications, signals.
#include <chrono>
#include <cstring>
#include <deque>

#include "conformance/sides.h"

namespace conformance {
namespace {

using namespace std::chrono_literals;

const std::vector<size_t> kSizes = {1, 8, 63, 64, 4096, 65537, 1 << 20, 3000001};

TEST_P(Conformance, PutAndGetMoveEveryByte) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        ASSERT_EQ(remote.size(), 4000000u);
        for (size_t i = 0; i < kSizes.size(); ++i) {
          Buffer out = side.buffer(kSizes[i]);
          out.fill(i);
          onehop::Request put = side.peer().put(out.data(), remote, 1000 + i, kSizes[i]);
          EXPECT_EQ(put.wait().size, kSizes[i]);
          out.poison();
          Buffer in = side.buffer(kSizes[i]);
          in.poison();
          onehop::Request get = side.peer().get(in.data(), remote, 1000 + i, kSizes[i]);
          EXPECT_TRUE(side.kind().takes(get.wait().path, side.kind().one_sided_path()));
          EXPECT_TRUE(in.holds(i, kSizes[i])) << kSizes[i];
          side.sync();
          side.sync();
        }
      },
      [](Side& side) {
        Buffer buffer = side.buffer(4000000);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        for (size_t i = 0; i < kSizes.size(); ++i) {
          side.sync();
          onehop::Bytes bytes = buffer.bytes();
          Buffer seen(kSizes[i], MemoryKind::kPrivate);
          std::copy_n(bytes.data() + 1000 + i, kSizes[i], seen.data());
          EXPECT_TRUE(seen.holds(i, kSizes[i])) << kSizes[i];
          side.sync();
        }
      });
}

TEST_P(Conformance, BatchesMoveEveryBlock) {
  constexpr size_t kBlocks = 3000;
  constexpr size_t kSpace = 2000000;
  std::vector<uint64_t> from(kBlocks), to(kBlocks), lengths(kBlocks);
  for (size_t i = 0; i < kBlocks; ++i) {
    from[i] = i * 600;
    to[i] = (kBlocks - 1 - i) * 611;
    lengths[i] = i % 7 == 0 ? 0 : i * 37 % 600;
  }
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kSpace);
        out.fill(1);
        oh_batch batch{};
        batch.local = out.data();
        batch.local_size = kSpace;
        batch.count = kBlocks;
        batch.local_offsets = from.data();
        batch.remote_offsets = to.data();
        batch.lengths = lengths.data();
        onehop::Bytes notify = {'o', 'k'};
        side.peer().put_batch(remote, batch, &notify).wait();
        Buffer in = side.buffer(kSpace);
        in.poison();
        batch.local = in.data();
        side.peer().get_batch(remote, batch).wait();
        onehop::Bytes came = in.bytes();
        onehop::Bytes sent = out.bytes();
        for (size_t i = 0; i < kBlocks; ++i) {
          ASSERT_EQ(std::memcmp(came.data() + from[i], sent.data() + from[i], lengths[i]), 0) << i;
          ASSERT_EQ(came[from[i] + lengths[i]], 0xee) << "behind block " << i;
        }
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        std::optional<std::pair<onehop::Message, onehop::Bytes>> notification;
        while (!notification) notification = side.endpoint().notification();
        EXPECT_EQ(notification->second, (onehop::Bytes{'o', 'k'}));
        EXPECT_EQ(notification->first.peer_id, side.peer().info().id);
        Buffer source = side.buffer(kSpace);
        source.fill(1);
        // The notification came after the bytes.
        onehop::Bytes came = buffer.bytes();
        onehop::Bytes sent = source.bytes();
        for (size_t i = 0; i < kBlocks; ++i) {
          ASSERT_EQ(std::memcmp(came.data() + to[i], sent.data() + from[i], lengths[i]), 0);
        }
        side.sync();
      });
}

TEST_P(Conformance, StridedBatchesNeedNoLists) {
  constexpr size_t kRows = 500;
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(kRows * 128);
        out.fill(4);
        oh_batch batch{};
        batch.local = out.data();
        batch.local_size = out.size();
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
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kRows * 200 + 16);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        Buffer source = side.buffer(kRows * 128);
        source.fill(4);
        onehop::Bytes came = buffer.bytes();
        onehop::Bytes sent = source.bytes();
        for (size_t row = 0; row < kRows; ++row) {
          ASSERT_EQ(std::memcmp(came.data() + 16 + row * 200, sent.data() + row * 128, 100), 0);
        }
      });
}

TEST_P(Conformance, OutsideOfTheRegionIsRefused) {
  run(
      [](Side& side) {
        onehop::Bytes descriptor = side.hear();
        onehop::RemoteRegion remote = side.peer().attach(descriptor);
        Buffer buffer = side.buffer(2000);
        onehop::Peer& peer = side.peer();
        EXPECT_EQ(status_of([&] { peer.put(buffer.data(), remote, 0, 1001); }), OH_ERR_RANGE);
        EXPECT_EQ(status_of([&] { peer.put(buffer.data(), remote, 1001, 0); }), OH_ERR_RANGE);
        EXPECT_EQ(status_of([&] { peer.get(buffer.data(), remote, SIZE_MAX, 2); }), OH_ERR_RANGE);
        EXPECT_EQ(status_of([&] { peer.put(nullptr, remote, 0, 8); }), OH_ERR_INVALID);
        oh_batch batch{};
        batch.local = buffer.data();
        batch.local_size = 2000;
        batch.count = 2;
        uint64_t offsets[] = {0, 1995};
        uint64_t zeros[] = {0, 0};
        uint64_t lengths[] = {8, 8};
        batch.local_offsets = offsets;
        batch.remote_offsets = zeros;
        batch.lengths = lengths;
        EXPECT_EQ(status_of([&] { peer.put_batch(remote, batch); }), OH_ERR_RANGE);
        EXPECT_NE(std::string(oh_error_text()).find("block 1"), std::string::npos);
        batch.lengths = nullptr;
        EXPECT_EQ(status_of([&] { peer.put_batch(remote, batch); }), OH_ERR_INVALID);
        // Descriptors that were damaged.
        for (size_t size : {size_t{0}, size_t{7}, descriptor.size() - 1}) {
          onehop::Bytes cut(descriptor.begin(), descriptor.begin() + static_cast<long>(size));
          EXPECT_EQ(status_of([&] { peer.attach(cut); }), OH_ERR_INVALID);
        }
        onehop::Bytes other = descriptor;
        other[30] ^= 1;  // another endpoint
        EXPECT_EQ(status_of([&] { peer.attach(other); }), OH_ERR_INVALID);
        peer.put(buffer.data(), remote, 0, 1000).wait();
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(1000);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        EXPECT_EQ(status_of([&] { side.endpoint().register_memory(nullptr, 8); }), OH_ERR_INVALID);
        side.tell(region.descriptor());
        side.sync();
      });
}

TEST_P(Conformance, RetiredRegionsAreLeftAlone) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1000);
        buffer.fill(1);
        side.peer().put(buffer.data(), remote, 0, 1000).wait();
        side.sync();
        side.sync();
        EXPECT_EQ(status_of([&] { side.peer().put(buffer.data(), remote, 0, 1000).wait(); }),
                  OH_ERR_RETIRED);
        EXPECT_EQ(status_of([&] { side.peer().get(buffer.data(), remote, 0, 1000).wait(); }),
                  OH_ERR_RETIRED);
        // A region that took its place is another one.
        onehop::RemoteRegion fresh = side.peer().attach(side.hear());
        EXPECT_EQ(status_of([&] { side.peer().put(buffer.data(), remote, 0, 1000).wait(); }),
                  OH_ERR_RETIRED);
        side.peer().put(buffer.data(), fresh, 0, 1000).wait();
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(1000);
        auto region = std::make_unique<onehop::Region>(
            side.endpoint().register_memory(buffer.data(), buffer.size()));
        side.tell(region->descriptor());
        side.sync();
        EXPECT_TRUE(buffer.holds(1, 1000));
        region->deregister();
        region.reset();
        buffer.poison();
        side.sync();
        onehop::Region fresh = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(fresh.descriptor());
        side.sync();
        EXPECT_TRUE(buffer.holds(1, 1000));
      });
}

TEST_P(Conformance, SignalsAreCountedAndTaken) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(100000);
        for (uint64_t i = 0; i < 20; ++i) {
          buffer.fill(i);
          onehop::Request put = side.peer().put(buffer.data(), remote, 0, buffer.size());
          side.peer().signal(3);  // comes after the put, also if that has not ended
          put.wait();
          side.peer().wait_signal(4);
        }
        side.peer().signal(63, 5);
        side.peer().signal(63, 2);
      },
      [](Side& side) {
        Buffer buffer = side.buffer(100000);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(3, 1, 10ms); }), OH_ERR_TIMEOUT);
        side.tell(region.descriptor());
        for (uint64_t i = 0; i < 20; ++i) {
          side.peer().wait_signal(3);
          EXPECT_TRUE(buffer.holds(i, buffer.size())) << "put " << i;
          side.peer().signal(4);
        }
        side.peer().wait_signal(63, 3);
        side.peer().wait_signal(63, 4);
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(63, 1, 10ms); }), OH_ERR_TIMEOUT);
      });
}

TEST_P(Conformance, NotificationsKeepTheirOrderAndAreBounded) {
  constexpr int kCount = 2000;
  run(
      [](Side& side) {
        for (int i = 0; i < kCount; ++i) {
          onehop::Bytes bytes(static_cast<size_t>(i % 2049));
          if (!bytes.empty()) bytes[0] = static_cast<uint8_t>(i);
          side.peer().notify(bytes);
        }
        onehop::Bytes large(2049);
        EXPECT_EQ(status_of([&] { side.peer().notify(large); }), OH_ERR_INVALID);
      },
      [](Side& side) {
        for (int i = 0; i < kCount;) {
          auto notification = side.endpoint().notification();
          if (!notification) continue;
          ASSERT_EQ(notification->second.size(), static_cast<size_t>(i % 2049));
          if (!notification->second.empty()) {
            ASSERT_EQ(notification->second[0], static_cast<uint8_t>(i));
          }
          ++i;
        }
        EXPECT_FALSE(side.endpoint().notification());
      });
}

}  // namespace
}  // namespace conformance
