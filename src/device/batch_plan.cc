// SPDX-License-Identifier: Apache-2.0
#include "device/batch_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "device/batches.h"

namespace oh {
namespace {
constexpr unsigned kCounters = 64;       // the bits of counters_in_use_
constexpr uint64_t kCounterSpace = 128;  // bytes; each counter has its own cache lines
}  // namespace

Result<std::unique_ptr<BatchPlan>> BatchPlan::create(std::shared_ptr<cuda::Gpu> gpu,
                                                     std::vector<kernels::BatchBlock> blocks) {
  std::unique_ptr<BatchPlan> plan(new BatchPlan);
  plan->gpu_ = std::move(gpu);
  auto is_long = [](const kernels::BatchBlock& block) { return block.size > kLongestForKernel; };
  std::ranges::copy_if(blocks, std::back_inserter(plan->for_engine_), is_long);
  std::erase_if(blocks, is_long);
  if (blocks.size() < 2) return std::unique_ptr<BatchPlan>();
  OH_RETURN_IF_ERROR(plan->lay_out(blocks));
  return plan;
}

BatchPlan::~BatchPlan() {
  if (memory_) gpu_->free(memory_);
}

Status BatchPlan::lay_out(const std::vector<kernels::BatchBlock>& blocks) {
  const uint64_t shares_at = blocks.size() * sizeof(kernels::BatchBlock);
  const uint64_t behind_shares =
      shares_at + (kernels::kBatchWorkers + 1) * sizeof(kernels::BatchShare);
  const uint64_t counters_at = (behind_shares + kCounterSpace - 1) / kCounterSpace * kCounterSpace;
  OH_ASSIGN_OR_RETURN(written_, Mapping::anonymous(counters_at + kCounters * kCounterSpace));
  OH_ASSIGN_OR_RETURN(pinned_, cuda::Pinned::of(gpu_, written_.data(), written_.size()));
  std::memcpy(written_.data(), blocks.data(), shares_at);
  auto* shares = reinterpret_cast<kernels::BatchShare*>(written_.data() + shares_at);
  args_.workers = divide(blocks, kernels::kBatchWorkers, shares);
  OH_RETURN_IF_ERROR(upload());
  cuda::DevicePtr base = memory_ ? memory_ : pinned_->device(written_.data());
  args_.blocks = reinterpret_cast<const kernels::BatchBlock*>(base);
  args_.shares = reinterpret_cast<const kernels::BatchShare*>(base + shares_at);
  counters_ = base + counters_at;
  if (!memory_) return {};
  pinned_.reset();
  written_.reset();
  return {};
}

// Without device memory the kernel reads the pinned copy, which is slower.
Status BatchPlan::upload() {
  Result<cuda::DevicePtr> memory = gpu_->allocate(written_.size());
  if (!memory.ok()) return gpu_->is_lost() ? memory.status() : Status();
  memory_ = *memory;
  OH_ASSIGN_OR_RETURN(CopyTicket ticket, CopyTicket::open(*gpu_));
  return ticket.end(ticket.copy(reinterpret_cast<void*>(memory_),
                                reinterpret_cast<const void*>(pinned_->device(written_.data())),
                                written_.size(), ticket.next_value()));
}

int BatchPlan::take_counter() {
  uint64_t in_use = counters_in_use_.load(std::memory_order_relaxed);
  while (in_use != UINT64_MAX) {
    const int free = std::countr_one(in_use);
    if (counters_in_use_.compare_exchange_weak(in_use, in_use | uint64_t{1} << free,
                                               std::memory_order_acq_rel)) {
      return free;
    }
  }
  return -1;
}

void BatchPlan::give_counter(int counter) {
  counters_in_use_.fetch_and(~(uint64_t{1} << counter), std::memory_order_acq_rel);
}

Status BatchPlan::Post::enqueue(CopyTicket& ticket) const {
  for (const kernels::BatchBlock& block : plan_.for_engine_) {
    OH_RETURN_IF_ERROR(ticket.copy(reinterpret_cast<void*>(block.to),
                                   reinterpret_cast<const void*>(block.from), block.size, 0));
  }
  kernels::BatchArgs args = plan_.args_;
  args.finished = reinterpret_cast<uint64_t*>(plan_.counters_ +
                                              static_cast<uint64_t>(counter_) * kCounterSpace);
  args.word = reinterpret_cast<uint64_t*>(ticket.word());
  args.value = ticket.next_value();
  return launch_batch(*plan_.gpu_, ticket.stream(), args);
}

}  // namespace oh
