// SPDX-License-Identifier: Apache-2.0
//
// Without a segment: operations that are posted and then not waited for.
#include "conformance/batches.h"
#include "conformance/faults.h"

namespace conformance::unattended {
namespace {

std::vector<LinkKind> kinds_without_segment() {
  std::vector<LinkKind> kinds = process_kinds();
  std::erase_if(kinds, [](const LinkKind& kind) { return kind.shares_memory(); });
  return kinds;
}

class Unattended : public ::testing::TestWithParam<LinkKind> {};

// A call posts only some buffers or frames: the rest continues although no thread waits for it.
TEST_P(Unattended, WhatNobodyWaitsForGetsThere) {
  constexpr size_t kSpace = 5 << 20;
  constexpr size_t kBlock = 4096;
  run_pair(
      GetParam(),
      [&](Side& side) {
        Buffer out = side.buffer(kSpace);
        oh_batch list = batch_of(out);
        list.count = kSpace / kBlock;
        list.local_stride = list.remote_stride = list.length = kBlock;
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        for (size_t round = 0; round < 4; ++round) {
          out.fill(round);
          onehop::Request put = round % 2 ? side.peer().put_batch(remote, list)
                                          : side.peer().put(out.data(), remote, 0, kSpace);
          side.peer().signal(1);
          side.sync();
          put.wait(20s);
        }
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        Buffer expected(kSpace, MemoryKind::kPrivate);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        for (size_t round = 0; round < 4; ++round) {
          expected.fill(round);
          side.peer().wait_signal(1, 1, 20s);
          EXPECT_TRUE(buffer.bytes() == expected.bytes());
          side.sync();
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Links, Unattended, ::testing::ValuesIn(kinds_without_segment()), name_of);

}  // namespace
}  // namespace conformance::unattended
