// SPDX-License-Identifier: Apache-2.0
//
// Batches: one kernel copies many blocks, of any size and alignment. The host has divided them
// among the workers (a warp each) by bytes; a worker walks through its share and copies piece by
// piece. The same lines run on a device and in the fake driver, where a worker has one lane.
//
//   shares      worker w copies from shares[w] to shares[w + 1]: block, and offset within it
//   finished    in device memory, zero: the kernel's blocks that are through; zero again in the end
//   word        in host memory: gets `value` when all bytes are in place, wherever they are
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OH_KERNEL_CODE __host__ __device__ __forceinline__
#define OH_UNROLL _Pragma("unroll")
#else
#define OH_KERNEL_CODE inline
#define OH_UNROLL
#endif

namespace oh::kernels {

inline constexpr char kBatchKernel[] = "onehop_batch";
inline constexpr unsigned kBatchThreads = 512;
inline constexpr unsigned kBatchGrid = 64;
inline constexpr unsigned kBatchWorkers = kBatchGrid * kBatchThreads / 32;

struct BatchBlock {
  uint64_t to;
  uint64_t from;
  uint64_t size;
};

struct BatchShare {
  uint64_t block;
  uint64_t offset;
};

struct BatchArgs {
  const BatchBlock* blocks;
  const BatchShare* shares;
  uint32_t* finished;
  uint64_t* word;
  uint64_t value;
  uint32_t workers;
};

// copy(to, from, size) for each piece of the worker's share.
template <typename Copy>
OH_KERNEL_CODE void walk_share(const BatchArgs& args, uint32_t worker, const Copy& copy) {
  BatchShare at = args.shares[worker];
  const BatchShare end = args.shares[worker + 1];
  const uint64_t behind = end.offset == 0 ? end.block : end.block + 1;
  if (at.block >= behind) return;
  BatchBlock block = args.blocks[at.block];
  while (true) {
    // On its way while this one is copied.
    const BatchBlock next = at.block + 1 < behind ? args.blocks[at.block + 1] : block;
    const uint64_t upto = at.block == end.block ? end.offset : block.size;
    copy(block.to + at.offset, block.from + at.offset, upto - at.offset);
    if (++at.block == behind) return;
    at.offset = 0;
    block = next;
  }
}

struct alignas(16) Word {
  uint64_t low;
  uint64_t high;
};

// The 16 bytes that begin `shift` bytes (1 to 15) into `first`.
OH_KERNEL_CODE Word joined(const Word& first, const Word& second, unsigned shift) {
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
// Lanes: lane(), count(), and next(own, words, i, valid, last), the word behind each lane's own,
// words[i]; `last`: there is no valid one behind it.
template <typename Lanes>
OH_KERNEL_CODE void copy_together(const Lanes& lanes, uint8_t* to, const uint8_t* from,
                                  uint64_t size) {
  constexpr unsigned kAtOnce = 8;
  // What is short and aligned, at once.
  const bool aligned =
      (reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from)) % 16 == 0;
  if (aligned && size % 16 == 0 && size <= lanes.count() * sizeof(Word)) {
    const uint64_t i = lanes.lane();
    if (i * sizeof(Word) < size) {
      reinterpret_cast<Word*>(to)[i] = reinterpret_cast<const Word*>(from)[i];
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
  Word* target = reinterpret_cast<Word*>(to);
  const Word* source = reinterpret_cast<const Word*>(from - shift);
  for (uint64_t begin = 0; begin < words; begin += kAtOnce * lanes.count()) {
    Word word[kAtOnce];
    OH_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const uint64_t i = begin + k * lanes.count() + lanes.lane();
      if (i < words) word[k] = source[i];
    }
    if (shift != 0) {
      OH_UNROLL
      for (unsigned k = 0; k < kAtOnce; ++k) {
        const uint64_t i = begin + k * lanes.count() + lanes.lane();
        word[k] = joined(word[k], lanes.next(word[k], source, i, i < words, i + 1 == words), shift);
      }
    }
    OH_UNROLL
    for (unsigned k = 0; k < kAtOnce; ++k) {
      const uint64_t i = begin + k * lanes.count() + lanes.lane();
      if (i < words) target[i] = word[k];
    }
  }
  for (uint64_t i = words * 16 + lanes.lane(); i < size - head; i += lanes.count()) to[i] = from[i];
}

// A worker on the host.
struct OneLane {
  unsigned lane() const { return 0; }
  unsigned count() const { return 1; }
  Word next(const Word& /*own*/, const Word* words, uint64_t i, bool valid, bool /*last*/) const {
    return valid ? words[i + 1] : Word{};
  }
};

}  // namespace oh::kernels
