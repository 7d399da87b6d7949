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
  // There is to be room for so many when a context or a worker is made: a context that found no
  // room would do without transports for ever, and UCX 1.13 and 1.22 abort the process where their
  // thread cannot start ("ucs_async_thread_global_context.thread != NULL"). A worker takes 10 with
  // one network device, and more with others and for RDMA.
  static constexpr size_t kDescriptors = 64;
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
