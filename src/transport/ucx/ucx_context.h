// SPDX-License-Identifier: Apache-2.0
//
// The context of UCX: one per process and library, or two, with and without remote memory access;
// made when the first endpoint needs it and kept warm, since making one takes milliseconds.
//
// Threading: any thread.
#pragma once

#include <string>
#include <vector>

#include "platform/ucx/library.h"

namespace oh {

// A setting of UCX that we would rather have, where the program's environment has no UCX_<name>.
struct UcxSetting {
  const char* name;
  const char* value;
};
// Those for this machine and version.
std::vector<UcxSetting> ucx_settings(bool rdma, unsigned minor);

class UcxContext {
 public:
  // `library` is ONEHOP_UCX_LIBRARY; with `rma` it has remote memory access, too, and is another
  // one. OH_ERR_NOT_VIABLE: no UCX here, with the reason.
  static Result<const UcxContext*> get(const std::string& library, bool rma);

  const ucx::Library& library() const { return *library_; }
  ucx::Context handle() const { return handle_; }
  bool has_rma() const { return rma_; }

 private:
  Status start();

  const ucx::Library* library_ = nullptr;
  ucx::Context handle_ = nullptr;
  bool rma_ = false;
};

}  // namespace oh
