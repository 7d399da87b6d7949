// SPDX-License-Identifier: Apache-2.0
//
// LinkFacts: the capabilities of both sides of a link. Every choice of a path is a function of
// them.
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
  kPinned,         // private host memory that the application has registered with CUDA
  kDevice,         // device memory that the peer can map: cudaMalloc, VMM, exportable pools
  kDevicePrivate,  // not mappable: the default pool of cudaMallocAsync, managed memory
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

// Known once the link is set up.
struct LinkFacts {
  bool same_process = false;
  bool segment = false;
  bool ucx = false;
  bool rma = false;            // UCX RMA, for puts and gets
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
  bool our_gpu = false;  // the local endpoint is on a GPU
  bool their_gpu = false;
  bool same_gpu = false;
  CopySide copy_side = CopySide::kSource;
  cuda::GpuLink gpu_link;          // how the two GPUs are connected, where it was queried
  bool maps_devices = true;        // each side may map the other's device memory
  uint64_t worker_max = 0;         // largest copy by the local GPU's worker; 0: no worker
  std::string why_no_device;       // not empty: no path carries local device memory
  std::string why_no_peer_access;  // not empty: the two GPUs have no peer access
  // The stream domain, where it was queried: nvlink, proxy or, with a reason, none.
  oh_path stream_path = OH_PATH_NONE;
  std::string why_stream;  // why not nvlink
};

inline bool on_device(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kDevicePrivate;
}

}  // namespace oh
