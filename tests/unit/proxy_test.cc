// SPDX-License-Identifier: Apache-2.0
//
// Proxy over a port of the test's own: tickets are handed in as kernels do, requests end when the
// test says so.
#include "stream/proxy/proxy.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "onehop/detail/host_atomics.h"
#include "unit/fake_gpu.h"

namespace proxy_test {
namespace {

using namespace oh;
using kernels::kMoveQueue;
using kernels::kSignalQueue;
using kernels::kWaitQueues;
using unit::fails_with;
using unit::is_ok;

constexpr uint32_t kSend = 0;  // queues of lane 0
constexpr uint32_t kRecv = OH_LANES;

class FakePort final : public ProxyPort {
 public:
  const std::string& name() const override { return name_; }
  Status usable() override { return usable_; }
  void wake() override { ++woken_; }
  Status post(Request& request, bool) override {
    if (!room_) return Status(OH_AGAIN, "no room");
    // The receive that is always posted is no operation of a ticket.
    const bool between_proxies = request.kind == OpKind::kRecv && request.size == 64;
    (between_proxies ? incoming_ : posted_).push_back(&request);
    return {};
  }
  Status move(Request& request, const RemoteTarget& target, const Block& block) override {
    moves_.push_back({&request, target.index, block.remote_offset});
    return {};
  }
  Result<uint32_t> begin_atomic(const RemoteTarget& target, uint64_t offset,
                                const AtomicOp& op) override {
    atomics_.push_back({target.index, offset, op});
    return static_cast<uint32_t>(atomics_.size());
  }
  std::optional<Result<uint64_t>> take_atomic(uint32_t name) override {
    return std::exchange(atomics_[name - 1].answer, std::nullopt);
  }
  void abandon_atomic(uint32_t name) override { atomics_[name - 1].abandoned = true; }
  bool try_end(Request& request, const Status& why) override {
    if (stuck_) return false;
    if (!request.ended()) end(request, why);
    return true;
  }
  bool released(const Request&) override { return released_; }
  void discard(uint64_t tag) override { discarded_.push_back(tag); }
  void accuse(const Status& status) override { accused_ = status; }

  void end(Request& request, const Status& status, uint64_t bytes = 0) {
    for (auto* list : {&posted_, &incoming_}) std::erase(*list, &request);
    request.status = status;
    request.nbytes = bytes;
    request.done.store(1);
  }
  // A message of the other proxy.
  void arrives(ProxyMessage::Kind kind, uint32_t index, uint64_t value) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u8(static_cast<uint8_t>(kind));
    writer.u32(index);
    writer.u64(value);
    ASSERT_FALSE(incoming_.empty());
    Request& request = *incoming_.front();
    std::memcpy(request.data, bytes.data(), bytes.size());
    end(request, {}, bytes.size());
  }

  struct Put {
    Request* request;
    uint32_t region;
    uint64_t offset;
  };
  struct Atomic {
    uint32_t region;
    uint64_t offset;
    AtomicOp op;
    std::optional<Result<uint64_t>> answer = {};
    bool abandoned = false;
  };
  std::string name_ = "the peer";
  Status usable_;
  bool room_ = true;
  bool stuck_ = false;
  bool released_ = true;
  int woken_ = 0;
  std::vector<Request*> posted_;
  std::vector<Request*> incoming_;
  std::vector<Put> moves_;
  std::vector<Atomic> atomics_;
  std::vector<uint64_t> discarded_;
  Status accused_;
};

class ProxyTest : public unit::GpuTest {
 protected:
  void SetUp() override {
    unit::GpuTest::SetUp();
    Result<std::shared_ptr<ProxyMemory>> made = ProxyMemory::create(gpu);
    ASSERT_TRUE(is_ok(made));
    memory_ = *made;
    ASSERT_TRUE(unit::eventually([this] {
      Result<bool> open = memory_->is_open();
      return open.ok() && *open;
    }));
    auto port = std::make_unique<FakePort>();
    port_ = port.get();
    proxy_ = std::make_unique<Proxy>(std::move(port), memory_);
  }
  void TearDown() override {
    for (Request* request : std::vector(port_->posted_)) port_->end(*request, {});
    proxy_->close();
    proxy_.reset();
    memory_.reset();
    unit::GpuTest::TearDown();
  }

  void move_by_regions(uint64_t way, OpKind kind, const char* refused);
  // Of a region that is known.
  uint64_t hand_in_atomic(uint64_t way, uint64_t timeout_ns = UINT64_MAX) {
    RemoteTarget target;
    target.index = 5;
    target.version = 2;
    proxy_->know(target);
    kernels::Ticket ticket = message(/*expected=*/9, /*value=*/3);
    ticket.place = {5 | way, 2, 64};
    ticket.timeout_ns = timeout_ns;
    return hand_in(kMoveQueue, ticket);
  }

  // As a kernel hands one in. Its number.
  uint64_t hand_in(uint32_t queue, const kernels::Ticket& fields) {
    proxy_->use(queue);
    const uint64_t number = next_[queue]++;
    kernels::Ticket& ticket = memory_->queue(queue).tickets[number % kernels::kTickets];
    ticket = fields;
    ticket.number = number + 1;
    return number;
  }
  static kernels::Ticket message(uint64_t bytes, uint64_t data = 0) {
    kernels::Ticket ticket{};
    ticket.data = data;
    ticket.bytes = bytes;
    ticket.timeout_ns = UINT64_MAX;
    return ticket;
  }
  // Null: there is none yet.
  const kernels::TicketAnswer* answer(uint32_t queue, uint64_t number) const {
    const kernels::TicketAnswer& answer = memory_->queue(queue).answers[number % kernels::kTickets];
    return answer.number == number + 1 ? &answer : nullptr;
  }
  uint64_t fault(uint32_t queue, uint64_t number) const {
    const kernels::TicketAnswer* found = answer(queue, number);
    return found ? found->fault : UINT64_MAX;
  }

  std::shared_ptr<ProxyMemory> memory_;
  FakePort* port_ = nullptr;
  std::unique_ptr<Proxy> proxy_;
  uint64_t next_[kernels::kProxyQueues] = {};
};

TEST_F(ProxyTest, ASmallSendIsAMessageOfItsPayload) {
  const uint64_t number = hand_in(kSend, message(8));
  EXPECT_TRUE(proxy_->serve());
  ASSERT_EQ(port_->posted_.size(), 1u);
  Request& request = *port_->posted_[0];
  EXPECT_EQ(request.kind, OpKind::kSend);
  EXPECT_EQ(request.data, memory_->payload(kSend, number));
  EXPECT_EQ(request.size, 8u);
  EXPECT_FALSE(answer(kSend, number));
  port_->end(request, {}, 8);
  EXPECT_TRUE(proxy_->serve());
  ASSERT_TRUE(answer(kSend, number));
  EXPECT_EQ(answer(kSend, number)->fault, OH_LANE_OK);
  EXPECT_EQ(answer(kSend, number)->bytes, 8u);
}

// No ticket overtakes another of its half: messages match in the order of their posts.
TEST_F(ProxyTest, TicketsArePostedInOrderWhenThereIsRoom) {
  port_->room_ = false;
  hand_in(kRecv, message(8));
  hand_in(kRecv, message(16));
  proxy_->serve();
  EXPECT_TRUE(port_->posted_.empty());
  port_->room_ = true;
  proxy_->serve();
  ASSERT_EQ(port_->posted_.size(), 2u);
  EXPECT_EQ(port_->posted_[0]->size, 8u);
  EXPECT_EQ(port_->posted_[1]->size, 16u);
}

TEST_F(ProxyTest, ABufferThatIsStillInUseHoldsBackTheAnswer) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->released_ = false;
  port_->end(*port_->posted_[0], {}, 8);
  proxy_->serve();
  EXPECT_FALSE(answer(kRecv, number));
  port_->released_ = true;
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_OK);
}

TEST_F(ProxyTest, AReceiveThatFailsFailsItsHalfUntilAReset) {
  const uint64_t first = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->end(*port_->posted_[0], error(OH_ERR_SYSTEM, "broken"));
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, first), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->failure(0, LaneSide::kRecv), OH_ERR_SYSTEM, "broken"));
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kSend)));
  const uint64_t second = hand_in(kRecv, message(8));
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, second), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_SYSTEM, "with the peer"));
  EXPECT_TRUE(is_ok(proxy_->take_error()));
}

TEST_F(ProxyTest, ATruncatedMessageIsReportedAndTheHalfGoesOn) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->posted_[0]->expected = 100;
  port_->end(*port_->posted_[0], error(OH_ERR_TRUNCATED, "too long"), 8);
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_TRUNCATED);
  EXPECT_EQ(answer(kRecv, number)->bytes, 100u);
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kRecv)));
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TRUNCATED, "receive side of lane 0"));
}

TEST_F(ProxyTest, AReceiveWaitsAgainWhenTheSenderTakesItsMessageBack) {
  const uint64_t number = hand_in(kRecv, message(8));
  proxy_->serve();
  port_->end(*port_->posted_[0], error(OH_ERR_RETIRED, "taken back"));
  proxy_->serve();
  proxy_->serve();
  EXPECT_FALSE(answer(kRecv, number));
  EXPECT_EQ(port_->posted_.size(), 1u);
}

TEST_F(ProxyTest, AReceivePastItsDeadlineEnds) {
  kernels::Ticket ticket = message(8);
  ticket.timeout_ns = 0;
  const uint64_t number = hand_in(kRecv, ticket);
  proxy_->serve();
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, number), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->failure(0, LaneSide::kRecv), OH_ERR_TIMEOUT));
}

// A put or get whose region is known, and one of an earlier region with its index.
void ProxyTest::move_by_regions(uint64_t way, OpKind kind, const char* refused) {
  RemoteTarget target;
  target.index = 5;
  target.version = 2;
  proxy_->know(target);
  kernels::Ticket ticket = message(8, /*data=*/0x1000);
  ticket.place = {5 | way, 2, 64};
  const uint64_t known = hand_in(kMoveQueue, ticket);
  ticket.place.version = 1;
  const uint64_t outdated = hand_in(kMoveQueue, ticket);
  proxy_->serve();
  ASSERT_EQ(port_->moves_.size(), 1u);
  EXPECT_EQ(port_->moves_[0].request->kind, kind);
  EXPECT_EQ(port_->moves_[0].region, 5u);
  EXPECT_EQ(port_->moves_[0].offset, 64u);
  EXPECT_FALSE(answer(kMoveQueue, known));
  EXPECT_EQ(fault(kMoveQueue, outdated), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, refused));
  port_->end(*port_->moves_[0].request, {});
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, known), OH_LANE_OK);
}

TEST_F(ProxyTest, PutsGoToRegionsThatAreKnown) {
  move_by_regions(0, OpKind::kPut, "a put of 8 bytes");
}

TEST_F(ProxyTest, GetsComeFromRegionsThatAreKnown) {
  move_by_regions(kernels::kOfGet, OpKind::kGet, "a get of 8 bytes");
}

TEST_F(ProxyTest, AnAtomicOperationTellsWhatWasThere) {
  const uint64_t adds = hand_in_atomic(kernels::kOfAdd);
  const uint64_t swaps = hand_in_atomic(kernels::kOfCompareSwap);
  proxy_->serve();
  ASSERT_EQ(port_->atomics_.size(), 2u);
  EXPECT_EQ(port_->atomics_[0].op.kind, AtomicOp::Kind::kAdd);
  EXPECT_EQ(port_->atomics_[1].op.kind, AtomicOp::Kind::kCompareSwap);
  for (FakePort::Atomic& atomic : port_->atomics_) {
    EXPECT_EQ(atomic.region, 5u);
    EXPECT_EQ(atomic.offset, 64u);
    EXPECT_EQ(atomic.op.value, 3u);
    EXPECT_EQ(atomic.op.expected, 9u);
  }
  // In any order.
  port_->atomics_[1].answer = uint64_t{77};
  proxy_->serve();
  EXPECT_FALSE(answer(kMoveQueue, adds));
  EXPECT_EQ(fault(kMoveQueue, swaps), OH_LANE_OK);
  EXPECT_EQ(answer(kMoveQueue, swaps)->bytes, 77u);
  port_->atomics_[0].answer = error(OH_ERR_RETIRED, "it has gone");
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, adds), OH_LANE_FAILED);
  EXPECT_EQ(answer(kMoveQueue, adds)->bytes, 0u);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, "an atomic operation"));
}

TEST_F(ProxyTest, AnAtomicOperationEndsAtItsDeadlineOrWithItsPeer) {
  const uint64_t late = hand_in_atomic(kernels::kOfAdd, /*timeout_ns=*/0);
  proxy_->serve();
  proxy_->serve();
  EXPECT_TRUE(port_->atomics_[0].abandoned);
  EXPECT_EQ(fault(kMoveQueue, late), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "an atomic operation"));
  const uint64_t answered = hand_in_atomic(kernels::kOfAdd);
  const uint64_t lost = hand_in_atomic(kernels::kOfAdd);
  proxy_->serve();
  port_->atomics_[1].answer = uint64_t{4};
  port_->usable_ = Status(OH_ERR_PEER_LOST, "it has died");
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, answered), OH_LANE_OK) << "it had been answered";
  EXPECT_EQ(fault(kMoveQueue, lost), OH_LANE_ABORTED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_PEER_LOST, "an atomic operation"));
}

// Of a region that has gone, and one under way as the link closes.
TEST_F(ProxyTest, AnAtomicOperationThatCannotBeOrIsLeftBehind) {
  kernels::Ticket ticket = message(0);
  ticket.place = {6 | kernels::kOfAdd, 2, 64};
  const uint64_t unknown = hand_in(kMoveQueue, ticket);
  proxy_->serve();
  EXPECT_EQ(fault(kMoveQueue, unknown), OH_LANE_FAILED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, "an atomic operation"));
  hand_in_atomic(kernels::kOfAdd);
  proxy_->serve();
  ASSERT_EQ(port_->atomics_.size(), 1u);
  proxy_->close();
  EXPECT_TRUE(port_->atomics_[0].abandoned);
}

TEST_F(ProxyTest, ASignalIsAnsweredWhenItIsOnItsWay) {
  const uint64_t number = hand_in(kSignalQueue, message(/*count=*/3, /*slot=*/7));
  proxy_->serve();
  ASSERT_EQ(port_->posted_.size(), 1u);
  EXPECT_FALSE(answer(kSignalQueue, number));
  port_->end(*port_->posted_[0], {});
  proxy_->serve();
  EXPECT_EQ(fault(kSignalQueue, number), OH_LANE_OK);
}

TEST_F(ProxyTest, AWaitEndsWhenEnoughSignalsHaveCome) {
  const uint64_t number = hand_in(kWaitQueues + 7, message(/*count=*/2));
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kSignal, 7, 1);
  proxy_->serve();
  EXPECT_FALSE(answer(kWaitQueues + 7, number));
  port_->arrives(ProxyMessage::Kind::kSignal, 7, 1);
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues + 7, number), OH_LANE_OK);
}

// A signal that came before the loss counts.
TEST_F(ProxyTest, ALostLinkEndsWaits) {
  const uint64_t number = hand_in(kWaitQueues, message(/*count=*/2));
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kSignal, 0, 1);
  port_->usable_ = error(OH_ERR_PEER_LOST, "gone");
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues, number), OH_LANE_ABORTED);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_CANCELLED, "2 signals on slot 0"));
}

TEST_F(ProxyTest, AMalformedMessageIsAProtocolError) {
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kReset, OH_LANES, 1);
  proxy_->serve();
  EXPECT_EQ(port_->accused_.code(), OH_ERR_PROTOCOL);
}

TEST_F(ProxyTest, AResetEndsWhenBothSidesHaveEndedTheirOperations) {
  const uint64_t old = hand_in(kRecv, message(8));
  proxy_->serve();
  const uint64_t old_tag = port_->posted_[0]->tag;
  proxy_->reset(0, proxy_->resets(0));
  EXPECT_TRUE(proxy_->is_resetting(0));
  port_->stuck_ = true;
  proxy_->serve();
  EXPECT_EQ(port_->posted_.size(), 1u);  // the peer is not told yet
  port_->stuck_ = false;
  proxy_->serve();
  EXPECT_EQ(fault(kRecv, old), OH_LANE_ABORTED);
  ASSERT_EQ(port_->posted_.size(), 1u);  // the message that tells it
  EXPECT_EQ(port_->posted_[0]->kind, OpKind::kSend);
  EXPECT_TRUE(proxy_->is_resetting(0));
  port_->arrives(ProxyMessage::Kind::kReset, 0, 1);
  proxy_->serve();
  EXPECT_FALSE(proxy_->is_resetting(0));
  EXPECT_EQ(proxy_->resets(0), 1u);
  EXPECT_EQ(port_->discarded_, std::vector{old_tag});
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kRecv)));
  hand_in(kRecv, message(8));
  proxy_->serve();
  EXPECT_NE(port_->posted_.back()->tag, old_tag);
}

TEST_F(ProxyTest, APeerThatBeginsAResetBeginsOurs) {
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kReset, 3, 1);
  proxy_->serve();
  EXPECT_EQ(proxy_->resets(3), 1u);
  EXPECT_EQ(proxy_->resets(0), 0u);
}

// ---- What kernels do not wait for any longer ----------------------------------------------------

// The kernels' clock, which the tests set, and how often it was looked at.
std::atomic<uint64_t> g_time{1};
std::atomic<uint64_t> g_looks{0};
struct OwnTime : onehop::detail::HostAtomics {
  static uint64_t now() {
    const uint64_t time = g_time.load();
    g_looks.fetch_add(1);  // what is set from here on is for the next look
    return time;
  }
};

// A block of one thread.
struct OneThread {
  static bool leads() { return true; }
  static void sync() {}
  static uint64_t share(uint64_t value) { return value; }
  static void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
    std::memcpy(to, from, bytes);
  }
};

constexpr uint64_t kPatience = 1'000;
constexpr uint64_t kOverdue = kPatience + kernels::kHostIsGone + 1;

// The kernel itself, which hands in the next ticket of a queue.
class Kernel {
 public:
  Kernel(ProxyMemory& memory, uint32_t queue, kernels::TicketCursor& cursor,
         const kernels::Ticket& fields) {
    kernels::TicketQueue* tickets = &memory.queue(queue);
    op_.page = reinterpret_cast<uint64_t>(&memory.queue(0)) - offsetof(kernels::ProxyPage, queues);
    op_.queue = reinterpret_cast<uint64_t>(tickets);
    op_.cursor = reinterpret_cast<uint64_t>(&cursor);
    op_.data = fields.data;
    op_.bytes = fields.bytes;
    op_.place = fields.place;
    op_.timeout_ns = kPatience;
    op_.index = queue;
    g_looks = 0;
    thread_ = std::thread([this] {
      OneThread group;
      kernels::run_proxy<OwnTime>(op_, group);
      left_ = true;
    });
  }
  ~Kernel() { join(); }
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  bool has_left() const { return left_; }
  // It waits for its answer, and has looked at the time so often since; or it has left.
  void await_looks(uint64_t count) const {
    const uint64_t before = g_looks;
    EXPECT_TRUE(unit::eventually([&] { return left_ || g_looks >= before + count; }));
  }

 private:
  kernels::ProxyOp op_{};
  std::atomic<bool> left_{false};
  std::thread thread_;
};

class ProxyLateTest : public ProxyTest {
 protected:
  void SetUp() override {
    ProxyTest::SetUp();
    RemoteTarget target;
    target.index = 5;
    target.version = 2;
    proxy_->know(target);
    for (uint32_t queue = 0; queue < kernels::kProxyQueues; ++queue) proxy_->use(queue);
    put_.place = {5, 2, 64};
  }
  // The host does not come, until the kernel has gone on.
  void give_up(uint32_t queue, const kernels::Ticket& fields) {
    Kernel kernel(*memory_, queue, cursors_[queue], fields);
    kernel.await_looks(1);
    g_time += kOverdue;
    kernel.join();
    next_[queue] = 1;
  }

  kernels::Ticket put_ = message(8, /*data=*/0x1000);
  kernels::TicketCursor cursors_[kernels::kProxyQueues] = {};
};

// Later work of its stream may use the memory already.
TEST_F(ProxyLateTest, APutThatWasGivenUpIsNotPosted) {
  give_up(kMoveQueue, put_);
  proxy_->serve();
  EXPECT_TRUE(port_->moves_.empty());
  EXPECT_EQ(fault(kMoveQueue, 0), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "a put of 8 bytes"));
  EXPECT_TRUE(is_ok(proxy_->take_error()));
  hand_in(kMoveQueue, put_);
  proxy_->serve();
  EXPECT_EQ(port_->moves_.size(), 1u);
  port_->end(*port_->moves_[0].request, {});
  proxy_->serve();
}

TEST_F(ProxyLateTest, AReceiveThatWasGivenUpIsNotPosted) {
  give_up(kRecv, message(100'000, /*data=*/0x1000));
  proxy_->serve();
  EXPECT_TRUE(port_->posted_.empty());
  EXPECT_EQ(fault(kRecv, 0), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->failure(0, LaneSide::kRecv), OH_ERR_TIMEOUT));
  EXPECT_TRUE(is_ok(proxy_->failure(0, LaneSide::kSend)));
}

TEST_F(ProxyLateTest, AWaitThatWasGivenUpTakesNoSignals) {
  proxy_->serve();
  port_->arrives(ProxyMessage::Kind::kSignal, 7, 2);
  give_up(kWaitQueues + 7, message(/*count=*/2));
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues + 7, 0), OH_LANE_TIMEOUT);
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "2 signals on slot 7"));
  EXPECT_TRUE(is_ok(proxy_->take_error()));
  const uint64_t next = hand_in(kWaitQueues + 7, message(/*count=*/2));
  proxy_->serve();
  EXPECT_EQ(fault(kWaitQueues + 7, next), OH_LANE_OK);
}

// The host has come late, and ends it at the deadline that counts from then.
TEST_F(ProxyLateTest, AKernelWaitsForWhatTheHostHasTaken) {
  Kernel kernel(*memory_, kMoveQueue, cursors_[kMoveQueue], put_);
  kernel.await_looks(1);
  proxy_->serve();
  ASSERT_EQ(port_->moves_.size(), 1u);
  g_time += kOverdue;
  kernel.await_looks(3);
  EXPECT_FALSE(kernel.has_left());
  port_->end(*port_->moves_[0].request, {});
  proxy_->serve();
  kernel.join();
  EXPECT_EQ(fault(kMoveQueue, 0), OH_LANE_OK);
  EXPECT_TRUE(is_ok(proxy_->take_error()));
}

// Its wait ends in any case.
TEST_F(ProxyLateTest, AKernelGoesOnWhenTheHostStopsInTheMiddle) {
  Kernel kernel(*memory_, kMoveQueue, cursors_[kMoveQueue], put_);
  kernel.await_looks(1);
  proxy_->serve();
  g_time += kOverdue;
  kernel.await_looks(3);  // its second patience has begun
  EXPECT_FALSE(kernel.has_left());
  g_time += kOverdue;
  kernel.join();
  port_->end(*port_->moves_[0].request, {});
  proxy_->serve();
  EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "a put or get"));
}

// At one moment: either the host carries it out, and the kernel waits, or neither.
TEST_F(ProxyLateTest, BothSidesAgreeWhetherItIsGivenUp) {
  size_t posted = 0;
  constexpr size_t kRounds = 500;
  unit::Random random(1);
  for (size_t round = 0; round < kRounds; ++round) {
    port_->moves_.clear();
    Kernel kernel(*memory_, kMoveQueue, cursors_[kMoveQueue], put_);
    kernel.await_looks(1);
    g_time += kOverdue;
    for (uint64_t i = random.below(200'000); i > 0; --i) {
      std::atomic_signal_fence(std::memory_order_seq_cst);
    }
    proxy_->serve();
    if (!port_->moves_.empty()) {
      ++posted;
      kernel.await_looks(1);
      ASSERT_FALSE(kernel.has_left()) << "round " << round;
      port_->end(*port_->moves_[0].request, {});
      proxy_->serve();
    }
    kernel.join();
  }
  RecordProperty("posted", std::to_string(posted));
}

TEST_F(ProxyTest, AfterCloseNoTicketIsTaken) {
  proxy_->close();
  hand_in(kSend, message(8));
  EXPECT_FALSE(proxy_->serve());
  EXPECT_TRUE(port_->posted_.empty());
}

}  // namespace
}  // namespace proxy_test
