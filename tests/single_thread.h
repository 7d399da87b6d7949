// SPDX-License-Identifier: Apache-2.0
//
// Before a fork() whose child starts threads: ThreadSanitizer ends the child of a process with
// other threads. An endpoint that ends on the watcher's thread leaves a thread that cleans up
// behind it.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <iterator>

#include "base/sync.h"

// The threads of this process, without the one that ThreadSanitizer keeps for itself.
inline size_t count_threads() {
  std::filesystem::directory_iterator tasks("/proc/self/task");
  auto all = static_cast<size_t>(std::distance(begin(tasks), end(tasks)));
#if defined(OH_THREAD_SANITIZER)
  if (all > 1) --all;
#endif
  return all;
}

// False when others are still there after ten seconds.
inline bool wait_until_single_threaded() {
  for (int tries = 0; tries < 10'000; ++tries) {
    if (count_threads() <= 1) return true;
    usleep(1000);
  }
  return false;
}
