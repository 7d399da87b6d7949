// SPDX-License-Identifier: Apache-2.0
//
// An application kernel for tests: it waits for a word; control.h.
//
// Threading: any thread.
#include <sched.h>

#include <chrono>
#include <cstring>

#include "control.h"
#include "kernels.h"

namespace oh::cuda::fake {
namespace {

Code run(ContextState& context, const Grid&, const void* argument) {
  FakeCudaSpin args;
  memcpy(&args, argument, sizeof(args));
  const auto word = mapped(context, reinterpret_cast<uint64_t*>(args.word));
  if (word == nullptr) return kIllegalAddress;
  if (args.started != 0) {
    const auto started = mapped(context, reinterpret_cast<uint64_t*>(args.started));
    if (started == nullptr) return kIllegalAddress;
    __atomic_store_n(started.get(), 1, __ATOMIC_RELEASE);
  }
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds limit(args.limit_ns);
  // Acquire: writes before the word's are visible afterwards.
  while (__atomic_load_n(word.get(), __ATOMIC_ACQUIRE) == 0) {
    if (context.killed.load(std::memory_order_relaxed)) break;
    if (args.limit_ns != 0 && std::chrono::steady_clock::now() - begin >= limit) break;
    sched_yield();
  }
  return kSuccess;
}

}  // namespace

const Kernel kSpin = {FAKE_CUDA_SPIN, sizeof(FakeCudaSpin), kMostThreads, false, run};

}  // namespace oh::cuda::fake
