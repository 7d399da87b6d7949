// SPDX-License-Identifier: Apache-2.0
//
// Floors: what the machine can do without a library, to compare with. Two sides that have met call
// floor() with the same row.
//
//   flag            two processes spin on a cache line each; messages of 8 bytes
//   process_vm      process_vm_readv of the other process's memory
//   memcpy          a copy into the other side's memory, within one process: by the CPU, or by
//                   cudaMemcpyAsync from one device to the other until the stream is done
//   put_flag        the same between two processes, into memory that is mapped by its legacy
//                   handle, and a word in shared memory; put_flag_event: behind an event
//   stream, graph, kernel    bare lines of 16 bytes in the other process's memory, 12 of payload
//                   and a number, by kernels
//
// Threading: each side calls from a thread of its own.
#pragma once

#include <optional>

#include "gpu.h"
#include "meeting.h"

namespace bench {

// A side of what onehop is compared with; floor rows and NCCL use it.
struct Yardstick {
  // `device`: empty for memory of the host.
  Yardstick(int number, const std::string& name) : meeting(number) {
    if (!name.empty()) device.emplace(name);
  }
  // Rows of the host's memory are of single operations.
  Outcome floor(const Spec& spec, const std::string& name);

  Meeting meeting;
  std::optional<Device> device;
};

}  // namespace bench
