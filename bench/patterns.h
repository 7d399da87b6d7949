// SPDX-License-Identifier: Apache-2.0
//
// Patterns: exchanges among ranks, and their timed loop: the same for onehop and for NCCL.
//
// Threading: each belongs to one thread, and the device's context is current there.
#pragma once

#include "gpu_kernels.h"
#include "side.h"

namespace bench {

enum class Pattern {
  kSendRecv,   // each to the next of a ring
  kSendMany,   // rank 0 to all others
  kRecvMany,   // all others to rank 0
  kAllToAllV,  // all to all, themselves too, parts of 1/4 to 4/4 of the size
  kDispatch,   // the same, and only the device knows of how much
};

// One row: all ranks are given the same.
struct PatternSpec {
  Pattern pattern = Pattern::kSendRecv;
  size_t size = 8;  // of the largest part that one rank sends to another
  size_t iterations = 1000;
  size_t warmup = 100;
  bool graph = false;  // of up to 50 exchanges, which is replayed
  Memory memory = Memory::kCuda;
  bool corrupt = false;  // as in Spec
};

// Whether `from` sends anything to `to`; and how much of it counts. The parts of a dispatch are
// others each turn; the timed one is turn 0.
bool sends(Pattern pattern, uint32_t ranks, uint32_t from, uint32_t to);
size_t part_of(const PatternSpec& spec, uint32_t from, uint32_t to, uint64_t turn);
// The most bytes that one rank sends to the others, or receives from them.
size_t busiest(const PatternSpec& spec, uint32_t ranks);

// What a rank sends and what it gets: `size` bytes for each rank, and their sizes for a dispatch.
class PatternBytes {
 public:
  // `padded`: whole parts are moved, whatever of them counts.
  PatternBytes(const Device& device, const PatternSpec& spec, uint32_t rank, uint32_t ranks,
               bool padded);

  const PatternSpec& spec() const { return spec_; }
  uint8_t* out(uint32_t to) { return out_.data() + to * spec_.size; }
  uint8_t* in(uint32_t from) { return in_.data() + from * spec_.size; }
  uint64_t* out_sizes() { return reinterpret_cast<uint64_t*>(out_sizes_.data()); }
  uint64_t* in_sizes() { return reinterpret_cast<uint64_t*>(in_sizes_.data()); }

  // New bytes to be sent, and poison where others come to. Nothing is under way.
  void prepare(uint64_t turn, bool last = false);
  // The number of wrong ones, also where nothing was to come.
  uint64_t check();

 private:
  uint64_t seed(uint32_t from, uint32_t to) const;

  const Device& device_;
  const PatternSpec& spec_;
  uint32_t rank_;
  uint32_t ranks_;
  bool padded_;
  Buffer bytes_;
  GpuBlock out_;
  GpuBlock in_;
  GpuBlock out_sizes_;
  GpuBlock in_sizes_;
  uint64_t phase_ = 0;
  uint64_t turn_ = 0;
};

// How one rank takes part.
struct PatternSide {
  const Device& device;
  uint32_t rank;
  uint32_t ranks;
  bool padded;
  std::function<void()> sync;                        // all ranks have come here
  std::function<void(PatternBytes& bytes)> enqueue;  // an exchange, on the device's stream
};

// A sample is the mean of up to 50 exchanges in a row, as the rank's stream sees them.
Outcome pattern_loop(const PatternSpec& spec, const PatternSide& side);

}  // namespace bench
