// SPDX-License-Identifier: Apache-2.0
//
// Operations that begin before the previous one in the stream has ended, as kernels do with
// programmatic dependent launch: two exist at a time.
#include <numeric>

#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "unit/device_lanes.h"

namespace device_early_test {
namespace {

using namespace unit;

constexpr uint32_t kOps = 60;

// A stream of operations, executed by two crews in turn.
class EarlyStream {
 public:
  explicit EarlyStream(const Shape& shape) : threads_(shape.teams * shape.threads) {
    for (uint32_t i = 0; i < 2; ++i) {
      crews_.push_back(std::make_unique<Crew>(shape));
      crews_[i]->follow = [this, i] { wait_until(ended_, at_[i]); };
      crews_[i]->let_next = [this, i] {
        if (++said_[i] == threads_) begun_ = at_[i] + 2;
      };
    }
  }

  // Calls run(group, op) in all threads of the operation's crew.
  template <typename Run>
  void start(Threads& threads, Run run) {
    for (uint32_t i = 0; i < 2; ++i) {
      start_all(threads, *crews_[i], [this, i, run](HostGroup& group) {
        for (uint32_t op = i; op < kOps; op += 2) {
          if (group.rank() == 0) {
            wait_until(begun_, op + 1);
            at_[i] = op;
            said_[i] = 0;
          }
          group.launch_ends();
          run(group, op);
          group.launch_ends();
          if (group.rank() == 0) ended_ = op + 1;
        }
      });
    }
  }

 private:
  static void wait_until(const std::atomic<uint32_t>& count, uint32_t wanted) {
    while (count < wanted) std::this_thread::yield();
  }

  const uint32_t threads_;
  std::vector<std::unique_ptr<Crew>> crews_;
  std::atomic<uint32_t> begun_{1};  // number of operations that may run
  std::atomic<uint32_t> ended_{0};
  std::atomic<uint32_t> at_[2] = {};
  std::atomic<uint32_t> said_[2] = {};
};

class DeviceEarlyTest : public ::testing::TestWithParam<Shape> {};

// Messages over one lane: none overtakes another, and none is rejected. `receive` has the signature
// void(Receiver<Delayed>&, HostGroup&, std::vector<uint8_t>* target).
template <typename SizeOf, typename Receive>
void pass_messages(const Shape& shape, SizeOf size_of, Receive receive) {
  for (int round = 0; round < 10; ++round) {
    TwoSides sides({.ring_shift = 6, .epoch = 9, .position = 1'000});
    std::vector<std::vector<uint8_t>> sources(kOps);
    std::vector<std::vector<uint8_t>> targets(kOps);
    for (uint32_t op = 0; op < kOps; ++op) {
      sources[op].resize(size_of(op));
      std::iota(sources[op].begin(), sources[op].end(), static_cast<uint8_t>(op * 31));
      targets[op].resize(1'000);
    }
    EarlyStream out(shape);
    EarlyStream in(shape);
    Threads threads;
    out.start(threads, [&](HostGroup& group, uint32_t op) {
      const oh_lane_handle lane = sides.handle(0, 1 + op);
      Sender<Delayed> sender(lane, group);
      ASSERT_TRUE(sender.take_early(group, UINT64_MAX)) << op << ": " << sender.half.fault;
      sender.send(group, sources[op].data(), sources[op].size(), true);
      ASSERT_EQ(sender.give(group), OH_LANE_OK) << op;
    });
    in.start(threads, [&](HostGroup& group, uint32_t op) {
      const oh_lane_handle lane = sides.handle(1, 1 + op);
      Receiver<Delayed> receiver(lane, group);
      ASSERT_TRUE(receiver.take(group)) << op << ": " << receiver.half.fault;
      receive(receiver, group, &targets[op]);
      ASSERT_EQ(receiver.half.fault, OH_LANE_OK) << op;
    });
    threads.join();
    for (uint32_t op = 0; op < kOps; ++op) {
      targets[op].resize(sources[op].size());
      EXPECT_EQ(targets[op], sources[op]) << op;
    }
  }
}

TEST_P(DeviceEarlyTest, EachTakesTheLaneInItsTurn) {
  pass_messages(
      GetParam(), [](uint32_t op) { return op % 5 == 3 ? 900u : 8u + op * 7 % 100; },
      [](Receiver<Delayed>& receiver, HostGroup& group, std::vector<uint8_t>* target) {
        receiver.receive(group, target->data(), target->size(), {}, true);
        receiver.give(group);
      });
}

TEST_P(DeviceEarlyTest, SmallOnesEndWithoutAVote) {
  pass_messages(
      GetParam(), [](uint32_t op) { return op % 5 == 3 ? 400u : 8u + op * 7 % 100; },
      [](Receiver<Delayed>& receiver, HostGroup& group, std::vector<uint8_t>* target) {
        receiver.receive<false>(group, target->data(), 400, {}, true);
        receiver.finish(group);
      });
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceEarlyTest,
                         ::testing::Values(Shape{}, Shape{.threads = 3},
                                           Shape{.teams = 2, .threads = 2}));

}  // namespace
}  // namespace device_early_test
