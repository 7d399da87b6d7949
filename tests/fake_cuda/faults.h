// SPDX-License-Identifier: Apache-2.0
//
// Injected failures, and the names of the places where they may happen.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "config.h"
#include "platform/cuda/abi.h"

namespace oh::cuda {
extern "C" {
#define FAKE_CUDA_DECLARE(name, symbol, parameters) \
  __attribute__((visibility("default"))) Code symbol parameters;
OH_CUDA_FUNCTIONS(FAKE_CUDA_DECLARE)
OH_CUDA_NEWER_FUNCTIONS(FAKE_CUDA_DECLARE)
OH_CUDA_TEST_FUNCTIONS(FAKE_CUDA_DECLARE)
#undef FAKE_CUDA_DECLARE
}
}  // namespace oh::cuda

namespace oh::cuda::fake {

enum class Symbol : int {
#define FAKE_CUDA_MEMBER(name, symbol, parameters) symbol,
  OH_CUDA_FUNCTIONS(FAKE_CUDA_MEMBER) OH_CUDA_NEWER_FUNCTIONS(FAKE_CUDA_MEMBER)
      OH_CUDA_TEST_FUNCTIONS(FAKE_CUDA_MEMBER)
#undef FAKE_CUDA_MEMBER
          kCopy,  // an executed copy
  kOperation,     // an executed operation of any sort
  kCount,
};

// kCount: no such place.
Symbol find_symbol(const std::string& name);

class Faults {
 public:
  static Faults& instance();

  // Counts the visit. Returns the code to fail with, or kSuccess.
  Code visit(Symbol where);
  uint64_t visits(Symbol where) const;
  bool add(const Failure& failure);
  void clear();

 private:
  struct Pending {
    Symbol where;
    bool always;
    uint64_t left;  // visits until it fails
    Code code;
  };
  Faults();

  std::atomic<uint64_t> visits_[static_cast<int>(Symbol::kCount)] = {};  // relaxed: only a counter
  std::atomic<bool> armed_{false};  // relaxed: pending_ is read under the mutex
  std::mutex mutex_;
  std::vector<Pending> pending_;
};

}  // namespace oh::cuda::fake
