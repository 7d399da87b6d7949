// SPDX-License-Identifier: Apache-2.0
//
// How GPUs are connected: NVLink, or the closest PCIe ancestor. NVML reports it; without NVML the
// kind of link is unknown, but the driver still reports peer access.
//
// Threading: any thread. Not for data paths or connection setup: the first query takes
// milliseconds. Answers are cached for the life of the process.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "onehop/types.h"
#include "platform/cuda/driver.h"

namespace oh::cuda {

struct GpuLink {
  oh_link kind = OH_LINK_UNKNOWN;
  unsigned nvlinks = 0;           // number of NVLinks between the two; 0: none, or unknown
  uint64_t nvlink_bandwidth = 0;  // bytes/s of each, one way; 0: unknown
  std::string why;                // reason, if the kind is unknown

  // "NVLink, 18 links"; for an unknown link, the reason.
  std::string text() const;
};

// NVML's readings for two GPUs.
struct LinkReadings {
  bool nvlink_access = false;  // peer access over NVLink
  unsigned direct = 0;         // active NVLinks between the two
  unsigned switched[2] = {};   // active NVLinks of each to a device that is no GPU
  int ancestor = -1;           // nvml::Ancestor; -1: unknown
};
GpuLink link_of(const LinkReadings& readings);

// The links between all pairs of these GPUs, row by row. `library` is ONEHOP_NVML_LIBRARY. The
// UUIDs ("GPU-…") may include GPUs that are not visible to this process.
std::vector<GpuLink> links_among(const std::string& library, const std::vector<std::string>& uuids);

// Number of processes that now compute on the GPU with this UUID, including this one; -1: unknown.
int compute_processes(const std::string& library, const std::string& uuid);

// Access of copies and kernels on `from` to the memory of `to`, as the driver reports it.
struct PeerAccess {
  bool reaches = false;
  bool atomics = false;  // native atomics
};
PeerAccess peer_access(const Driver& driver, Device from, Device to);

// Why kernels on `from` and `to` cannot share the words of a lane; empty if they can. The lane
// protocol needs atomic operations on the peer's memory and indivisible stores of 16 bytes. One
// GPU, or a link with native atomics (NVLink), provides them.
std::string why_no_native_atomics(const Driver& driver, Device from, Device to);
// The same for a GPU that is not visible to this process: NVML reports it, because the driver
// cannot be queried.
std::string why_not_nvlink(const std::string& library, const std::string& ours,
                           const std::string& theirs);

}  // namespace oh::cuda
