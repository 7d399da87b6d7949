// SPDX-License-Identifier: Apache-2.0
//
// Choice: how an operation travels, and why. Estimate: the cost of a put or get by one path. The
// helpers below are shared by the explanations of several paths.
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

// The memory kinds at the two ends of a put or get.
struct Ends {
  MemoryKind local = MemoryKind::kHost;
  MemoryKind remote = MemoryKind::kHost;
  bool operator==(const Ends&) const = default;
};

// The cost of a put or get by one path. The constants are orders of magnitude from
// docs/benchmarks.md and only rank the paths.
struct Cost {
  bool viable = false;
  bool by_target = false;  // needs the target's progress: any other path is preferred
  float latency_us = 0;
  float bytes_per_us = 1;
  double of(uint64_t size) const { return latency_us + static_cast<double>(size) / bytes_per_us; }
  bool is_less(const Cost& other, uint64_t size) const {
    return by_target != other.by_target ? other.by_target : of(size) < other.of(size);
  }
};

// The cost of a path and, if it is viable, its explanation.
struct Estimate {
  Cost cost = {};
  Choice choice = {};
  uint64_t small_max = 0;  // operations of at most this many bytes travel as `small`
  Choice small = {};
};

// The path of host memory over the link.
oh_path bulk_path(const LinkFacts& facts);
// How bytes travel without a segment.
std::string between_hosts(const LinkFacts& facts);
// Why device memory has no path over this link; empty: it has one. `ours`: the local buffer is on a
// device.
std::string why_not_at_all(const LinkFacts& facts, bool ours);
// A note on memory that another GPU of this process addresses: only cudaMalloc memory qualifies.
std::string plain_only(const LinkFacts& facts, MemoryKind addressed);
// The interconnect between the two GPUs, as text. It does not influence the choice: sizes and
// choices were measured over NVLink, and no measurement suggests others for PCIe.
std::string over(const LinkFacts& facts);
// The choice for device memory without a segment.
Choice by_staging(const LinkFacts& facts);
// The choice for device memory over a segment, where both sides take part.
Choice through_devices(const LinkFacts& facts, MemoryKind source, MemoryKind target);
// Turns a copy by the local engine into one by the GPU's worker, where its kernels reach both
// buffers.
Choice or_by_worker(MemoryKind ours, MemoryKind theirs, const Choice& choice);

}  // namespace oh
