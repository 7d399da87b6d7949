// SPDX-License-Identifier: Apache-2.0
//
// The kernel that passes tickets to the host, compiled for the host from the device sources. Each
// queue of a launch has its own thread.
//
// Threading: any thread.
#include <algorithm>
#include <cstring>
#include <thread>

#include "kernels.h"
#include "kernels/proxy.h"
#include "onehop/detail/host_atomics.h"

namespace oh::cuda::fake {
namespace {

using kernels::ProxyOp;
using kernels::ProxyPage;
using kernels::TicketCursor;
using kernels::TicketQueue;
using onehop::detail::HostAtomics;

// Context of the kernel that this thread runs: its waits end with the context.
thread_local const ContextState* g_context = nullptr;
thread_local ProxyPage* g_page = nullptr;

struct Atomics : HostAtomics {
  static void pause() {
    sched_yield();
    if (g_context->killed.load(std::memory_order_relaxed)) store_relaxed(&g_page->abort, 1);
  }
};

// A block of one thread.
struct OneThread {
  ContextState& context;
  uint64_t payload;  // host address
  bool good = true;

  static bool leads() { return true; }
  static void sync() {}
  static uint64_t share(uint64_t value) { return value; }
  void find(const void* place, uint64_t bytes, std::vector<Piece>* out) {
    const auto address = reinterpret_cast<uint64_t>(place);
    if (address - payload < kernels::kTickets * kernels::kProxySmall) {
      out->push_back({reinterpret_cast<char*>(address), bytes, nullptr});
    } else {
      good = good && pieces_of(context, address, bytes, out);
    }
  }
  void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) {
    if (bytes == 0) return;
    std::vector<Piece> target;
    std::vector<Piece> source;
    find(to, bytes, &target);
    find(from, bytes, &source);
    if (good) copy_pieces(std::move(target), std::move(source), bytes);
  }
};

// Memory that the operation shares with the host, at host addresses.
struct Task {
  ProxyOp op;
  std::vector<std::shared_ptr<void>> held;

  template <typename T>
  bool map(const ContextState& context, uint64_t* address, uint64_t count = 1) {
    if (*address == 0) return true;
    std::shared_ptr<T> there = mapped(context, reinterpret_cast<T*>(*address), count);
    *address = reinterpret_cast<uint64_t>(there.get());
    held.push_back(there);
    return there != nullptr;
  }
  bool prepare(const ContextState& context) {
    return map<ProxyPage>(context, &op.page) && map<TicketQueue>(context, &op.queue) &&
           map<uint8_t>(context, &op.payload, kernels::kTickets * kernels::kProxySmall) &&
           map<TicketCursor>(context, &op.cursor) && map<uint64_t>(context, &op.size_from) &&
           map<uint64_t>(context, &op.size_to);
  }
};

Code run_block(ContextState& context, const std::vector<Task>& tasks, uint32_t block) {
  g_context = &context;
  for (const Task& task : tasks) {
    if (task.op.block != block) continue;
    g_page = reinterpret_cast<ProxyPage*>(task.op.page);
    OneThread group{context, task.op.payload};
    kernels::run_proxy<Atomics>(task.op, group);
    if (!group.good) return kIllegalAddress;
  }
  return kSuccess;
}

Code run(ContextState& context, const Grid& grid, const void* argument) {
  const auto args = std::make_unique<kernels::ProxyArgs>();
  memcpy(args.get(), argument, sizeof(*args));
  uint32_t blocks = 0;
  std::vector<Task> tasks;
  for (uint64_t i = 0; i < args->count; ++i) {
    blocks = std::max(blocks, args->ops[i].block + 1);
    tasks.push_back({args->ops[i], {}});
    if (!tasks.back().prepare(context)) return kIllegalAddress;
  }
  if (grid.blocks != std::max(1u, blocks)) return kLaunchFailed;
  std::vector<Code> codes(blocks, kSuccess);
  std::vector<std::thread> others;
  for (uint32_t block = 1; block < blocks; ++block) {
    others.emplace_back([&, block] { codes[block] = run_block(context, tasks, block); });
  }
  if (blocks > 0) codes[0] = run_block(context, tasks, 0);
  for (std::thread& other : others) other.join();
  const auto bad = std::find_if(codes.begin(), codes.end(), [](Code code) { return code != 0; });
  return bad == codes.end() ? kSuccess : *bad;
}

}  // namespace

const Kernel kProxy = {kernels::kProxyKernel, sizeof(kernels::ProxyArgs), kernels::kProxyThreads,
                       false, run};

}  // namespace oh::cuda::fake
