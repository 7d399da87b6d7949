// SPDX-License-Identifier: Apache-2.0
#include "floors.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "meeting.h"
#include "payload.h"

namespace bench {
namespace {

// A forked process; it is killed and reaped on destruction, and ends with its parent.
class Partner {
 public:
  template <typename Body>
  Partner(int cpu, Body body) {
    pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (cpu >= 0) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(static_cast<size_t>(cpu), &set);
      sched_setaffinity(0, sizeof(set), &set);
    }
    body();
    _exit(0);
  }
  Partner(const Partner&) = delete;
  Partner& operator=(const Partner&) = delete;
  ~Partner() {
    kill(pid_, SIGKILL);
    if (!reaped_) waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }
  void check_alive() {
    if (waitpid(pid_, nullptr, WNOHANG) == 0) return;
    reaped_ = true;
    throw std::runtime_error("the partner process of a floor has died");
  }

 private:
  pid_t pid_;
  bool reaped_ = false;
};

void record(double us, size_t bytes, Outcome* outcome) {
  outcome->samples_us.push_back(us);
  outcome->seconds += us / 1e6;
  outcome->bytes += static_cast<double>(bytes);
}

}  // namespace

Outcome floor_flag(const FloorSpec& spec) {
  Outcome outcome;
  Meeting meeting(0);
  Partner partner(spec.partner_cpu, [&] {
    meeting.become_second();
    for (uint64_t word = 0;;) {
      word = meeting.await(word + 1);
      meeting.tell(word);
    }
  });
  meeting.watch([&] { partner.check_alive(); });
  outcome.samples_us.reserve(spec.iterations);
  uint64_t warmup = spec.iterations / 10 + 1;
  for (uint64_t i = 1; i <= warmup + spec.iterations; ++i) {
    auto start = Clock::now();
    meeting.tell(i);
    uint64_t answer = meeting.await(i);
    double us = microseconds(start, Clock::now());
    if (spec.corrupt && i == warmup + spec.iterations) ++answer;
    outcome.wrong += answer == i ? 0 : sizeof(answer);
    if (i > warmup) record(us / 2, sizeof(answer), &outcome);
  }
  return outcome;
}

Outcome floor_process_vm(const FloorSpec& spec) {
  Outcome outcome;
  constexpr uint64_t kSeed = 17;
  Buffer source(spec.size, false);
  Buffer target(spec.size, false);
  Meeting meeting(0);
  Partner partner(spec.partner_cpu, [&] {
    meeting.become_second();
    // Written here, so the pages are the partner's own and no longer shared by fork.
    fill(source.data(), spec.size, kSeed);
    stamp(source.data(), spec.size, kSeed, kNoIteration, 0);
    if (spec.corrupt) source.data()[spec.size / 2] ^= 1;
    meeting.tell(1);
    for (;;) ::pause();
  });
  meeting.watch([&] { partner.check_alive(); });
  meeting.await(1);
  iovec to{target.data(), spec.size};
  iovec from{source.data(), spec.size};
  uint64_t warmup = spec.iterations / 10 + 1;
  for (uint64_t i = 0; i < warmup + spec.iterations; ++i) {
    poison_stamps(target.data(), spec.size, 0);
    auto start = Clock::now();
    ssize_t got = process_vm_readv(partner.pid(), &to, 1, &from, 1, 0);
    double us = microseconds(start, Clock::now());
    if (got < 0) throw std::system_error(errno, std::generic_category(), "process_vm_readv");
    if (static_cast<size_t>(got) != spec.size) {
      throw std::runtime_error("process_vm_readv ended early");
    }
    outcome.wrong += check_stamps(target.data(), spec.size, 0);
    if (i >= warmup) record(us, spec.size, &outcome);
  }
  outcome.wrong += check_message(target.data(), spec.size, kSeed, 0);
  return outcome;
}

Outcome floor_memcpy(const FloorSpec& spec) {
  Outcome outcome;
  constexpr uint64_t kSeed = 17;
  Buffer source(spec.size, false);
  Buffer target(spec.size, false);
  fill(source.data(), spec.size, kSeed);
  uint64_t warmup = spec.iterations / 10 + 1;
  uint64_t total = warmup + spec.iterations;
  for (uint64_t i = 0; i < total; ++i) {
    stamp(source.data(), spec.size, kSeed, i == 0 ? kNoIteration : i - 1, i);
    if (spec.corrupt && i + 1 == total) source.data()[spec.size / 2] ^= 1;
    auto start = Clock::now();
    std::memcpy(target.data(), source.data(), spec.size);
    // The copy has to be there before the clock is read.
    asm volatile("" : : "r"(target.data()) : "memory");
    double us = microseconds(start, Clock::now());
    outcome.wrong += check_stamps(target.data(), spec.size, i);
    if (i >= warmup) record(us, spec.size, &outcome);
  }
  outcome.wrong += check_message(target.data(), spec.size, kSeed, total - 1);
  return outcome;
}

}  // namespace bench
