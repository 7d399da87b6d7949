// SPDX-License-Identifier: Apache-2.0
//
// What kernels and the host share for operations by proxy: the queues of tickets in host memory,
// their numbers in the memory of the GPU, and the order of launches.
//
// Threading: any thread; one thread at a time takes tickets and answers (stream/proxy).
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
  // OH_ERR_NOT_VIABLE: the kernel is not there.
  static Result<std::shared_ptr<ProxyMemory>> create(std::shared_ptr<cuda::Gpu> gpu);
  // Whether kernels of ours have run: others may have all of the GPU for a while. Nothing else
  // before that.
  Result<bool> is_open();
  // Waits a while for kernels; what they may still use is kept for ever.
  ~ProxyMemory();

  cuda::Gpu& gpu() { return *gpu_; }
  cuda::Function kernel() const { return kernel_; }
  uint64_t device_bytes() const { return sizeof(kernels::TicketCursor) * kernels::kProxyQueues; }
  kernels::TicketQueue& queue(uint32_t index) const { return page()->queues[index]; }
  // The ticket with this number; null: no kernel has handed it in yet.
  const kernels::Ticket* ticket(uint32_t index, uint64_t number) const;
  // Before a ticket is executed whose kernel waits. False: that has gone on without, and it must
  // not be; its place is free once it is answered.
  bool take(uint32_t index, uint64_t number);
  // Ends the kernel's wait for it. `fault`: an oh_lane_fault.
  void answer(uint32_t index, uint64_t number, uint64_t fault, uint64_t bytes);
  // Of a lane's ticket.
  uint8_t* payload(uint32_t index, uint64_t number) const;
  // Where the queue is for the GPU.
  kernels::ProxyOp op(uint32_t index) const;
  // No thread serves tickets any more: kernels end their waits.
  void abort();

  // A graph may use it: it outlives the link.
  void keep() { kept_.store(true, std::memory_order_relaxed); }
  bool is_kept() const { return kept_.load(std::memory_order_relaxed); }

  // Of half a lane.
  LaunchTurn& turn(uint32_t index) { return turns_[index]; }
  bool is_through(uint32_t index) const { return turns_[index].is_through(); }
  // Of what is on no lane.
  Launches& apart() { return apart_; }

  // A stream beside `stream`: what it gets follows what that one has now, and what that one gets
  // from join() on follows it. One that was captured is not used again.
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
  std::shared_ptr<cuda::Pinned> pinned_;  // goes before the memory
  cuda::DevicePtr cursors_ = 0;
  cuda::Stream opening_ = nullptr;  // until it is open
  std::atomic<bool> kept_{false};
  LaunchTurn turns_[kernels::kProxyLanes];
  Launches apart_;
  Mutex mutex_;
  std::vector<Branch> branches_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
