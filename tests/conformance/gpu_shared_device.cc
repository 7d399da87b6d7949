// SPDX-License-Identifier: Apache-2.0
//
// Messages between two processes on one GPU: the engine of one process makes all copies, since the
// GPU would otherwise switch contexts.
#include "conformance/fake_driver.h"
#include "sanitizers.h"

namespace conformance::gpu_shared_device {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = 4;

LinkKind one_gpu() {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.device[1] = 0;
  return kind;
}

// Returns this process's copies while messages are exchanged, equally often in each direction.
uint64_t copies_of_rounds(Side& side, Buffer& buffer, bool behind_stream, void* stream) {
  const uint64_t before = fake_driver().calls("cuMemcpyAsync");
  const onehop::After after = behind_stream ? onehop::After::stream(stream) : onehop::After();
  for (int round = 0; round < kRounds; ++round) {
    if (side.number() == 0) side.peer().isend(buffer.data(), buffer.size(), 1, after).wait(20s);
    side.peer().irecv(buffer.data(), buffer.size(), 1, after).wait(20s);
    if (side.number() == 1) side.peer().isend(buffer.data(), buffer.size(), 1, after).wait(20s);
  }
  return fake_driver().calls("cuMemcpyAsync") - before;
}

// If the copying side's thread is late the other side copies. So one of several runs must show it;
// under a sanitizer a side may always be late.
void one_side_copies(Side& side) {
  constexpr int kRuns = kSanitized ? 5 : 100;
  void* stream = make_stream();
  for (size_t size : {size_t{1000}, size_t{1} << 20}) {
    for (bool behind_stream : {false, true}) {
      Buffer buffer = side.buffer(size);
      buffer.fill(size);
      bool seen = false;
      for (int run = 0; run < kRuns && !seen; ++run) {
        side.sync();
        const uint64_t mine = copies_of_rounds(side, buffer, behind_stream, stream);
        side.tell_number(static_cast<int64_t>(mine));
        const auto theirs = static_cast<uint64_t>(side.hear_number());
        EXPECT_EQ(mine + theirs, 2u * kRounds);
        seen = mine == 0 || theirs == 0;
      }
      EXPECT_TRUE(seen || kSanitized) << size << (behind_stream ? " behind a stream" : "");
      EXPECT_TRUE(buffer.holds(size, size));
    }
  }
  side.sync();
  destroy_stream(stream);
}

TEST(GpuSharedDevice, OneProcessMakesAllCopies) {
  run_pair(one_gpu(), one_side_copies, one_side_copies);
}

// The copying side is busy elsewhere: the other side copies.
TEST(GpuSharedDevice, TheOtherProcessCopiesForOneThatIsLate) {
  constexpr size_t kSize = 100'000;
  LinkKind kind = one_gpu();
  kind.env["ONEHOP_PROGRESS_THREAD"] = "off";
  auto passes = [](Side& side) {
    for (int sender : {0, 1}) {
      Buffer buffer = side.buffer(kSize);
      if (side.number() == sender) {
        buffer.fill(sender);
        onehop::Request send = side.peer().isend(buffer.data(), kSize, 1);
        side.sync();
        side.sync();  // no progress is made here meanwhile
        send.wait(20s);
      } else {
        buffer.poison();
        side.sync();
        side.peer().recv(buffer.data(), kSize, 1, 20s);
        EXPECT_TRUE(buffer.holds(sender, kSize));
        side.sync();
      }
    }
  };
  run_pair(kind, passes, passes);
}

}  // namespace
}  // namespace conformance::gpu_shared_device
