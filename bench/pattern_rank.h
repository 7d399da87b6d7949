// SPDX-License-Identifier: Apache-2.0
//
// A rank of the patterns: onehop's (onehop_patterns.hpp), and what NCCL does in their place.
//
// Threading: each belongs to one thread. Ownership: a rank outlives NCCL's that is made with it.
#pragma once

#include "nccl_library.h"
#include "patterns.h"

namespace bench {

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
  ~NcclRank();
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  std::string version() const { return library_.version(); }
  Outcome run(const PatternSpec& spec);

 private:
  void enqueue(PatternBytes& bytes);

  PatternRank& rank_;
  NcclLibrary library_;
  void* communicator_ = nullptr;
};

}  // namespace bench
