// SPDX-License-Identifier: Apache-2.0
//
// Batches between devices: when the kernel may copy them, and the state after a failed one.
#include <algorithm>
#include <optional>
#include <thread>

#include "conformance/batches.h"
#include "conformance/fake_driver.h"

namespace conformance::gpu_batches {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSpace = 8'000'000;

// Small blocks that are not adjacent.
Blocks small_blocks(size_t count) { return {count, 700, 600}; }

uint64_t launches() { return fake_driver().calls("cuLaunchKernel"); }

// The second side offers poisoned memory until the first has finished.
void run_batches(const LinkKind& kind,
                 const std::function<void(Side&, onehop::RemoteRegion&)>& test) {
  auto first = [&](Side& side) {
    if (kind.processes) side.connect();
    {
      onehop::RemoteRegion remote = side.peer().attach(side.hear());
      test(side, remote);
    }
    side.sync();
    if (kind.processes) side.disconnect();
  };
  auto second = [&](Side& side) {
    if (kind.processes) side.connect();
    {
      Buffer buffer = side.buffer(kSpace);
      buffer.poison();
      onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
      side.tell(region.descriptor());
      side.sync();
    }
    if (kind.processes) side.disconnect();
  };
  kind.processes ? run_apart(kind, first, second) : run_pair(kind, first, second);
}

// Returns the current bytes of the other side.
onehop::Bytes theirs(Side& side, onehop::RemoteRegion& remote) {
  Buffer seen = side.buffer(kSpace);
  side.peer().get(seen.data(), remote, 0, kSpace).wait(20s);
  return seen.bytes();
}

// Puts `count` blocks from a buffer and checks the result; returns the kernel launches.
uint64_t put_from(Buffer& out, Side& side, onehop::RemoteRegion& remote, size_t count) {
  out.fill(1);
  Blocks blocks = small_blocks(count);
  uint64_t before = launches();
  side.peer().put_batch(remote, blocks.batch(out)).wait(20s);
  uint64_t made = launches() - before;
  EXPECT_TRUE(theirs(side, remote) == blocks.moved(out.bytes()));
  return made;
}

TEST(GpuBatches, OneKernelCopiesManyBlocks) {
  run_batches(between_gpus(MemoryKind::kMalloc), [](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    // 1,024, 4,096, and the rest, at most 8,192.
    EXPECT_EQ(put_from(out, side, remote, 10'000), 3u);
  });
}

TEST(GpuBatches, TheKernelCanBeSwitchedOff) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_BATCH_KERNEL"] = "off";
  run_batches(kind, [](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    EXPECT_EQ(put_from(out, side, remote, 100), 0u);
  });
}

// Memory of another device of the process, which only engines can access.
TEST(GpuBatches, OtherDevicesMemoryIsTheEngines) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  run_batches(kind, [&](Side& side, onehop::RemoteRegion& remote) {
    use_device(kind.driver, kind.device[1]);
    Buffer out(kSpace, MemoryKind::kMalloc);
    EXPECT_EQ(put_from(out, side, remote, 100), 0u);
  });
}

// Blocks collected for the kernel before the engine failed are not copied by later batches.
TEST(GpuBatches, AFailedBatchLeavesNothingBehind) {
  run_batches(between_gpus(MemoryKind::kMalloc), [](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    out.fill(1);
    Blocks failing{{7'000'001, 7'100'001, 1'000'000, 7'200'001}, {1000, 1000, 3'000'000, 1000}};
    ASSERT_EQ(fake_driver().fail("cuMemcpyAsync", 1, 2), 0);
    EXPECT_EQ(status_of([&] { side.peer().put_batch(remote, failing.batch(out)).wait(20s); }),
              OH_ERR_NO_RESOURCE);
    fake_driver().clear_failures();
    Blocks good = small_blocks(1200);  // of both buffers
    for (int i = 0; i < 3; ++i) side.peer().put_batch(remote, good.batch(out)).wait(20s);
    EXPECT_TRUE(theirs(side, remote) == good.moved(out.bytes()));
  });
}

// ---- Between hosts ------------------------------------------------------------------------------

// One launch on each side gathers and scatters the blocks of a run. Without a kernel, or memory for
// its list, the engine copies block by block.
void expect_runs(LinkKind kind, bool memory, bool by_kernel) {
  constexpr size_t kCount = 1000;
  Role role = [&](Side& side) {
    Buffer mine = side.buffer(kSpace);
    mine.fill(static_cast<uint64_t>(side.number()));
    onehop::Region region = side.endpoint().register_memory(mine.data(), kSpace);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    if (!memory) {
      ASSERT_EQ(fake_driver().fail("cuMemAlloc_v2", 0, 2), 0);  // at every call
    }
    const uint64_t launched = launches();
    const uint64_t copied = fake_driver().calls("cuMemcpyAsync");
    side.sync();
    if (side.number() == 0) {
      const Blocks some = small_blocks(kCount);
      side.peer().put_batch(remote, some.batch(mine)).wait(20s);
      Buffer came(kSpace, MemoryKind::kPrivate);
      came.poison();
      side.sync();
      side.peer().get_batch(remote, some.batch(came)).wait(20s);
      EXPECT_TRUE(came.bytes() == some.moved(mine.bytes()));
    } else {
      side.sync();
    }
    side.sync();
    // Two runs there and, for host memory, two back.
    const uint64_t expected = side.number() == 0 ? 2 : 4;
    EXPECT_EQ(launches() - launched, by_kernel ? expected : 0u);
    if (!by_kernel) {
      EXPECT_GE(fake_driver().calls("cuMemcpyAsync") - copied, kCount);
    }
    side.sync();
    fake_driver().clear_failures();
  };
  run_pair(kind, role, role);
}

TEST(GpuBatches, BetweenHostsTheKernelGathersAndScatters) {
  LinkKind kind = between_hosts(OH_PATH_SOCKET, between_gpus(MemoryKind::kMalloc));
  expect_runs(kind, false, false);
  expect_runs(between_hosts(OH_PATH_UCX, between_gpus(MemoryKind::kVmm)), true, true);
  expect_runs(between_hosts(OH_PATH_SOCKET, between_gpus(MemoryKind::kManaged)), true, false);
  kind.env["ONEHOP_BATCH_KERNEL"] = "off";
  expect_runs(kind, true, false);
}

// ---- Within one process -----------------------------------------------------------------------

LinkKind within_process(MemoryKind memory, int other_device) {
  LinkKind kind = between_gpus(memory);
  kind.processes = false;
  kind.device[1] = other_device;
  kind.path = OH_PATH_LOCAL;
  return kind;
}

void expect_launches_within(const LinkKind& kind, uint64_t launched) {
  run_batches(kind, [&](Side& side, onehop::RemoteRegion& remote) {
    Buffer out = side.buffer(kSpace);
    EXPECT_EQ(put_from(out, side, remote, 100), launched);
    onehop::PreparedBatch get = side.peer().prepare_get(remote, small_blocks(100).batch(out));
    onehop::Bytes sent = out.bytes();
    out.poison();
    uint64_t before = launches();
    get.post().wait(20s);
    EXPECT_EQ(launches() - before, launched);
    onehop::Bytes came = out.bytes();
    for (size_t i = 0; i < 100; ++i) {
      EXPECT_TRUE(
          std::equal(came.begin() + i * 700, came.begin() + i * 700 + 600, sent.begin() + i * 700));
      EXPECT_EQ(came[i * 700 + 600], 0xee);
    }
  });
}

TEST(GpuBatches, WithinAProcessOnOneDevice) {
  for (MemoryKind memory : {MemoryKind::kMalloc, MemoryKind::kVmm, MemoryKind::kPool}) {
    SCOPED_TRACE(memory_name(memory));
    expect_launches_within(within_process(memory, 0), 1);
  }
}

TEST(GpuBatches, WithinAProcessBetweenDevices) {
  expect_launches_within(within_process(MemoryKind::kMalloc, 1), 1);
}

// Its pages migrate, and the CPU may access them.
TEST(GpuBatches, WithinAProcessManagedMemoryIsTheEngines) {
  expect_launches_within(within_process(MemoryKind::kManaged, 0), 0);
}

// Memory with its own access rights is offered through slots.
TEST(GpuBatches, WithinAProcessOtherDevicesVmmIsNotTheKernels) {
  expect_launches_within(within_process(MemoryKind::kVmm, 1), 0);
}

TEST(GpuBatches, WithinAProcessWithoutPeerAccess) {
  LinkKind kind = within_process(MemoryKind::kMalloc, 1);
  kind.env["FAKE_CUDA"] = "devices=2,p2p=none";
  expect_launches_within(kind, 0);
}

// Memory that its owner freed without notice: no kernel may access it, prepared or not. The fake's
// engine loses the context over it, so the allocations cannot be freed.
TEST(GpuBatches, WithinAProcessFreedMemoryIsNotTheKernels) {
  run_pair(
      within_process(MemoryKind::kMalloc, 0),
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer& out = *new Buffer(side.buffer(kSpace));
        onehop::PreparedBatch put = side.peer().prepare_put(remote, small_blocks(100).batch(out));
        put.post().wait(20s);
        side.sync();
        side.sync();
        uint64_t before = launches();
        EXPECT_NE(status_of([&] { put.post().wait(20s); }), OH_OK);
        EXPECT_NE(status_of([&] {
                    side.peer().put_batch(remote, small_blocks(100).batch(out)).wait(20s);
                  }),
                  OH_OK);
        EXPECT_EQ(launches(), before);
        side.sync();
      },
      [](Side& side) {
        std::optional<Buffer> buffer = side.buffer(kSpace);
        onehop::Region region = side.endpoint().register_memory(buffer->data(), kSpace);
        side.tell(region.descriptor());
        side.sync();
        buffer.reset();
        side.sync();
        side.sync();
      });
}

}  // namespace
}  // namespace conformance::gpu_batches
