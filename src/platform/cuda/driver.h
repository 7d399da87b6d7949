// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver, opened at run time: a table of its entry points. Nothing here links CUDA; a
// machine without a driver gets a status that says what was tried.
//
// Threading: any thread; the table is constant once it is made.
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
  std::string library;      // as it was opened
  int version = 0;          // 13000: it speaks CUDA 13.0
  uint32_t generation = 0;  // fork_generation() of the process that initialised it
  void* handle = nullptr;

  // `path` is ONEHOP_CUDA_LIBRARY; empty: libcuda.so.1. Opened and initialised once per process and
  // path, and never closed. OH_ERR_NOT_VIABLE: no driver, an entry point is missing, no device, or
  // `path` is "off". OH_ERR_FORKED: it was opened before fork(), which CUDA does not survive.
  static oh::Result<const Driver*> open(const std::string& path);

  // What a code that is not kSuccess means: the call, its values (`details`), CUDA's own words, and
  // what to do. A code after which the context is lost gives OH_ERR_DEVICE, a driver that shuts
  // down OH_ERR_CLOSED.
  Status failure(Code code, const char* call, const std::string& details) const;
  // OH_ERR_FORKED in a child of the process that opened it: there, no call may be made.
  Status usable() const;
};

// Whether every later call on the context fails, too.
bool is_sticky(Code code);

// The exported symbol of each member: what a text calls it.
namespace symbol {
#define OH_CUDA_SYMBOL(name, symbol, parameters) inline constexpr const char* name = #symbol;
OH_CUDA_FUNCTIONS(OH_CUDA_SYMBOL)
OH_CUDA_NEWER_FUNCTIONS(OH_CUDA_SYMBOL)
#undef OH_CUDA_SYMBOL
}  // namespace symbol

// driver.name(arguments), as a Status.
#define OH_CUDA_TRY(driver, name, ...)                                 \
  do {                                                                 \
    ::oh::cuda::Code oh_code_ = (driver).name(__VA_ARGS__);            \
    if (oh_code_ != ::oh::cuda::kSuccess) {                            \
      return (driver).failure(oh_code_, ::oh::cuda::symbol::name, {}); \
    }                                                                  \
  } while (false)

}  // namespace oh::cuda
