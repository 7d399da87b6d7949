// SPDX-License-Identifier: Apache-2.0
//
// Two processes that share one page, to meet and to tell each other of a message: the base of the
// floors that need two processes. Side 1 finds the page by bytes that their parent passes on, or is
// a fork of side 0 and has it already.
//
// Threading: a meeting belongs to one thread at a time. Ownership: who started a process looks
// after it. A common parent ends both sides, should one die; a side that forked the other has its
// waits look, see watch().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace bench {

class Meeting {
 public:
  explicit Meeting(int number);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting();

  bool first() const { return number_ == 0; }
  // Where side 1 finds the page of side 0.
  std::string place() const;
  void join(const std::string& place);
  // In a fork of side 0: to be side 1 from now on.
  void become_second() { number_ = 1; }
  // `look` is called now and then while this side waits; an exception of it ends the wait.
  void watch(std::function<void()> look) { look_ = std::move(look); }

  // Both sides have come here.
  void sync();
  // One word to the other side (with release), and from it (with acquire): `least` or a greater
  // one. Inline, for they are what a floor measures.
  void tell(uint64_t word) { page_->word[number_].value.store(word, std::memory_order_release); }
  uint64_t await(uint64_t least) { return await_value(page_->word[1 - number_].value, least); }

 private:
  // A word is written by one side only, and lies on a cache line of its own (two, for the
  // adjacent-line prefetcher).
  struct alignas(128) Flag {
    std::atomic<uint64_t> value{0};
  };
  struct Page {
    Flag word[2];
    Flag arrived[2];
  };

  static void pause_spin() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  uint64_t await_value(const std::atomic<uint64_t>& value, uint64_t least) const {
    constexpr uint64_t kRest = 1 << 14;
    for (uint64_t round = 1;; ++round) {
      uint64_t found = value.load(std::memory_order_acquire);
      if (found >= least) return found;
      pause_spin();
      if (round % kRest == 0) rest();
    }
  }
  // Yields, for machines with fewer cores than sides, and looks.
  void rest() const;
  void map();

  int number_;
  int fd_ = -1;
  Page* page_ = nullptr;
  uint64_t round_ = 0;
  std::function<void()> look_;
};

}  // namespace bench
