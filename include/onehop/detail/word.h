// SPDX-License-Identifier: Apache-2.0
//
// Progress words of 8 bytes that kernels and host threads publish to each other, and the flags of
// ring entries. The same code runs in kernels and on host threads: A is the access policy,
// DeviceAtomics or HostAtomics.
//
//   word   epoch 8 | count 56      a count that one side publishes and the other polls
//   flag   epoch 8 | lap 24        stored in one access with the data of a ring position
//
// Zero is never a valid word or flag, because no epoch is 0. A late store from an earlier epoch
// reads as 0, so it never looks valid. It can hide the value before it; the wait then ends at its
// deadline.
//
// Threading: each word has one writer. Ownership: none; everything here is a view.
#pragma once

#include "onehop/detail/integers.h"

// Under nvcc, functions that access memory are device functions; functions that only compute are
// host and device functions.
#if defined(__CUDACC__)
#define ONEHOP_PROTOCOL __device__ __forceinline__
#define ONEHOP_PURE __host__ __device__ constexpr
#define ONEHOP_UNROLLED _Pragma("unroll")
#define ONEHOP_ROLLED _Pragma("unroll 1")
#else
#define ONEHOP_PROTOCOL inline
#define ONEHOP_PURE constexpr
#define ONEHOP_UNROLLED
#define ONEHOP_ROLLED
#endif

namespace onehop::detail {

// Epochs are 1 to 255 and wrap: a late store could look valid only after 255 changes.
ONEHOP_PURE uint8_t next_epoch(uint8_t epoch) {
  return epoch == 255 ? uint8_t{1} : static_cast<uint8_t>(epoch + 1);
}

ONEHOP_PURE uint64_t make_word(uint8_t epoch, uint64_t count) {
  return static_cast<uint64_t>(epoch) << 56 | (count & ((uint64_t{1} << 56) - 1));
}

// The count of a word, or 0 if it is of another epoch.
ONEHOP_PURE uint64_t count_of(uint64_t word, uint8_t epoch) {
  return word >> 56 == epoch ? word & ((uint64_t{1} << 56) - 1) : 0;
}

// Publishes a count. A reader that polls it sees all earlier stores. Release: pairs with poll().
template <typename A>
ONEHOP_PROTOCOL void publish(uint64_t* word, uint8_t epoch, uint64_t count) {
  A::store_release(word, make_word(epoch, count));
}

// Acquire: pairs with publish().
template <typename A>
ONEHOP_PROTOCOL uint64_t poll(const uint64_t* word, uint8_t epoch) {
  return count_of(A::load_acquire(word), epoch);
}

// A ring has 2^shift places. Positions only grow; they start at 0 in every epoch.
ONEHOP_PURE uint64_t place_of(uint32_t shift, uint64_t position) {
  return position & ((uint64_t{1} << shift) - 1);
}

// A place keeps the flag of its last lap until it is written again, so laps may wrap.
ONEHOP_PURE uint32_t flag_at(uint8_t epoch, uint32_t shift, uint64_t position) {
  return static_cast<uint32_t>(epoch) << 24 |
         (static_cast<uint32_t>(position >> shift) & 0xffffffu);
}

// Whether `wanted` places from `position` on are free, if the other side has finished all positions
// before `through`. A `through` beyond `position` is invalid and counts as no room.
ONEHOP_PURE bool fits(uint32_t shift, uint64_t position, uint64_t wanted, uint64_t through) {
  return through <= position && position - through + wanted <= uint64_t{1} << shift;
}

// Two adjacent values of 8 bytes.
struct alignas(16) Pair {
  uint64_t low;
  uint64_t high;
};

}  // namespace onehop::detail
