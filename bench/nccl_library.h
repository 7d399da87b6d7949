// SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened at run time.
//
// Threading: any thread.
#pragma once

#include <string>
#include <vector>

#include "gpu_driver.h"

namespace bench {

// As nccl.h declares them.
struct NcclId {
  char internal[128];
};
inline constexpr int kNcclUint8 = 1;

struct NcclLibrary {
  // The first of `libraries` that can be opened. GpuError: none can.
  explicit NcclLibrary(const std::vector<std::string>& libraries);
  void check(int code, const char* call) const;
  std::string version() const;

  int (*get_version)(int*);
  const char* (*get_error)(int);
  int (*get_unique_id)(NcclId*);
  int (*init_rank)(void**, int, NcclId, int);
  int (*send)(const void*, size_t, int, int, void*, cuda::Stream);
  int (*recv)(void*, size_t, int, int, void*, cuda::Stream);
  int (*group_start)();
  int (*group_end)();
  int (*destroy)(void*);
};

}  // namespace bench
