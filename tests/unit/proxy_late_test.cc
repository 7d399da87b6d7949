// SPDX-License-Identifier: Apache-2.0
//
// Tickets whose kernels no longer wait for them.
#include <atomic>
#include <cstring>
#include <thread>

#include "sanitizers.h"
#include "unit/proxy_scene.h"

namespace proxy_late_test {
namespace {

using namespace proxy_test;

// The kernels' clock, which the tests set, and the number of reads.
std::atomic<uint64_t> g_time{1};
std::atomic<uint64_t> g_looks{0};
struct OwnTime : onehop::detail::HostAtomics {
  static uint64_t now() {
    const uint64_t time = g_time.load();
    g_looks.fetch_add(1);  // a later change applies to the next read
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

// The kernel itself, which submits the next ticket of a queue.
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
  // Waits until the kernel, waiting for its answer, has read the clock `count` times more, or has
  // returned.
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
  // The host takes the ticket only after the kernel has given up.
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

// The host is late, and ends the ticket at the deadline that counts from then.
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
  kernel.await_looks(3);  // its second waiting period has begun
  EXPECT_FALSE(kernel.has_left());
  g_time += kOverdue;
  kernel.join();
  port_->end(*port_->moves_[0].request, {});
  proxy_->serve();
  EXPECT_TRUE(
      fails_with(proxy_->take_error(), OH_ERR_TIMEOUT, "a put, a get or an atomic operation"));
}

// Atomically: either the host executes the ticket and the kernel waits, or neither.
TEST_F(ProxyLateTest, BothSidesAgreeWhetherItIsGivenUp) {
  size_t posted = 0;
  constexpr size_t kRounds = kSanitized ? 100 : 500;
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

}  // namespace
}  // namespace proxy_late_test
