// SPDX-License-Identifier: Apache-2.0
//
// Payload of the benchmark: bytes that follow from a seed, the iteration and their position, so
// that a byte that was lost, late, or put elsewhere is seen.
//
//   word 0        words 1 .. last - 1                      last 8 bytes
//   | iteration | pattern(seed, position), and somewhere | iteration |
//                 among it one word that tells the iteration
//
// The pattern is laid down once, outside of what is timed; the three stamps cost a few nanoseconds
// an iteration, so each message is sampled, and the last one is checked whole.
//
// Threading: none; each side has its own payloads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bench {

inline constexpr uint8_t kPoison = 0xee;
inline constexpr uint64_t kNoIteration = ~uint64_t{0};

// Lays down the pattern of `seed`.
void fill(void* data, size_t size, uint64_t seed);
// Overwrites what must not be taken for new.
void poison(void* data, size_t size);
// Number of bytes that are not the pattern's.
uint64_t count_wrong(const void* data, size_t size, uint64_t seed);
// Number of bytes that are not poisoned any more.
uint64_t count_touched(const void* data, size_t size);

// Marks `data`, which holds the pattern, as message `iteration`; the wandering stamp of `previous`
// (kNoIteration: none) is taken back.
void stamp(void* data, size_t size, uint64_t seed, uint64_t previous, uint64_t iteration);
// Number of bytes of the stamps that are wrong.
uint64_t check_stamps(const void* data, size_t size, uint64_t iteration);
// Poisons where message `iteration` will have its stamps.
void poison_stamps(void* data, size_t size, uint64_t iteration);
// Checks message `iteration` whole. Takes its stamps back, so `data` holds the pattern afterwards.
uint64_t check_message(void* data, size_t size, uint64_t seed, uint64_t iteration);

}  // namespace bench
