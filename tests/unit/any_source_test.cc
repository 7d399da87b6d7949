// SPDX-License-Identifier: Apache-2.0
//
// Receives from any source keep the order per peer and tag, whichever thread posts, offers or
// drains. One test runs every interleaving of their steps; the others order one race each.
#include <array>
#include <cstring>
#include <memory>

#include "fuzz/victim.h"
#include "unit/race.h"
#include "unit/support.h"

namespace any_source_test {
namespace {

using namespace oh;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;

// One receive of 8 bytes, and its result.
struct Receive {
  Receive(Endpoint& endpoint, uint64_t tag, size_t size = 8) : bytes(size, 0xee) {
    request.kind = OpKind::kRecv;
    request.endpoint = &endpoint;
    request.data = bytes.data();
    request.size = size;
    request.tag = tag;
  }
  // The number of the message received, or -1.
  int64_t got() const {
    if (!request.ended() || !request.status.ok()) return -1;
    int64_t number = -1;
    std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  Bytes bytes;
  Request request;
};

class AnySourceOrder : public ::testing::Test {
 protected:
  AnySourceOrder() {
    for (size_t i = 0; i < 2; ++i)
      rings_[i] = std::make_unique<RingChannel>(*victims_[i].segment());
  }

  Endpoint& endpoint() { return victims_[0].endpoint(); }
  Peer& peer(size_t from) { return victims_[from].peer(); }

  // A message of 8 bytes arrives from one of the peers and is handled.
  void arrive(size_t from, uint64_t tag, int64_t number) {
    uint8_t bytes[8];
    std::memcpy(bytes, &number, sizeof(number));
    ASSERT_TRUE(rings_[from]->push_short(tag, bytes, sizeof(bytes)));
    peer(from).operations().progress(nullptr);
  }
  // A message is announced, but its sender withdraws it before it is claimed.
  void announce_withdrawn(size_t from, uint64_t tag) {
    Frame frame;
    frame.type = FrameType::kRts;
    frame.tag = tag;
    frame.length = 8;
    frame.op = kName;
    frame.slot = 0;
    frame.number = 1;  // no such slot is posted
    ASSERT_TRUE(rings_[from]->push(frame));
    peer(from).operations().progress(nullptr);
  }
  // The two steps of Endpoint::post_any_source().
  void post(Receive& receive) {
    receive.request.any_source = true;
    endpoint().requests().any_source().post(&receive.request);
  }
  void offer() {
    for (size_t i = 0; i < 2; ++i) peer(i).operations().messages().offer_unexpected();
  }
  void cancel(Receive& receive) {
    if (!receive.request.ended()) {
      EXPECT_TRUE(is_ok(endpoint().requests().cancel(&receive.request)));
    }
  }

  fuzz::Victim victims_[2] = {{/*segment=*/true, /*reach=*/3}, {/*segment=*/true, /*reach=*/3}};
  std::array<std::unique_ptr<RingChannel>, 2> rings_;
};

// One step of a thread: posts a receive, offers it to a peer, or delivers a message.
struct Step {
  enum Kind { kPostAny, kPostHere, kOffer, kArrive } kind;
  size_t peer = 0;
  uint64_t tag = 0;
};
using Program = std::vector<Step>;

// A receive from one peer keeps the name of its withdrawn message until the Abort. A second message
// with that name is a protocol error, which ends its receive.
TEST_F(AnySourceOrder, AReceiveOfOnePeerKeepsAWithdrawnMessageUntilItsAbort) {
  Receive first(endpoint(), 1);
  Receive second(endpoint(), 1);
  for (Receive* receive : {&first, &second}) {
    ASSERT_TRUE(is_ok(peer(0).operations().messages().post_recv(&receive->request)));
    announce_withdrawn(0, 1);
  }
  EXPECT_FALSE(first.request.ended());
  ASSERT_TRUE(second.request.ended());
  EXPECT_EQ(second.request.status.code(), OH_ERR_PROTOCOL);
  Frame abort;
  abort.type = FrameType::kAbort;
  abort.op = kName;
  ASSERT_TRUE(rings_[0]->push(abort));
  arrive(0, 1, 7);
  EXPECT_EQ(first.got(), 7);
}

class Interleavings : public AnySourceOrder {
 protected:
  struct Message {
    size_t peer;
    uint64_t tag;
    bool received = false;
  };
  struct Posted {
    std::unique_ptr<Receive> receive;
    int peer;          // -1: any
    size_t ended = 0;  // the step that ended it
  };

  // Runs every interleaving of the programs; returns their number.
  size_t run_all(const std::vector<Program>& programs) {
    std::vector<size_t> at(programs.size(), 0);
    std::vector<Step> order;
    size_t count = 0;
    descend(programs, at, order, count);
    return count;
  }

 private:
  void descend(const std::vector<Program>& programs, std::vector<size_t>& at,
               std::vector<Step>& order, size_t& count) {
    bool any = false;
    for (size_t i = 0; i < programs.size() && !HasFatalFailure(); ++i) {
      if (at[i] == programs[i].size()) continue;
      any = true;
      order.push_back(programs[i][at[i]++]);
      descend(programs, at, order, count);
      --at[i];
      order.pop_back();
    }
    if (any || HasFatalFailure()) return;
    ++count;
    run(order);
  }

  void run(const std::vector<Step>& order) {
    std::vector<Message> messages;
    std::vector<Posted> receives;
    size_t steps = 0;
    for (const Step& step : order) {
      ++steps;
      switch (step.kind) {
        case Step::kPostAny:
          receives.push_back({std::make_unique<Receive>(endpoint(), step.tag), -1});
          post(*receives.back().receive);
          break;
        case Step::kPostHere:
          receives.push_back(
              {std::make_unique<Receive>(endpoint(), step.tag), static_cast<int>(step.peer)});
          ASSERT_TRUE(is_ok(peer(step.peer).operations().messages().post_recv(
              &receives.back().receive->request)));
          break;
        case Step::kOffer:
          peer(step.peer).operations().messages().offer_unexpected();
          break;
        case Step::kArrive:
          messages.push_back({step.peer, step.tag});
          arrive(step.peer, step.tag, static_cast<int64_t>(messages.size()) - 1);
          break;
      }
      for (Posted& posted : receives) {
        if (posted.receive->request.ended() && !posted.ended) posted.ended = steps;
      }
    }
    judge(order, messages, receives);
    for (Posted& posted : receives) cancel(*posted.receive);
    for (const Message& message : messages) {
      if (message.received) continue;
      Receive rest(endpoint(), message.tag);
      ASSERT_TRUE(is_ok(peer(message.peer).operations().messages().post_recv(&rest.request)));
      ASSERT_TRUE(rest.request.ended());
    }
  }

  static std::string text_of(const std::vector<Step>& order, const std::vector<Posted>& receives) {
    std::string text;
    for (const Step& step : order) {
      static constexpr const char* kNames[] = {"any", "here", "offer", "message"};
      text += strf("%s(%zu, tag %lld) ", kNames[step.kind], step.peer,
                   static_cast<long long>(step.tag));
    }
    for (const Posted& posted : receives) {
      text += strf("-> %lld ", static_cast<long long>(posted.receive->got()));
    }
    return text;
  }

  // A message goes to the receive that was posted first, and a receive gets the first message of a
  // peer. No receive stays pending beside a message that it matches.
  void judge(const std::vector<Step>& order, std::vector<Message>& messages,
             const std::vector<Posted>& receives) {
    auto takes = [&](const Posted& posted, const Message& message) {
      const uint64_t tag = posted.receive->request.tag;
      return (posted.peer < 0 || posted.peer == static_cast<int>(message.peer)) &&
             (tag == OH_ANY_TAG || tag == message.tag);
    };
    for (size_t i = 0; i < receives.size(); ++i) {
      const int64_t first = receives[i].receive->got();
      if (first >= 0) messages[static_cast<size_t>(first)].received = true;
      for (size_t j = i + 1; j < receives.size(); ++j) {
        const int64_t second = receives[j].receive->got();
        if (second < 0 || !takes(receives[i], messages[static_cast<size_t>(second)])) continue;
        const bool same_peer = first >= 0 && messages[static_cast<size_t>(first)].peer ==
                                                 messages[static_cast<size_t>(second)].peer;
        ASSERT_TRUE(first >= 0 && (!same_peer || first < second) &&
                    receives[i].ended <= receives[j].ended)
            << text_of(order, receives);
      }
    }
    for (size_t k = 0; k < messages.size(); ++k) {
      if (messages[k].received) continue;
      for (const Posted& posted : receives) {
        if (!takes(posted, messages[k])) continue;
        const int64_t got = posted.receive->got();
        // It is still pending, or a later message of that peer has passed this one.
        ASSERT_TRUE(got >= 0 && !(messages[static_cast<size_t>(got)].peer == messages[k].peer &&
                                  got > static_cast<int64_t>(k)))
            << text_of(order, receives);
      }
    }
  }
};

Program any_source_receives(const std::vector<uint64_t>& tags) {
  Program program;
  for (uint64_t tag : tags) {
    program.push_back({Step::kPostAny, 0, tag});
    program.push_back({Step::kOffer, 0, tag});
    program.push_back({Step::kOffer, 1, tag});
  }
  return program;
}

TEST_F(Interleavings, OfOneTag) {
  EXPECT_EQ(run_all({any_source_receives({1, 1}),
                     {{Step::kArrive, 0, 1}, {Step::kArrive, 0, 1}, {Step::kArrive, 0, 1}},
                     {{Step::kArrive, 1, 1}}}),
            840u);
}

TEST_F(Interleavings, OfAnyTag) {
  EXPECT_EQ(run_all({any_source_receives({OH_ANY_TAG, 1}),
                     {{Step::kArrive, 0, 2}, {Step::kArrive, 0, 1}, {Step::kArrive, 0, 1}},
                     {{Step::kArrive, 1, 1}, {Step::kArrive, 1, 2}}}),
            4620u);
}

TEST_F(Interleavings, OfTwoThreadsThatPost) {
  EXPECT_EQ(run_all({any_source_receives({1}),
                     any_source_receives({OH_ANY_TAG}),
                     {{Step::kArrive, 0, 2}, {Step::kArrive, 0, 1}, {Step::kArrive, 0, 1}}}),
            1680u);
}

// Receives from one peer are posted before and after an any-source receive that has been posted but
// not offered yet.
TEST_F(Interleavings, WithReceivesOfOnePeer) {
  EXPECT_EQ(run_all({any_source_receives({1}),
                     {{Step::kPostHere, 0, 1}, {Step::kPostHere, 1, OH_ANY_TAG}},
                     {{Step::kArrive, 0, 1}, {Step::kArrive, 0, 1}},
                     {{Step::kArrive, 1, 1}, {Step::kArrive, 1, 1}}}),
            7560u);
}

// Further cases: one race each.
class AnySourceRaces : public AnySourceOrder, public unit::Race {};

// Another thread posts between the offer of unexpected messages and the match of a new one.
TEST_F(AnySourceRaces, AReceiveThatIsPostedWhileAMessageIsMatched) {
  Receive other(endpoint(), 2);
  Receive first(endpoint(), 1);
  Receive second(endpoint(), 1);
  post(other);  // so that arriving messages check the any-source list
  arrive(0, 1, 0);
  at("receiver.match", [&] {
    post(first);
    post(second);
  });
  arrive(0, 1, 1);
  EXPECT_TRUE(came_by());
  offer();
  EXPECT_EQ(first.got(), 0);
  EXPECT_EQ(second.got(), 1);
  cancel(other);
}

// While a receive is bound to a message that is withdrawn, a matching message arrives at another
// peer, to which the receive had been offered already.
TEST_F(AnySourceRaces, AReceiveThatComesBackIsOfferedToAllPeersAgain) {
  for (bool early : {true, false}) {
    Receive receive(endpoint(), 1);
    if (early) announce_withdrawn(1, 1);
    post(receive);
    peer(0).operations().messages().offer_unexpected();
    at("receiver.taken", [&] { arrive(0, 1, 7); });
    early ? peer(1).operations().messages().offer_unexpected() : announce_withdrawn(1, 1);
    EXPECT_TRUE(came_by());
    EXPECT_EQ(receive.got(), -1);
    endpoint().progress();
    EXPECT_EQ(receive.got(), 7);
    cancel(receive);
  }
}

// A message of another peer arrives first, before that peer's next progress.
TEST_F(AnySourceRaces, AReceiveThatComesBackGetsTheEarlierMessage) {
  Receive first(endpoint(), 1);
  Receive second(endpoint(), 1);
  post(first);
  offer();
  at("receiver.taken", [&] { arrive(0, 1, 7); });
  announce_withdrawn(1, 1);
  EXPECT_TRUE(came_by());
  arrive(0, 1, 8);
  post(second);
  offer();
  EXPECT_EQ(first.got(), 7);
  EXPECT_EQ(second.got(), 8);
}

// A thread that has read which message a receive is bound to resumes late: the message was
// withdrawn.
class AnySourceLate : public AnySourceOrder {
 protected:
  AnySourceLate() {
    post(receive_);
    offer();
  }
  ~AnySourceLate() override { cancel(receive_); }
  void expect_that_it_waits() {
    EXPECT_FALSE(receive_.request.ended());
    EXPECT_TRUE(endpoint().requests().any_source().may_match(1));
    arrive(1, 1, 3);
    EXPECT_EQ(receive_.got(), 3);
    EXPECT_TRUE(endpoint().requests().any_source().empty());
  }
  Receive receive_{endpoint(), 1};
};

TEST_F(AnySourceLate, ACancelLeavesItToItsList) {
  const Status status = error(OH_ERR_CANCELLED, "late");
  EXPECT_FALSE(peer(0).operations().try_end(&receive_.request, status, Operations::Force::kGiveUp));
  expect_that_it_waits();
}

TEST_F(AnySourceLate, AReleaseLeavesItToItsList) {
  EXPECT_FALSE(peer(0).operations().detach(&receive_.request));
  EXPECT_EQ(receive_.request.detached.load(), 0u);
  expect_that_it_waits();
}

TEST_F(AnySourceLate, AWaitThatEndsIsNotItsPeersConcern) {
  peer(0).operations().attend(&receive_.request, true);
  EXPECT_FALSE(receive_.request.attended);
  expect_that_it_waits();
}

// Each of two peers copies a message, one of them into a receive from any source.
TEST_F(AnySourceRaces, ProgressOfAPeerLeavesTheCopiesOfAnotherAlone) {
  constexpr size_t kSize = 8 << 20;
  Receive receive(endpoint(), 1, kSize);
  Receive other(endpoint(), 1, kSize);
  ASSERT_TRUE(is_ok(peer(0).operations().messages().post_recv(&other.request)));
  post(receive);
  offer();
  for (size_t from : {0, 1}) {
    TransferSlot& slot = victims_[from].segment()->outgoing().slots[0];
    slot.owner_length = kSize;
    slot.word.store(slot_word(1, SlotState::kPosted));
    Frame frame;
    frame.type = FrameType::kRts;
    frame.tag = 1;
    frame.length = kSize;
    frame.op = kName;
    frame.slot = 0;
    frame.number = 1;
    ASSERT_TRUE(rings_[from]->push(frame));
    peer(from).operations().progress(nullptr);
    ASSERT_EQ(slot_state(slot.word.load()), SlotState::kClaimed);
  }
  // As a thread does that has read before which peer the receive belongs to.
  for (int i = 0; i < 100; ++i) peer(0).operations().progress(&receive.request);
  EXPECT_FALSE(receive.request.ended());
  EXPECT_TRUE(other.request.ended());
  for (int i = 0; i < 100; ++i) peer(1).operations().progress(&receive.request);
  EXPECT_TRUE(receive.request.ended());
  EXPECT_TRUE(is_ok(receive.request.status));
}

}  // namespace
}  // namespace any_source_test
