// SPDX-License-Identifier: Apache-2.0
//
// Session: counts the used memory of each device, over all processes that share it. Memory is used
// while any process holds it, owner or importer: a free by the owner alone returns nothing. Memory
// of dead processes does not count.
//
//   file: Header | Holder[kMostHolders], changed under flock
//
// Threading: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

// Identity of a process; the start time tells it from a later process with the same pid.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // ticks since boot
};
ProcessId this_process();
bool is_alive(const ProcessId& process);

class Session {
 public:
  static Session& instance();

  // Records that this process holds memory `object` (an inode) of a device. kOutOfMemory: the
  // device's total would exceed `limit`; 0: no limit, as the memory exists already.
  Code hold(uint64_t object, int physical, size_t size, size_t limit);
  void drop(uint64_t object);
  size_t used(int physical);

 private:
  struct Holder;
  struct File;
  class Guard;
  Session();
  size_t count_used(int physical);

  std::mutex mutex_;
  int fd_ = -1;  // the session's file; -1: memory of this process
  File* file_ = nullptr;
};

}  // namespace oh::cuda::fake
