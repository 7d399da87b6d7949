// SPDX-License-Identifier: Apache-2.0
//
// A peer that stops in the middle of an operation, and continues.
#include "conformance/faults.h"

#include <unistd.h>

#include <thread>

namespace conformance::stops {
namespace {

// Stopped right after it has claimed our buffer, or in the middle of a message: the deadline ends
// the request (unless the local side, which copies, too, has done everything), and the buffer is
// released exactly when it cannot be accessed any more.
class Stopped : public Faults {
 protected:
  void survive(Side& side, onehop::Request& request, Buffer& buffer, bool receiving) {
    await_stop(side.other_process());
    oh_status status = status_of([&] { request.wait(20ms); });
    EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT || status == OH_OK) << status;
    EXPECT_EQ(status != OH_ERR_IN_DOUBT, request.buffer_released());
    EXPECT_TRUE(status != OH_OK || !receiving || buffer.holds(1, buffer.size()));
    ++outcomes_[status];
    if (status != OH_ERR_IN_DOUBT) buffer.poison();
    kill(side.other_process(), SIGCONT);
    side.hear_number();
    while (!request.buffer_released()) side.endpoint().progress();
    if (receiving && status != OH_ERR_IN_DOUBT) {
      ASSERT_TRUE(buffer.is_poisoned()) << "a buffer that was given back";
    }
    // The link works as before.
    uint64_t number = 0;
    EXPECT_EQ(side.peer().recv(&number, sizeof(number), 9, 20s).size, sizeof(number));
    EXPECT_EQ(number, 9u);
    Buffer large = side.buffer(kLarge);
    large.fill(3);
    side.peer().send(large.data(), kLarge, 9, 20s);
  }

  static void recover(Side& side) {
    oh::g_fault_hook = nullptr;
    side.tell_number(0);
    uint64_t number = 9;
    side.peer().send(&number, sizeof(number), 9, 20s);
    Buffer large = side.buffer(kLarge);
    side.peer().recv(large.data(), kLarge, 9, 20s);
    EXPECT_TRUE(large.holds(3, kLarge));
  }

  static onehop::Request begin(Side& side, Buffer& buffer, bool sends) {
    return sends ? side.peer().isend(buffer.data(), buffer.size(), 1)
                 : side.peer().irecv(buffer.data(), buffer.size(), 1);
  }

  // The victim stops after `passes` points of a message. The survivor waits for it, so that it
  // streams where possible, or only polls.
  void stop_in_a_message(bool victim_sends) {
    for (int passes : {1, 2, 5}) {
      for (bool looking : {false, true}) {
        SCOPED_TRACE("passes " + std::to_string(passes) + (looking ? " looking" : " waiting"));
        run(
            [&](Side& side) {
              Buffer large = side.buffer(kLarge);
              if (!victim_sends) large.fill(1);
              // A receive is posted before the message; a send may come before or after its
              // receive.
              if (!victim_sends) side.sync();
              onehop::Request request = begin(side, large, !victim_sends);
              if (victim_sends) side.sync();
              if (looking) {
                while (trap().struck_at.load() == 0) request.test();
              } else {
                (void)status_of([&] { oh_request_poll(request.get(), 20'000'000); });
              }
              survive(side, request, large, victim_sends);
            },
            [&](Side& side) {
              Buffer large = side.buffer(kLarge);
              if (victim_sends) large.fill(1);
              side.sync();
              trap().set(passes, SIGSTOP);
              onehop::Request request = begin(side, large, victim_sends);
              for (int i = 0; i < 50 && trap().struck_at.load() == 0; ++i) {
                oh_request_poll(request.get(), 1'000'000);
              }
              while (trap().struck_at.load() == 0) Trap::pass("");
              (void)status_of([&] { request.wait(20ms); });
              recover(side);
            });
      }
    }
  }

  void TearDown() override {
    for (auto [status, count] : outcomes_) {
      RecordProperty(oh_status_name(status), std::to_string(count));
    }
    Faults::TearDown();
  }

 private:
  std::map<oh_status, int> outcomes_;
};

TEST_P(Stopped, PeersLeaveTheirBuffersAlone) {
  run(
      [&](Side& side) {
        side.sync();
        trap().strike(side.other_process(), SIGSTOP);
        await_stop(side.other_process());
        Buffer inbox = side.buffer(100000);
        inbox.poison();
        Buffer large = side.buffer(kLarge);
        large.fill(1);
        EXPECT_EQ(status_of([&] { side.peer().recv(inbox.data(), inbox.size(), 1, 30ms); }),
                  OH_ERR_TIMEOUT);
        onehop::Request send = side.peer().isend(large.data(), kLarge, 1);
        EXPECT_EQ(status_of([&] { send.wait(30ms); }), OH_ERR_TIMEOUT);
        EXPECT_TRUE(send.buffer_released());
        side.peer().info();  // sends a query
        EXPECT_GT(side.peer().info().unresponsive_ns, 0);
        large.fill(2);
        kill(side.other_process(), SIGCONT);
        side.tell_number(0);
        // Everything continues, and released buffers are unchanged.
        onehop::Request again = side.peer().isend(large.data(), kLarge, 1);
        Buffer fresh = side.buffer(100000);
        onehop::Message message = side.peer().recv(fresh.data(), fresh.size(), 1, 20s);
        EXPECT_EQ(message.size, fresh.size());
        EXPECT_TRUE(fresh.holds(5, fresh.size()));
        again.wait(20s);
        EXPECT_EQ(inbox.at(0), 0xee);
        EXPECT_EQ(inbox.at(inbox.size() - 1), 0xee);
      },
      [&](Side& side) {
        side.sync();
        side.hear_number();
        Buffer out = side.buffer(100000);
        out.fill(5);
        side.peer().send(out.data(), out.size(), 1, 20s);
        Buffer large = side.buffer(kLarge);
        side.peer().recv(large.data(), kLarge, 1, 20s);
        EXPECT_TRUE(large.holds(2, kLarge));
      });
}

TEST_P(Stopped, WhileItSends) { stop_in_a_message(/*victim_sends=*/true); }

TEST_P(Stopped, WhileItReceives) { stop_in_a_message(/*victim_sends=*/false); }

TEST_P(Stopped, InsideAOneSidedCopy) {
  run(
      [&](Side& side) {
        Buffer buffer = side.buffer(1 << 20);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        await_stop(side.other_process());
        oh_status status = status_of([&] { region.deregister(50ms); });
        // If puts are messages the peer is never inside the region.
        EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_OK) << status;
        kill(side.other_process(), SIGCONT);
        if (status == OH_ERR_TIMEOUT) region.deregister(20s);
        buffer.poison();
        side.hear_number();
        EXPECT_EQ(buffer.at(0), 0xee);
        EXPECT_EQ(buffer.at(buffer.size() - 1), 0xee);
      },
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1 << 20);
        buffer.fill(1);
        trap().set(1, SIGSTOP);
        // Succeeds if it was inside, and must be rejected otherwise.
        (void)status_of(
            [&] { side.peer().put(buffer.data(), remote, 0, buffer.size()).wait(20s); });
        EXPECT_EQ(status_of([&] {
                    side.peer().put(buffer.data(), remote, 0, buffer.size()).wait(20s);
                    side.peer().put(buffer.data(), remote, 0, buffer.size()).wait(20s);
                  }),
                  OH_ERR_RETIRED);
        side.tell_number(0);
      });
}

// Every thread that deregisters waits for a peer that is still inside after its link was closed,
// not only the first.
TEST_P(Stopped, InsideAClosedLink) {
  run(
      [&](Side& side) {
        Buffer buffer = side.buffer(1 << 20);
        Buffer other = side.buffer(1 << 20);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        onehop::Region unused = side.endpoint().register_memory(other.data(), other.size());
        side.tell(region.descriptor());
        await_stop(side.other_process());
        side.peer().close();
        oh_status first = OH_OK;
        std::thread thread([&] { first = status_of([&] { region.deregister(200ms); }); });
        oh_status second = status_of([&] { unused.deregister(200ms); });
        thread.join();
        EXPECT_EQ(first, second);
        // If puts are messages the peer is never inside the region.
        EXPECT_TRUE(first == OH_ERR_TIMEOUT || first == OH_OK) << first;
        kill(side.other_process(), SIGCONT);
        region.deregister(20s);
        unused.deregister(20s);
        buffer.poison();
        side.hear_number();
        EXPECT_EQ(buffer.at(0), 0xee);
      },
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1 << 20);
        buffer.fill(1);
        trap().set(1, SIGSTOP);
        (void)status_of(
            [&] { side.peer().put(buffer.data(), remote, 0, buffer.size()).wait(20s); });
        oh::g_fault_hook = nullptr;
        EXPECT_NE(status_of([&] {
                    while (true) side.peer().put(buffer.data(), remote, 0, buffer.size()).wait(20s);
                  }),
                  OH_OK);
        side.tell_number(0);
      });
}

INSTANTIATE_TEST_SUITE_P(Shm, Stopped, ::testing::ValuesIn(process_kinds()), name_of);

}  // namespace
}  // namespace conformance::stops
