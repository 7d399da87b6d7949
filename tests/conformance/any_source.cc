// SPDX-License-Identifier: Apache-2.0
//
// Receives from any source keep the order of a peer's messages while other threads make progress.
#include <atomic>
#include <chrono>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "conformance/sides.h"

namespace conformance::any_source {
namespace {

constexpr uint64_t kBurst = 500;
// The sender makes no progress after a burst: messages still queued in UCX must be sent all the
// same.
constexpr std::chrono::seconds kSoon{5};
constexpr auto kTime = std::chrono::milliseconds(300);

// A thread that makes progress beside the one under test until the end of the scope.
class Helper {
 public:
  explicit Helper(Side& side)
      : thread_([this, &side] {
          while (!stop_.load(std::memory_order_relaxed)) side.endpoint().progress();
        }) {}
  ~Helper() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Sends bursts of numbers with one tag until the peer has received enough.
void send_bursts(Side& side, uint64_t tag) {
  for (uint64_t number = 0; side.hear_number() != 0;) {
    for (uint64_t i = 0; i < kBurst; ++i, ++number) {
      side.peer().send(&number, sizeof(number), tag);
    }
  }
}

// Receives them by `receive`, which gets a burst's first number.
template <typename Receive>
void receive_bursts(Side& side, Receive receive) {
  const auto end = std::chrono::steady_clock::now() + kTime;
  for (uint64_t first = 0; std::chrono::steady_clock::now() < end; first += kBurst) {
    side.tell_number(1);
    receive(first);
    if (::testing::Test::HasFailure()) break;
  }
  side.tell_number(0);
}

class AnySource : public Messages {
 protected:
  void run_bursts(const std::function<void(Side&, uint64_t first)>& receive) {
    run([](Side& side) { send_bursts(side, 1); },
        [&](Side& side) {
          Helper other(side);
          receive_bursts(side, [&](uint64_t first) { receive(side, first); });
        });
  }
};

TEST_P(AnySource, BurstsKeepTheirOrder) {
  for (uint64_t tag : {uint64_t{1}, uint64_t{onehop::kAnyTag}}) {
    run_bursts([&](Side& side, uint64_t first) {
      for (uint64_t i = 0; i < kBurst; ++i) {
        uint64_t got = UINT64_MAX;
        side.endpoint().recv(&got, sizeof(got), tag, kSoon);
        ASSERT_EQ(got, first + i);
      }
    });
  }
}

// Two receives at a time, alternating between any source, any tag, and the peer.
TEST_P(AnySource, BurstsKeepTheOrderOfMixedReceives) {
  run_bursts([](Side& side, uint64_t first) {
    for (uint64_t i = 0; i < kBurst; i += 2) {
      uint64_t got[2] = {UINT64_MAX, UINT64_MAX};
      std::deque<onehop::Request> requests;
      for (uint64_t j = i; j < i + 2; ++j) {
        const uint64_t tag = j % 3 == 0 ? uint64_t{onehop::kAnyTag} : 1;
        requests.push_back(j % 5 == 0 ? side.peer().irecv(&got[j - i], sizeof(uint64_t), tag)
                                      : side.endpoint().irecv(&got[j - i], sizeof(uint64_t), tag));
      }
      for (onehop::Request& request : requests) request.wait();
      ASSERT_EQ(got[0], first + i);
      ASSERT_EQ(got[1], first + i + 1);
    }
  });
}

// Every other receive is cancelled: its message goes to the next receive.
TEST_P(AnySource, BurstsKeepTheirOrderBesideCancels) {
  run_bursts([&](Side& side, uint64_t first) {
    bool taken_back = false;
    for (uint64_t next = first; next < first + kBurst;) {
      uint64_t got = UINT64_MAX;
      onehop::Request request = side.endpoint().irecv(&got, sizeof(got), 1);
      // It may be too late, or the receive may have ended with its message.
      if (!std::exchange(taken_back, !taken_back)) (void)request.cancel();
      const oh_status status = status_of([&] { request.wait(); });
      if (status == OH_ERR_CANCELLED) continue;
      ASSERT_EQ(status, OH_OK);
      ASSERT_EQ(got, next);
      ++next;
    }
  });
}

// Sharing the buffers' memory makes no difference here.
std::vector<LinkKind> any_source_kinds() {
  std::vector<LinkKind> kinds = process_kinds();
  std::erase_if(kinds, [](const LinkKind& kind) { return kind.memory[0] != MemoryKind::kPrivate; });
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Shm, AnySource, ::testing::ValuesIn(any_source_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Local, AnySource,
                         ::testing::Values(LinkKind{
                             .name = "threads", .processes = false, .path = OH_PATH_LOCAL}),
                         name_of);

}  // namespace
}  // namespace conformance::any_source
