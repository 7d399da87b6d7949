// SPDX-License-Identifier: Apache-2.0
//
// StreamMemory on the fake GPU, with both ends of a link within the process.
#include "lane/stream_memory.h"

#include "link/memory_exchange.h"
#include "unit/stream_side.h"

namespace unit::stream_memory_test {
namespace {

using namespace oh;

struct Side : StreamSide {
  Side(StreamDomain& of, const std::shared_ptr<cuda::Gpu>& gpu, bool within_process = true)
      : StreamSide(of, gpu), memory(link, owners, gpu, within_process) {
    link.memory = &exchange;
  }

  MemoryExchange exchange{link, nullptr, Id{}, {}};
  StreamMemory memory;
};

class StreamMemoryTest : public StreamSideTest {
 protected:
  void SetUp() override {
    StreamSideTest::SetUp();
    one_.emplace(domain, gpu);
    other_.emplace(domain, gpu);
    one_->connect(*other_);
    other_->connect(*one_);
    one_->memory.introduce(other_->memory);
    other_->memory.introduce(one_->memory);
    stream_ = *gpu->take_stream();
    memory_ = allocate(4096);
    synchronize();
  }
  void TearDown() override {
    watcher->stop();
    one_.reset();
    other_.reset();
    domain.release();
    gpu->give_stream(stream_);
    free(memory_);
    StreamSideTest::TearDown();
  }
  // The tables are filled by device work, and imported() reads them from the device.
  void synchronize() {
    cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.context_synchronize(), cuda::kSuccess);
  }
  // Lets the watcher's thread release completed uses, until none is left.
  void look_for_ends() { one_->memory.forget_import(0); }
  // Returns the first entry of the table that a side's kernels find.
  std::vector<uint64_t> imported(const Side& side) const {
    std::vector<uint64_t> found;
    const uint64_t entries = side.lanes->slab()->address() + kernels::kImportsAt +
                             offsetof(onehop::detail::ImportTable, entries);
    const size_t count = size_t{1} << kernels::kImportShift;
    const Bytes bytes = fake.bytes_at(entries, count * sizeof(onehop::detail::ImportEntry));
    Reader reader(bytes);
    for (size_t i = 0; i < count; ++i) {
      (void)reader.u64();  // size
      if (const uint64_t number = reader.u64()) found.push_back(number);
      (void)reader.u64();  // base
      (void)reader.u64();
    }
    return found;
  }

  std::optional<Side> one_;
  std::optional<Side> other_;
  cuda::Stream stream_ = nullptr;
  cuda::DevicePtr memory_ = 0;
};

TEST_F(StreamMemoryTest, MemoryIsHeldUntilTheStreamIsThrough) {
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> alive = held;
  hold(stream_, memory_);
  one_->memory.hold(stream_, /*capturing=*/false, std::move(held));
  look_for_ends();
  EXPECT_TRUE(asks_the_driver());
  EXPECT_FALSE(alive.expired());
  ASSERT_EQ(fake.release(stream_), 0);
  EXPECT_TRUE(eventually([&] { return alive.expired(); }));
}

// Its end is never known: the endpoint keeps it after the link has gone.
TEST_F(StreamMemoryTest, MemoryOfAGraphIsHeldUntilTheEndpointCloses) {
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> alive = held;
  one_->memory.hold(stream_, /*capturing=*/true, std::move(held));
  look_for_ends();
  await_watcher();
  one_->memory.give_up();
  watcher->stop();
  one_.reset();
  EXPECT_FALSE(alive.expired());
  domain.release();
  EXPECT_TRUE(alive.expired());
}

// As for a graph; the event without information is returned.
TEST_F(StreamMemoryTest, MemoryOfAnUnknownEndIsHeldUntilTheEndpointCloses) {
  auto held = std::make_shared<int>();
  const std::weak_ptr<int> alive = held;
  ASSERT_EQ(fake.fail("cuEventRecord", 1, cuda::kOutOfMemory), 0);
  one_->memory.hold(stream_, /*capturing=*/false, std::move(held));
  one_->memory.give_up();
  EXPECT_FALSE(alive.expired());
  domain.release();
  EXPECT_TRUE(alive.expired());
}

TEST_F(StreamMemoryTest, AnImportIsMappedUntilItIsForgotten) {
  auto block = std::make_shared<ImportedBlock>();
  block->number = 9;
  block->local_base = static_cast<uint8_t*>(pointer(memory_));
  block->size = 4096;
  block->on_device = true;
  one_->memory.add_import(block);
  EXPECT_EQ(block.use_count(), 1) << "no kernel uses the link yet";
  one_->memory.open(*one_->lanes);
  one_->memory.add_import(block);
  EXPECT_TRUE(eventually([&] { return imported(*one_) == std::vector<uint64_t>{9}; }));
  EXPECT_EQ(block.use_count(), 2);
  one_->memory.forget_import(9);
  EXPECT_TRUE(eventually([&] { return block.use_count() == 1; }));
  EXPECT_TRUE(eventually([&] { return imported(*one_).empty(); }));
}

TEST_F(StreamMemoryTest, HostMemoryIsNotForKernels) {
  one_->memory.open(*one_->lanes);
  auto block = std::make_shared<ImportedBlock>();
  block->number = 9;
  one_->memory.add_import(block);
  one_->memory.add_import(nullptr);
  EXPECT_EQ(block.use_count(), 1);
}

// Within the process the other side's kernels get the address.
TEST_F(StreamMemoryTest, APartnerGetsToKnowTheMemoryOfAReceive) {
  const std::shared_ptr<const GpuExport> ours = exported(memory_, 4096);
  EXPECT_EQ(one_->memory.publish(ours).number, 0u) << "the partner has no lanes yet";
  other_->memory.open(*other_->lanes);
  StreamMemory::Published published = one_->memory.publish(ours);
  EXPECT_EQ(published.number, ours->number);
  EXPECT_FALSE(published.reached) << "the kernel that enters it may run later";
  published = one_->memory.publish(ours);
  EXPECT_EQ(published.number, ours->number);
  EXPECT_TRUE(published.reached);
  EXPECT_TRUE(eventually([&] { return imported(*other_) == std::vector<uint64_t>{ours->number}; }));
  one_->memory.forget_within(ours->number);
  EXPECT_TRUE(eventually([&] { return imported(*other_).empty(); }));
}

TEST_F(StreamMemoryTest, APartnerThatIsGoneGetsNothing) {
  other_->memory.open(*other_->lanes);
  other_->peer.reset();
  EXPECT_EQ(one_->memory.publish(exported(memory_, 4096)).number, 0u);
}

// Its peer is still held, for example by a handle.
TEST_F(StreamMemoryTest, MemoryIsForgottenAfterThePartnersEndpointHasGone) {
  auto gone = std::make_unique<StreamDomain>(domain.options());
  Side theirs(*gone, gpu);
  one_->connect(theirs);
  theirs.connect(*one_);
  one_->memory.introduce(theirs.memory);
  theirs.memory.open(*theirs.lanes);
  synchronize();
  const std::shared_ptr<const GpuExport> ours = exported(memory_, 4096);
  EXPECT_EQ(one_->memory.publish(ours).number, ours->number);
  theirs.endpoint.reset();
  gone.reset();
  one_->memory.forget_within(ours->number);
  EXPECT_TRUE(eventually([&] { return imported(theirs).empty(); }));
  await_watcher();
}

// Between processes the peer has to map it.
TEST_F(StreamMemoryTest, OnlyMappableMemoryIsPublishedToAnotherProcess) {
  Side apart(domain, gpu, /*within_process=*/false);
  const std::shared_ptr<const GpuExport> ours = exported(memory_, 4096);
  EXPECT_EQ(apart.memory.publish(ours).number, ours->number);
  apart.link.maps_devices = false;
  EXPECT_EQ(apart.memory.publish(ours).number, 0u);
  apart.link.maps_devices = true;
  auto unmappable = std::make_shared<GpuExport>();
  unmappable->why_not = "from a pool that does not export";
  EXPECT_EQ(apart.memory.publish(unmappable).number, 0u);
}

}  // namespace
}  // namespace unit::stream_memory_test
