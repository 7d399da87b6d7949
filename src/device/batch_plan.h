// SPDX-License-Identifier: Apache-2.0
//
// BatchPlan: a prepared batch as the kernel reads it, laid out once and launched any number of
// times, also by several threads at once. It lies in device memory, or pinned where there is none.
//
//   | blocks: 24 bytes each | shares: 16 | counters, zero: one for each post under way |
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
  // Blocks too long for the kernel are left to the engine. Null: the kernel has nothing to gain.
  static Result<std::unique_ptr<BatchPlan>> create(std::shared_ptr<cuda::Gpu> gpu,
                                                   std::vector<kernels::BatchBlock> blocks);
  ~BatchPlan();

  // A launch that is under way: it has a counter of its own.
  class Post {
   public:
    explicit Post(BatchPlan& plan) : plan_(plan), counter_(plan.take_counter()) {}
    ~Post() {
      if (valid()) plan_.give_counter(counter_);
    }
    Post(const Post&) = delete;
    Post& operator=(const Post&) = delete;
    // Else as many are under way as there are counters.
    bool valid() const { return counter_ >= 0; }
    // Enqueues all copies; the last thing they do is to write the ticket's word.
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
  kernels::BatchArgs args_{};  // but for what belongs to one launch
  std::vector<kernels::BatchBlock> for_engine_;
  cuda::DevicePtr counters_ = 0;
  // acq_rel on taking and giving: a launch begins after the one before it with the same counter.
  std::atomic<uint64_t> counters_in_use_{0};
  cuda::DevicePtr memory_ = 0;  // 0: it is read from where it was written
  Mapping written_;
  std::shared_ptr<cuda::Pinned> pinned_;  // goes before what was written
};

}  // namespace oh
