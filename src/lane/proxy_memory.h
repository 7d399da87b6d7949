// SPDX-License-Identifier: Apache-2.0
//
// ProxyMemory: what kernels and the host share for operations by proxy: ticket queues in host
// memory, ticket numbers in GPU memory, and the order of launches.
//
// Threading: any thread; one thread at a time takes and answers tickets (stream/proxy).
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "kernels/proxy.h"
#include "lane/launch_turn.h"
#include "platform/cuda/gpu.h"
#include "platform/os/handles.h"

namespace oh {

class ProxyMemory {
 public:
  // OH_ERR_NOT_VIABLE: the kernel is missing.
  static Result<std::shared_ptr<ProxyMemory>> create(std::shared_ptr<cuda::Gpu> gpu);
  // Whether the opening kernel has run; other work on the GPU may delay it. Call nothing else until
  // it returns true.
  Result<bool> is_open();
  // Waits up to 2 s for kernels. Leaks memory that they may still use.
  ~ProxyMemory();

  cuda::Gpu& gpu() { return *gpu_; }
  cuda::Function kernel() const { return kernel_; }
  uint64_t device_bytes() const { return sizeof(kernels::TicketCursor) * kernels::kProxyQueues; }
  kernels::TicketQueue& queue(uint32_t index) const { return page()->queues[index]; }
  // The ticket with this number; null: no kernel has submitted it yet.
  const kernels::Ticket* ticket(uint32_t index, uint64_t number) const;
  // Call before executing a ticket whose kernel waits. False: the kernel has given the ticket up,
  // so it must not be executed; answer() frees its entry.
  bool take(uint32_t index, uint64_t number);
  // Ends the kernel's wait for the ticket. `fault`: an oh_lane_fault.
  void answer(uint32_t index, uint64_t number, uint64_t fault, uint64_t bytes);
  // The payload of a lane's ticket.
  uint8_t* payload(uint32_t index, uint64_t number) const;
  // An operation with the queue's addresses as the GPU sees them.
  kernels::ProxyOp op(uint32_t index) const;
  // Ends the waits of kernels: no thread serves tickets any more.
  void abort();

  // Keeps the memory beyond the link: a captured graph may use it.
  void keep() { kept_.store(true, std::memory_order_relaxed); }
  bool is_kept() const { return kept_.load(std::memory_order_relaxed); }

  // The turn of one half of a lane.
  LaunchTurn& turn(uint32_t index) { return turns_[index]; }
  bool is_through(uint32_t index) const { return turns_[index].is_through(); }
  // Launches of operations that use no lane.
  Launches& apart() { return apart_; }

  // A branch of `stream`: its work follows the current work of `stream`, and work that `stream`
  // gets after join() follows the branch. A captured branch is not reused.
  struct Branch {
    cuda::Stream stream = nullptr;
    cuda::Event event = nullptr;
    bool in_use = false;
  };
  Result<Branch> fork(cuda::Stream stream, bool capturing);
  Status join(const Branch& branch, cuda::Stream stream, bool capturing);

 private:
  explicit ProxyMemory(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}
  Status start();
  Status begin_to_open();
  bool all_through() const;
  Result<Branch> take_branch();
  kernels::ProxyPage* page() const { return reinterpret_cast<kernels::ProxyPage*>(memory_.data()); }

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::Function kernel_ = nullptr;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;  // destroyed before the memory
  cuda::DevicePtr cursors_ = 0;
  cuda::Stream opening_ = nullptr;  // null once open
  std::atomic<bool> kept_{false};
  LaunchTurn turns_[kernels::kProxyLanes];
  Launches apart_;
  Mutex mutex_;
  std::vector<Branch> branches_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
