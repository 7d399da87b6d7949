// SPDX-License-Identifier: Apache-2.0
//
// Selection: which path an operation takes, in words. Pure functions of what both sides can do. The
// engine decides by itself; tests/conformance/explained.cc holds the two together.
//
// Threading: none needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onehop/types.h"
#include "platform/cuda/topology.h"

namespace oh {

enum class MemoryKind : uint8_t {
  kHost,           // private host memory
  kShared,         // a shared block
  kDevice,         // device memory that others can map: cudaMalloc, VMM, exportable pools
  kDevicePrivate,  // that they cannot: the default pool of cudaMallocAsync, managed memory
};
const char* memory_kind_name(MemoryKind kind);

// What is known of a link once it is set up.
struct LinkFacts {
  bool same_process = false;
  bool segment = false;
  bool ucx = false;
  bool rma = false;            // of UCX, for puts and gets
  bool we_reach_them = false;  // process_vm, or plain addresses
  bool they_reach_us = false;
  uint64_t granted_inline = 0;
  uint64_t eager_max = 0;
  uint64_t eager_credit = 0;
  std::string why_no_segment;
  std::string why_no_ucx;
  std::string why_not_reached;
  // Device memory.
  bool our_gpu = false;  // our endpoint is on one
  bool their_gpu = false;
  bool same_gpu = false;
  cuda::GpuLink gpu_link;          // how the two GPUs are joined, where that was asked
  uint64_t worker_max = 0;         // bytes that our GPU's worker copies; 0: there is none
  std::string why_no_device;       // not empty: our device memory has no way over this link
  std::string why_no_peer_access;  // not empty: the two GPUs do not reach each other's memory
  // The stream domain, where its link was asked: nvlink, proxy or, with a reason, none.
  oh_path stream_path = OH_PATH_NONE;
  std::string why_stream;  // why not nvlink
};

enum class Method : uint8_t { kInline, kEager, kDirect, kStream, kNone };
const char* method_name(Method method);

struct Choice {
  oh_path path = OH_PATH_NONE;
  Method method = Method::kStream;
  std::string why;
  bool operator==(const Choice&) const = default;
};

// How a message of `size` bytes travels when its receive is posted and credit is left.
Choice choose_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size);
// How it does when earlier work on the source is not done by the time that its receive is posted.
Choice choose_pending(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size);
// How a put or get does.
Choice choose_one_sided(const LinkFacts& facts, MemoryKind local, MemoryKind remote, uint64_t size);

// One row of the explanation: sizes [first, last]. The source is ours, also of a put or get.
struct PathRow {
  // "message", "put/get" or "stream"; "pending message" where that takes another path.
  std::string operation;
  MemoryKind source;
  MemoryKind target;
  uint64_t first = 0;
  uint64_t last = 0;
  Choice choice = {};
};
// Rows of device memory only for a side that is on a GPU. To the GPU shared blocks are host memory.
std::vector<PathRow> explain(const LinkFacts& facts);

// Which path large messages take over this link, and why not the faster ones: for the log.
std::string describe_choice(const LinkFacts& facts);

// Why device memory goes a longer way over this link than the hardware allows, and what to do;
// empty: it does not, as far as is known.
std::string why_slower(const LinkFacts& facts);

// A transport of this build: viable here, or why not.
struct TransportFact {
  const char* name;
  bool viable;
  std::string why;
};
std::vector<TransportFact> transports(const std::string& cuda_library,
                                      const std::string& ucx_library);

}  // namespace oh
