// SPDX-License-Identifier: Apache-2.0
//
// Floors: what the machine can do without any library, to compare with. Each forks a partner that
// ends with its parent.
//
// Threading: call from a process that runs no other threads at the time, for fork's sake.
#pragma once

#include "side.h"

namespace bench {

struct FloorSpec {
  size_t size = 8;
  size_t iterations = 1000;
  int partner_cpu = -1;  // where the partner runs; -1: anywhere
  bool corrupt = false;
};

// Two processes that spin on one cache line each, to and fro; a sample is half of the round trip.
Outcome floor_flag(const FloorSpec& spec);
// process_vm_readv of the partner's memory, which the partner has written.
Outcome floor_process_vm(const FloorSpec& spec);
// memcpy within this process.
Outcome floor_memcpy(const FloorSpec& spec);

}  // namespace bench
