// SPDX-License-Identifier: Apache-2.0
//
// Cooperative copies by several threads, for any alignment. The same code runs in kernels and on
// host threads.
//
// Threading: all lanes of a group call with the same arguments.
#pragma once

#include "onehop/detail/word.h"

#if defined(__CUDACC__)
#define ONEHOP_BOTH __host__ __device__ __forceinline__
#else
#define ONEHOP_BOTH inline
#endif

namespace onehop::detail {

// The 16 bytes that begin `shift` bytes (1 to 15) after the start of `first`.
ONEHOP_BOTH Pair joined(const Pair& first, const Pair& second, unsigned shift) {
  const unsigned bits = shift % 8 * 8;
  const uint64_t a = shift < 8 ? first.low : first.high;
  const uint64_t b = shift < 8 ? first.high : second.low;
  const uint64_t c = shift < 8 ? second.low : second.high;
  if (bits == 0) return {a, b};
  return {a >> bits | b << (64 - bits), b >> bits | c << (64 - bits)};
}

// All lanes together copy `size` bytes: single bytes up to the target's first aligned word of 16
// bytes, then whole words, then single bytes. If the source has another alignment, its aligned
// words are shifted; only words that hold a byte of the source are read.
//
// Lanes: kAtOnce, the loads that a lane keeps in flight; lane() and count(); next(own, words, i,
// valid, last), which returns words[i + 1] for a lane whose own word is words[i]. `last`: no valid
// word follows words[i].
template <typename Lanes>
ONEHOP_BOTH void copy_together(const Lanes& lanes, uint8_t* to, const uint8_t* from,
                               uint64_t size) {
  constexpr unsigned kAtOnce = Lanes::kAtOnce;
  // Short aligned copies: at most one word a lane.
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

// A single host thread.
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
