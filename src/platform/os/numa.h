// SPDX-License-Identifier: Apache-2.0
//
// NUMA nodes of the host, and how threads and memory get near one. All of it is for speed alone: on
// a host that tells nothing of its nodes, or a container that forbids the calls, nothing happens,
// and the log says so at its level debug.
//
// Threading: functions from any thread; a ThreadPlace belongs to its thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace oh {

// A set of CPUs, as large as the kernel's largest.
class CpuSet {
 public:
  static constexpr unsigned kMost = 8192;
  // "0-3,8,10-11", also empty. OH_ERR_INVALID: it is something else.
  static Result<CpuSet> parse(std::string_view text);
  // What the calling thread may use; empty: not known.
  static CpuSet of_thread();

  void add(unsigned cpu) { words_[cpu / 64] |= uint64_t{1} << cpu % 64; }
  bool has(unsigned cpu) const { return (words_[cpu / 64] >> cpu % 64 & 1) != 0; }
  bool empty() const { return *this == CpuSet(); }
  CpuSet operator&(const CpuSet& other) const;
  bool operator==(const CpuSet&) const = default;
  std::string text() const;
  const uint64_t* mask() const { return words_.data(); }
  static constexpr size_t kMaskSize = kMost / 8;

 private:
  std::array<uint64_t, kMost / 64> words_{};
};

// The node that a PCI device ("0000:17:00.0") is attached to, or -1.
int numa_node_of_pci(const std::string& address);
// The CPUs of a node; empty: not known, or it has none.
CpuSet cpus_of_node(int node);
// All nodes of the host; none where it does not tell.
std::vector<int> numa_nodes();

// Where the calling thread runs: on the CPUs it has, or on those of them that are of one node. It
// never gets CPUs beyond those that the program gave it, before or meanwhile.
class ThreadPlace {
 public:
  // -1: wherever it could run by itself.
  void move_to(int node);

 private:
  CpuSet own_;  // without us
  CpuSet set_;  // by us
};

// Lets unallocated pages of the memory come from `node`; -1: from anywhere. Of memory
// with a file behind it, also those that another mapping of it brings.
void place_memory(void* memory, uint64_t size, int node);

}  // namespace oh
