// SPDX-License-Identifier: Apache-2.0
//
// DeviceCopies on the fake driver: both sides of a transfer in one process and over one segment, on
// the same GPU, so that each can access the other's memory by its address.
#include "path/direct/device_copies.h"

#include <cstring>

#include "device/locate.h"
#include "link/memory_exchange.h"
#include "unit/fake_link.h"
#include "unit/gpu_memory.h"

namespace unit::device_copies_test {
namespace {

using namespace oh;

constexpr uint32_t kSlot = 5;
constexpr uint64_t kLength = 100'000;

// One side of a transfer whose slot has been claimed.
struct Side final : SpanSinks {
  Side(std::unique_ptr<Segment> segment, const std::shared_ptr<cuda::Gpu>& gpu, int number) {
    segment->take_side(number, /*loopback=*/false);
    link.segment = std::move(segment);
    link.path = OH_PATH_LOCAL;
    link.my_bell = &page.doorbell();
    link.memory = &memory;
    link.gpu = gpu;
    Result<std::unique_ptr<DeviceLink>> device = DeviceLink::create(gpu, *link.segment);
    EXPECT_TRUE(is_ok(device));
    link.device = std::move(*device);
    LinkFacts facts;
    facts.segment = facts.same_process = facts.we_reach_them = facts.they_reach_us = true;
    facts.our_gpu = facts.their_gpu = facts.same_gpu = true;
    link.same_gpu = true;
    selection = MessageSelection(facts);
    link.selection = &selection;
  }
  Transfer* sink_of(const PipeSpan& span) override {
    transfer.learn();
    return span.slot == kSlot && !transfer.source ? &transfer : nullptr;
  }
  bool work() OH_NO_THREAD_ANALYSIS {
    LinkGuard guard(link);
    copies.retire(active);
    return copies.work(active, &transfer);
  }

  Status enqueue_wait(cuda::Stream stream) OH_NO_THREAD_ANALYSIS {
    LinkGuard guard(link);
    return copies.enqueue_wait(transfer, stream);
  }

  ControlPage page = std::move(*ControlPage::create());
  FakeLink fakes;
  Link& link = fakes.link;
  MemoryExchange memory{link, nullptr, Id{}, {}};
  MessageSelection selection;
  DeviceCopies copies{link, *this};
  Request request;
  Transfer transfer;
  DeviceCopies::Active active;
};

class DeviceCopiesTest : public GpuMemoryTest {
 protected:
  void SetUp() override {
    GpuMemoryTest::SetUp();
    std::unique_ptr<Segment> segment = std::move(*Segment::create(/*shared=*/false));
    std::unique_ptr<Segment> alias = Segment::alias(*segment);
    owner_.emplace(std::move(segment), gpu, 0);
    claimer_.emplace(std::move(alias), gpu, 1);
    from_ = allocate(kLength);
    to_ = allocate(kLength);
    bytes_ = Random(1).bytes(kLength);
    ASSERT_TRUE(fake.write(from_, bytes_));
    producer_ = *gpu->take_stream();
  }
  // Ends the transfer, so that begin() can be called again.
  void again() {
    // An abandoned copy may still run, and writes a word of the segment.
    synchronize();
    for (Side* side : {&*owner_, &*claimer_}) {
      (void)side->active.pop_front();
      if (side->transfer.stream) side->link.device->give_stream(side->transfer.stream);
      side->transfer = {};
    }
    TransferSlot& slot = owner_->link.segment->outgoing().slots[kSlot];
    slot.mode = 0;
    slot.cursor = slot.copied = 0;
  }
  void TearDown() override {
    fake.clear_failures();
    again();
    owner_.reset();
    claimer_.reset();
    gpu->give_stream(producer_);
    free(from_);
    free(to_);
    GpuMemoryTest::TearDown();
  }
  // Sets a side's buffer to `address`, on the device or in host memory.
  void place(Side& side, uint64_t address, bool on_device) {
    side.request.data = static_cast<uint8_t*>(pointer(address));
    side.request.size = kLength;
    side.request.on_device = on_device;
    if (on_device) side.request.device.exported = exported(address, kLength);
  }
  // The claimer claims the owner's slot; either side may have the source.
  void begin(bool owner_is_source) {
    TransferSlot& slot = owner_->link.segment->outgoing().slots[kSlot];
    slot.word.store(slot_word(1, SlotState::kClaimed));
    for (Side* side : {&*owner_, &*claimer_}) {
      Side& other = side == &*owner_ ? *claimer_ : *owner_;
      Transfer& made = side->transfer;
      made.slot = &slot;
      made.index = kSlot;
      made.sequence = 1;
      made.owner = side == &*owner_;
      made.source = made.owner == owner_is_source;
      made.local = side->request.data;
      made.remote = reinterpret_cast<uint64_t>(other.request.data);
      made.length = kLength;
      made.on_device = true;
      made.local_device = side->request.on_device;
      made.local_memory = side->copies.memory_of(side->request, /*block=*/0);
      made.remote_memory = other.copies.memory_of(other.request, /*block=*/0);
      made.within_process = true;
      made.request = &side->request;
      side->active.push_back(&made);
    }
  }
  // From the owner's device memory to the claimer's, or the other way round.
  void begin_on_device(bool owner_is_source) {
    place(*owner_, owner_is_source ? from_ : to_, /*on_device=*/true);
    place(*claimer_, owner_is_source ? to_ : from_, /*on_device=*/true);
    begin(owner_is_source);
  }
  // The side's operation waits for earlier work on its memory, which completes after
  // release(producer_).
  void wait_for_producer(Side& side) { side.request.device.after = behind_held(producer_, to_); }
  void synchronize() {
    cuda::Enter enter(*gpu);
    EXPECT_EQ(fake.context_synchronize(), cuda::kSuccess);
  }
  uint64_t word() const { return owner_->transfer.slot->word.load(); }
  bool is_done() const { return slot_state(word()) == SlotState::kDone; }
  // Both sides make progress until the slot reports the end of the transfer.
  ::testing::AssertionResult ends_with(oh_status code) {
    const bool over = eventually([&] {
      (void)owner_->work();
      (void)claimer_->work();
      return is_done();
    });
    if (!over) return ::testing::AssertionFailure() << "it does not end";
    if (slot_status(word()) == code) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "ended with " << slot_status(word());
  }
  CopyMode mode() const { return static_cast<CopyMode>(owner_->transfer.slot->mode.load()); }

  std::optional<Side> owner_;
  std::optional<Side> claimer_;
  cuda::DevicePtr from_ = 0;
  cuda::DevicePtr to_ = 0;
  cuda::Stream producer_ = nullptr;
  Bytes bytes_;
};

// Engines write faster than they read: the side with the source pushes, whichever side claims.
TEST_F(DeviceCopiesTest, AnOwnerThatHasTheSourcePushes) {
  begin_on_device(/*owner_is_source=*/true);
  ASSERT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
  claimer_->transfer.learn();
  EXPECT_EQ(claimer_->transfer.path, OH_PATH_LOCAL);
}

TEST_F(DeviceCopiesTest, AClaimerThatHasTheSourcePushes) {
  begin_on_device(/*owner_is_source=*/false);
  ASSERT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(mode(), CopyMode::kEngineOfClaimer);
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
  owner_->transfer.learn();
  EXPECT_EQ(owner_->transfer.path, OH_PATH_LOCAL);
}

// From then on a stream can wait for it on either side: after the engine, and for the slot's word.
TEST_F(DeviceCopiesTest, TheOtherSideHearsThatTheCopyIsEnqueued) {
  place(*owner_, to_, /*on_device=*/true);
  place(*claimer_, from_, /*on_device=*/true);
  wait_for_producer(*claimer_);
  begin(/*owner_is_source=*/false);
  Side* const sides[2] = {&*owner_, &*claimer_};
  for (Side* side : sides) EXPECT_FALSE(side->copies.is_enqueued(side->transfer));
  while (!claimer_->transfer.engine_copies) (void)claimer_->work();
  std::vector<cuda::Stream> streams;
  for (Side* side : sides) {
    ASSERT_TRUE(side->copies.is_enqueued(side->transfer));
    streams.push_back(*gpu->take_stream());
    EXPECT_TRUE(is_ok(side->enqueue_wait(streams.back())));
    EXPECT_EQ(side->transfer.awaited, side == &*owner_);
    EXPECT_FALSE(*gpu->is_idle(streams.back()));
  }
  EXPECT_FALSE(is_done());
  ASSERT_EQ(fake.release(producer_), 0);
  for (cuda::Stream stream : streams) {
    EXPECT_TRUE(gpu->wait_idle(stream, Deadline::after(20 * kSecond)));
    gpu->give_stream(stream);
  }
  EXPECT_TRUE(is_done());
  StreamGates::instance().reap();  // they hold the Gpu
}

TEST_F(DeviceCopiesTest, ACopyThatFailedToBeEnqueuedIsNot) {
  ASSERT_EQ(fake.fail("cuStreamWriteValue64_v2", 1, cuda::kOutOfMemory), 0);
  begin_on_device(/*owner_is_source=*/false);
  ASSERT_TRUE(ends_with(OH_ERR_NO_RESOURCE));
  EXPECT_FALSE(owner_->copies.is_enqueued(owner_->transfer));
}

// If the owner does nothing, the claimer copies.
TEST_F(DeviceCopiesTest, AnOwnerThatDoesNotBeginIsNotWaitedFor) {
  begin_on_device(/*owner_is_source=*/true);
  EXPECT_TRUE(eventually([&] {
    (void)claimer_->work();
    return is_done();
  }));
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
}

// The copy engine waits for the earlier work; no thread polls the driver for it.
TEST_F(DeviceCopiesTest, ACopyWaitsForEarlierWorkOnItsSource) {
  place(*owner_, to_, /*on_device=*/true);
  place(*claimer_, from_, /*on_device=*/true);
  wait_for_producer(*claimer_);
  begin(/*owner_is_source=*/false);
  for (int i = 0; i < 100; ++i) {
    (void)owner_->work();
    (void)claimer_->work();
  }
  EXPECT_FALSE(is_done());
  ASSERT_EQ(fake.release(producer_), 0);
  EXPECT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
}

// The engine of the device's side copies into and out of memory that onehop shares, which it
// registers; without registration it copies more slowly.
TEST_F(DeviceCopiesTest, ASharedBlockIsCopiedByTheDevicesEngine) {
  for (const bool registered : {true, false}) {
    std::shared_ptr<SharedBlock> block = *SharedHeap::instance().allocate(kLength);
    if (!registered) {
      ASSERT_EQ(fake.fail("cuMemHostRegister_v2", 1, cuda::kOutOfMemory), 0);
    }
    place(*owner_, from_, /*on_device=*/true);
    place(*claimer_, block->base(), /*on_device=*/false);
    EXPECT_EQ(claimer_->copies.memory_of(claimer_->request, /*block=*/0), uint32_t{kSlotMappable});
    begin(/*owner_is_source=*/true);
    ASSERT_TRUE(ends_with(OH_OK));
    EXPECT_EQ(mode(), CopyMode::kEngineOfOwner);
    EXPECT_EQ(memcmp(block->mapping.data(), bytes_.data(), kLength), 0);
    EXPECT_EQ(view_pinned(gpu, block->mapping.data(), kLength, /*ask=*/true).pinned, registered);
    again();
    ASSERT_TRUE(is_ok(SharedHeap::instance().free(block->mapping.data())));
    block.reset();
    EXPECT_TRUE(eventually([] { return UnusedPins::instance().empty(); }));
  }
}

// Pinned memory of the application is mapped nowhere else: the engine of its own side copies.
TEST_F(DeviceCopiesTest, PinnedMemoryIsCopiedByItsOwnEngine) {
  Mapping host = std::move(*Mapping::anonymous(kLength));
  const auto address = reinterpret_cast<uint64_t>(host.data());
  for (const bool owner_is_host : {true, false}) {
    for (const bool host_is_source : {true, false}) {
      SCOPED_TRACE(std::string(owner_is_host ? "owner" : "claimer") + " has the host memory, the " +
                   (host_is_source ? "source" : "target"));
      Side& with_host = owner_is_host ? *owner_ : *claimer_;
      Side& with_device = owner_is_host ? *claimer_ : *owner_;
      place(with_host, address, /*on_device=*/false);
      with_host.request.pinned = true;
      EXPECT_EQ(with_host.copies.memory_of(with_host.request, /*block=*/0), uint32_t{kSlotPinned});
      place(with_device, host_is_source ? to_ : from_, /*on_device=*/true);
      host_is_source ? memcpy(host.data(), bytes_.data(), kLength)
                     : memset(host.data(), 0xee, kLength);
      begin(host_is_source == owner_is_host);
      ASSERT_TRUE(ends_with(OH_OK));
      EXPECT_EQ(mode(), owner_is_host ? CopyMode::kEngineOfOwner : CopyMode::kEngineOfClaimer);
      EXPECT_EQ(memcmp(host.data(), bytes_.data(), kLength), 0);
      EXPECT_EQ(fake.bytes_at(host_is_source ? to_ : from_, kLength), bytes_);
      again();
      with_host.request.pinned = false;
    }
  }
}

TEST_F(DeviceCopiesTest, AClaimerOnTheDeviceReadsASharedBlock) {
  std::shared_ptr<SharedBlock> block = *SharedHeap::instance().allocate(kLength);
  memcpy(block->mapping.data(), bytes_.data(), kLength);
  place(*owner_, block->base(), /*on_device=*/false);
  place(*claimer_, to_, /*on_device=*/true);
  begin(/*owner_is_source=*/true);
  ASSERT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(mode(), CopyMode::kEngineOfClaimer);
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
  owner_->transfer.learn();
  EXPECT_EQ(owner_->transfer.path, OH_PATH_LOCAL);
  ASSERT_TRUE(is_ok(SharedHeap::instance().free(block->mapping.data())));
  block.reset();
  EXPECT_TRUE(eventually([] { return UnusedPins::instance().empty(); }));
}

// No engine can access private host memory: it is filled or drained through pinned memory.
TEST_F(DeviceCopiesTest, HostMemoryTakesTheRelay) {
  Bytes host(kLength);
  place(*owner_, from_, /*on_device=*/true);
  place(*claimer_, reinterpret_cast<uint64_t>(host.data()), /*on_device=*/false);
  begin(/*owner_is_source=*/true);
  ASSERT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(mode(), CopyMode::kRelay);
  EXPECT_EQ(host, bytes_);
  owner_->transfer.learn();
  EXPECT_EQ(owner_->transfer.path, OH_PATH_RELAY);
}

TEST_F(DeviceCopiesTest, ASinkOnTheDeviceIsFilledThroughTheRelay) {
  place(*owner_, reinterpret_cast<uint64_t>(bytes_.data()), /*on_device=*/false);
  place(*claimer_, to_, /*on_device=*/true);
  begin(/*owner_is_source=*/true);
  ASSERT_TRUE(ends_with(OH_OK));
  EXPECT_EQ(fake.bytes_at(to_, kLength), bytes_);
}

// Both sides get the error; the local one has the driver's text.
TEST_F(DeviceCopiesTest, AFailureToEnqueueEndsTheTransfer) {
  begin_on_device(/*owner_is_source=*/false);
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 0, cuda::kInvalidValue), 0);
  EXPECT_TRUE(eventually([&] {
    (void)claimer_->work();
    return is_done();
  }));
  EXPECT_NE(slot_status(word()), OH_OK);
  EXPECT_FALSE(claimer_->transfer.failure.ok());
  EXPECT_FALSE(claimer_->transfer.engine_copies);
}

// The process survives it: chunks have a size.
TEST_F(DeviceCopiesTest, ATransferThatStopsWhileAFaultyPeerResetsItsMode) {
  for (int turn = 0; turn < 200; ++turn) {
    TransferSlot slot{};
    Transfer transfer;
    transfer.slot = &slot;
    transfer.length = kLength;
    transfer.on_device = true;
    std::atomic<bool> over{false};
    Threads peer;
    peer.start([&] {
      while (!over) slot.mode.store(static_cast<uint32_t>(CopyMode::kUndecided));
    });
    transfer.stop(OH_ERR_TIMEOUT);
    over = true;
    EXPECT_GT(transfer.chunk, 0u);
  }
}

// A lost context writes no word: its engine's copies end all the same.
TEST_F(DeviceCopiesTest, ALostDeviceEndsWhatItsEngineHad) {
  place(*owner_, to_, /*on_device=*/true);
  place(*claimer_, from_, /*on_device=*/true);
  wait_for_producer(*claimer_);
  begin(/*owner_is_source=*/false);
  while (!claimer_->transfer.engine_copies) (void)claimer_->work();
  EXPECT_TRUE(is_ok(claimer_->copies.broken()));
  ASSERT_EQ(fake.fail("cuStreamQuery", 0, cuda::kIllegalAddress), 0);
  EXPECT_TRUE(eventually([&] {
    (void)claimer_->work();
    return is_done();
  }));
  EXPECT_FALSE(claimer_->copies.broken().ok());
  EXPECT_FALSE(claimer_->transfer.failure.ok());
  EXPECT_NE(slot_status(word()), OH_OK);
  ASSERT_EQ(fake.release(producer_), 0);
}

TEST_F(DeviceCopiesTest, ASlotSaysWhatItsMemoryIs) {
  place(*owner_, from_, /*on_device=*/true);
  EXPECT_EQ(owner_->copies.memory_of(owner_->request, /*block=*/0),
            uint32_t{kSlotDevice | kSlotMappable});
  wait_for_producer(*owner_);
  EXPECT_NE(owner_->copies.memory_of(owner_->request, /*block=*/0) & kSlotPending, 0u);
  ASSERT_EQ(fake.release(producer_), 0);
  owner_->request.device.after.reset();
  place(*owner_, reinterpret_cast<uint64_t>(bytes_.data()), /*on_device=*/false);
  EXPECT_EQ(owner_->copies.memory_of(owner_->request, /*block=*/0), 0u);
}

}  // namespace
}  // namespace unit::device_copies_test
