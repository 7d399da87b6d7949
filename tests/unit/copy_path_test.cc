// SPDX-License-Identifier: Apache-2.0
//
// CopyPath: through a mapped block, and by a mover.
#include "path/direct/copy_path.h"

#include "transport/local/local_mover.h"
#include "unit/path_side.h"

namespace unit::copy_path_test {
namespace {

using namespace oh;

// Copies until it is told to fail; counts its calls.
class CountingMover final : public Mover {
 public:
  const char* name() const override { return "fake"; }
  Status read(std::span<const CopyPiece> pieces) override {
    ++calls;
    return failure.ok() ? real_.read(pieces) : failure;
  }
  Status write(std::span<const CopyPiece> pieces) override {
    ++calls;
    return failure.ok() ? real_.write(pieces) : failure;
  }

  int calls = 0;
  Status failure;

 private:
  LocalMover real_;
};

using Import = std::shared_ptr<ImportedBlock>;

class CopyPathTest : public ::testing::Test {
 protected:
  CopyPathTest() {
    auto mover = std::make_unique<CountingMover>();
    mover_ = mover.get();
    side_.link.mover = std::move(mover);
    side_.link.path = OH_PATH_SHM;
    target_.base = reinterpret_cast<uint64_t>(remote_.data());
    target_.length = kSize;
  }
  // Returns `count` blocks of `size` bytes, that far apart, with other offsets on each side.
  std::vector<Block> blocks(size_t count, uint64_t size) {
    std::vector<Block> made;
    for (size_t i = 0; i < count; ++i) {
      made.push_back({local_.data() + 2 * i * size, (2 * i + 1) * size, size});
    }
    return made;
  }
  Result<oh_path> copy(bool put, const std::vector<Block>& blocks, const Import& import = nullptr) {
    LocalBuffer local;
    local.data = local_.data();
    local.size = kSize;
    uint64_t bytes = 0;
    for (const Block& block : blocks) bytes += block.size;
    const Part part{target_, import, local, blocks};
    return path_.copy({put, {&part, 1}, bytes});
  }
  // Moves the blocks, and checks that exactly they were copied.
  void expect_copied(bool put, const std::vector<Block>& blocks, const uint8_t* remote,
                     const Import& import = nullptr) {
    Bytes expected = put ? Bytes(remote, remote + kSize) : local_;
    for (const Block& block : blocks) {
      const uint8_t* from = put ? block.local : remote + block.remote_offset;
      const ptrdiff_t to =
          put ? static_cast<ptrdiff_t>(block.remote_offset) : block.local - local_.data();
      std::copy(from, from + block.size, expected.begin() + to);
    }
    Result<oh_path> path = copy(put, blocks, import);
    ASSERT_TRUE(is_ok(path));
    EXPECT_EQ(*path, OH_PATH_SHM);
    EXPECT_EQ(put ? Bytes(remote, remote + kSize) : local_, expected);
  }

  static constexpr uint64_t kSize = 64 * 1024;
  PathSide side_;
  CopyPath path_{side_.context()};
  CountingMover* mover_ = nullptr;
  RemoteTarget target_;
  Bytes local_ = Random(1).bytes(kSize);
  Bytes remote_ = Random(2).bytes(kSize);
};

TEST_F(CopyPathTest, AMoverCopiesToAndFromTheirAddresses) {
  for (const bool put : {true, false}) expect_copied(put, blocks(3, 1000), remote_.data());
  EXPECT_EQ(mover_->calls, 2);
}

TEST_F(CopyPathTest, ManyBlocksTakeSeveralCallsOfTheMover) {
  for (const bool put : {true, false}) expect_copied(put, blocks(2500, 8), remote_.data());
  EXPECT_EQ(mover_->calls, 6);
}

TEST_F(CopyPathTest, AMappedBlockNeedsNoMover) {
  Bytes mapped = Random(3).bytes(kSize);
  const auto import = std::make_shared<ImportedBlock>();
  import->remote_base = target_.base;
  import->local_base = mapped.data();
  import->size = kSize;
  for (const bool put : {true, false}) expect_copied(put, blocks(3, 1000), mapped.data(), import);
  EXPECT_EQ(mover_->calls, 0);
}

TEST_F(CopyPathTest, ABlockOutsideOfTheMappingIsRefused) {
  const auto import = std::make_shared<ImportedBlock>();
  import->remote_base = target_.base;
  import->local_base = remote_.data();
  import->size = 1999;
  const Bytes before = remote_;
  EXPECT_TRUE(fails_with(copy(/*put=*/true, blocks(1, 1000), import), OH_ERR_RANGE));
  EXPECT_EQ(remote_, before);
}

// Blocks of several regions share a call; mapped ones need no mover.
TEST_F(CopyPathTest, PartsShareTheCallsOfTheMover) {
  Bytes mapped = Random(3).bytes(kSize);
  const auto import = std::make_shared<ImportedBlock>();
  import->remote_base = target_.base;
  import->local_base = mapped.data();
  import->size = kSize;
  LocalBuffer local;
  const std::vector<Block> first = blocks(1, 100);
  const std::vector<Block> second = {{local_.data() + 8000, 9000, 500}};
  const std::vector<Block> third = {{local_.data() + 4000, 5000, 300}};
  const Part parts[] = {{target_, nullptr, local, first},
                        {target_, import, local, second},
                        {target_, nullptr, local, third}};
  ASSERT_TRUE(is_ok(path_.copy({/*put=*/true, parts, 900})));
  EXPECT_EQ(mover_->calls, 1);
  auto holds = [&](const uint8_t* remote, const Block& block) {
    return std::equal(block.local, block.local + block.size, remote + block.remote_offset);
  };
  EXPECT_TRUE(holds(remote_.data(), first[0]));
  EXPECT_TRUE(holds(mapped.data(), second[0]));
  EXPECT_TRUE(holds(remote_.data(), third[0]));
}

// The caller gets the mover's error about the other process.
TEST_F(CopyPathTest, AFailureOfTheMoverIsTold) {
  mover_->failure = error(OH_ERR_PEER_LOST, "gone");
  for (const bool put : {true, false}) {
    EXPECT_TRUE(fails_with(copy(put, blocks(2000, 8)), OH_ERR_PEER_LOST, "gone"));
  }
  EXPECT_EQ(mover_->calls, 2) << "nothing is copied behind a failure";
}

}  // namespace
}  // namespace unit::copy_path_test
