// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages, with peers that die or stop in the middle of one.
#include <unistd.h>

#include "conformance/faults.h"
#include "conformance/message_batches.h"

namespace conformance::message_batch_faults {
namespace {

class BatchFaults : public Faults {
 protected:
  std::map<oh_status, int> outcomes_;
};

TEST_P(BatchFaults, DeathEndsBothSidesInEveryPhase) {
  run(
      [&](Side& side) {
        Buffer in = side.buffer(kLarge);
        onehop::Request request = side.peer().irecv_batch(whole(kLarge).of(in));
        side.sync();
        trap().strike(side.other_process(), SIGKILL);
        expect_lost(request, "no sender");
        EXPECT_EQ(status_of([&] { side.peer().send_batch(whole(kLarge).of(in), 0, 20s); }),
                  OH_ERR_PEER_LOST);
        expect_healthy(side);
      },
      [&](Side& side) {
        side.sync();
        pause();
      });
  for (int passes = 1; passes <= 5; ++passes) {
    SCOPED_TRACE(passes);
    run(
        [&](Side& side) {
          Buffer in = side.buffer(kLarge);
          onehop::Request request = side.peer().irecv_batch(whole(kLarge).of(in));
          side.sync();
          expect_lost(request, "sender", true);
          expect_healthy(side);
        },
        [&](Side& side) {
          Buffer out = side.buffer(kLarge);
          side.sync();
          trap().set(passes, SIGKILL);
          side.peer().send_batch(whole(kLarge).of(out), 0, 20s);
          while (true) Trap::pass("");
        });
    run(
        [&](Side& side) {
          Buffer out = side.buffer(kLarge);
          oh_status status =
              status_of([&] { side.peer().send_batch(whole(kLarge).of(out), 0, 20s); });
          EXPECT_TRUE(status == OH_ERR_PEER_LOST || status == OH_OK) << status;
          await_strike();
          expect_healthy(side);
        },
        [&](Side& side) {
          Buffer in = side.buffer(kLarge);
          trap().set(passes, SIGKILL);
          onehop::Request request = side.peer().irecv_batch(whole(kLarge).of(in));
          request.wait(20s);
          while (true) Trap::pass("");
        });
  }
}

// The sender stops while it accesses local memory: the deadline ends the receive, but the memory is
// released only when the sender has left it.
TEST_P(BatchFaults, StoppedSendersLeaveTheMemoryInDoubt) {
  for (int passes = 1; passes <= 4; ++passes) {
    SCOPED_TRACE(passes);
    run(
        [&](Side& side) {
          Buffer in = side.buffer(kLarge);
          in.poison();
          onehop::Request request = side.peer().irecv_batch(whole(kLarge).of(in));
          side.sync();
          while (trap().struck_at.load() == 0) request.test();
          await_stop(side.other_process());
          oh_status status = status_of([&] { request.wait(50ms); });
          ++outcomes_[status];
          EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT ||
                      (status == OH_OK && passes > 1))
              << status;
          EXPECT_EQ(status != OH_ERR_IN_DOUBT, request.buffer_released());
          if (status != OH_ERR_IN_DOUBT) in.poison();
          kill(side.other_process(), SIGCONT);
          int64_t sent = side.hear_number();
          // Without a segment the last message may arrive too late.
          EXPECT_TRUE(!GetParam().shares_memory() || (sent == OH_OK) == (status == OH_OK))
              << status << ", and at the sender " << sent;
          while (!request.buffer_released()) side.endpoint().progress();
          EXPECT_TRUE(status == OH_ERR_IN_DOUBT || Cut{}.holds(in, {}));
          // Still in step: the sender either missed that receive or failed with it.
          Buffer fresh = side.buffer(1000);
          side.peer().recv_batch(whole(1000).of(fresh), 9, 20s);
          EXPECT_TRUE(fresh.holds(7, 1000));
        },
        [&](Side& side) {
          Buffer out = side.buffer(kLarge);
          side.sync();
          trap().set(passes, SIGSTOP);
          oh_status status =
              status_of([&] { side.peer().send_batch(whole(kLarge).of(out), 0, 200ms); });
          while (trap().struck_at.load() == 0) Trap::pass("");
          oh::g_fault_hook = nullptr;
          side.tell_number(status);
          send_filled(side, whole(1000), 1000, 7, 9);
        });
  }
  // A sender that writes straight into the memory is caught there.
  EXPECT_TRUE(!GetParam().env.empty() || outcomes_[OH_ERR_IN_DOUBT] > 0);
}

// Closing the endpoint does not release it earlier.
TEST_P(BatchFaults, StoppedSendersLeaveTheMemoryOfAClosedEndpointInDoubt) {
  for (int passes = 1; passes <= 4; ++passes) {
    SCOPED_TRACE(passes);
    run(
        [&](Side& side) {
          Buffer in = side.buffer(kLarge);
          onehop::Request request = side.peer().irecv_batch(whole(kLarge).of(in));
          side.sync();
          while (trap().struck_at.load() == 0) request.test();
          await_stop(side.other_process());
          oh_endpoint_close(side.endpoint().get());
          oh_status status = status_of([&] { request.wait(20s); });
          ++outcomes_[status];
          EXPECT_EQ(status != OH_ERR_IN_DOUBT, request.buffer_released()) << status;
          kill(side.other_process(), SIGCONT);
          EXPECT_TRUE(eventually([&] { return request.buffer_released(); }));
        },
        [&](Side& side) {
          Buffer out = side.buffer(kLarge);
          side.sync();
          trap().set(passes, SIGSTOP);
          (void)status_of([&] { side.peer().send_batch(whole(kLarge).of(out), 0, 20s); });
          while (trap().struck_at.load() == 0) Trap::pass("");
          oh::g_fault_hook = nullptr;
        });
  }
  // A sender that writes straight into the memory is caught there.
  EXPECT_TRUE(!GetParam().env.empty() || outcomes_[OH_ERR_IN_DOUBT] > 0);
}

INSTANTIATE_TEST_SUITE_P(Shm, BatchFaults, ::testing::ValuesIn(process_kinds()), name_of);

}  // namespace
}  // namespace conformance::message_batch_faults
