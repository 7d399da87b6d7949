// SPDX-License-Identifier: Apache-2.0
//
// Waits for several requests, for notifications, for messages of unknown size, and requests that
// end when an item is ready to be taken.
#include <poll.h>

#include <atomic>
#include <chrono>
#include <set>
#include <thread>

#include "conformance/sides.h"

namespace conformance::waits {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSizes[] = {0, 1, 100, 5000, 300000};

std::vector<onehop::Request> post_receives(Side& side, std::vector<Buffer>& buffers) {
  std::vector<onehop::Request> requests;
  for (size_t i = 0; i < std::size(kSizes); ++i) {
    buffers.push_back(side.buffer(kSizes[i]));
    requests.push_back(side.peer().irecv(buffers[i].data(), kSizes[i], i));
  }
  return requests;
}

TEST_P(Conformance, WaitingForAllEndsWhenTheLastHasEnded) {
  run(
      [](Side& side) {
        std::vector<Buffer> buffers;
        std::vector<onehop::Request> requests = post_receives(side, buffers);
        side.sync();
        onehop::wait_all(requests, 20s);
        for (size_t i = 0; i < requests.size(); ++i) {
          EXPECT_EQ(requests[i].message().size, kSizes[i]);
          EXPECT_TRUE(buffers[i].holds(i, kSizes[i])) << i;
        }
      },
      [](Side& side) {
        side.sync();
        for (size_t i = std::size(kSizes); i-- > 0;) {
          Buffer buffer = side.buffer(kSizes[i]);
          buffer.fill(i);
          side.peer().send(buffer.data(), kSizes[i], i, 20s);
        }
      });
}

TEST_P(Conformance, WaitingForAllEndsTheOthersAtTheDeadline) {
  run(
      [](Side& side) {
        std::vector<Buffer> buffers;
        std::vector<onehop::Request> requests = post_receives(side, buffers);
        side.sync();
        requests[2].wait(20s);
        EXPECT_EQ(status_of([&] { onehop::wait_all(requests, 30ms); }), OH_ERR_TIMEOUT);
        for (const onehop::Request& request : requests) {
          EXPECT_NE(oh_request_test(request.get()), OH_IN_PROGRESS);
          EXPECT_TRUE(request.buffer_released());
        }
        EXPECT_EQ(requests[2].message().size, 100u);
        side.sync();
      },
      [](Side& side) {
        side.sync();
        Buffer buffer = side.buffer(100);
        side.peer().send(buffer.data(), 100, 2, 20s);
        side.sync();
      });
}

TEST_P(Conformance, WaitingForAnyNamesOneThatHasEnded) {
  run(
      [](Side& side) {
        std::vector<Buffer> buffers;
        std::vector<onehop::Request> requests = post_receives(side, buffers);
        EXPECT_EQ(onehop::wait_any(requests, 10ms), std::nullopt);
        side.sync();
        EXPECT_EQ(onehop::wait_any(requests, 20s), std::optional<size_t>(3));
        EXPECT_EQ(requests[3].wait(1s).size, 5000u);
        // A failed request has ended, too.
        EXPECT_TRUE(requests[1].cancel());
        EXPECT_EQ(onehop::wait_any(requests, 20s), std::optional<size_t>(1));
        for (onehop::Request& request : requests) request.cancel();
        side.sync();
      },
      [](Side& side) {
        side.sync();
        Buffer buffer = side.buffer(5000);
        side.peer().send(buffer.data(), 5000, 3, 20s);
        side.sync();
      });
}

TEST_P(Conformance, AProbeTellsTheSizeOfTheNextMessage) {
  run(
      [](Side& side) {
        EXPECT_EQ(status_of([&] { side.peer().probe(7, 10ms); }), OH_ERR_TIMEOUT);
        side.sync();
        for (size_t i = 0; i < std::size(kSizes); ++i) {
          // Any tag finds them in the order of sending, which is the order of tags here.
          uint64_t asked = i % 2 ? OH_ANY_TAG : i;
          onehop::Message found = side.peer().probe(asked, 20s);
          EXPECT_EQ(found.size, kSizes[i]);
          EXPECT_EQ(found.tag, i);
          EXPECT_EQ(found.peer_id, side.peer().info().id);
          // Probing does not remove it.
          EXPECT_EQ(side.endpoint().probe(i, 20s).size, kSizes[i]);
          Buffer buffer = side.buffer(found.size);
          EXPECT_EQ(side.peer().recv(buffer.data(), found.size, found.tag, 20s).size, found.size);
          EXPECT_TRUE(buffer.holds(i, found.size));
        }
        side.sync();
      },
      [](Side& side) {
        side.sync();
        std::vector<Buffer> buffers;
        std::vector<onehop::Request> requests;
        for (size_t i = 0; i < std::size(kSizes); ++i) {
          buffers.push_back(side.buffer(kSizes[i]));
          buffers[i].fill(i);
          requests.push_back(side.peer().isend(buffers[i].data(), kSizes[i], i));
        }
        onehop::wait_all(requests, 20s);
        side.sync();
      });
}

TEST_P(Conformance, AProbeEndsWithItsPeer) {
  run(
      [](Side& side) {
        onehop::Request ready = side.peer().message_ready(3);
        side.sync();
        EXPECT_EQ(status_of([&] { side.peer().probe(3, 20s); }), OH_ERR_PEER_LOST);
        EXPECT_EQ(status_of([&] { ready.wait(20s); }), OH_ERR_PEER_LOST);
      },
      [](Side& side) {
        side.sync();
        side.drop_peer();
      });
}

TEST_P(Conformance, ANotificationIsWaitedFor) {
  run(
      [](Side& side) {
        EXPECT_EQ(status_of([&] { side.endpoint().wait_notification(10ms); }), OH_ERR_TIMEOUT);
        onehop::Request ready = side.endpoint().notification_ready();
        EXPECT_FALSE(ready.test());
        side.sync();
        for (uint8_t i = 0; i < 5; ++i) {
          auto [from, bytes] = side.endpoint().wait_notification(20s);
          EXPECT_EQ(bytes, onehop::Bytes(i, i)) << "notification " << int{i};
          EXPECT_EQ(from.peer_id, side.peer().info().id);
        }
        EXPECT_NO_THROW(ready.wait(20s));
        EXPECT_FALSE(side.endpoint().notification().has_value());
      },
      [](Side& side) {
        side.sync();
        for (uint8_t i = 0; i < 5; ++i) side.peer().notify(onehop::Bytes(i, i), 20s);
      });
}

// Each notification is taken by one thread, complete, although their buffers differ in size.
TEST_P(Conformance, ThreadsShareNotifications) {
  static constexpr int kCount = 200;
  run(
      [](Side& side) {
        std::atomic<int> left{kCount};
        std::atomic<uint64_t> bytes{0};
        auto take = [&] {
          while (left.load() > 0) {
            try {
              bytes += side.endpoint().wait_notification(50ms).second.size();
              --left;
            } catch (const onehop::TimeoutError&) {
            }
          }
        };
        std::thread other(take);
        take();
        other.join();
        EXPECT_EQ(bytes.load(), uint64_t{kCount} * (kCount - 1) / 2);
      },
      [](Side& side) {
        for (int i = 0; i < kCount; ++i) {
          side.peer().notify(onehop::Bytes(static_cast<size_t>(i), 1), 20s);
        }
      });
}

TEST_P(Conformance, WhatIsReadyIsNotTaken) {
  run(
      [](Side& side) {
        onehop::Request ready = side.peer().signal_ready(5, 3);
        std::vector<onehop::Request> either;
        either.push_back(side.peer().message_ready(9));
        either.push_back(side.peer().signal_ready(5, 1));
        side.sync();
        EXPECT_EQ(onehop::wait_any(either, 20s), std::optional<size_t>(1));
        side.tell_number(0);
        ready.wait(20s);
        side.peer().wait_signal(5, 3, 20s);
        // A cancelled request takes nothing, either.
        onehop::Request cancelled = side.peer().signal_ready(5, 1);
        EXPECT_TRUE(cancelled.cancel());
        EXPECT_TRUE(either[0].cancel());
        EXPECT_EQ(status_of([&] { either[0].wait(1s); }), OH_ERR_CANCELLED);
        EXPECT_EQ(status_of([&] { side.peer().signal_ready(5, 1).wait(10ms); }), OH_ERR_TIMEOUT);
        side.sync();
      },
      [](Side& side) {
        side.sync();
        side.peer().signal(5, 1);
        side.hear_number();
        side.peer().signal(5, 2);
        side.sync();
      });
}

// An event loop sleeps on the endpoint's descriptor; only its own thread makes progress.
TEST_P(Conformance, WhatIsReadyIsAnnounced) {
  run(
      [](Side& side) {
        int fd = -1;
        ASSERT_EQ(oh_endpoint_event_fd(side.endpoint().get(), &fd), OH_OK);
        onehop::Request ready = side.peer().signal_ready(2, 1);
        ASSERT_EQ(oh_request_arm(ready.get()), OH_OK);
        side.sync();
        pollfd entry{fd, POLLIN, 0};
        EXPECT_EQ(poll(&entry, 1, 20000), 1);
        EXPECT_TRUE(ready.test());
      },
      [](Side& side) {
        side.sync();
        side.peer().signal(2, 1);
      });
}

std::set<oh_request*> take_ended(Side& side, size_t room = 100) {
  std::vector<oh_request*> taken(room);
  EXPECT_EQ(oh_endpoint_take_ended(side.endpoint().get(), taken.data(), &room), OH_OK);
  return {taken.begin(), taken.begin() + static_cast<ptrdiff_t>(room)};
}

TEST_P(Conformance, AnEventLoopIsToldWhichHaveEnded) {
  run(
      [](Side& side) {
        using Taken = std::set<oh_request*>;
        std::vector<Buffer> buffers;
        std::vector<onehop::Request> requests = post_receives(side, buffers);
        int armed = -1;
        int listed = -1;
        ASSERT_EQ(oh_endpoint_event_fd(side.endpoint().get(), &armed), OH_OK);
        ASSERT_EQ(oh_endpoint_ended_fd(side.endpoint().get(), &listed), OH_OK);
        ASSERT_NE(armed, listed);
        // The first is armed, but not listed; the last is released before it is taken.
        ASSERT_EQ(oh_request_arm(requests[0].get()), OH_OK);
        for (size_t i = 1; i < requests.size(); ++i) {
          ASSERT_EQ(oh_request_arm_listed(requests[i].get()), OH_OK);
        }
        EXPECT_EQ(take_ended(side), Taken());
        side.sync();
        for (size_t i : {0, 1, 3, 4}) requests[i].wait(20s);
        requests.pop_back();
        pollfd entry{listed, POLLIN, 0};
        EXPECT_EQ(poll(&entry, 1, 20000), 1);
        Taken both = take_ended(side, 1);
        EXPECT_EQ(both.size(), 1u);
        both.merge(take_ended(side));
        EXPECT_EQ(both, Taken({requests[1].get(), requests[3].get()}));
        EXPECT_EQ(take_ended(side), Taken());
        EXPECT_TRUE(requests[2].cancel());
        EXPECT_EQ(take_ended(side), Taken({requests[2].get()}));
        // A waiter for the first has not lost its event, and takes none of the list's.
        entry.fd = armed;
        EXPECT_EQ(poll(&entry, 1, 20000), 1);
        EXPECT_EQ(oh_endpoint_clear_event(side.endpoint().get()), OH_OK);
        EXPECT_EQ(poll(&entry, 1, 0), 0);
        ASSERT_EQ(oh_request_arm_listed(requests[1].get()), OH_OK);
        EXPECT_EQ(take_ended(side), Taken({requests[1].get()}));
        side.sync();
      },
      [](Side& side) {
        side.sync();
        for (size_t i : {0, 3, 1, 4}) {
          Buffer buffer = side.buffer(kSizes[i]);
          side.peer().send(buffer.data(), kSizes[i], i, 20s);
        }
        side.sync();
      });
}

// Closing the endpoint ends its waits, and event loops are notified.
TEST(Waits, ClosingEndsWhatWaits) {
  onehop::Endpoint endpoint;
  int fd = -1;
  ASSERT_EQ(oh_endpoint_ended_fd(endpoint.get(), &fd), OH_OK);
  uint8_t byte;
  std::vector<onehop::Request> requests;
  requests.push_back(endpoint.accept_ready());
  requests.push_back(endpoint.notification_ready());
  requests.push_back(endpoint.irecv(&byte, 1, 0));
  for (const onehop::Request& request : requests) {
    ASSERT_EQ(oh_request_arm_listed(request.get()), OH_OK);
  }
  oh_endpoint_close(endpoint.get());
  pollfd entry{fd, POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  for (onehop::Request& request : requests) {
    EXPECT_EQ(oh_request_test(request.get()), OH_ERR_CANCELLED);
  }
  oh_request* ended[4];
  size_t count = 4;
  EXPECT_EQ(oh_endpoint_take_ended(endpoint.get(), ended, &count), OH_OK);
  EXPECT_EQ(count, 3u);
}

TEST(Waits, OneThreadWaitsForRequestsOfSeveralEndpoints) {
  onehop::Endpoint first;
  onehop::Endpoint second;
  onehop::Endpoint there;
  std::vector<onehop::Request> ready;
  ready.push_back(first.accept_ready());
  ready.push_back(second.accept_ready());
  EXPECT_EQ(onehop::wait_any(ready, 5ms), std::nullopt);
  onehop::Peer to_second = there.connect(second.address());
  EXPECT_EQ(onehop::wait_any(ready, 20s), std::optional<size_t>(1));
  onehop::Peer to_first = there.connect(first.address());
  onehop::wait_all(ready, 20s);
  onehop::Peer one = first.accept(1s);
  onehop::Peer two = second.accept(1s);
  uint64_t got[2] = {0, 0};
  std::vector<onehop::Request> receives;
  receives.push_back(one.irecv(&got[0], 8, 1));
  receives.push_back(two.irecv(&got[1], 8, 1));
  std::thread sender([&] {
    for (uint64_t number : {11u, 22u}) {
      (number == 11 ? to_first : to_second).send(&number, sizeof(number), 1, 20s);
    }
  });
  onehop::wait_all(receives, 20s);
  sender.join();
  EXPECT_EQ(got[0], 11u);
  EXPECT_EQ(got[1], 22u);
}

// More large messages than may be offered at once, and no other thread makes progress.
TEST(Waits, OneThreadServesBothEndsInTurn) {
  constexpr size_t kMessages = 300;
  constexpr size_t kSize = 200'000;
  onehop::Endpoint here;
  onehop::Endpoint there;
  onehop::Peer sender = there.connect(here.address());
  onehop::Peer receiver = here.accept(20s);
  std::vector<uint8_t> sent(kSize, 7);
  std::vector<std::vector<uint8_t>> got(kMessages, std::vector<uint8_t>(kSize));
  std::vector<onehop::Request> receives;
  std::vector<onehop::Request> sends;
  for (auto& each : got) receives.push_back(receiver.irecv(each.data(), kSize, 1));
  for (size_t i = 0; i < kMessages; ++i) sends.push_back(sender.isend(sent.data(), kSize, 1));
  for (onehop::Request& request : sends) request.wait(20s);
  for (onehop::Request& request : receives) EXPECT_EQ(request.wait(20s).size, kSize);
  for (const auto& each : got) EXPECT_EQ(each, sent);
  // Blocking, too.
  onehop::Request receive = receiver.irecv(got[0].data(), kSize, 2);
  sender.send(sent.data(), kSize, 2, 20s);
  receive.wait(20s);
}

TEST(Waits, WrongArgumentsAreNamed) {
  onehop::Endpoint endpoint;
  onehop::Request ready = endpoint.accept_ready();
  oh_request* both[] = {ready.get(), nullptr};
  size_t index = 0;
  EXPECT_EQ(oh_request_wait_all(both, 2, 1), OH_ERR_INVALID);
  EXPECT_NE(std::string(oh_error_text()).find("requests[1] of 2 is NULL"), std::string::npos);
  EXPECT_EQ(oh_request_poll_any(both, 0, 1, &index), OH_ERR_INVALID);
  EXPECT_EQ(oh_request_poll_any(nullptr, 2, 1, &index), OH_ERR_INVALID);
  EXPECT_EQ(oh_request_wait_all(nullptr, 0, 1), OH_OK);
  EXPECT_EQ(oh_request_wait_all(both, 1, -1), OH_ERR_INVALID);
  size_t size = 0;
  EXPECT_EQ(oh_endpoint_wait_notification(endpoint.get(), nullptr, &size, nullptr, 1),
            OH_ERR_TIMEOUT);
  EXPECT_EQ(status_of([&] { endpoint.probe(OH_TAG_MAX + 1, 1ms); }), OH_ERR_INVALID);
}

}  // namespace
}  // namespace conformance::waits
