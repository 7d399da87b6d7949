// SPDX-License-Identifier: Apache-2.0
//
// NUMA nodes of the host, and placement of threads and memory. Placement only affects speed: if the
// host reports no nodes, or a container forbids the calls, it does nothing and logs at level debug.
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

// A set of CPUs, of the kernel's maximum size.
class CpuSet {
 public:
  static constexpr unsigned kMost = 8192;
  // Parses "0-3,8,10-11" or an empty text. OH_ERR_INVALID: malformed.
  static Result<CpuSet> parse(std::string_view text);
  // The calling thread's affinity; empty: unknown.
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

// The NUMA node of a PCI device ("0000:17:00.0"), or -1.
int numa_node_of_pci(const std::string& address);
// The CPUs of a node; empty: unknown, or it has none.
CpuSet cpus_of_node(int node);
// All nodes of the host; none if the host does not report them.
std::vector<int> numa_nodes();

// Placement of the calling thread: on its own CPUs, or on those of them that belong to one node.
// Never extends the affinity that the program has set, before or in between.
class ThreadPlace {
 public:
  // -1: restores the thread's own affinity.
  void move_to(int node);

 private:
  CpuSet own_;  // affinity set by the program
  CpuSet set_;  // affinity set by move_to()
};

// Prefers `node` for pages of the memory that are not allocated yet; -1: no preference. For
// file-backed memory, also for pages that another mapping allocates.
void place_memory(void* memory, uint64_t size, int node);

}  // namespace oh
