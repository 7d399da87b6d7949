// SPDX-License-Identifier: Apache-2.0
//
// How GPUs are joined: by NVLink, or by what of PCIe. NVML tells it; without it a link is not
// known, and whether there is peer access still comes from the driver.
//
// Threading: any thread. Not for data paths nor for connecting: the first question takes
// milliseconds. Answers are kept for the life of the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onehop/types.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

struct GpuLink {
  oh_link kind = OH_LINK_UNKNOWN;
  unsigned nvlinks = 0;           // that join the two; 0: none, or not known
  uint64_t nvlink_bandwidth = 0;  // bytes/s of each, one way; 0: not known
  std::string why;                // it is not known

  // "NVLink, 18 links"; for a link that is not known, why.
  std::string text() const;
};

// What NVML says of two GPUs.
struct LinkReadings {
  bool nvlink_access = false;  // they reach each other's memory over NVLink
  unsigned direct = 0;         // active NVLinks from the one to the other
  unsigned switched[2] = {};   // active NVLinks of each to anything but a GPU
  int ancestor = -1;           // nvml::Ancestor; -1: not known
};
GpuLink link_of(const LinkReadings& readings);

// All pairs of these GPUs, row by row. `library` is ONEHOP_NVML_LIBRARY; the UUIDs ("GPU-…") may be
// of GPUs that this process does not see.
std::vector<GpuLink> links_among(const std::string& library, const std::vector<std::string>& uuids);

// Processes that compute on the GPU with that UUID now, this one too; -1: not known.
int compute_processes(const std::string& library, const std::string& uuid);

// What the driver lets copies and kernels of `from` do with the memory of `to`.
struct PeerAccess {
  bool reaches = false;
  bool atomics = false;  // the hardware's own
};
PeerAccess peer_access(const Driver& driver, Device from, Device to);

// Why kernels on `from` may not share the words of a lane with kernels on `to`; empty: they may.
// Their protocol needs atomic operations on the peer's memory and stores of 16 bytes that arrive
// whole: within one GPU, or over a link with native atomics, which is NVLink.
std::string why_no_native_atomics(const Driver& driver, Device from, Device to);
// The same of a GPU that this process does not see, by NVML: the driver cannot be asked.
std::string why_not_nvlink(const std::string& library, const std::string& ours,
                           const std::string& theirs);

}  // namespace oh::cuda
