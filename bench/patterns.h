// SPDX-License-Identifier: Apache-2.0
//
// Patterns: exchanges among ranks, by onehop (onehop_patterns.hpp) and by what NCCL does in their
// place.
//
// Threading: each belongs to one thread. Ownership: a rank outlives NCCL's that is made with it.
#pragma once

#include "nccl.h"
#include "onehop/onehop.hpp"
#include "streams.h"

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

class PatternRank {
 public:
  // `id`: of oh_unique_id, the same for all.
  PatternRank(uint32_t rank, uint32_t ranks, const std::string& device, const onehop::Bytes& id);

  const Device& device() const { return device_; }
  uint32_t rank() const { return comm_.rank(); }
  uint32_t ranks() const { return comm_.size(); }
  void barrier() { comm_.barrier(); }
  // Gives rank 0's bytes to all.
  void broadcast(void* data, size_t size);
  Outcome run(const PatternSpec& spec);

 private:
  void enqueue(PatternBytes& bytes);
  void send_to_many(PatternBytes& bytes);
  void receive_from_many(PatternBytes& bytes);
  void all_to_all(PatternBytes& bytes);
  // Throws what went wrong on the device.
  void check_peers();

  Device device_;
  onehop::Communicator comm_;
};

// ncclSend and ncclRecv in one group, of the same parts. NCCL has to know sizes on the host: it
// moves the whole parts of a dispatch.
class NcclRank {
 public:
  NcclRank(PatternRank& rank, const std::vector<std::string>& libraries);

  std::string version() const { return communicator_.version(); }
  Outcome run(const PatternSpec& spec);

 private:
  void enqueue(PatternBytes& bytes);

  PatternRank& rank_;
  NcclCommunicator communicator_;
};

}  // namespace bench
