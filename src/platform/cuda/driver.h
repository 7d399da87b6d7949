// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, opened at run time: a table of its entry points. onehop does not link CUDA;
// without a driver, open() returns a status that explains what was tried.
//
// Threading: any thread; the table is constant after open().
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "platform/cuda/abi.h"

namespace oh::cuda {

struct Driver {
#define OH_CUDA_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_CUDA_FUNCTIONS(OH_CUDA_MEMBER)
  OH_CUDA_NEWER_FUNCTIONS(OH_CUDA_MEMBER)
#undef OH_CUDA_MEMBER
  std::string library;      // name passed to dlopen
  int version = 0;          // 13000: CUDA 13.0
  uint32_t generation = 0;  // fork_generation() at open()
  void* handle = nullptr;

  // `path` is ONEHOP_CUDA_LIBRARY; empty: libcuda.so.1. Opened and initialised once per process and
  // path, and never closed. OH_ERR_NOT_VIABLE: no driver, an entry point is missing, no device, or
  // `path` is "off". OH_ERR_FORKED: it was opened before fork(), which CUDA does not survive.
  static oh::Result<const Driver*> open(const std::string& path);

  // Converts an error code to a status. The text has the call, its values (`details`), CUDA's
  // description and a remedy. OH_ERR_DEVICE: the context is lost. OH_ERR_CLOSED: the driver is
  // shutting down, or the context was destroyed.
  Status failure(Code code, const char* call, const std::string& details) const;
  // OH_ERR_FORKED in a child of the process that opened the driver; make no call there.
  Status usable() const;
};

// Whether the error is permanent: every later call on the context fails too.
bool is_sticky(Code code);

// The exported symbol of each member, for error texts.
namespace symbol {
#define OH_CUDA_SYMBOL(name, symbol, parameters) inline constexpr const char* name = #symbol;
OH_CUDA_FUNCTIONS(OH_CUDA_SYMBOL)
OH_CUDA_NEWER_FUNCTIONS(OH_CUDA_SYMBOL)
#undef OH_CUDA_SYMBOL
}  // namespace symbol

// Calls driver.name(arguments); returns from the caller with a Status if it fails.
#define OH_CUDA_TRY(driver, name, ...)                                 \
  do {                                                                 \
    ::oh::cuda::Code oh_code_ = (driver).name(__VA_ARGS__);            \
    if (oh_code_ != ::oh::cuda::kSuccess) {                            \
      return (driver).failure(oh_code_, ::oh::cuda::symbol::name, {}); \
    }                                                                  \
  } while (false)

}  // namespace oh::cuda
