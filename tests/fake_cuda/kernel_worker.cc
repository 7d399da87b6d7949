// SPDX-License-Identifier: Apache-2.0
//
// The library's worker, compiled for the host from the device sources: a team of one thread.
//
// Threading: any thread.
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstring>

#include "kernels.h"
#include "kernels/worker.h"
#include "onehop/detail/host_atomics.h"

namespace oh::cuda::fake {
namespace {

using onehop::detail::Command;
using onehop::detail::CommandRing;
using onehop::detail::HostAtomics;

struct OneThread {
  ContextState& context;
  const CommandRing& ring;  // host address
  Code* result;

  uint64_t begin() const { return onehop::detail::poll<HostAtomics>(ring.through, ring.epoch); }
  bool read(uint64_t position, Command* command) const {
    if (onehop::detail::read_command<HostAtomics>(ring, position, command)) return true;
    sched_yield();
    return false;
  }
  void carry_out(const Command& command) const {
    if (!copy_mapped(context, command.target, command.source, command.bytes)) {
      *result = kIllegalAddress;
    }
  }
  void finish(uint64_t position, Command command) const {
    if (*result != kSuccess) return;  // a kernel that faults writes no more
    const auto word = mapped(context, reinterpret_cast<uint64_t*>(command.done));
    if (command.done != 0 && word == nullptr) *result = kIllegalAddress;
    if (*result != kSuccess) return;
    command.done = reinterpret_cast<uint64_t>(word.get());
    onehop::detail::finish_command<HostAtomics>(ring, position, command);
  }
  void say(uint64_t* word, uint64_t value) const {
    if (*result == kSuccess) HostAtomics::store_release(word, value);
  }
  static void settle() { std::atomic_thread_fence(std::memory_order_seq_cst); }
  // Reports the time limit as expired if the kernel must end.
  uint64_t now() const {
    if (*result != kSuccess || context.killed.load(std::memory_order_relaxed)) return UINT64_MAX;
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }
};

Code run(ContextState& context, const Grid& grid, const void* argument) {
  if (grid.blocks != 1) return kLaunchFailed;
  kernels::WorkerArgs args;
  memcpy(&args, argument, sizeof(args));
  const auto slots = mapped(context, args.ring.slots, uint64_t{1} << args.ring.shift);
  const auto through = mapped(context, args.ring.through);
  const auto state = mapped(context, args.state);
  const auto stayed = mapped(context, args.stayed);
  if (slots == nullptr || through == nullptr || state == nullptr || stayed == nullptr) {
    return kIllegalAddress;
  }
  args.ring.slots = slots.get();
  args.ring.through = through.get();
  args.state = state.get();
  args.stayed = stayed.get();
  Code result = kSuccess;
  kernels::serve(args, OneThread{context, args.ring, &result});
  return result;
}

}  // namespace

const Kernel kWorker = {kernels::kWorkerKernel, sizeof(kernels::WorkerArgs),
                        kernels::kWorkerThreads, false, run};

}  // namespace oh::cuda::fake
