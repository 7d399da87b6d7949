// SPDX-License-Identifier: Apache-2.0
//
// HolderWatch: detects that the kernel holding a half of a lane has ended without releasing it. The
// library's kernels always release it, and the host has events for them. An application's kernel
// may end while it holds the half, and no event reports that. No kernel takes a half that is being
// stopped. So its holder has ended once all work is complete that the GPU had at some time after
// the stop.
//
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "device/after.h"

namespace oh {

class HolderWatch {
 public:
  // Call after each check that found the half held, but by no kernel of the library. True: the
  // holder has ended.
  bool is_over(const std::shared_ptr<cuda::Gpu>& gpu);
  // Nanoseconds until the next check. Each call doubles it, up to a maximum.
  int64_t pause();

 private:
  int64_t since_ = 0;  // start of the grace time; 0: no check yet
  int64_t pause_ = 0;
  After all_;  // the GPU's work at the end of the grace time
};

}  // namespace oh
