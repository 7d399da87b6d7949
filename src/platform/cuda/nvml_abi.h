// SPDX-License-Identifier: Apache-2.0
//
// The part of NVML's binary interface that onehop uses: types, values, and every entry point once.
//
// Threading: declarations only.
#pragma once

#include <cstdint>

namespace oh::cuda::nvml {

using Code = int;  // nvmlReturn_t
using Device = struct DeviceObject*;

inline constexpr Code kSuccess = 0;
inline constexpr Code kInvalidArgument = 2;
inline constexpr Code kNotSupported = 3;
inline constexpr Code kNotFound = 6;
inline constexpr Code kInsufficientSize = 7;

inline constexpr unsigned kMostLinks = 18;   // of one GPU
inline constexpr int kP2pNvlink = 2;         // nvmlGpuP2PCapsIndex_t
inline constexpr int kP2pOk = 0;             // nvmlGpuP2PStatus_t
inline constexpr unsigned kRemoteIsGpu = 0;  // nvmlIntNvLinkDeviceType_t
inline constexpr unsigned kRemoteIsSwitch = 2;
inline constexpr unsigned kFieldNvlinkSpeed = 90;  // MB/s of one link, one way

// nvmlGpuTopologyLevel_t: the closest common ancestor of two GPUs on PCIe.
enum Ancestor : int {
  kBoard = 0,
  kOneSwitch = 10,
  kSwitches = 20,
  kHostBridge = 30,
  kNumaNode = 40,
  kSystem = 50,
};

struct PciInfo {
  char legacy_id[16];
  unsigned domain;
  unsigned bus;
  unsigned device;
  unsigned device_id;
  unsigned subsystem_id;
  char id[32];
};
struct FieldValue {
  unsigned field;
  unsigned scope;
  int64_t timestamp;
  int64_t latency;
  int type;  // 1: unsigned int
  Code code;
  union {
    unsigned number;
    uint64_t widest;
  } value;
};
static_assert(sizeof(PciInfo) == 68 && sizeof(FieldValue) == 40);

// X(name, exported symbol, parameters)
#define OH_NVML_FUNCTIONS(X)                                                                \
  X(init, nvmlInit_v2, ())                                                                  \
  X(shutdown, nvmlShutdown, ())                                                             \
  X(device_by_uuid, nvmlDeviceGetHandleByUUID, (const char*, Device*))                      \
  X(compute_processes, nvmlDeviceGetComputeRunningProcesses_v3, (Device, unsigned*, void*)) \
  X(pci_info, nvmlDeviceGetPciInfo_v3, (Device, PciInfo*))                                  \
  X(p2p_status, nvmlDeviceGetP2PStatus, (Device, Device, int, int*))                        \
  X(common_ancestor, nvmlDeviceGetTopologyCommonAncestor, (Device, Device, int*))           \
  X(link_state, nvmlDeviceGetNvLinkState, (Device, unsigned, int*))                         \
  X(link_remote_type, nvmlDeviceGetNvLinkRemoteDeviceType, (Device, unsigned, unsigned*))   \
  X(link_remote_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2, (Device, unsigned, PciInfo*))     \
  X(field_values, nvmlDeviceGetFieldValues, (Device, int, FieldValue*))

}  // namespace oh::cuda::nvml
