// SPDX-License-Identifier: Apache-2.0
//
// Two sides that share one page, to meet and to tell each other of a message: the link of what
// onehop is compared with. Side 1 finds the page by the place that its parent passes on.
//
// Threading: a meeting belongs to one thread at a time. The parent of both sides ends them, should
// one die.
#pragma once

#include <atomic>

#include "wire.h"

namespace bench {

class Meeting : public Link {
 public:
  explicit Meeting(int number);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() override;

  // Where side 1 finds the page of side 0.
  std::string place() const;
  void join(const std::string& place);

  int number() const override { return number_; }
  void sync() override;
  // At most kMostBytes.
  Bytes swap(const Bytes& bytes) override;

  static constexpr size_t kMostBytes = 1024;
  // Words of one side, on cache lines of their own (two, for the adjacent-line prefetcher). The
  // number, which only grows, is stored with release behind the value, and loaded with acquire
  // before it.
  struct alignas(128) Line {
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> value{0};
  };
  // Tells the other side a value, and awaits its next one. Inline, for that is what a floor
  // measures.
  void tell(uint64_t value = 0) {
    Line& line = page_->lines[number_];
    line.value.store(value, std::memory_order_relaxed);
    line.number.store(++told_, std::memory_order_release);
  }
  uint64_t await() {
    const Line& line = page_->lines[1 - number_];
    await_value(line.number, ++heard_);
    return line.value.load(std::memory_order_relaxed);
  }

 private:
  struct Page {
    Line lines[2];
    Line arrived[2];
    struct {
      size_t size;
      uint8_t data[kMostBytes];
    } given[2];
  };

  static void pause_spin() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  static void await_value(const std::atomic<uint64_t>& value, uint64_t least) {
    constexpr uint64_t kRest = 1 << 14;
    for (uint64_t round = 1; value.load(std::memory_order_acquire) < least; ++round) {
      pause_spin();
      if (round % kRest == 0) rest();
    }
  }
  // Yields, for machines with fewer cores than sides.
  static void rest();
  void map();

  int number_;
  int fd_ = -1;
  Page* page_ = nullptr;
  uint64_t round_ = 0;
  uint64_t told_ = 0;
  uint64_t heard_ = 0;
};

}  // namespace bench
