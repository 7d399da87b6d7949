// SPDX-License-Identifier: Apache-2.0
//
// EnginePath on the fake driver, within one process: the region is accessed by its address.
#include "path/engine/engine_path.h"

#include <cstring>

#include "device/batch_plan.h"
#include "kernels/image.h"
#include "memory/shared_heap.h"
#include "unit/fake_gpu.h"
#include "unit/path_side.h"

namespace unit::engine_path_test {
namespace {

using namespace oh;

class EnginePathTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    Link& link = side_.link;
    link.path = OH_PATH_LOCAL;
    link.gpu = gpu;
    Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/false);
    ASSERT_TRUE(is_ok(segment));
    link.segment = std::move(*segment);
    Result<std::unique_ptr<DeviceLink>> device = DeviceLink::create(gpu, *link.segment);
    ASSERT_TRUE(is_ok(device));
    link.device = std::move(*device);
    ours_ = *gpu->allocate(kSize);
    theirs_ = *gpu->allocate(kSize);
    target_.base = theirs_;
    target_.length = kSize;
    target_.on_device = target_.plain = true;
    local_.data = reinterpret_cast<void*>(ours_);
    local_.size = kSize;
    local_.on_device = local_.near = true;
    path_ = std::make_unique<EnginePath>(side_.context());
  }
  void TearDown() override {
    path_.reset();
    side_.link.device.reset();
    side_.link.segment.reset();
    side_.link.gpu.reset();
    gpu->free(ours_);
    gpu->free(theirs_);
    GpuTest::TearDown();
  }

  // Returns `count` blocks of `size` bytes, that far apart, with other offsets on each side.
  std::vector<Block> blocks(size_t count, uint64_t size) const {
    std::vector<Block> made;
    for (size_t i = 0; i < count; ++i) {
      made.push_back({reinterpret_cast<uint8_t*>(ours_) + 2 * i * size, (2 * i + 1) * size, size});
    }
    return made;
  }
  Result<oh_path> move(bool put, const std::vector<Block>& blocks) {
    uint64_t bytes = 0;
    for (const Block& block : blocks) bytes += block.size;
    const Part part{target_, nullptr, local_, blocks};
    return path_->copy({put, {&part, 1}, bytes});
  }
  void fill() {
    ASSERT_TRUE(fake.write(ours_, Random(1).bytes(kSize)));
    ASSERT_TRUE(fake.write(theirs_, Random(2).bytes(kSize)));
  }
  bool are_equal(const std::vector<Block>& blocks) const {
    return std::ranges::all_of(blocks, [&](const Block& block) {
      return fake.bytes_at(reinterpret_cast<uint64_t>(block.local), block.size) ==
             fake.bytes_at(theirs_ + block.remote_offset, block.size);
    });
  }

  static constexpr uint64_t kSize = 1 << 20;
  PathSide side_;
  cuda::DevicePtr ours_ = 0;
  cuda::DevicePtr theirs_ = 0;
  RemoteTarget target_;
  LocalBuffer local_;
  std::unique_ptr<EnginePath> path_;
};

TEST_F(EnginePathTest, TheBytesAreThereWhenItReturns) {
  for (const bool put : {true, false}) {
    fill();
    const std::vector<Block> one = blocks(1, 1000);
    const Bytes source = fake.bytes_at(put ? ours_ : theirs_ + 1000, 1000);
    Result<oh_path> path = move(put, one);
    ASSERT_TRUE(is_ok(path));
    EXPECT_EQ(*path, OH_PATH_LOCAL);
    EXPECT_TRUE(are_equal(one));
    EXPECT_EQ(fake.bytes_at(put ? theirs_ + 1000 : ours_, 1000), source);
  }
}

TEST_F(EnginePathTest, ManyBlocksGoTogether) {
  fill();
  const std::vector<Block> many = blocks(512, 64);
  ASSERT_TRUE(is_ok(move(/*put=*/true, many)));
  EXPECT_TRUE(are_equal(many));
}

// Host memory at one end: memory that onehop shares, which it registers, memory that the
// application has registered, and other memory, of which the engine copies each block.
class HostEnd : public EnginePathTest {
 protected:
  void SetUp() override {
    EnginePathTest::SetUp();
    ASSERT_TRUE(is_ok(gpu->kernels().load(kernel_image(), {.batch = kernels::kBatchKernel})));
  }

  static constexpr size_t kBlocks = 512;
  static constexpr uint64_t kBlock = 64;

  // Copies both ways between the device and host memory, as the local end and as the region.
  // `launched`: kernels copy, no engine.
  void check(uint8_t* host, bool launched) {
    for (const bool is_region : {true, false}) {
      RemoteTarget region;
      region.base = is_region ? reinterpret_cast<uint64_t>(host) : theirs_;
      region.length = kSize;
      region.on_device = region.plain = !is_region;
      LocalBuffer local;
      local.data = is_region ? reinterpret_cast<void*>(ours_) : host;
      local.size = kSize;
      local.on_device = local.near = is_region;
      const cuda::DevicePtr device = is_region ? ours_ : theirs_;
      auto* base = static_cast<uint8_t*>(const_cast<void*>(local.data));
      std::vector<Block> blocks;
      for (size_t i = 0; i < kBlocks; ++i) {
        blocks.push_back({base + 2 * i * kBlock, (2 * i + 1) * kBlock, kBlock});
      }
      const Part part{region, nullptr, local, blocks};
      for (const bool put : {true, false}) {
        SCOPED_TRACE(std::string(is_region ? "region" : "local") + (put ? ", put" : ", get"));
        const Bytes random = Random(put).bytes(kSize);
        memcpy(host, random.data(), kSize);
        ASSERT_TRUE(fake.write(device, Random(3).bytes(kSize)));
        // The first batch of a buffer zeroes its counter by the engine.
        if (launched) {
          ASSERT_TRUE(is_ok(path_->copy({put, {&part, 1}, kBlocks * kBlock})));
          ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, cuda::kInvalidValue), 0);
        }
        ASSERT_TRUE(is_ok(path_->copy({put, {&part, 1}, kBlocks * kBlock})));
        fake.clear_failures();
        const Bytes there = fake.bytes_at(device, kSize);
        for (size_t i = 0; i < kBlocks; ++i) {
          const uint64_t local_at = 2 * i * kBlock;
          const uint64_t remote_at = local_at + kBlock;
          const uint8_t* const of_device = there.data() + (is_region ? local_at : remote_at);
          const uint8_t* const of_host = host + (is_region ? remote_at : local_at);
          ASSERT_EQ(memcmp(of_device, of_host, kBlock), 0) << i;
        }
        // The source is as it was.
        const bool from_host = put != is_region;
        EXPECT_EQ(memcmp(host, random.data(), kSize) == 0, from_host);
      }
    }
  }
};

TEST_F(HostEnd, SharedMemoryIsRegisteredForTheKernel) {
  std::shared_ptr<SharedBlock> block = *SharedHeap::instance().allocate(kSize);
  const size_t before = gpu->open_objects();
  check(block->mapping.data(), /*launched=*/true);
  EXPECT_GT(gpu->open_objects(), before);
  ASSERT_TRUE(is_ok(SharedHeap::instance().free(block->mapping.data())));
  block.reset();
  EXPECT_TRUE(eventually([] { return UnusedPins::instance().empty(); }));
}

TEST_F(HostEnd, SharedMemoryThatCannotBeRegisteredIsCopiedBlockByBlock) {
  std::shared_ptr<SharedBlock> block = *SharedHeap::instance().allocate(kSize);
  ASSERT_EQ(fake.fail("cuMemHostRegister_v2", 1, cuda::kNotSupported), 0);
  ASSERT_FALSE(view_pinned(gpu, block->mapping.data(), kSize, /*ask=*/true).pinned);
  fake.clear_failures();
  check(block->mapping.data(), /*launched=*/false);
  ASSERT_TRUE(is_ok(SharedHeap::instance().free(block->mapping.data())));
  block.reset();
  EXPECT_TRUE(eventually([] { return UnusedPins::instance().empty(); }));
}

TEST_F(HostEnd, MemoryThatTheApplicationHasRegisteredIsOpenToTheKernel) {
  Mapping memory = std::move(*Mapping::anonymous(kSize));
  {
    cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.driver->host_register(memory.data(), kSize, cuda::kHostRegisterDeviceMap), 0);
  }
  check(memory.data(), /*launched=*/true);
  cuda::Enter enter(*gpu);
  ASSERT_EQ(fake.driver->host_unregister(memory.data()), 0);
}

// Two registrations side by side are no single range.
TEST_F(HostEnd, OtherMemoryIsCopiedBlockByBlock) {
  Mapping memory = std::move(*Mapping::anonymous(kSize));
  cuda::Enter enter(*gpu);
  for (const bool both : {false, true}) {
    check(memory.data(), /*launched=*/false);
    uint8_t* const half = memory.data() + (both ? kSize / 2 : 0);
    ASSERT_EQ(fake.driver->host_register(half, kSize / 2, cuda::kHostRegisterDeviceMap), 0);
  }
  check(memory.data(), /*launched=*/false);
  ASSERT_EQ(fake.driver->host_unregister(memory.data()), 0);
  ASSERT_EQ(fake.driver->host_unregister(memory.data() + kSize / 2), 0);
}

TEST_F(EnginePathTest, ABlockOutsideOfWhatIsMappedIsRefused) {
  fill();
  auto import = std::make_shared<ImportedBlock>();
  import->remote_base = theirs_;
  import->local_base = reinterpret_cast<uint8_t*>(theirs_);
  import->size = 15;
  const std::vector<Block> one = blocks(1, 8);
  const Part part{target_, import, local_, one};
  EXPECT_TRUE(fails_with(path_->copy({true, {&part, 1}, 8}), OH_ERR_RANGE));
}

// The failure is reported once no earlier enqueued copy is in flight.
TEST_F(EnginePathTest, AFailureToEnqueueIsTold) {
  fill();
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, cuda::kInvalidValue), 0);
  EXPECT_FALSE(move(/*put=*/true, blocks(1, 8)).ok());
  ASSERT_TRUE(is_ok(move(/*put=*/true, blocks(1, 8))));
  EXPECT_TRUE(are_equal(blocks(1, 8)));
}

}  // namespace
}  // namespace unit::engine_path_test
