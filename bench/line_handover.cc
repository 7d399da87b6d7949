// SPDX-License-Identifier: Apache-2.0
//
// Measures the effect of returning modified cache lines, described in docs/host-memory.md: two
// processes pass a block through shared memory repeatedly and time the copies in and out. In the
// first run the reader only reads; in the second it also writes a word into every line that it has
// read.
//
//   g++ -O2 -std=c++20 bench/line_handover.cc -o line_handover && ./line_handover
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace {

constexpr size_t kBlock = 64 * 1024;
constexpr int kRounds = 5000;
constexpr int kRepetitions = 5;

struct Shared {
  alignas(64) std::atomic<uint32_t> written;
  alignas(64) std::atomic<uint32_t> read;
  alignas(4096) uint8_t block[kBlock];
};

double now_us() {
  auto time = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double, std::micro>(time).count();
}

void await(const std::atomic<uint32_t>& word, uint32_t value) {
  while (word.load(std::memory_order_acquire) != value) {
  }
}

double median_rate(std::vector<double>& times) {
  std::sort(times.begin(), times.end());
  return kBlock / times[times.size() / 2] / 1e3;
}

void copy_out(uint8_t* to, uint8_t* from, bool hand_back) {
  for (size_t at = 0; at < kBlock; at += 64) {
    std::memcpy(to + at, from + at, 64);
    if (hand_back) *reinterpret_cast<volatile uint64_t*>(from + at) = 0;
  }
}

// Returns the median rate of this side's copies in GB/s.
double play(Shared& shared, bool writer, bool hand_back, uint32_t first) {
  static uint8_t own[kBlock];
  std::memset(own, writer, kBlock);
  std::vector<double> times;
  for (uint32_t round = first; round < first + kRounds; ++round) {
    double begin;
    if (writer) {
      await(shared.read, round);
      begin = now_us();
      std::memcpy(shared.block, own, kBlock);
      times.push_back(now_us() - begin);
      shared.written.store(round + 1, std::memory_order_release);
    } else {
      await(shared.written, round + 1);
      begin = now_us();
      copy_out(own, shared.block, hand_back);
      times.push_back(now_us() - begin);
      shared.read.store(round + 1, std::memory_order_release);
    }
  }
  return median_rate(times);
}

}  // namespace

int main() {
  void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return 1;
  auto* shared = new (memory) Shared{};
  int results[2];
  if (pipe(results) != 0) return 1;
  bool writer = fork() != 0;
  for (uint32_t step = 0; step < 2 * kRepetitions; ++step) {
    bool hand_back = step % 2 != 0;
    double rate = play(*shared, writer, hand_back, step * kRounds);
    if (!writer) {
      if (write(results[1], &rate, sizeof(rate)) != sizeof(rate)) return 1;
      continue;
    }
    double reader = 0;
    if (read(results[0], &reader, sizeof(reader)) != sizeof(reader)) return 1;
    std::printf("reader %s: write %5.1f GB/s, read %5.1f GB/s\n",
                hand_back ? "hands lines back" : "only reads      ", rate, reader);
  }
  if (writer) wait(nullptr);
  return 0;
}
