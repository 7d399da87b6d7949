// SPDX-License-Identifier: Apache-2.0
//
// LinkFacts: what both sides of a link can do. Every choice of a path is a function of it.
//
// Threading: values.
#pragma once

#include <cstdint>
#include <string>

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

// Whose copy engine moves a message between two device buffers, where either could.
enum class CopySide : uint8_t {
  kSource,  // engines write over NVLink faster than they read
  // Two processes on one GPU: the GPU switches contexts when the other process copies, which takes
  // longer than most messages. So one side makes all copies.
  kUs,
  kThem,
};

// What is known of a link once it is set up.
struct LinkFacts {
  bool same_process = false;
  bool segment = false;
  bool ucx = false;
  bool rma = false;            // of UCX, for puts and gets
  bool we_reach_them = false;  // process_vm, or plain addresses
  bool they_reach_us = false;
  uint64_t granted_inline = 0;
  uint64_t single_frame = 0;  // largest message in one frame
  uint64_t eager_max = 0;
  uint64_t their_eager_max = 0;
  uint64_t eager_credit = 0;
  std::string why_no_segment;
  std::string why_no_ucx;
  std::string why_not_reached;
  // Device memory.
  bool our_gpu = false;  // our endpoint is on one
  bool their_gpu = false;
  bool same_gpu = false;
  CopySide copy_side = CopySide::kSource;
  cuda::GpuLink gpu_link;          // how the two GPUs are joined, where that was asked
  bool maps_devices = true;        // each side may map the other's device memory
  uint64_t worker_max = 0;         // bytes that our GPU's worker copies; 0: there is none
  std::string why_no_device;       // not empty: our device memory has no way over this link
  std::string why_no_peer_access;  // not empty: the two GPUs do not reach each other's memory
  // The stream domain, where its link was asked: nvlink, proxy or, with a reason, none.
  oh_path stream_path = OH_PATH_NONE;
  std::string why_stream;  // why not nvlink
};

inline bool on_device(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kDevicePrivate;
}

}  // namespace oh
