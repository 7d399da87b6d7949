// SPDX-License-Identifier: Apache-2.0
//
// The contract over a path that consists of a folder and a table row: sample_path/.
#include "sample_path/pipe_path.h"

#include "conformance/sides.h"

namespace conformance {
namespace {

void by_pipe(bool use) { oh::use_path_table(use ? &sample::kWithPipe : nullptr); }

std::vector<LinkKind> pipe_kinds() {
  LinkKind threads{.name = "threads_by_pipe", .processes = false, .path = OH_PATH_LOCAL};
  threads.use_paths = by_pipe;
  LinkKind shared = LinkKind{.name = "shared_memory_by_pipe"}.with(MemoryKind::kShared);
  shared.use_paths = by_pipe;
  return {threads, shared};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Sample, Conformance, ::testing::ValuesIn(pipe_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Sample, OneSided, ::testing::ValuesIn(pipe_kinds()), name_of);

// The path moves the bytes, and paths() reports it.
TEST(SamplePath, ThePipeMovesTheBytes) {
  by_pipe(true);
  run_pair(
      pipe_kinds()[0],
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer mine = side.buffer(100'000);
        mine.fill(1);
        const uint64_t before = sample::copies();
        side.peer().put(mine.data(), remote, 0, mine.size()).wait();
        mine.poison();
        side.peer().get(mine.data(), remote, 0, mine.size()).wait();
        EXPECT_TRUE(mine.holds(1, mine.size()));
        EXPECT_EQ(sample::copies(), before + 2);
        auto row = onehop::detail::sized<oh_path_row>();
        std::string all;
        for (size_t i = 0; oh_peer_get_path(side.peer().get(), i, &row) == OH_OK; ++i) {
          all += row.why;
        }
        EXPECT_NE(all.find("two copies through a pipe"), std::string::npos) << all;
        side.sync();
      },
      [](Side& side) {
        Buffer theirs = side.buffer(100'000);
        onehop::Region region = side.endpoint().register_memory(theirs.data(), theirs.size());
        side.tell(region.descriptor());
        side.sync();
        EXPECT_TRUE(theirs.holds(1, theirs.size()));
      });
  by_pipe(false);
}

}  // namespace conformance
