// SPDX-License-Identifier: Apache-2.0
//
// A peer that is killed or stopped in the middle of an operation: the victim sets a trap for
// itself; the survivor checks how its requests end.
#pragma once

#include <signal.h>
#include <sys/mman.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/fault.h"
#include "conformance/sides.h"
#include "sanitizers.h"

namespace conformance {

using namespace std::chrono_literals;

inline constexpr size_t kLarge = kSanitized ? 8 << 20 : 32 << 20;

// The victim is struck at the n-th fault point that it passes from now on. In shared memory: the
// survivor reads when it happened.
struct Trap {
  std::atomic<int> passes_left;
  int signal;
  std::atomic<int64_t> struck_at;

  static Trap*& current() {
    static Trap* trap = nullptr;
    return trap;
  }
  static void pass(const char*) {
    Trap& trap = *current();
    if (trap.passes_left.fetch_sub(1) != 1) return;
    trap.struck_at.store(oh::now_ns());
    raise(trap.signal);
  }
  void set(int passes, int signal_number) {
    signal = signal_number;
    passes_left.store(passes);
    oh::g_fault_hook = pass;
  }
  void strike(int process, int signal_number) {
    struck_at.store(oh::now_ns());
    kill(process, signal_number);
  }
};

class Faults : public ::testing::TestWithParam<LinkKind> {
 protected:
  void SetUp() override {
    void* shared =
        mmap(nullptr, sizeof(Trap), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(shared, MAP_FAILED);
    Trap::current() = static_cast<Trap*>(shared);
  }
  void TearDown() override { munmap(Trap::current(), sizeof(Trap)); }

  Trap& trap() { return *Trap::current(); }
  void run(const Role& survivor, const Role& victim) {
    new (&trap()) Trap{};
    run_with_victim(GetParam(), survivor, victim);
  }

  // Expects the request to fail because the peer died; with `late`, it may also have completed
  // before.
  oh_status expect_lost(onehop::Request& request, const char* what, bool late = false) {
    oh_status status = status_of([&] { request.wait(20s); });
    EXPECT_TRUE(status == OH_ERR_PEER_LOST || (late && status == OH_OK)) << what << ": " << status;
    int64_t since = oh::now_ns() - trap().struck_at.load();
    RecordProperty(std::string(what) + "_us", std::to_string(since / 1000));
    EXPECT_TRUE(request.buffer_released()) << what;
    return status;
  }

  // A loopback link must not be affected by another process's death.
  static void expect_healthy(Side& side) {
    onehop::Peer self = side.endpoint().connect(side.endpoint().address());
    uint64_t out = 4711;
    uint64_t in = 0;
    onehop::Request request = self.irecv(&in, sizeof(in));
    self.send(&out, sizeof(out));
    request.wait(20s);
    EXPECT_EQ(in, out);
  }

  void await_strike() {
    while (trap().struck_at.load() == 0) std::this_thread::yield();
  }
  // Waits until no thread of the stopped process executes any more.
  void await_stop(int process) {
    await_strike();
    await_stopped(process);
  }
};

}  // namespace conformance
