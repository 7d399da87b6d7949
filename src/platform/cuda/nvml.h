// SPDX-License-Identifier: Apache-2.0
//
// NVML, NVIDIA's management library, opened at run time: the entry points that report how GPUs are
// connected. NVML identifies all GPUs of the host by UUID, independent of CUDA_VISIBLE_DEVICES.
//
// Threading: any thread; the table is constant after open().
#pragma once

#include <string>

#include "base/status.h"
#include "platform/cuda/nvml_abi.h"

namespace oh::cuda::nvml {

struct Library {
#define OH_NVML_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_NVML_FUNCTIONS(OH_NVML_MEMBER)
#undef OH_NVML_MEMBER
  const char* (*error_string)(Code) = nullptr;

  // `path` is ONEHOP_NVML_LIBRARY; empty: libnvidia-ml.so.1. Opened once per process and path, and
  // never closed. OH_ERR_NOT_VIABLE: it is missing, lacks an entry point, or `path` is "off".
  static oh::Result<const Library*> open(const std::string& path);
  Status failure(Code code, const char* call, const std::string& details) const;
};

// An initialized NVML. It keeps its resources open only during queries.
class Session {
 public:
  explicit Session(const Library& library);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  // Why NVML cannot be queried; ok if it can.
  const Status& status() const { return status_; }

 private:
  const Library& library_;
  Status status_;
};

}  // namespace oh::cuda::nvml
