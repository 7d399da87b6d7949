// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/segment.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "unit/faulty_os.h"
#include "unit/support.h"

namespace segment_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

// The layout is shared between builds: a change requires a new kSegmentLayout, and new numbers
// here.
TEST(SegmentTest, TheLayoutIsAsItIsWrittenDown) {
  static_assert(kSegmentLayout == 2);
  static_assert(sizeof(Cell) == 64);
  static_assert(offsetof(Cell, body) == 8);
  static_assert(offsetof(Cell, message) == 8);
  static_assert(sizeof(FrameBody) == 56);
  static_assert(offsetof(FrameBody, tag) == 0);
  static_assert(offsetof(FrameBody, length) == 8);
  static_assert(offsetof(FrameBody, op) == 16);
  static_assert(offsetof(FrameBody, address) == 24);
  static_assert(offsetof(FrameBody, slot) == 32);
  static_assert(offsetof(FrameBody, number) == 36);
  static_assert(offsetof(FrameBody, region) == 40);
  static_assert(offsetof(FrameBody, aux) == 44);
  static_assert(offsetof(FrameBody, payload_position) == 48);
  static_assert(offsetof(FrameBody, payload_size) == 52);
  static_assert(sizeof(SegmentSide) == 64);
  static_assert(offsetof(SegmentSide, state) == 0);
  static_assert(offsetof(SegmentSide, waiting) == 4);
  static_assert(offsetof(SegmentSide, waiting_tag) == 8);
  static_assert(offsetof(SegmentSide, nonce) == 16);
  static_assert(offsetof(SegmentHeader, magic) == 0);
  static_assert(offsetof(SegmentHeader, layout) == 8);
  static_assert(offsetof(SegmentHeader, total) == 32);
  static_assert(offsetof(SegmentHeader, side) == 64);
  static_assert(offsetof(SegmentDirection, access) == 64);
  static_assert(offsetof(SegmentDirection, access_phase) == 128);
  static_assert(offsetof(SegmentDirection, signals) == 192);
  static_assert(offsetof(SegmentDirection, slots) == 768);
  static_assert(offsetof(SegmentDirection, cells) == 768 + 256 * 128);
  static_assert(offsetof(SegmentDirection, payload) == 768 + 256 * 128 + 256 * 64);
  static_assert(offsetof(SegmentLayout, direction) == 4096);
  static_assert(sizeof(SegmentLayout) == kSegmentSize && kSegmentSize % 4096 == 0);
  static_assert(sizeof(TransferSlot) == 128);
  static_assert(offsetof(TransferSlot, owner_address) == 8);
  static_assert(offsetof(TransferSlot, claimer_address) == 24);
  static_assert(offsetof(TransferSlot, owner_block) == 40);
  static_assert(offsetof(TransferSlot, cursor) == 64);
  static_assert(offsetof(TransferSlot, copied) == 72);
  static_assert(offsetof(TransferSlot, failure) == 80);
  static_assert(offsetof(TransferSlot, released) == 84);
  static_assert(offsetof(TransferSlot, attended) == 88);
}

UniqueFd another(const Segment& segment) { return UniqueFd(dup(segment.fd())); }

TEST(SegmentTest, BothSidesSeeOneSegment) {
  Result<std::unique_ptr<Segment>> made = Segment::create(/*shared=*/true);
  ASSERT_TRUE(is_ok(made));
  Segment& one = **made;
  Result<std::unique_ptr<Segment>> opened = Segment::open(another(one));
  ASSERT_TRUE(is_ok(opened));
  Segment& two = **opened;
  one.take_side(0, false);
  two.take_side(1, false);
  one.outgoing().signals[3].store(5);
  EXPECT_EQ(two.incoming().signals[3].load(), 5u);
  two.outgoing().signals[3].store(6);
  EXPECT_EQ(one.incoming().signals[3].load(), 6u);
  one.mine().nonce[0] = 9;
  EXPECT_EQ(two.theirs().nonce[0], 9);
}

TEST(SegmentTest, AnAliasIsTheOtherSideAndOutlivesTheFirst) {
  Result<std::unique_ptr<Segment>> one = Segment::create(/*shared=*/false);
  ASSERT_TRUE(is_ok(one));
  EXPECT_LT((*one)->fd(), 0);
  std::unique_ptr<Segment> two = Segment::alias(**one);
  (*one)->take_side(0, false);
  two->take_side(1, false);
  (*one)->advance(SideState::kReady);
  EXPECT_EQ(two->their_state(), SideState::kReady);
  one = Result<std::unique_ptr<Segment>>(nullptr);
  EXPECT_EQ(two->their_state(), SideState::kReady);
}

TEST(SegmentTest, APeerOfItselfHasOneSide) {
  Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/false);
  ASSERT_TRUE(is_ok(segment));
  (*segment)->take_side(0, /*loopback=*/true);
  EXPECT_EQ(&(*segment)->mine(), &(*segment)->theirs());
  EXPECT_EQ(&(*segment)->outgoing(), &(*segment)->incoming());
}

TEST(SegmentTest, StatesGoForwardOnly) {
  const SideState states[] = {SideState::kNone, SideState::kMapped, SideState::kReady,
                              SideState::kFailed};
  for (SideState from : states) {
    for (SideState to : states) {
      Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/false);
      ASSERT_TRUE(is_ok(segment));
      EXPECT_EQ((*segment)->advance(from), from != SideState::kNone);
      bool forward = static_cast<int>(to) > static_cast<int>(from);
      EXPECT_EQ((*segment)->advance(to), forward);
      EXPECT_EQ(static_cast<SideState>((*segment)->mine().state.load()), forward ? to : from);
    }
  }
}

TEST(SegmentTest, OnlyOneOfTwoThreadsMakesAStep) {
  Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/false);
  ASSERT_TRUE(is_ok(segment));
  std::atomic<int> won{0};
  unit::Threads threads;
  for (int i = 0; i < 4; ++i) {
    threads.start([&] { won += (*segment)->advance(SideState::kFailed); });
  }
  threads.join();
  EXPECT_EQ(won.load(), 1);
}

// Every field of the description is checked.
TEST(SegmentTest, AnotherLayoutIsRefused) {
  auto refused = [](auto change) {
    Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/true);
    EXPECT_TRUE(is_ok(segment));
    change((*segment)->layout().header);
    return fails_with(Segment::open(another(**segment)), OH_ERR_VERSION, "layout");
  };
  EXPECT_TRUE(refused([](SegmentHeader& header) { header.magic ^= 1; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { ++header.layout; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { header.cells *= 2; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { header.payload_ring /= 2; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { header.slots = 0; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { ++header.signals; }));
  EXPECT_TRUE(refused([](SegmentHeader& header) { header.total += 4096; }));
}

TEST(SegmentTest, TruncatedEmptyAndUnsealedFilesAreRefused) {
  for (uint64_t size : {uint64_t{0}, uint64_t{4096}, kSegmentSize - 1}) {
    Result<UniqueFd> fd = make_memfd("unit", size);
    ASSERT_TRUE(is_ok(fd));
    EXPECT_TRUE(fails_with(Segment::open(std::move(*fd)), OH_ERR_PROTOCOL)) << size;
  }
  Result<UniqueFd> zeros = make_memfd("unit", kSegmentSize);
  EXPECT_TRUE(fails_with(Segment::open(std::move(*zeros)), OH_ERR_VERSION));
  UniqueFd unsealed(::memfd_create("unit", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), static_cast<off_t>(kSegmentSize)), 0);
  EXPECT_TRUE(fails_with(Segment::open(std::move(unsealed)), OH_ERR_PROTOCOL, "may shrink"));
  EXPECT_FALSE(Segment::open(UniqueFd()).ok());
}

TEST(SegmentTest, FailuresLeakNothing) {
  FaultyOs faulty;
  size_t before = unit::open_fds();
  for (Call call :
       {Call::memfd_create, Call::ftruncate, Call::seal, Call::fstat_size, Call::mmap}) {
    faulty.arm(call, 0, ENOMEM);
    const oh_status code = call == Call::ftruncate ? OH_ERR_NO_RESOURCE : OH_ERR_SYSTEM;
    EXPECT_TRUE(fails_with(Segment::create(true), code, "ENOMEM")) << call_name(call);
  }
  faulty.arm(Call::mmap, 0, ENOMEM);
  EXPECT_TRUE(fails_with(Segment::create(false), OH_ERR_SYSTEM, "ENOMEM"));
  EXPECT_EQ(unit::open_fds(), before);
}

}  // namespace
}  // namespace segment_test
