// SPDX-License-Identifier: Apache-2.0
//
// Configuration from FAKE_CUDA and CUDA_VISIBLE_DEVICES; control.h has the table.
//
// Threading: read once; constant afterwards.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

// Devices of the session have a physical index, the same in every process; a process sees a subset
// of them under its own ordinals.
constexpr int kMostDevices = 64;

struct Failure {
  std::string where;
  uint64_t nth = 0;  // 0: always
  Code code = kSuccess;
};

// What blocking calls wait for; control.h.
enum class Blocking { kOff, kKernels, kDevice };

struct Config {
  int devices = 1;
  size_t memory = size_t{1} << 30;
  bool all_peers = true;
  bool atomics = true;       // whether links between devices have native atomics
  bool says_atomics = true;  // whether the driver reports native atomics
  std::vector<std::pair<int, int>> peers;
  std::string name = "Fake GPU";
  std::vector<int> numa;  // node of each device; the last entry applies to all further devices
  bool ipc = true;
  bool vmm = true;
  Blocking blocking = Blocking::kKernels;
  unsigned delay_us = 0;
  int code = 90;  // virtual architecture of the kernels' code
  std::vector<Failure> failures;
  std::vector<int> visible;  // the physical index of each ordinal

  bool can_access(int physical, int other) const;
  int numa_of(int physical) const;
};

const Config& config();
Uuid uuid_of(int physical);
// Ends the process with a message.
[[noreturn]] void refuse(const std::string& why);

}  // namespace oh::cuda::fake
