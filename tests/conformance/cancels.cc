// SPDX-License-Identifier: Apache-2.0
//
// Cancelled requests: the order of the remaining ones, and buffers that must not be accessed any
// more.
#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "conformance/sides.h"

namespace conformance::cancels {
namespace {

using namespace std::chrono_literals;

// Message numbers stay in step when a receive in the middle is cancelled: the others keep their
// order.
TEST_P(Messages, CancelledReceivesLeaveTheOrder) {
  constexpr size_t kSize = 100000;  // never sent eagerly
  run(
      [](Side& side) {
        side.sync();
        for (uint64_t i = 0; i < 4; ++i) {
          Buffer buffer = side.buffer(kSize);
          buffer.fill(i);
          side.peer().send(buffer.data(), kSize);
        }
      },
      [](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (int i = 0; i < 6; ++i) {
          buffers.push_back(side.buffer(kSize));
          buffers.back().poison();
          requests.push_back(side.peer().irecv(buffers.back().data(), kSize));
        }
        // The peer must see their RTRs before some are revoked.
        std::this_thread::sleep_for(5ms);
        side.endpoint().progress();
        EXPECT_TRUE(requests[0].cancel());
        EXPECT_TRUE(requests[3].cancel());
        EXPECT_EQ(status_of([&] { requests[0].wait(); }), OH_ERR_CANCELLED);
        side.sync();
        uint64_t expected = 0;
        for (size_t i : {1, 2, 4, 5}) {
          requests[i].wait();
          EXPECT_TRUE(buffers[i].holds(expected, kSize)) << "receive " << i;
          ++expected;
        }
        EXPECT_EQ(buffers[0].at(0), 0xee);
        EXPECT_EQ(buffers[3].at(0), 0xee);
      });
}

// Receives are cancelled while their messages are in flight: a cancelled receive is not written to
// any more, and its message goes to the next receive, or its sender gets an error. Every third
// receive is small: over UCX those wait in the inbox, while others are written in place.
TEST_P(Messages, CancelledReceivesRaceWithMessages) {
  constexpr uint64_t kCount = 200;
  auto size_of = [](uint64_t i) { return i % 3 == 1 ? 1 + i * 7 % 300 : 500 + i * 7919 % 65000; };
  run(
      [&](Side& side) {
        for (uint64_t i = 0; i < kCount; ++i) {
          Buffer buffer = side.buffer(size_of(i));
          buffer.fill(i);
          oh_status sent;
          do {
            sent = status_of([&] { side.peer().send(buffer.data(), buffer.size()); });
          } while (sent == OH_ERR_CANCELLED);
          EXPECT_EQ(sent, OH_OK);
        }
      },
      [&](Side& side) {
        constexpr size_t kRoom = 66000;
        std::deque<Buffer> taken_back;
        uint64_t arrived = 0;
        for (uint64_t round = 0; arrived < kCount; ++round) {
          Buffer buffer = side.buffer(kRoom);
          buffer.poison();
          onehop::Request request = side.peer().irecv(buffer.data(), kRoom);
          if (round % 3 != 0 && round < 3 * kCount) {
            if (round % 2 == 0) std::this_thread::yield();
            if (request.cancel() && status_of([&] { request.wait(); }) == OH_ERR_CANCELLED) {
              if (taken_back.size() < 20) taken_back.push_back(std::move(buffer));
              continue;
            }
          }
          EXPECT_EQ(request.wait().size, size_of(arrived));
          EXPECT_TRUE(buffer.holds(arrived, size_of(arrived))) << "message " << arrived;
          ++arrived;
        }
        for (Buffer& buffer : taken_back) {
          onehop::Bytes bytes = buffer.bytes();
          EXPECT_EQ(std::count(bytes.begin(), bytes.end(), static_cast<uint8_t>(0xee)), kRoom);
        }
      });
}

TEST_P(Messages, CancelledSendsLeaveTheOrder) {
  constexpr size_t kSize = 100000;  // never sent eagerly
  run(
      [](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (uint64_t i = 0; i < 6; ++i) {
          buffers.push_back(side.buffer(kSize));
          buffers.back().fill(i);
          requests.push_back(side.peer().isend(buffers.back().data(), kSize));
        }
        EXPECT_TRUE(requests[1].cancel());
        EXPECT_TRUE(requests[4].cancel());
        side.sync();
        for (size_t i : {0, 2, 3, 5}) requests[i].wait();
        EXPECT_EQ(status_of([&] { requests[4].wait(); }), OH_ERR_CANCELLED);
      },
      [](Side& side) {
        side.sync();
        for (uint64_t expected : {0, 2, 3, 5}) {
          Buffer buffer = side.buffer(kSize);
          side.peer().recv(buffer.data(), kSize);
          EXPECT_TRUE(buffer.holds(expected, kSize)) << "message " << expected;
        }
      });
}

// Small messages use the ring, large ones go straight into receives that were announced for their
// numbers: neither gets another receive because an earlier send is cancelled.
TEST_P(Messages, MessagesBehindACancelledSendStayInOrder) {
  constexpr size_t kSmall = 16384;  // not announced in advance, and sent with an RTS without credit
  constexpr size_t kLarge = 100000;
  constexpr size_t kCount = 7;
  constexpr int kCredit = 16;     // kSmall bytes each
  constexpr uint64_t kOther = 7;  // their tag
  auto size_of = [](size_t i) { return i % 2 == 0 ? kSmall : kLarge; };
  run(
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        auto isend = [&](uint64_t seed, size_t size, uint64_t tag = 0) {
          buffers.push_back(side.buffer(size));
          buffers.back().fill(seed);
          requests.push_back(side.peer().isend(buffers.back().data(), size, tag));
        };
        side.sync();
        side.endpoint().progress();
        for (int i = 0; i < kCredit; ++i) isend(0, kSmall, kOther);
        for (size_t i = 0; i + 1 < kCount; ++i) isend(i, size_of(i));
        onehop::Request first = std::move(requests[kCredit]);
        // If it needed no credit it has ended already.
        const bool cancelled =
            first.cancel() && status_of([&] { first.wait(); }) == OH_ERR_CANCELLED;
        side.tell_number(cancelled);
        requests.erase(requests.begin() + kCredit);
        isend(kCount - 1, kSmall);
        for (onehop::Request& request : requests) request.wait();
        if (!cancelled) first.wait();
      },
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        auto irecv = [&](size_t size, uint64_t tag = 0) {
          buffers.push_back(side.buffer(size));
          requests.push_back(side.peer().irecv(buffers.back().data(), size, tag));
        };
        for (size_t i = 0; i + 1 < kCount; ++i) irecv(size_of(i));
        side.sync();
        const bool cancelled = side.hear_number() != 0;
        if (!cancelled) irecv(kSmall);
        for (size_t i = 0; i < requests.size(); ++i) {
          const size_t expected = i == 0 && cancelled ? kCount - 1 : i;
          EXPECT_EQ(requests[i].wait().size, size_of(expected)) << "receive " << i;
          EXPECT_TRUE(buffers[i].holds(expected, size_of(expected))) << "receive " << i;
        }
        for (int i = 0; i < kCredit; ++i) irecv(kSmall, kOther);
        for (size_t i = requests.size() - kCredit; i < requests.size(); ++i) requests[i].wait();
      });
}

TEST_P(Messages, FinishedRequestsCannotBeCancelled) {
  run(
      [](Side& side) {
        onehop::Request request = side.peer().isend("abc", 3);
        request.wait();
        EXPECT_FALSE(request.cancel());
        EXPECT_EQ(request.message().size, 3u);
        char unused[3];
        onehop::Request receive = side.peer().irecv(unused, 3, 1);
        EXPECT_TRUE(receive.cancel());
        EXPECT_TRUE(receive.cancel());  // it is still pending
        EXPECT_EQ(status_of([&] { receive.wait(); }), OH_ERR_CANCELLED);
      },
      [](Side& side) {
        char got[3];
        side.peer().recv(got, 3);
      });
}

}  // namespace
}  // namespace conformance::cancels
