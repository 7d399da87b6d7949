// SPDX-License-Identifier: Apache-2.0
//
// The inbox of a link over UCX, without UCX: the order of frames, the limits of the stash, and the
// targets that payloads are written to. The test makes the active messages; data that UCX would
// keep is memory of the test, which counts its releases.
#include "transport/ucx/ucx_inbox.h"

#include <algorithm>
#include <cstring>

#include "transport/ucx/ucx_packing.h"
#include "unit/support.h"

namespace unit::ucx_inbox_test {
namespace {

using oh::Bytes;
using oh::ByteView;
using oh::Frame;
using oh::FrameType;
using oh::UcxInbox;
using oh::UcxTargets;

constexpr uint64_t kTag = 5;
constexpr uint64_t kOp = uint64_t{1} << 32;
constexpr size_t kSize = 2000;
constexpr uint8_t kUntouched = 0xee;

class UcxInboxTest : public ::testing::Test {
 protected:
  enum class Data { kCopied, kKept, kRemote };

  static Frame frame(FrameType type, uint64_t address = 0, uint8_t flags = 0) {
    Frame made;
    made.type = type;
    made.flags = flags;
    made.tag = kTag;
    made.op = kOp;
    made.length = kSize;
    made.address = address;
    return made;
  }

  UcxInbox::Outcome arrive(uint32_t sequence, FrameType type, uint8_t flags, ByteView header,
                           ByteView data, Data how = Data::kCopied) {
    UcxInbox::Message message;
    message.head = {0, sequence, oh::cell_word(0, type, flags, 0)};
    message.header = header;
    // UCX's memory; the inbox must not use it later unless it keeps it.
    auto segment = std::make_unique<Bytes>(data.begin(), data.end());
    message.data = segment->data();
    message.size = data.size();
    message.rendezvous = how == Data::kRemote;
    message.may_keep = how != Data::kCopied;
    oh::SpinGuard guard(lock_);
    UcxInbox::Outcome outcome = inbox_.arrive(message);
    if (outcome.keeps) kept_.push_back(std::move(segment));
    return outcome;
  }
  // A frame with `size` payload bytes of value `byte`.
  UcxInbox::Outcome arrive(uint32_t sequence, const Frame& frame, size_t size = 0, uint8_t byte = 0,
                           Data how = Data::kCopied) {
    Frame sized = frame;
    sized.payload_size = size;
    const oh::FrameBody body = oh::body_of(sized);
    return arrive(sequence, frame.type, frame.flags,
                  {reinterpret_cast<const uint8_t*>(&body), sizeof(body)}, Bytes(size, byte), how);
  }
  UcxInbox::Outcome arrive_packed(uint32_t sequence, const std::vector<Frame>& frames) {
    Bytes bytes;
    for (const Frame& one : frames) {
      const size_t before = bytes.size();
      bytes.resize(before + oh::kPackedHead + one.payload_size);
      (void)oh::pack_frame(bytes.data() + before, one);
    }
    return arrive(sequence, oh::kUcxPacked, 0, {}, bytes);
  }

  // Handles the first frame; data that it kept in UCX is released.
  Frame take() {
    Frame first;
    EXPECT_TRUE(inbox_.ready());
    EXPECT_TRUE(is_ok(inbox_.peek(&first)));
    bytes_ = first.payload ? Bytes(first.payload, first.payload + first.payload_size) : Bytes();
    if (void* data = inbox_.pop()) give_back(data);
    return first;
  }
  std::vector<uint64_t> take_all() {
    std::vector<uint64_t> addresses;
    while (inbox_.ready()) addresses.push_back(take().address);
    return addresses;
  }
  void give_back(const void* data) {
    EXPECT_EQ(std::erase_if(kept_, [&](const auto& one) { return one->data() == data; }), 1u);
  }
  // Whether bytes [begin, end) of our memory are all `byte`.
  bool holds(uint8_t byte, size_t begin = 0, size_t end = kSize) const {
    return std::all_of(memory_.begin() + static_cast<ptrdiff_t>(begin),
                       memory_.begin() + static_cast<ptrdiff_t>(end),
                       [byte](uint8_t one) { return one == byte; });
  }
  UcxTargets& targets() { return inbox_.targets(); }
  void post_region(uint64_t version = 1) {
    targets().post_region({/*index=*/3, version, memory_.data(), kSize});
  }
  static Frame put(uint64_t address, uint64_t length, uint64_t version = 1) {
    Frame made = frame(FrameType::kPut, address);
    made.region = 3;
    made.tag = version;
    made.length = length;
    return made;
  }

  oh::SpinLock lock_;  // the worker's
  UcxInbox inbox_{lock_};
  std::vector<std::unique_ptr<Bytes>> kept_;  // held by the inbox
  Bytes memory_ = Bytes(kSize, kUntouched);
  Bytes bytes_;  // payload of the frame that was taken last
};

// ---- Order --------------------------------------------------------------------------------------

TEST_F(UcxInboxTest, FramesComeOutByNumber) {
  EXPECT_FALSE(arrive(2, frame(FrameType::kRts, 2)).ready);
  EXPECT_FALSE(arrive(1, frame(FrameType::kRts, 1)).ready);
  EXPECT_FALSE(inbox_.ready());
  EXPECT_TRUE(arrive(0, frame(FrameType::kRts, 0)).ready);
  EXPECT_TRUE(arrive(3, frame(FrameType::kRts, 3)).ready);
  EXPECT_EQ(take_all(), (std::vector<uint64_t>{0, 1, 2, 3}));
  EXPECT_EQ(inbox_.taken(), 4u);
}

TEST_F(UcxInboxTest, AFrameStaysUntilItIsPopped) {
  (void)arrive(0, frame(FrameType::kNotify, 7), 10, 1);
  Frame first;
  ASSERT_TRUE(is_ok(inbox_.peek(&first)));
  // Later arrivals do not move its payload.
  for (uint32_t sequence = 1; sequence < 100; ++sequence) {
    (void)arrive(sequence, frame(FrameType::kNotify, sequence), 1000, 2);
  }
  EXPECT_EQ(Bytes(first.payload, first.payload + first.payload_size), Bytes(10, 1));
  EXPECT_EQ(take().address, 7u);
  EXPECT_EQ(take_all().size(), 99u);
}

TEST_F(UcxInboxTest, AStashedPayloadIsACopy) {
  EXPECT_FALSE(arrive(1, frame(FrameType::kNotify), 1000, 9).keeps);
  (void)arrive(0, frame(FrameType::kCredit));
  (void)take();
  EXPECT_EQ(take().payload_size, 1000u);
  EXPECT_EQ(bytes_, Bytes(1000, 9));
}

TEST_F(UcxInboxTest, PackedFramesShareANumber) {
  Bytes payload(100, 4);
  Frame with = frame(FrameType::kNotify, 11);
  with.payload = payload.data();
  with.payload_size = payload.size();
  EXPECT_FALSE(arrive_packed(1, {frame(FrameType::kRts, 10), with}).ready);
  (void)arrive(0, frame(FrameType::kRts, 9));
  (void)arrive(2, frame(FrameType::kRts, 12));
  EXPECT_EQ(take().address, 9u);
  EXPECT_EQ(take().address, 10u);
  EXPECT_EQ(take().address, 11u);
  EXPECT_EQ(bytes_, payload);
  EXPECT_EQ(take_all(), std::vector<uint64_t>{12});
}

TEST_F(UcxInboxTest, AnOldNumberBreaksTheLink) {
  (void)arrive(0, frame(FrameType::kRts));
  EXPECT_TRUE(fails_with(arrive(0, frame(FrameType::kRts)).broken, OH_ERR_PROTOCOL));
  EXPECT_EQ(take_all().size(), 1u);
}

// ---- Data that stays with UCX -------------------------------------------------------------------

TEST_F(UcxInboxTest, LargePayloadsStayWithUcxUntilPop) {
  EXPECT_TRUE(arrive(0, frame(FrameType::kNotify), kSize, 1, Data::kKept).keeps);
  EXPECT_FALSE(arrive(1, frame(FrameType::kNotify), 10, 2, Data::kKept).keeps);
  EXPECT_EQ(kept_.size(), 1u);
  (void)take();
  EXPECT_EQ(bytes_, Bytes(kSize, 1));
  EXPECT_TRUE(kept_.empty());
  (void)take();
  EXPECT_EQ(bytes_, Bytes(10, 2));
}

TEST_F(UcxInboxTest, APayloadAtItsSenderIsFetched) {
  EXPECT_TRUE(arrive(0, frame(FrameType::kData), 100, 0, Data::kRemote).keeps);
  Frame first;
  ASSERT_TRUE(is_ok(inbox_.peek(&first)));
  EXPECT_TRUE(first.remote);
  EXPECT_EQ(first.payload, nullptr);
  give_back(inbox_.take_data());
  EXPECT_EQ(inbox_.pop(), nullptr);
}

TEST_F(UcxInboxTest, StashedDataGoesBackAtTheEnd) {
  EXPECT_TRUE(arrive(2, frame(FrameType::kNotify), kSize, 1, Data::kKept).keeps);
  EXPECT_TRUE(arrive(3, frame(FrameType::kData), 100, 0, Data::kRemote).keeps);
  EXPECT_FALSE(arrive(4, frame(FrameType::kRts)).keeps);
  oh::SpinGuard guard(lock_);
  for (void* data : inbox_.take_stashed()) give_back(data);
  EXPECT_TRUE(kept_.empty());
  EXPECT_TRUE(inbox_.take_stashed().empty());
}

// ---- Limits -------------------------------------------------------------------------------------

TEST_F(UcxInboxTest, TheStashHasABoundOfFrames) {
  const Frame one = frame(FrameType::kRts);
  for (uint32_t sequence = 1; sequence <= UcxInbox::kMostStashed; ++sequence) {
    ASSERT_TRUE(is_ok(arrive(sequence, one).broken)) << sequence;
  }
  EXPECT_TRUE(fails_with(arrive(UcxInbox::kMostStashed + 1, one).broken, OH_ERR_PROTOCOL));
  // The awaited frame releases all of them.
  EXPECT_TRUE(is_ok(arrive(0, one).broken));
  EXPECT_EQ(take_all().size(), UcxInbox::kMostStashed + 1);
}

TEST_F(UcxInboxTest, TheStashHasABoundOfBytes) {
  constexpr size_t kChunk = 8 << 20;
  constexpr uint32_t kFit = UcxInbox::kMostBytesStashed / kChunk;
  const Frame one = frame(FrameType::kNotify);
  for (uint32_t sequence = 1; sequence <= kFit; ++sequence) {
    // Data kept in UCX counts like copied data.
    const Data how = sequence % 2 ? Data::kKept : Data::kCopied;
    ASSERT_TRUE(is_ok(arrive(sequence, one, kChunk, 1, how).broken)) << sequence;
  }
  const UcxInbox::Outcome above = arrive(kFit + 1, one, 1, 1);
  EXPECT_TRUE(fails_with(above.broken, OH_ERR_PROTOCOL));
  EXPECT_FALSE(above.keeps);
  EXPECT_TRUE(is_ok(arrive(0, one).broken));
  EXPECT_EQ(take_all().size(), kFit + 1);
  EXPECT_TRUE(kept_.empty());
  // Its bytes are available again.
  EXPECT_TRUE(is_ok(arrive(kFit + 2, one, kChunk, 1).broken));
}

TEST_F(UcxInboxTest, ANumberFarAheadOrTwiceBreaksTheLink) {
  const Frame one = frame(FrameType::kRts);
  EXPECT_TRUE(fails_with(arrive(UcxInbox::kMostWaiting + 1, one).broken, OH_ERR_PROTOCOL));
  EXPECT_TRUE(is_ok(arrive(UcxInbox::kMostWaiting, one).broken));
  EXPECT_TRUE(fails_with(arrive(UcxInbox::kMostWaiting, one).broken, OH_ERR_PROTOCOL));
}

TEST_F(UcxInboxTest, MessagesThatContradictThemselvesBreakTheLink) {
  const oh::FrameBody body = oh::body_of(frame(FrameType::kNotify));
  const ByteView whole(reinterpret_cast<const uint8_t*>(&body), sizeof(body));
  const Bytes data(10, 1);
  auto breaks = [&](FrameType type, uint8_t flags, ByteView header, ByteView payload) {
    return fails_with(arrive(0, type, flags, header, payload).broken, OH_ERR_PROTOCOL);
  };
  EXPECT_TRUE(breaks(FrameType::kNotify, 0, whole.first(55), {}));
  EXPECT_TRUE(breaks(FrameType::kNotify, 0, whole, data));  // the body says 0 bytes
  EXPECT_TRUE(breaks(FrameType::kEager, oh::kShort, whole.first(7), {}));
  EXPECT_TRUE(breaks(FrameType::kEager, oh::kShort, whole.first(8), data));
  EXPECT_TRUE(breaks(oh::kUcxPacked, 0, {}, data));
  EXPECT_TRUE(breaks(oh::kUcxPacked, 0, whole, {}));
  EXPECT_FALSE(inbox_.ready());
  EXPECT_TRUE(is_ok(arrive(0, frame(FrameType::kRts)).broken));
}

TEST_F(UcxInboxTest, AnUnknownTypeIsAnErrorWhenItIsLookedAt) {
  EXPECT_TRUE(is_ok(arrive(0, frame(static_cast<FrameType>(200))).broken));
  Frame first;
  ASSERT_TRUE(inbox_.ready());
  EXPECT_TRUE(fails_with(inbox_.peek(&first), OH_ERR_PROTOCOL));
}

// ---- Parts of messages --------------------------------------------------------------------------

TEST_F(UcxInboxTest, PostedPartsAreWrittenInAnyOrder) {
  targets().post(kOp, memory_.data(), 0, kSize);
  (void)arrive(1, frame(FrameType::kData, 1000), 1000, 2);
  EXPECT_TRUE(holds(2, 1000));
  (void)arrive(0, frame(FrameType::kData, 0), 1000, 1);
  EXPECT_TRUE(holds(1, 0, 1000));
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(take().placed);
}

TEST_F(UcxInboxTest, RevokedPartsWaitInTheInbox) {
  targets().post(kOp, memory_.data(), 0, 1000);
  targets().post(kOp, memory_.data() + 1000, 1000, 1000);
  targets().revoke(kOp, 1000);
  (void)arrive(0, frame(FrameType::kData, 0), 1000, 1);
  (void)arrive(1, frame(FrameType::kData, 1000), 1000, 2);
  EXPECT_TRUE(holds(1, 0, 1000));
  EXPECT_TRUE(holds(kUntouched, 1000));
  EXPECT_TRUE(take().placed);
  EXPECT_FALSE(take().placed);
  EXPECT_EQ(bytes_, Bytes(1000, 2));
  targets().revoke(kOp);
  (void)arrive(2, frame(FrameType::kData, 0), 1000, 3);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(1, 0, 1000));
}

TEST_F(UcxInboxTest, PartsOutsideOfTheirTargetAreNotWritten) {
  targets().post(kOp, memory_.data() + 500, 500, 1000);
  for (auto [address, size] : {std::pair<uint64_t, size_t>{499, 10},
                               {1500, 1},
                               {1400, 101},
                               {UINT64_MAX, 1},
                               {UINT64_MAX - 5, 10}}) {
    (void)arrive(static_cast<uint32_t>(inbox_.taken()), frame(FrameType::kData, address), size, 1);
    EXPECT_FALSE(take().placed) << address << "+" << size;
  }
  Frame other = frame(FrameType::kData, 500);
  other.op = kOp + 1;
  (void)arrive(static_cast<uint32_t>(inbox_.taken()), other, 10, 1);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(kUntouched));
}

// ---- Messages that come early -------------------------------------------------------------------

TEST_F(UcxInboxTest, APostedMessageAndItsRestAreWritten) {
  Frame first = frame(FrameType::kEager);
  first.number = 4;
  ASSERT_TRUE(targets().post_message(kTag, {4, 0, memory_.data(), kSize, false}));
  EXPECT_FALSE(targets().post_message(kTag, {4, 0, memory_.data(), kSize, false}));
  (void)arrive(0, first, 1500, 1);
  EXPECT_FALSE(targets().revoke_message(kTag, 4, /*taken=*/false));
  (void)arrive(1, frame(FrameType::kData, 1500), 500, 2);
  EXPECT_TRUE(holds(1, 0, 1500));
  EXPECT_TRUE(holds(2, 1500));
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(targets().revoke_message(kTag, 4, /*taken=*/true));
  // It is forgotten.
  EXPECT_TRUE(targets().post_message(kTag, {4, 0, memory_.data(), kSize, false}));
}

TEST_F(UcxInboxTest, OnlyTheMessageThatWasPostedIsWritten) {
  ASSERT_TRUE(targets().post_message(kTag, {4, /*epoch=*/1, memory_.data(), 1000, false}));
  Frame fits = frame(FrameType::kEager);
  fits.number = 4;
  fits.aux = 1;
  fits.length = 1000;
  Frame other_number = fits, other_epoch = fits, other_tag = fits, too_long = fits, too_much = fits;
  other_number.number = 5;
  other_epoch.aux = 2;
  other_tag.tag = kTag + 1;
  too_long.length = 1001;
  too_much.length = 99;
  uint32_t sequence = 0;
  for (const Frame& one : {other_number, other_epoch, other_tag, too_long, too_much}) {
    (void)arrive(sequence++, one, 100, 1);
    EXPECT_FALSE(take().placed) << sequence;
  }
  // A frame that arrives before its turn may belong to a receive that is posted later.
  (void)arrive(sequence + 1, fits, 1000, 1);
  (void)arrive(sequence, frame(FrameType::kRts));
  EXPECT_FALSE(take().placed);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(kUntouched));
  (void)arrive(sequence + 2, fits, 1000, 1);
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(holds(1, 0, 1000));
}

TEST_F(UcxInboxTest, ARevokedMessageIsNotWritten) {
  ASSERT_TRUE(targets().post_message(kTag, {0, 0, memory_.data(), kSize, false}));
  EXPECT_TRUE(targets().revoke_message(kTag, 0, /*taken=*/false));
  EXPECT_TRUE(targets().revoke_message(kTag, 0, /*taken=*/false));
  EXPECT_TRUE(targets().revoke_message(kTag + 1, 0, /*taken=*/false));
  (void)arrive(0, frame(FrameType::kEager), kSize, 1);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(kUntouched));
}

// ---- Puts and answers ---------------------------------------------------------------------------

TEST_F(UcxInboxTest, APutIntoAPostedRegionIsWritten) {
  post_region();
  (void)arrive(0, put(100, 1000), 600, 1);
  (void)arrive(1, frame(FrameType::kData, 600, oh::kOneSided), 400, 2);
  EXPECT_TRUE(holds(1, 100, 700));
  EXPECT_TRUE(holds(2, 700, 1100));
  EXPECT_TRUE(holds(kUntouched, 1100));
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(take().placed);
}

TEST_F(UcxInboxTest, PutsBesideTheRegionAreNotWritten) {
  post_region();
  Frame other = put(0, 100);
  other.region = 4;
  for (const Frame& one : {put(kSize - 99, 100), put(kSize + 1, 0), put(UINT64_MAX, 100),
                           put(0, 50), put(0, 100, /*version=*/2), other}) {
    (void)arrive(static_cast<uint32_t>(inbox_.taken()), one, 100, 1);
    EXPECT_FALSE(take().placed);
  }
  EXPECT_TRUE(holds(kUntouched));
}

// Both write the same bytes: the later one must win.
TEST_F(UcxInboxTest, APutWaitsForOneWhoseBytesWait) {
  (void)arrive(0, put(0, 100), 100, 1);
  post_region();
  (void)arrive(1, put(0, 100), 100, 2);
  EXPECT_TRUE(holds(kUntouched));
  EXPECT_FALSE(take().placed);
  EXPECT_FALSE(take().placed);
  (void)arrive(2, put(0, 100), 100, 3);
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(holds(3, 0, 100));
}

TEST_F(UcxInboxTest, APutThatWasStashedComesBeforeLaterOnes) {
  post_region();
  (void)arrive(1, put(0, 100), 100, 1);
  (void)arrive(0, frame(FrameType::kRts));
  (void)arrive(2, put(0, 100), 100, 2);
  EXPECT_TRUE(holds(kUntouched));
  (void)take();
  EXPECT_FALSE(take().placed);
  EXPECT_FALSE(take().placed);
  EXPECT_EQ(bytes_, Bytes(100, 2));
}

TEST_F(UcxInboxTest, TheRestOfAPutDoesNotOutliveItsRegion) {
  post_region();
  (void)arrive(0, put(0, 1000), 500, 1);
  targets().revoke_region(1);
  (void)arrive(1, frame(FrameType::kData, 500, oh::kOneSided), 500, 2);
  EXPECT_TRUE(take().placed);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(kUntouched, 500));
}

TEST_F(UcxInboxTest, OnlyTheNextBytesOfAPutAreWritten) {
  post_region();
  (void)arrive(0, put(0, 1000), 500, 1);
  (void)arrive(1, frame(FrameType::kData, 600, oh::kOneSided), 100, 2);
  EXPECT_TRUE(take().placed);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(kUntouched, 500));
}

TEST_F(UcxInboxTest, TheOldestRegionLeavesRoom) {
  for (uint64_t version = 1; version <= UcxTargets::kMostRegions + 1; ++version) {
    post_region(version);
  }
  (void)arrive(0, put(0, 100, 1), 100, 1);
  EXPECT_FALSE(take().placed);
  (void)arrive(1, put(0, 100, UcxTargets::kMostRegions + 1), 100, 2);
  EXPECT_TRUE(take().placed);
  EXPECT_TRUE(holds(2, 0, 100));
}

struct Sink final : oh::UcxSink {
  explicit Sink(uint8_t* to) : memory(to) {}
  uint8_t* place_of(uint32_t block, uint64_t offset, uint64_t size) const override {
    return block == 0 && offset <= kSize && size <= kSize - offset ? memory + offset : nullptr;
  }
  uint8_t* memory;
};

TEST_F(UcxInboxTest, AnswersToAGetAreWrittenUntilTheyAreRevoked) {
  Sink sink(memory_.data());
  const Frame answer = frame(FrameType::kData, 300, oh::kOneSided | oh::kReply);
  targets().post_answers(kOp, &sink);
  (void)arrive(0, answer, 100, 1);
  EXPECT_TRUE(take().placed);
  Frame nowhere = answer;
  nowhere.number = 1;
  (void)arrive(1, nowhere, 100, 2);
  EXPECT_FALSE(take().placed);
  targets().revoke_answers(kOp);
  (void)arrive(2, answer, 100, 3);
  EXPECT_FALSE(take().placed);
  EXPECT_TRUE(holds(1, 300, 400));
  EXPECT_TRUE(holds(kUntouched, 400));
}

// ---- The end ------------------------------------------------------------------------------------

TEST_F(UcxInboxTest, NothingIsWrittenOnceAllIsRevoked) {
  Sink sink(memory_.data());
  auto post_all = [&] {
    targets().post(kOp, memory_.data(), 0, kSize);
    const bool posted = targets().post_message(kTag, {0, 0, memory_.data(), kSize, false});
    post_region();
    targets().post_answers(kOp, &sink);
    return posted;
  };
  EXPECT_TRUE(post_all());
  (void)arrive(0, put(0, 1000), 500, kUntouched);  // one that is arriving
  targets().revoke_all();
  EXPECT_FALSE(post_all());
  (void)arrive(1, frame(FrameType::kData, 500, oh::kOneSided), 500, 1);
  (void)arrive(2, frame(FrameType::kData), 100, 1);
  (void)arrive(3, frame(FrameType::kEager), 100, 1);
  (void)arrive(4, put(0, 100), 100, 1);
  (void)arrive(5, frame(FrameType::kData, 0, oh::kOneSided | oh::kReply), 100, 1);
  EXPECT_TRUE(holds(kUntouched));
  EXPECT_TRUE(take().placed);
  EXPECT_EQ(take_all().size(), 5u);
}

}  // namespace
}  // namespace unit::ucx_inbox_test
