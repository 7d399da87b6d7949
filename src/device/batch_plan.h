// SPDX-License-Identifier: Apache-2.0
//
// BatchPlan: a prepared batch as the kernel reads it, laid out once and launched any number of
// times, also by several threads at once. It lies in device memory, or in pinned host memory if
// that allocation fails.
//
//   | blocks: 24 bytes each | shares: 16 | counters, zero: one for each post in flight |
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "device/copy_ticket.h"
#include "kernels/batch.h"
#include "platform/os/handles.h"

namespace oh {

class BatchPlan {
 public:
  // Leaves blocks that are too long for the kernel to the copy engine. Null: fewer than two blocks
  // remain for the kernel.
  static Result<std::unique_ptr<BatchPlan>> create(std::shared_ptr<cuda::Gpu> gpu,
                                                   std::vector<kernels::BatchBlock> blocks);
  ~BatchPlan();

  // A launch in flight, with a counter of its own.
  class Post {
   public:
    explicit Post(BatchPlan& plan) : plan_(plan), counter_(plan.take_counter()) {}
    ~Post() {
      if (valid()) plan_.give_counter(counter_);
    }
    Post(const Post&) = delete;
    Post& operator=(const Post&) = delete;
    // False: all counters are in use.
    bool valid() const { return counter_ >= 0; }
    // Enqueues all copies, and the write of the ticket's word after them.
    Status enqueue(CopyTicket& ticket) const;

   private:
    BatchPlan& plan_;
    int counter_;
  };

 private:
  BatchPlan() = default;
  Status lay_out(const std::vector<kernels::BatchBlock>& blocks);
  Status upload();
  int take_counter();
  void give_counter(int counter);

  std::shared_ptr<cuda::Gpu> gpu_;
  kernels::BatchArgs args_{};  // without the fields of a single launch
  std::vector<kernels::BatchBlock> for_engine_;
  cuda::DevicePtr counters_ = 0;
  // One bit a counter. acq_rel on taking and giving back: orders a launch after the previous one
  // with the same counter.
  std::atomic<uint64_t> counters_in_use_{0};
  cuda::DevicePtr memory_ = 0;  // 0: the kernel reads written_
  Mapping written_;
  std::shared_ptr<cuda::Pinned> pinned_;  // destroyed before written_
};

}  // namespace oh
