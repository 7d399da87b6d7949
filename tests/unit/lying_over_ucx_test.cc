// SPDX-License-Identifier: Apache-2.0
//
// A peer that lies over UCX, where bytes are written into receives before their frames are handled:
// it cannot write into a released buffer, and loses its link. The test calls UCX's callbacks, so
// nothing is sent.
#include <algorithm>
#include <cstring>

#include "fuzz/victim.h"
#include "transport/ucx/ucx_head.h"
#include "transport/ucx/ucx_packing.h"
#include "ucx_listener.h"
#include "unit/support.h"

namespace lying_over_ucx_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint32_t kKey = 77;
constexpr uint64_t kTag = 5;
constexpr uint64_t kName = uint64_t{1} << 32;
constexpr size_t kSize = 1000;

struct Receive {
  bool holds(uint8_t byte, size_t size = kSize) const {
    return std::count(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size), byte) ==
           static_cast<ptrdiff_t>(size);
  }
  bool has_ended_well() const { return request.ended() && request.status.ok(); }
  void poison() { std::fill(bytes.begin(), bytes.end(), 0xee); }

  Bytes bytes = Bytes(kSize, 0xee);
  Request request;
};

class LyingOverUcx : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::shared_ptr<UcxWorker>> worker = endpoint_->ucx().worker();
    if (!worker.ok()) GTEST_SKIP() << "no UCX here: " << worker.status().text();
    auto channel = std::make_unique<UcxChannel>(*worker, /*peer_credit=*/1 << 20, kKey, 0);
    channel_ = channel.get();
    victim_.emplace(/*segment=*/false, /*reach=*/0, std::move(channel));
  }
  void TearDown() override {
    if (victim_) victim_->peer().close();
  }

  void post(Receive& receive) {
    receive.request.kind = OpKind::kRecv;
    receive.request.endpoint = endpoint_.get();
    receive.request.data = receive.bytes.data();
    receive.request.size = kSize;
    receive.request.tag = kTag;
    ASSERT_TRUE(is_ok(victim_->peer().operations().messages().post_recv(&receive.request)));
  }
  bool cancel(Receive& receive) {
    return endpoint_->requests().cancel(&receive.request).ok() &&
           fails_with(receive.request.status, OH_ERR_CANCELLED);
  }
  bool give_up(Receive& receive) {
    return victim_->peer().operations().try_end(&receive.request, error(OH_ERR_TIMEOUT, "late"),
                                                Operations::Force::kGiveUp);
  }

  // Frames that arrive over UCX wait in the inbox for progress().
  void come(uint32_t sequence, FrameType type, ByteView body, ByteView data, uint8_t flags = 0) {
    const UcxHead head{0, sequence, cell_word(kKey, type, flags, 0)};
    Bytes header(sizeof(head));
    std::memcpy(header.data(), &head, sizeof(head));
    header.insert(header.end(), body.begin(), body.end());
    Bytes copy(data.begin(), data.end());
    SpinGuard guard(channel_->worker().lock);
    EXPECT_EQ(channel_->arrived(head, header, copy.data(), copy.size(), 0), ucx::kOk);
  }
  void come(const Frame& frame, uint8_t byte = 0) {
    const FrameBody body = body_of(frame);
    come(next_++, frame.type, {reinterpret_cast<const uint8_t*>(&body), sizeof(body)},
         Bytes(frame.payload_size, byte));
  }
  // Such a message is never written in place.
  void come_small(uint8_t byte, size_t size) {
    Bytes body(sizeof(kTag) + size, byte);
    std::memcpy(body.data(), &kTag, sizeof(kTag));
    come(next_++, FrameType::kEager, body, {}, kShort);
  }
  static Frame eager(uint32_t number, size_t payload, uint64_t op = 0) {
    Frame frame = named(FrameType::kEager, op);
    frame.number = number;
    frame.payload_size = payload;
    return frame;
  }
  static Frame named(FrameType type, uint64_t op) {
    Frame frame;
    frame.type = type;
    frame.tag = kTag;
    frame.length = kSize;
    frame.op = op;
    return frame;
  }
  static Frame rest(uint64_t op) {
    Frame frame = named(FrameType::kData, op);
    frame.address = frame.payload_size = kSize / 2;
    return frame;
  }
  void progress() { victim_->progress(); }
  ::testing::AssertionResult lost() {
    return fails_with(victim_->peer().usable(), OH_ERR_PROTOCOL);
  }
  ::testing::AssertionResult unmoved() { return is_ok(victim_->peer().usable()); }

  // A receive is in place and has the first half of its message; another message overtakes it.
  void overtake(const Frame* announced) {
    post(first_);
    announced ? come(*announced) : come_small(4, 10);
    come(eager(0, kSize / 2, kName), 3);
    EXPECT_TRUE(first_.holds(3, kSize / 2));
    progress();
    EXPECT_TRUE(lost());
    EXPECT_TRUE(fails_with(first_.request.status, OH_ERR_PROTOCOL));
    first_.poison();
    come(rest(kName), 3);
    progress();
    EXPECT_TRUE(first_.holds(0xee));
  }

  std::shared_ptr<Endpoint> endpoint_ = fuzz::Victim::shared_endpoint();
  Receive first_;
  Receive second_;
  Receive third_;
  std::optional<fuzz::Victim> victim_;
  UcxChannel* channel_ = nullptr;
  uint32_t next_ = 0;
};

TEST_F(LyingOverUcx, ThatIsHowItWouldBe) {
  post(first_);
  post(second_);
  come(eager(0, kSize / 2, kName), 3);
  come(eager(1, kSize), 4);
  come(rest(kName), 3);
  EXPECT_TRUE(first_.holds(3));
  EXPECT_TRUE(second_.holds(4));
  EXPECT_FALSE(cancel(first_));
  progress();
  EXPECT_TRUE(first_.has_ended_well());
  EXPECT_TRUE(second_.has_ended_well());
  EXPECT_TRUE(unmoved());
}

TEST_F(LyingOverUcx, ASmallMessageThatOvertakes) { overtake(nullptr); }

TEST_F(LyingOverUcx, AnAnnouncedMessageThatOvertakes) {
  const Frame frame = named(FrameType::kRts, kName + 1);
  overtake(&frame);
}

// The receive would be taken back for ever.
TEST_F(LyingOverUcx, AnEpochWhoseMessagesGoOn) {
  post(first_);
  Frame epoch = named(FrameType::kEpoch, 0);
  epoch.aux = 1;
  come(epoch);
  come(eager(0, kSize), 3);
  EXPECT_TRUE(first_.holds(3));
  progress();
  EXPECT_TRUE(lost());
  EXPECT_TRUE(fails_with(first_.request.status, OH_ERR_PROTOCOL));
}

// A message is withdrawn, and no epoch follows: its receive would have the number of the next one.
TEST_F(LyingOverUcx, AMessageThatIsTakenBackWithoutAnEpoch) {
  post(first_);
  come(named(FrameType::kRts, kName));
  progress();
  post(second_);
  come(named(FrameType::kAbort, kName));
  progress();
  post(third_);
  EXPECT_TRUE(cancel(third_));
  EXPECT_TRUE(cancel(second_));
  come(eager(1, kSize), 3);
  EXPECT_TRUE(second_.holds(0xee));
  progress();
  EXPECT_TRUE(first_.holds(3));
  EXPECT_TRUE(first_.has_ended_well());
  EXPECT_TRUE(unmoved());
}

// Not a lie: the first message waits in the inbox, the second is in place. Neither may be lost.
TEST_F(LyingOverUcx, ADeadlineTakesNobodysMessage) {
  post(first_);
  post(second_);
  come_small(3, 10);
  come(eager(1, kSize), 4);
  EXPECT_TRUE(give_up(first_));
  EXPECT_TRUE(first_.has_ended_well());
  EXPECT_TRUE(first_.holds(3, 10));
  progress();
  EXPECT_TRUE(second_.has_ended_well());
  EXPECT_TRUE(second_.holds(4));
  EXPECT_TRUE(unmoved());
}

// The rest of the first message does not arrive: the deadline ends its receive all the same.
TEST_F(LyingOverUcx, ADeadlineEndsWhatHasBegun) {
  post(first_);
  post(second_);
  come(eager(7, kSize / 2, kName), 3);
  come(eager(1, kSize), 4);
  while (!give_up(first_)) {
  }
  EXPECT_TRUE(fails_with(first_.request.status, OH_ERR_TIMEOUT));
  first_.poison();
  come(rest(kName), 3);
  progress();
  EXPECT_TRUE(first_.holds(0xee));
  EXPECT_TRUE(second_.has_ended_well());
  EXPECT_TRUE(second_.holds(4));
}

// Another thread may still revoke receives while the link ends.
TEST_F(LyingOverUcx, NothingIsExpectedOnceAllIsForbidden) {
  uint8_t* to = first_.bytes.data();
  channel_->targets().revoke_all();
  channel_->targets().post(kName, to, 0, kSize);
  EXPECT_FALSE(channel_->targets().post_message(kTag, {0, 0, to, kSize, false}));
  channel_->targets().post_region({victim_->region().index, victim_->region().version, to, kSize});
  come(rest(kName), 3);
  come(eager(0, kSize), 3);
  Frame put = named(FrameType::kPut, kName);
  put.region = victim_->region().index;
  put.tag = victim_->region().version;
  put.payload_size = kSize;
  come(put, 3);
  EXPECT_TRUE(first_.holds(0xee));
}

// One message is withheld, and all later messages would have to be kept.
TEST_F(LyingOverUcx, WhatIsWithheldHasABound) {
  Frame frame = named(FrameType::kPut, kName);
  const Bytes payload(1 << 20, 3);
  frame.payload = payload.data();
  frame.payload_size = payload.size();
  Bytes packed(kPackedHead + payload.size());
  (void)pack_frame(packed.data(), frame);
  constexpr uint32_t kHonest = 32;
  uint32_t sequence = 0;
  while (sequence < kHonest) come(++sequence, kUcxPacked, {}, packed);
  EXPECT_TRUE(is_ok(channel_->broken()));
  while (sequence < 4 * kHonest && channel_->broken().ok()) {
    come(++sequence, kUcxPacked, {}, packed);
  }
  EXPECT_LE(sequence, 2 * kHonest);
  EXPECT_TRUE(fails_with(channel_->broken(), OH_ERR_PEER_LOST));
}

// Its worker makes no progress, so what is sent to it stays in UCX's hands.
TEST_F(LyingOverUcx, AnswersToProbesHaveABound) {
  Result<std::shared_ptr<UcxWorker>> stopped =
      UcxWorker::create(channel_->worker().context(), {}, std::make_shared<NoListener>());
  ASSERT_TRUE(is_ok(stopped));
  UcxChannel peer(*stopped, /*peer_credit=*/1 << 20, kKey, 0);
  Result<UcxChannel::Remote> remote = peer.own(/*network=*/false);
  ASSERT_TRUE(is_ok(remote));
  ASSERT_TRUE(is_ok(channel_->connect(*remote, 400)));
  const Bytes rest(kUcxBodySize - sizeof(UcxHead) + channel_->max_inline());
  const uint64_t bound = UcxPacker::kMostOutstanding / rest.size();
  come(0, kUcxProbe, rest, {});
  EXPECT_TRUE(is_ok(channel_->broken()));
  for (uint64_t i = 0; i < 16 * bound && channel_->broken().ok(); ++i) {
    come(0, kUcxProbe, rest, {});
  }
  EXPECT_TRUE(fails_with(channel_->broken(), OH_ERR_PEER_LOST, "takes no answers"));
}

TEST_F(LyingOverUcx, FramesOnTheSocketBesideIt) {
  post(first_);
  const FrameBody body = body_of(eager(0, 0));
  Bytes message;
  Writer writer(message);
  writer.u64(cell_word(0, FrameType::kEager, 0, 0));
  writer.raw({reinterpret_cast<const uint8_t*>(&body), sizeof(body)});
  victim_->hear(kFrameMessage, message, false);
  EXPECT_TRUE(lost());
}

}  // namespace
}  // namespace lying_over_ucx_test
