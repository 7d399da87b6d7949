// SPDX-License-Identifier: Apache-2.0
//
// HolderWatch: whether the kernel that holds a half of a lane has ended without giving it back.
// Ours always give it back, and the host has their events. A kernel of the application's may end
// while it holds the half, and no event tells the host. But no kernel takes a half that is being
// stopped, so its holder has ended when all work is complete that the GPU had at one time after
// that.
//
// Threading: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "device/after.h"

namespace oh {

class HolderWatch {
 public:
  // After each look that found it held by no kernel of ours. True: the holder is over.
  bool is_over(const std::shared_ptr<cuda::Gpu>& gpu);
  // Until the next look.
  int64_t pause();

 private:
  int64_t since_ = 0;  // of the first look
  int64_t pause_ = 0;
  After all_;  // what the GPU had to do
};

}  // namespace oh
