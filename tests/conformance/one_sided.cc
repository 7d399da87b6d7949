// SPDX-License-Identifier: Apache-2.0
//
// Put, get, notifications, signals.
#include <chrono>
#include <cstring>
#include <deque>

#include "conformance/sides.h"

namespace conformance::one_sided {
namespace {

using namespace std::chrono_literals;

const std::vector<size_t> kSizes = {1, 8, 63, 64, 4096, 65537, 1 << 20, 3000001};

TEST_P(OneSided, PutAndGetMoveEveryByte) {
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

TEST_P(OneSided, OutsideOfTheRegionIsRefused) {
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
        // Damaged descriptors.
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

TEST_P(OneSided, RetiredRegionsAreLeftAlone) {
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
        // A region that reuses its index is a different one.
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

TEST_P(OneSided, AReadOnlyRegionIsReadAndNotWritten) {
  static constexpr size_t kSize = 100000;
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        EXPECT_TRUE(remote.is_read_only());
        Buffer buffer = side.buffer(kSize);
        buffer.fill(2);
        onehop::Peer& peer = side.peer();
        const onehop::Bytes word = {1};
        EXPECT_EQ(status_of([&] { peer.put(buffer.data(), remote, 0, kSize, &word); }),
                  OH_ERR_READ_ONLY);
        EXPECT_NE(std::string(oh_error_text()).find("read-only"), std::string::npos)
            << oh_error_text();
        EXPECT_EQ(status_of([&] { peer.put(buffer.data(), remote, 0, 0); }), OH_ERR_READ_ONLY);
        oh_batch batch{};
        batch.struct_size = sizeof(batch);
        batch.local = buffer.data();
        batch.local_size = kSize;
        batch.count = 2;
        batch.length = 1000;
        batch.local_stride = batch.remote_stride = 2000;
        oh_prepared_batch* prepared = nullptr;
        oh_remote_region* to = remote.get();
        EXPECT_EQ(oh_peer_put_batch(peer.get(), to, &batch, nullptr, nullptr), OH_ERR_READ_ONLY);
        EXPECT_EQ(oh_peer_scatter(peer.get(), to, &batch, nullptr, nullptr), OH_ERR_READ_ONLY);
        EXPECT_EQ(oh_peer_prepare_put(peer.get(), to, &batch, &prepared), OH_ERR_READ_ONLY);
        buffer.poison();
        EXPECT_EQ(peer.get(buffer.data(), remote, 0, kSize).wait().size, kSize);
        EXPECT_TRUE(buffer.holds(1, kSize));
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        buffer.fill(1);
        onehop::Region region = side.endpoint().register_read_only(buffer.data(), kSize);
        side.tell(region.descriptor());
        side.sync();
        EXPECT_TRUE(buffer.holds(1, kSize));
        EXPECT_FALSE(side.endpoint().notification());
      });
}

TEST_P(OneSided, SignalsAreCountedAndTaken) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(100000);
        for (uint64_t i = 0; i < 20; ++i) {
          buffer.fill(i);
          onehop::Request put = side.peer().put(buffer.data(), remote, 0, buffer.size());
          side.peer().signal(3);  // arrives after the put, even if that has not ended
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

TEST_P(OneSided, NotificationsKeepTheirOrderAndAreBounded) {
  constexpr int kCount = 2000;
  run(
      [](Side& side) {
        for (int i = 0; i < kCount; ++i) {
          onehop::Bytes bytes(static_cast<size_t>(i % 2049));
          if (!bytes.empty()) bytes[0] = static_cast<uint8_t>(i);
          side.peer().notify(bytes);
        }
        onehop::Bytes large((64 << 20) + 1);
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

// They are sent in parts, with more bytes than the credit allows at once.
TEST_P(OneSided, LongNotificationsArriveWholeAndInOrder) {
  const std::vector<size_t> sizes = {2048, 2049, 4096, 200000, 0, 1, 3000000, 2047};
  const auto content = [](size_t i, size_t size) {
    onehop::Bytes bytes(size);
    for (size_t at = 0; at < size; ++at) bytes[at] = static_cast<uint8_t>(at * 7 + at / 251 + i);
    return bytes;
  };
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer out = side.buffer(1000);
        for (size_t i = 0; i < sizes.size(); ++i) {
          const onehop::Bytes bytes = content(i, sizes[i]);
          out.fill(i);
          if (i % 2 == 0) {
            side.peer().put(out.data(), remote, i * 1000, 1000, &bytes).wait(20s);
          } else {
            side.peer().notify(bytes, 20s);
          }
        }
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(sizes.size() * 1000);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        for (size_t i = 0; i < sizes.size(); ++i) {
          auto came = side.endpoint().wait_notification(20s);
          ASSERT_EQ(came.second.size(), sizes[i]) << "notification " << i;
          ASSERT_TRUE(came.second == content(i, sizes[i])) << "notification " << i;
        }
        side.sync();
      });
}

// The owner of the memory is notified once it was read.
TEST_P(OneSided, AGetNotifiesItsTarget) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer in = side.buffer(100000);
        in.poison();
        const onehop::Bytes notify = {'r', 'e', 'a', 'd'};
        side.peer().get(in.data(), remote, 0, in.size(), &notify).wait(20s);
        EXPECT_TRUE(in.holds(5, in.size()));
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(100000);
        buffer.fill(5);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        EXPECT_EQ(side.endpoint().wait_notification(20s).second,
                  (onehop::Bytes{'r', 'e', 'a', 'd'}));
        buffer.poison();
        side.sync();
      });
}

}  // namespace
}  // namespace conformance::one_sided
