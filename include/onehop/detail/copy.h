// SPDX-License-Identifier: Apache-2.0
//
// How threads copy memory together, of any alignment. The same lines run in kernels and on host
// threads.
//
// Threading: all lanes of a group call it alike.
#pragma once

#include "onehop/detail/word.h"

#if defined(__CUDACC__)
#define ONEHOP_BOTH __host__ __device__ __forceinline__
#else
#define ONEHOP_BOTH inline
#endif

namespace onehop::detail {

// The 16 bytes that begin `shift` bytes (1 to 15) into `first`.
ONEHOP_BOTH Pair joined(const Pair& first, const Pair& second, unsigned shift) {
  const unsigned bits = shift % 8 * 8;
  const uint64_t a = shift < 8 ? first.low : first.high;
  const uint64_t b = shift < 8 ? first.high : second.low;
  const uint64_t c = shift < 8 ? second.low : second.high;
  if (bits == 0) return {a, b};
  return {a >> bits | b << (64 - bits), b >> bits | c << (64 - bits)};
}

// The lanes of a worker copy [from, from + size) together: whole words of the target, with single
// bytes before and behind them. Where the source lies otherwise its words are shifted; none is read
// that holds no byte of it.
//
// Lanes: kAtOnce, words that a lane has under way; lane(), count(), and next(own, words, i, valid,
// last), the word behind each lane's own, words[i]; `last`: there is no valid one behind it.
template <typename Lanes>
ONEHOP_BOTH void copy_together(const Lanes& lanes, uint8_t* to, const uint8_t* from,
                               uint64_t size) {
  constexpr unsigned kAtOnce = Lanes::kAtOnce;
  // What is short and aligned, at once.
  const bool aligned =
      (reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % 16 == 0;
  if (aligned && size % 16 == 0 && size <= lanes.count() * sizeof(Pair)) {
    const uint64_t i = lanes.lane();
    if (i * sizeof(Pair) < size) {
      reinterpret_cast<Pair*>(to)[i] = reinterpret_cast<const Pair*>(from)[i];
    }
    return;
  }
  const uint64_t up_to_word = -reinterpret_cast<uint64_t>(to) % 16;
  const uint64_t head = up_to_word < size ? up_to_word : size;
  for (uint64_t i = lanes.lane(); i < head; i += lanes.count()) to[i] = from[i];
  to += head;
  from += head;
  const uint64_t words = (size - head) / 16;
  const unsigned shift = reinterpret_cast<uint64_t>(from) % 16;
  Pair* target = reinterpret_cast<Pair*>(to);
  const Pair* source = reinterpret_cast<const Pair*>(from - shift);
  for (uint64_t begin = 0; begin < words; begin += kAtOnce * lanes.count()) {
    Pair word[kAtOnce];
    ONEHOP_UNROLLED
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const uint64_t i = begin + k * lanes.count() + lanes.lane();
      if (i < words) word[k] = source[i];
    }
    if (shift != 0) {
      ONEHOP_UNROLLED
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const uint64_t i = begin + k * lanes.count() + lanes.lane();
        word[k] = joined(word[k], lanes.next(word[k], source, i, i < words, i + 1 == words), shift);
      }
    }
    ONEHOP_UNROLLED
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const uint64_t i = begin + k * lanes.count() + lanes.lane();
      if (i < words) target[i] = word[k];
    }
  }
  for (uint64_t i = words * 16 + lanes.lane(); i < size - head; i += lanes.count()) to[i] = from[i];
}

// A worker on the host.
struct OneLane {
  static constexpr unsigned kAtOnce = 8;
  ONEHOP_PURE unsigned lane() const { return 0; }
  ONEHOP_PURE unsigned count() const { return 1; }
  ONEHOP_PURE Pair next(const Pair& /*own*/, const Pair* words, uint64_t i, bool valid,
                        bool /*last*/) const {
    return valid ? words[i + 1] : Pair{};
  }
};

}  // namespace onehop::detail
