// SPDX-License-Identifier: Apache-2.0
//
// UCX's context: one per process, library and use of remote memory access (RMA). Created when the
// first endpoint needs it and never destroyed, since creating one takes milliseconds.
//
// Threading: any thread.
#pragma once

#include <string>
#include <vector>

#include "platform/ucx/library.h"

namespace oh {

// A UCX option that onehop sets unless the environment has UCX_<name>.
struct UcxSetting {
  const char* name;
  const char* value;
};
// The settings for a machine with or without RDMA and UCX 1.`minor`.
std::vector<UcxSetting> ucx_settings(bool rdma, unsigned minor);

class UcxContext {
 public:
  // `library`: ONEHOP_UCX_LIBRARY. `rma`: a context with remote memory access. OH_ERR_NOT_VIABLE:
  // UCX cannot be used, with the reason.
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
