// SPDX-License-Identifier: Apache-2.0
//
// Messages that a peer sent before it closed the link or died are received, however late.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string_view>
#include <thread>

#include "base/fault.h"
#include "capi/handles.h"
#include "conformance/sides.h"

namespace conformance::last_words {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMiddle = 300'000;  // announced, and offered in a slot

enum class Ending { kClose, kCloseEndpoint, kExit, kKill };
constexpr Ending kEndings[] = {Ending::kClose, Ending::kCloseEndpoint, Ending::kExit,
                               Ending::kKill};

void end(Side& side, Ending ending) {
  switch (ending) {
    case Ending::kClose:
      side.drop_peer();
      break;
    case Ending::kCloseEndpoint:
      side.disconnect();
      break;
    case Ending::kExit:
      _exit(0);
    case Ending::kKill:
      kill(getpid(), SIGKILL);
  }
  pause();
}

// Blocks the watcher's thread.
class HeldWatcher {
 public:
  explicit HeldWatcher(Side& side) {
    std::promise<void> held;
    side.endpoint().get()->endpoint->node()->watcher().post(
        [&held, until = release_.get_future().share()] {
          held.set_value();
          until.wait();
        });
    held.get_future().wait();
  }
  ~HeldWatcher() { release_.set_value(); }

 private:
  std::promise<void> release_;
};

// Waits until the process has ended, or has closed the link and waits.
void await_end(Side& side, Ending ending) {
  if (ending == Ending::kExit || ending == Ending::kKill) {
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(side.other_process()), &info, WEXITED | WNOWAIT), 0);
  } else {
    while (side.peer().get()->peer->link().still_there().ok()) std::this_thread::yield();
  }
}

class LastWords : public ::testing::TestWithParam<LinkKind> {};

// Meanwhile nothing is read, and a ping precedes the messages, to which a reply can no longer be
// sent.
TEST_P(LastWords, SmallMessagesArrive) {
  // As many as the credit allows.
  const uint64_t messages = GetParam().env.count("ONEHOP_EAGER_CREDIT") ? 15 : 50;
  for (Ending ending : kEndings) {
    SCOPED_TRACE(static_cast<int>(ending));
    run_with_victim(
        GetParam(),
        [&](Side& side) {
          {
            HeldWatcher held(side);
            side.sync();
            await_end(side, ending);
          }
          for (uint64_t i = 0; i < messages; ++i) {
            uint64_t word = 0;
            ASSERT_EQ(status_of([&] { side.peer().recv(&word, sizeof(word), 1, 20s); }), OH_OK)
                << i;
            EXPECT_EQ(word, i);
          }
          uint64_t word = 0;
          EXPECT_EQ(status_of([&] { side.peer().recv(&word, sizeof(word), 1, 20s); }),
                    OH_ERR_PEER_LOST);
        },
        [&](Side& side) {
          side.sync();
          side.peer().get()->peer->liveness().unresponsive_for();
          for (uint64_t i = 0; i < messages; ++i) {
            side.peer().send(&i, sizeof(i), 1, 20s);
          }
          end(side, ending);
        });
  }
}

// A receive waits: its sender ends as soon as its send is complete. Without shared memory bytes of
// a complete send may still be in the sender's process, which only close() sends.
TEST_P(LastWords, ACompleteSendArrives) {
  for (size_t size : {size_t{100}, size_t{5000}, size_t{60000}, size_t{1} << 20, size_t{8} << 20}) {
    for (Ending ending : kEndings) {
      const bool closes = ending == Ending::kClose || ending == Ending::kCloseEndpoint;
      if (!closes && !GetParam().shares_memory()) continue;
      SCOPED_TRACE(std::to_string(size) + " bytes, " + std::to_string(static_cast<int>(ending)));
      run_with_victim(
          GetParam(),
          [&](Side& side) {
            Buffer inbox = side.buffer(size);
            onehop::Request request = side.peer().irecv(inbox.data(), size, 1);
            side.sync();
            EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_OK);
            EXPECT_TRUE(inbox.holds(1, size));
          },
          [&](Side& side) {
            Buffer outbox = side.buffer(size);
            outbox.fill(1);
            side.sync();
            side.peer().send(outbox.data(), size, 1, 20s);
            end(side, ending);
          });
    }
  }
}

// The link ends on one side while a message waits for its receive there and a later one of the same
// tag has arrived: the receive gets the loss of the link, not the later message.
class EndingLinks : public ::testing::TestWithParam<LinkKind> {
 protected:
  static Side*& ending() {
    static Side* side = nullptr;
    return side;
  }
  // Between withdrawing offers and announcing the end of the link.
  static void hold(const char* point) {
    if (std::string(point) != "link.offers_withdrawn" || !ending()) return;
    Side& side = *std::exchange(ending(), nullptr);
    side.tell_number(1);
    side.hear_number();
  }
};

TEST_P(EndingLinks, NoLaterMessageTakesThePlaceOfALostOne) {
  for (bool seen_before : {false, true}) {
    SCOPED_TRACE(seen_before ? "messages are unexpected already" : "messages are in the ring");
    run_pair(
        GetParam(),
        [](Side& side) {
          Buffer large = side.buffer(kMiddle);
          large.fill(1);
          onehop::Request sent = side.peer().isend(large.data(), kMiddle, 7);
          side.peer().send("later", 5, 7);
          side.peer().send("other", 5, 8);
          ending() = &side;
          oh::g_fault_hook = hold;
          side.sync();
          side.drop_peer();
          oh::g_fault_hook = nullptr;
          side.hear_number();
        },
        [&](Side& side) {
          Buffer into = side.buffer(kMiddle);
          into.poison();
          if (seen_before) {
            EXPECT_EQ(side.peer().probe(8, 20s).size, 5u);
          }
          side.sync();
          EXPECT_EQ(side.hear_number(), 1);
          onehop::Request request = side.peer().irecv(into.data(), kMiddle, 7);
          // All sent messages have been handled: the one with another tag is the last.
          char other[5];
          EXPECT_EQ(side.peer().recv(other, sizeof(other), 8, 20s).size, 5u);
          EXPECT_EQ(oh_request_test(request.get()), OH_IN_PROGRESS);
          side.tell_number(0);
          EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_PEER_LOST);
          EXPECT_EQ(into.at(0), 0xee);
          side.tell_number(0);
        });
  }
}

// The same for a message that both sides copy: the peer gets the end of the link, not a cancelled
// operation.
class EndingTransfers : public EndingLinks {
 protected:
  static inline std::atomic<bool> copying;
  static inline std::atomic<bool> ends;
  // The first chunk takes until `over`.
  static void copy_until(const std::atomic<bool>& over, std::string_view point) {
    if (point != "transfer.copy" || copying.exchange(true)) return;
    while (!over) std::this_thread::yield();
  }
  static void copy_until_the_end(const char* point) {
    if (std::string_view(point) == "link.ends") ends = true;
    copy_until(ends, point);
    hold(point);
  }
};

TEST_P(EndingTransfers, AMessageUnderWayIsLost) {
  for (bool closer_sends : {false, true}) {
    SCOPED_TRACE(closer_sends ? "its sender closes the link" : "its receiver closes the link");
    auto begin = [](Side& side, Buffer& buffer, bool sends) {
      return sends ? side.peer().isend(buffer.data(), buffer.size(), 7)
                   : side.peer().irecv(buffer.data(), buffer.size(), 7);
    };
    run_pair(
        GetParam(),
        [&](Side& side) {
          Buffer buffer = side.buffer(8 << 20);
          side.sync();
          side.endpoint().progress();  // makes the peer's posted receive known here
          onehop::Request request = begin(side, buffer, closer_sends);
          copying = ends = false;
          ending() = &side;
          oh::g_fault_hook = copy_until_the_end;
          std::thread copier(
              [&] { EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_CANCELLED); });
          while (!copying) std::this_thread::yield();
          side.drop_peer();
          copier.join();
          oh::g_fault_hook = nullptr;
        },
        [&](Side& side) {
          Buffer buffer = side.buffer(8 << 20);
          onehop::Request request = begin(side, buffer, !closer_sends);
          side.sync();
          EXPECT_EQ(side.hear_number(), 1);
          EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_PEER_LOST);
          side.tell_number(0);
        });
  }
}

// A local thread copies for a lost link: closing the link, and its endpoint, waits for that copy,
// so that all requests have ended on return.
class CloseInTheEnd : public EndingTransfers {
 protected:
  static inline std::atomic<bool> go_on;
  static inline std::atomic<bool> loses;
  static void copy_until_told(const char* point) {
    if (std::string_view(point) == "link.awaits_copies") loses = true;
    copy_until(go_on, point);
  }
};

TEST_P(CloseInTheEnd, WaitsForALossThatIsUnderWay) {
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer buffer = side.buffer(8 << 20);
        onehop::Request request = side.peer().irecv(buffer.data(), buffer.size(), 7);
        copying = go_on = loses = false;
        oh::g_fault_hook = copy_until_told;
        side.sync();
        std::thread copier(
            [&] { EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_PEER_LOST); });
        while (!copying) std::this_thread::yield();
        side.tell_number(1);
        while (!loses) std::this_thread::yield();
        std::atomic<int> closed = 0;
        std::thread peer_closer([&] {
          side.peer().get()->peer->close();
          ++closed;
        });
        std::thread endpoint_closer([&] {
          oh_endpoint_close(side.endpoint().get());
          ++closed;
        });
        for (auto end = std::chrono::steady_clock::now() + 200ms;
             std::chrono::steady_clock::now() < end && closed == 0;) {
          std::this_thread::yield();
        }
        EXPECT_EQ(closed, 0) << "closed while a copy is under way";
        go_on = true;
        for (std::thread* thread : {&copier, &peer_closer, &endpoint_closer}) thread->join();
        oh::g_fault_hook = nullptr;
      },
      [](Side& side) {
        Buffer buffer = side.buffer(8 << 20);
        side.sync();
        onehop::Request request = side.peer().isend(buffer.data(), buffer.size(), 7);
        side.hear_number();
        side.drop_peer();
      });
}

std::vector<LinkKind> kinds_that_copy() {
  std::vector<LinkKind> kinds;
  for (const LinkKind& kind : process_kinds()) {
    // Without process_vm shared memory is copied, too, but only after its block is mapped there.
    if (kind.shares_memory() && !kind.env.count("ONEHOP_CMA")) kinds.push_back(kind);
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Shm, EndingTransfers, ::testing::ValuesIn(kinds_that_copy()), name_of);
INSTANTIATE_TEST_SUITE_P(Shm, CloseInTheEnd, ::testing::ValuesIn(kinds_that_copy()), name_of);

std::vector<LinkKind> kinds_with_segment() {
  std::vector<LinkKind> kinds;
  for (const LinkKind& kind : process_kinds()) {
    if (kind.shares_memory()) kinds.push_back(kind);
  }
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Shm, EndingLinks, ::testing::ValuesIn(kinds_with_segment()), name_of);

INSTANTIATE_TEST_SUITE_P(Shm, LastWords, ::testing::ValuesIn(process_kinds()), name_of);

}  // namespace
}  // namespace conformance::last_words
