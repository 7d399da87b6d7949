// SPDX-License-Identifier: Apache-2.0
//
// The floor of messages by kernels: bare lines of 16 bytes in the other process's memory, 12 of
// payload and a number. In the order of a stream, as a graph, or within one kernel.
//
// Threading: belongs to one thread.
#pragma once

#include "gpu_floors.h"
#include "stream_loops.h"

namespace bench {

class LineFloor : public MappedPair {
 public:
  LineFloor(int number, const std::string& device, size_t largest);
  Outcome latency(const Spec& spec);
  // Empty: the kernels are there.
  std::string why_not() const { return why_no_kernels(device_); }

 private:
  // Forgets all messages, at both sides.
  void reset();

  GpuBlock words_;  // LineCount, Findings
};

}  // namespace bench
