// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages between devices: a kernel copies them, and mappings stay for the next batch.
#include <atomic>

#include "conformance/fake_driver.h"
#include "conformance/message_batches.h"

namespace conformance::gpu_message_batches {
namespace {

TEST(GpuMessageBatches, OneKernelCopiesManyBlocksAndMemoryStaysMapped) {
  constexpr size_t kSpace = 1'000'000;
  Cut fine = cut_up(1000, 600, kSpace);
  Cut coarse = whole(fine.total());
  run_apart(
      between_gpus(MemoryKind::kMalloc),
      [&](Side& side) {
        side.connect();
        send_filled(side, fine, kSpace, 0);
        uint64_t mapped = fake_driver().calls("cuIpcOpenMemHandle_v2");
        EXPECT_GT(mapped, 0u);
        for (uint64_t round = 1; round < 4; ++round) {
          uint64_t before = fake_driver().calls("cuLaunchKernel");
          send_filled(side, fine, kSpace, round);
          EXPECT_EQ(fake_driver().calls("cuLaunchKernel") - before, 1u);
        }
        EXPECT_EQ(fake_driver().calls("cuIpcOpenMemHandle_v2"), mapped);
        side.sync();
        side.disconnect();
      },
      [&](Side& side) {
        side.connect();
        {
          Buffer in = side.buffer(kSpace);
          for (uint64_t round = 0; round < 4; ++round) {
            const Cut& to = round % 2 ? fine : coarse;
            in.poison();
            EXPECT_EQ(side.peer().recv_batch(to.of(in), 0, 20s).path, OH_PATH_CUDA_IPC);
            EXPECT_TRUE(to.holds(in, sent(fine, kSpace, round)));
          }
          side.sync();
        }
        side.disconnect();
      });
}

// A receive's own deadline counts for earlier work on its memory: the default is longer than the
// watchdog's.
TEST(GpuMessageBatches, ReceivesWaitForEarlierWorkUntilTheirDeadline) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_TIMEOUT"] = "10000";
  run_pair(
      kind, [](Side& side) { side.sync(); },
      [](Side& side) {
        Buffer in = side.buffer(1000);
        Cut cut = whole(1000);
        std::atomic<bool> go{false};
        void* stream = make_stream();
        block_stream(stream, &go);
        EXPECT_EQ(status_of([&] {
                    side.peer().recv_batch(cut.of(in), 0, 30ms, onehop::After::stream(stream));
                  }),
                  OH_ERR_TIMEOUT);
        go.store(true);
        destroy_stream(stream);
        side.sync();
      });
}

}  // namespace
}  // namespace conformance::gpu_message_batches
