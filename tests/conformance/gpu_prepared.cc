// SPDX-License-Identifier: Apache-2.0
//
// Prepared batches between devices: one launch per post, whatever they contain, and posts that are
// in flight when a resource ends.
#include <signal.h>

#include <atomic>
#include <optional>
#include <thread>

#include "conformance/batches.h"
#include "conformance/fake_driver.h"

namespace conformance::gpu_prepared {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSpace = 8'000'000;

uint64_t launches() { return fake_driver().calls("cuLaunchKernel"); }
uint64_t copies() { return fake_driver().calls("cuMemcpyAsync"); }

LinkKind kernels_off() {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_BATCH_KERNEL"] = "off";
  return kind;
}

// The first side accesses the second's memory, which is checked afterwards.
void run_with(const onehop::Bytes& expected,
              const std::function<void(Side&, onehop::RemoteRegion&)>& test,
              const LinkKind& kind = between_gpus(MemoryKind::kMalloc)) {
  run_apart(
      kind,
      [&](Side& side) {
        side.connect();
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          test(side, remote);
        }
        show(side);
        side.disconnect();
      },
      [&](Side& side) {
        side.connect();
        owner(kSpace, 1,
              [&](size_t, const onehop::Bytes& there) { EXPECT_TRUE(there == expected); })(side);
        side.disconnect();
      });
}

// Posts it three times and counts launches and copies.
void expect_posts(Side& side, onehop::RemoteRegion& remote, const Blocks& blocks,
                  std::pair<uint64_t, uint64_t> launches_and_copies) {
  Buffer out = side.buffer(kSpace);
  onehop::PreparedBatch put = side.peer().prepare_put(remote, blocks.batch(out));
  for (uint64_t seed = 0; seed < 3; ++seed) {
    out.fill(seed);
    uint64_t launched = launches();
    uint64_t copied = copies();
    put.post().wait(20s);
    EXPECT_EQ(launches() - launched, launches_and_copies.first);
    EXPECT_EQ(copies() - copied, launches_and_copies.second);
  }
}

TEST(GpuPrepared, APostIsOneLaunch) {
  const Blocks blocks(100'000, 80, 60);
  run_with(blocks.moved(pattern(2, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    expect_posts(side, remote, blocks, {1, 0});
    // Its resources are released with it.
    Open before = Open::now();
    expect_posts(side, remote, blocks, {1, 0});
    EXPECT_TRUE(comes_back_to(before));
  });
}

// Overlapping blocks have the same bytes here, so their order does not matter.
TEST(GpuPrepared, OverlappingBlocks) {
  const Blocks blocks(100'000, 70, 500);
  run_with(blocks.moved(pattern(2, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    side.peer().put_batch(remote, blocks.batch(out)).wait(20s);
    expect_posts(side, remote, blocks, {1, 0});
  });
}

TEST(GpuPrepared, LongBlocksAreTheEngines) {
  Blocks blocks(8, 10'000, 1000);
  blocks.offsets.push_back(1'000'000);
  blocks.lengths.push_back(2'500'000);
  run_with(
      blocks.moved(pattern(2, kSpace)),
      [&](Side& side, onehop::RemoteRegion& remote) { expect_posts(side, remote, blocks, {1, 1}); },
      between_gpus(MemoryKind::kVmm));
}

TEST(GpuPrepared, WithoutTheKernelBlockByBlock) {
  const Blocks blocks(20, 700, 600);
  run_with(
      blocks.moved(pattern(2, kSpace)),
      [&](Side& side, onehop::RemoteRegion& remote) {
        expect_posts(side, remote, blocks, {0, 20});
      },
      kernels_off());
}

TEST(GpuPrepared, WithoutDeviceMemoryItStaysPinned) {
  const Blocks blocks(10'000, 700, 600);
  run_with(blocks.moved(pattern(1, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Open before = Open::now();
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    constexpr int kOutOfMemory = 2;
    ASSERT_EQ(fake_driver().fail("cuMemAlloc_v2", 1, kOutOfMemory), 0);
    std::optional<onehop::PreparedBatch> put = side.peer().prepare_put(remote, blocks.batch(out));
    EXPECT_EQ(Open::now().driver.host_registrations, before.driver.host_registrations + 1);
    uint64_t launched = launches();
    for (int i = 0; i < 2; ++i) put->post().wait(20s);
    EXPECT_EQ(launches() - launched, 2u);
    put.reset();
    EXPECT_EQ(Open::now().driver.host_registrations, before.driver.host_registrations);
  });
}

// A copy of the preparation fails: the batch is posted block by block, and nothing leaks.
TEST(GpuPrepared, WhatCannotBePreparedIsPostedAllTheSame) {
  const Blocks blocks(2000, 700, 600);
  run_with(blocks.moved(pattern(2, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    side.peer().put_batch(remote, blocks.batch(out)).wait(20s);  // allocates the buffers
    Open before = Open::now();
    ASSERT_EQ(fake_driver().fail("cuMemcpyAsync", 1, 2), 0);
    onehop::PreparedBatch put = side.peer().prepare_put(remote, blocks.batch(out));
    fake_driver().clear_failures();
    out.fill(2);
    uint64_t launched = launches();
    put.post().wait(20s);
    EXPECT_EQ(launches() - launched, 2u);  // 1,024 and the rest
    EXPECT_TRUE(comes_back_to(before));
  });
}

// The launch fails once: an error, and the next post works.
TEST(GpuPrepared, AFailedPostLeavesNothingBehind) {
  const Blocks blocks(100, 700, 600);
  run_with(blocks.moved(pattern(1, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    onehop::PreparedBatch put = side.peer().prepare_put(remote, blocks.batch(out));
    for (int i = 0; i < 100; ++i) {
      ASSERT_EQ(fake_driver().fail("cuLaunchKernel", 1, 2), 0);
      EXPECT_EQ(status_of([&] { put.post().wait(20s); }), OH_ERR_NO_RESOURCE);
    }
    fake_driver().clear_failures();
    put.post().wait(20s);
  });
}

// ---- In flight ----------------------------------------------------------------------------------

// A batch in threads of its own, begun while all streams of the process are held.
class Held {
 public:
  using Start = std::function<onehop::Request()>;
  explicit Held(const Start& start, size_t threads = 1) {
    fake_driver().hold_all();
    uint64_t launched = launches();
    for (size_t i = 0; i < threads; ++i) {
      threads_.emplace_back([start, this] {
        if (status_of([&] { start().wait(20s); }) == OH_OK) ++good_;
      });
    }
    EXPECT_TRUE(eventually([&] { return launches() >= launched + threads; }));
  }
  // Returns the number of successful posts.
  size_t finish() {
    fake_driver().release_all();
    for (std::thread& thread : threads_) thread.join();
    return good_;
  }

 private:
  std::vector<std::thread> threads_;
  std::atomic<size_t> good_{0};
};

// More posts than counters: a post without a counter runs without the plan.
TEST(GpuPrepared, ManyPostsAtOnce) {
#if defined(OH_THREAD_SANITIZER)
  GTEST_SKIP() << "all posts of a batch write the same bytes, which ThreadSanitizer calls a race";
#endif
  const Blocks blocks(100, 700, 600);
  run_with(blocks.moved(pattern(1, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    onehop::PreparedBatch put = side.peer().prepare_put(remote, blocks.batch(out));
    EXPECT_EQ(Held([&] { return put.post(); }, 70).finish(), 70u);
    put.post().wait(20s);
  });
}

TEST(GpuPrepared, ReleasedWhileItIsUnderWay) {
  const Blocks blocks(100, 700, 600);
  run_with(blocks.moved(pattern(1, kSpace)), [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    Open before = Open::now();
    std::optional<onehop::PreparedBatch> put = side.peer().prepare_put(remote, blocks.batch(out));
    Held post([batch = put->get()] {
      oh_request* request = nullptr;
      onehop::check(oh_prepared_batch_post(batch, nullptr, &request));
      return onehop::Request(request);
    });
    Open during = Open::now();
    put.reset();
    EXPECT_EQ(Open::now().driver.allocations, during.driver.allocations);
    EXPECT_EQ(post.finish(), 1u);
    EXPECT_EQ(Open::now().driver.allocations, before.driver.allocations);
  });
}

// Deregistering waits for the kernel: until then the memory is still written.
void expect_region_kept(bool prepared) {
  const Blocks blocks(100, 700, 600);
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [&](Side& side) {
        side.connect();
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          Buffer out = side.buffer(kSpace);
          out.fill(1);
          onehop::PreparedBatch put = side.peer().prepare_put(remote, blocks.batch(out));
          Held::Start start = [&] {
            return prepared ? put.post() : side.peer().put_batch(remote, blocks.batch(out));
          };
          Held post(start);
          side.sync();
          side.sync();
          EXPECT_EQ(post.finish(), 1u);
          side.sync();
          side.sync();
          EXPECT_EQ(status_of([&] { start().wait(20s); }), OH_ERR_RETIRED);
          side.sync();
        }
        side.disconnect();
      },
      [&](Side& side) {
        side.connect();
        {
          Buffer buffer = side.buffer(kSpace);
          buffer.poison();
          onehop::Region region = side.endpoint().register_memory(buffer.data(), kSpace);
          side.tell(region.descriptor());
          side.sync();
          EXPECT_EQ(status_of([&] { region.deregister(50ms); }), OH_ERR_TIMEOUT);
          side.sync();
          side.sync();
          region.deregister(20s);
          EXPECT_TRUE(buffer.bytes() == blocks.moved(pattern(1, kSpace)));
          side.sync();
          side.sync();
        }
        side.disconnect();
      });
}

// Its mapping stays until the kernel has finished; then the post reports the peer's end.
void expect_end_with_owner(bool prepared) {
  const Blocks blocks(100, 700, 600);
  run_apart_with_victim(
      between_gpus(MemoryKind::kMalloc),
      [&](Side& victim, Side& next) {
        victim.connect();
        Buffer out = victim.buffer(kSpace);
        out.fill(1);
        {
          onehop::RemoteRegion remote = victim.peer().attach(victim.hear());
          onehop::PreparedBatch put = victim.peer().prepare_put(remote, blocks.batch(out));
          Held::Start start = [&] {
            return prepared ? put.post() : victim.peer().put_batch(remote, blocks.batch(out));
          };
          Held post(start);
          kill(victim.other_process(), SIGKILL);
          EXPECT_TRUE(eventually(
              [&] { return status_of([&] { victim.peer().notify({}); }) == OH_ERR_PEER_LOST; }));
          EXPECT_EQ(post.finish(), 0u);
          EXPECT_EQ(status_of([&] { start().wait(20s); }), OH_ERR_PEER_LOST);
        }
        onehop::Peer peer = victim.endpoint().connect(next.hear());
        peer.send(out.data(), out.size(), 1, 20s);
      },
      [&](Side& side) {
        side.connect();
        Buffer buffer = side.buffer(kSpace);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kSpace);
        side.tell(region.descriptor());
        while (true) pause();
      },
      [](Side& side) {
        side.connect();
        Buffer mine = side.buffer(kSpace);
        side.peer().recv(mine.data(), mine.size(), 1, 20s);
        EXPECT_TRUE(mine.holds(1, kSpace));
      });
}

TEST(GpuPrepared, TheRegionIsKeptWhileItIsWritten) { expect_region_kept(/*prepared=*/true); }
TEST(GpuPrepared, TheOwnerDiesWhileItIsWritten) { expect_end_with_owner(/*prepared=*/true); }
TEST(GpuBatches, TheRegionIsKeptWhileItIsWritten) { expect_region_kept(/*prepared=*/false); }
TEST(GpuBatches, TheOwnerDiesWhileItIsWritten) { expect_end_with_owner(/*prepared=*/false); }

}  // namespace
}  // namespace conformance::gpu_prepared
