// SPDX-License-Identifier: Apache-2.0
//
// Session: how much memory of each device is in use, over all processes that share it. Memory is
// used while any process holds it, the owner or an importer: a free by the owner alone gives
// nothing back. What dead processes held does not count.
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

// Who a process is: the number of one that died is used again.
struct ProcessId {
  int32_t pid = 0;
  uint64_t start = 0;  // ticks since boot
};
ProcessId this_process();
bool is_alive(const ProcessId& process);

class Session {
 public:
  static Session& instance();

  // This process now holds memory `object` (an inode) of a device. `limit`: refuse with
  // kOutOfMemory what goes beyond; 0: none, as it exists already.
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
  int fd_ = -1;  // of the file; -1: memory of this process
  File* file_ = nullptr;
};

}  // namespace oh::cuda::fake
