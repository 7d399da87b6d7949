// SPDX-License-Identifier: Apache-2.0
//
// The kernel of one atomic operation, compiled for the host from the device sources.
//
// Threading: any thread.
#include <cstring>

#include "kernels.h"
#include "kernels/atomic.h"
#include "onehop/detail/host_atomics.h"

namespace oh::cuda::fake {
namespace {

Code run(ContextState& context, const Grid& grid, const void* argument) {
  kernels::AtomicArgs args;
  memcpy(&args, argument, sizeof(args));
  if (grid.blocks != 1) return kLaunchFailed;
  if (args.word == 0) return kSuccess;
  if (args.word % sizeof(uint64_t) != 0 || args.before % sizeof(uint64_t) != 0) {
    return kLaunchFailed;  // misaligned
  }
  const auto word = mapped(context, reinterpret_cast<uint64_t*>(args.word));
  std::shared_ptr<uint64_t> before;
  if (args.before != 0) before = mapped(context, reinterpret_cast<uint64_t*>(args.before));
  if (word == nullptr || (args.before != 0 && before == nullptr)) return kIllegalAddress;
  args.word = reinterpret_cast<uint64_t>(word.get());
  args.before = reinterpret_cast<uint64_t>(before.get());
  kernels::run_atomic<onehop::detail::HostAtomics>(args);
  return kSuccess;
}

}  // namespace

const Kernel kAtomic = {kernels::kAtomicKernel, sizeof(kernels::AtomicArgs), kMostThreads, false,
                        run};

}  // namespace oh::cuda::fake
