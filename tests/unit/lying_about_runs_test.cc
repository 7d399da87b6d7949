// SPDX-License-Identifier: Apache-2.0
//
// A peer that lies about blocks that are sent as one message: it writes only into these blocks, and
// may lose its link.
#include <algorithm>

#include "fuzz/victim.h"
#include "unit/support.h"

namespace lying_about_runs_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

class LyingAboutRuns : public ::testing::Test {
 protected:
  ~LyingAboutRuns() override {
    const ByteView bytes(victim_.region().base, victim_.region().length);
    EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 5), written_);
  }
  // A run of blocks {offset, length}, each encoded in two words.
  void ask(FrameType type, uint64_t length, const std::vector<uint64_t>& blocks,
           uint64_t op = kName) {
    frame_ = {};
    frame_.type = type;
    frame_.flags = kStaged;
    frame_.region = victim_.region().index;
    frame_.tag = victim_.region().version;
    frame_.length = length;
    frame_.op = op;
    if (blocks.size() == 2) frame_.address = blocks[0];
    const size_t listed = blocks.size() > 2 ? blocks.size() : 0;
    say({reinterpret_cast<const uint8_t*>(blocks.data()), listed * sizeof(uint64_t)});
  }
  void send(uint64_t at, size_t size) {
    frame_ = {};
    frame_.type = FrameType::kData;
    frame_.op = kName;
    frame_.address = at;
    say(Bytes(size, 5));
  }
  // The reply to a local get, or a frame about one.
  void answer(FrameType type, uint64_t tag, uint64_t length, uint64_t op) {
    frame_ = {};
    frame_.type = type;
    frame_.flags = type == FrameType::kRts    ? kOneSided
                   : type == FrameType::kData ? kOneSided | kReply
                                              : 0;
    frame_.tag = tag;
    frame_.length = length;
    frame_.op = op;
    say({});
  }
  void say(ByteView payload) {
    Bytes message;
    Writer writer(message);
    frame_.payload_size = payload.size();
    FrameBody body = body_of(frame_);
    writer.u64(cell_word(0, frame_.type, frame_.flags, 0));
    writer.raw({reinterpret_cast<const uint8_t*>(&body), sizeof(body)});
    writer.raw(payload);
    victim_.hear(kFrameMessage, message, false);
    victim_.progress();
  }
  ::testing::AssertionResult lost() { return fails_with(victim_.peer().usable(), OH_ERR_PROTOCOL); }
  // Without local operations in flight, only a get by the peer adds an entry.
  bool serves_a_get() {
    bool any = false;
    victim_.peer().link().ops.for_each([&](const Request*) { any = true; });
    return any;
  }
  ::testing::AssertionResult unmoved() { return is_ok(victim_.peer().usable()); }

  fuzz::Victim victim_{/*segment=*/false, /*reach=*/0};
  Frame frame_;
  int written_ = 0;  // bytes of the region
};

TEST_F(LyingAboutRuns, ThatIsHowItWouldBe) {
  ask(FrameType::kPut, 30, {0, 10, 50, 20});
  send(0, 10);
  send(10, 20);
  ask(FrameType::kGet, 30, {0, 10, 50, 20}, 2 * kName);
  EXPECT_TRUE(serves_a_get());
  EXPECT_TRUE(unmoved());
  written_ = 30;
}

TEST_F(LyingAboutRuns, BlocksOutsideOfTheRegionAreRefused) {
  const uint64_t length = victim_.region().length;
  for (FrameType type : {FrameType::kPut, FrameType::kGet}) {
    ask(type, 2, {length - 1, 2});
    ask(type, 11, {0, 10, UINT64_MAX, 1});
    ask(type, 11, {0, 10, length, 1});
  }
  send(0, 2);
  EXPECT_FALSE(serves_a_get());
  EXPECT_TRUE(unmoved());
}

class LyingAboutLists : public LyingAboutRuns,
                        public ::testing::WithParamInterface<std::vector<uint64_t>> {};

TEST_P(LyingAboutLists, LoseTheLink) {
  uint64_t length = GetParam().size() > 1000 ? 513 : 30;
  ask(FrameType::kPut, GetParam().size() == 2 ? 0 : length, GetParam());
  EXPECT_TRUE(lost());
}

INSTANTIATE_TEST_SUITE_P(Lists, LyingAboutLists,
                         ::testing::Values(std::vector<uint64_t>{0, 10, 50, 21},
                                           std::vector<uint64_t>{0, 10, 50, 19},
                                           std::vector<uint64_t>{0, 30, 50, 0},
                                           std::vector<uint64_t>{0, 40, 50, UINT64_MAX - 9},
                                           std::vector<uint64_t>{0, 10, 50},
                                           std::vector<uint64_t>{0, 0},
                                           std::vector<uint64_t>(2 * 513, 1)));

TEST_F(LyingAboutRuns, PartsThatLeaveTheirBlock) {
  ask(FrameType::kPut, 30, {0, 10, 50, 20});
  send(0, 11);
  EXPECT_TRUE(lost());
}

TEST_F(LyingAboutRuns, OneNameForTwo) {
  ask(FrameType::kPut, 10, {0, 10});
  ask(FrameType::kPut, 10, {0, 10});
  EXPECT_TRUE(lost());
}

TEST_F(LyingAboutRuns, AnswersThatNobodyAskedFor) {
  answer(FrameType::kRts, kName, 10, kName);
  EXPECT_TRUE(unmoved());
  victim_.post_one_sided(/*put=*/true, 100, false, /*to_device=*/true);
  // The run's name follows the operation's.
  answer(FrameType::kAck, 0, 0, kName | 1);  // too early
  EXPECT_TRUE(unmoved());
  answer(FrameType::kRts, kName | 1, 100, kName);
  EXPECT_TRUE(lost());
}

// An operation ends by its runs alone: a frame with its own name does not end it.
TEST_F(LyingAboutRuns, TheNameOfTheOperation) {
  victim_.post_one_sided(/*put=*/true, 100, false, /*to_device=*/true);
  answer(FrameType::kAck, 0, 0, kName);
  EXPECT_EQ(victim_.pending(), 1u);
  frame_.aux = static_cast<uint32_t>(OH_ERR_RANGE);
  say({});
  EXPECT_EQ(victim_.pending(), 1u);
  answer(FrameType::kReject, 0, 0, kName | 1);
  EXPECT_EQ(victim_.pending(), 0u);
  EXPECT_TRUE(unmoved());
}

TEST_F(LyingAboutRuns, AnAnswerToTheNameOfAGet) {
  victim_.post_one_sided(/*put=*/false, 100, false, /*to_device=*/true);
  answer(FrameType::kAck, 0, 0, kName);
  EXPECT_EQ(victim_.pending(), 1u);
  answer(FrameType::kData, 0, 0, kName);
  EXPECT_TRUE(lost());
}

TEST_F(LyingAboutRuns, AnAnswerOfAnotherLength) {
  victim_.post_one_sided(/*put=*/false, 100, false, /*to_device=*/true);
  answer(FrameType::kRts, kName | 1, 101, kName);
  EXPECT_TRUE(lost());
}

}  // namespace
}  // namespace lying_about_runs_test
