// SPDX-License-Identifier: Apache-2.0
//
// Choice: how an operation travels, and why; Estimate: what a path says of the two ends of a put or
// get. Here is also what the explanations of several paths have in common.
//
// Threading: none needed.
#pragma once

#include <cstdint>
#include <string>

#include "link/facts.h"
#include "onehop/types.h"

namespace oh {

enum class Method : uint8_t { kInline, kEager, kDirect, kStream, kNone };
const char* method_name(Method method);

struct Choice {
  oh_path path = OH_PATH_NONE;
  Method method = Method::kStream;
  std::string why;
  bool operator==(const Choice&) const = default;
};

// Where the bytes of a put or get are.
struct Ends {
  MemoryKind local = MemoryKind::kHost;
  MemoryKind remote = MemoryKind::kHost;
  bool operator==(const Ends&) const = default;
};

// What a put or get costs by a path. The constants are orders of magnitude of docs/benchmarks.md:
// they rank the paths.
struct Cost {
  bool viable = false;
  bool by_target = false;  // it needs the target's progress: any other path comes first
  float latency_us = 0;
  float bytes_per_us = 1;
  double of(uint64_t size) const { return latency_us + static_cast<double>(size) / bytes_per_us; }
  bool is_less(const Cost& other, uint64_t size) const {
    return by_target != other.by_target ? other.by_target : of(size) < other.of(size);
  }
};

// The same in words, where it is viable.
struct Estimate {
  Cost cost = {};
  Choice choice = {};
  uint64_t small_max = 0;  // up to so many bytes travel as `small` says
  Choice small = {};
};

// The path of host memory over the link.
oh_path bulk_path(const LinkFacts& facts);
// How bytes travel without a segment.
std::string between_hosts(const LinkFacts& facts);
// Why device memory has no path over this link; empty: it has. `ours`: our buffer is on a device.
std::string why_not_at_all(const LinkFacts& facts, bool ours);
// Of memory that another GPU addresses within the process: which.
std::string plain_only(const LinkFacts& facts, MemoryKind addressed);
// What a copy between the two GPUs leads over. It changes the text only: sizes and choices were
// measured over NVLink, and nothing says that others would be better over PCIe.
std::string over(const LinkFacts& facts);
// Device memory without a segment.
Choice by_staging(const LinkFacts& facts);
// Device memory over a segment, where both sides take part.
Choice through_devices(const LinkFacts& facts, MemoryKind source, MemoryKind target);
// What our engine would copy to (or from) memory that our GPU's kernels reach, its worker may.
Choice or_by_worker(MemoryKind ours, MemoryKind theirs, const Choice& choice);

}  // namespace oh
