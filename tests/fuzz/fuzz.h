// SPDX-License-Identifier: Apache-2.0
//
// What the fuzzers share. Each defines seeds(), inputs that are right, made by the encoders of the
// core, and check(), which takes any input.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "base/wire.h"

namespace fuzz {

std::vector<oh::Bytes> seeds();
void check(oh::ByteView input);

// Ends the fuzzer: a property does not hold.
inline void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s\n", what);
  std::abort();
}

// A copy on the heap, so that the sanitizer sees a read beyond its end.
class Exact {
 public:
  explicit Exact(oh::ByteView view) : data_(new uint8_t[view.size()]), size_(view.size()) {
    for (size_t i = 0; i < size_; ++i) data_[i] = view[i];
  }
  ~Exact() { delete[] data_; }
  Exact(const Exact&) = delete;
  Exact& operator=(const Exact&) = delete;
  oh::ByteView view() const { return {data_, size_}; }

 private:
  uint8_t* data_;
  size_t size_;
};

// Takes an input apart; zeros behind its end.
class Input {
 public:
  explicit Input(oh::ByteView view) : view_(view) {}
  bool empty() const { return view_.empty(); }
  uint8_t byte() {
    if (view_.empty()) return 0;
    uint8_t value = view_.front();
    view_ = view_.subspan(1);
    return value;
  }
  uint64_t number(int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte();
    return value;
  }
  // At most `most` bytes.
  oh::ByteView bytes(size_t most) {
    oh::ByteView head = view_.first(most < view_.size() ? most : view_.size());
    view_ = view_.subspan(head.size());
    return head;
  }
  oh::ByteView rest() { return bytes(view_.size()); }

 private:
  oh::ByteView view_;
};

}  // namespace fuzz
