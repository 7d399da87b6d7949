// SPDX-License-Identifier: Apache-2.0
#include "path/engine/engine_path.h"

#include <algorithm>

#include "base/log.h"
#include "device/batch_plan.h"
#include "device/batches.h"

namespace oh {
namespace {

// The copies of one operation: block by block, or collected for the kernel.
class Copies {
 public:
  Copies(DeviceLink& device, CopyTicket ticket) : device_(device), ticket_(std::move(ticket)) {}
  ~Copies() {
    for (std::unique_ptr<BatchBuffer>& buffer : buffers_) {
      if (buffer) device_.give_batch_buffer(std::move(buffer));
    }
  }
  Copies(const Copies&) = delete;
  Copies& operator=(const Copies&) = delete;
  CopyTicket& ticket() { return ticket_; }

  // Enqueues a copy, or collects it for a kernel. `last`: enqueues everything collected, too.
  // `most`: the largest block that a kernel may copy; 0: it may not access the memory of both ends.
  Status add(const kernels::BatchBlock& block, uint64_t most, bool last) {
    const bool alone = last && !collecting();
    if (alone || block.size > most || !take_buffer()) {
      if (last) OH_RETURN_IF_ERROR(flush());
      return ticket_.copy(reinterpret_cast<void*>(block.to),
                          reinterpret_cast<const void*>(block.from), block.size,
                          last ? ticket_.next_value() : 0);
    }
    BatchBuffer& buffer = *buffers_[turn_];
    if (buffer.count() == 0) OH_RETURN_IF_ERROR(ticket_.wait(buffer.in_use_until()));
    buffer.add(block);
    return last || buffer.count() >= launch_at_ ? flush() : Status();
  }

 private:
  bool collecting() const { return buffers_[turn_] && buffers_[turn_]->count() > 0; }
  // Whether there is a buffer to collect in. Without a second buffer the first is used every time.
  bool take_buffer() {
    if (!may_collect_) return false;
    if (!buffers_[turn_]) buffers_[turn_] = device_.take_batch_buffer();
    if (!buffers_[turn_]) turn_ ^= 1;
    may_collect_ = buffers_[turn_] != nullptr;
    return may_collect_;
  }
  // Launches the kernel for the collected blocks.
  Status flush() {
    if (!collecting()) return {};
    BatchBuffer& buffer = *buffers_[turn_];
    turn_ ^= 1;
    launch_at_ = std::min(launch_at_ * 4, BatchBuffer::kMostBlocks);
    return buffer.launch(ticket_.stream(), ticket_.word(), ticket_.next_value());
  }

  DeviceLink& device_;
  CopyTicket ticket_;
  bool may_collect_ = true;
  std::unique_ptr<BatchBuffer> buffers_[2];  // one is filled while the device reads the other
  int turn_ = 0;
  // In blocks. The first launch comes early, so that the device works while the rest is prepared.
  size_t launch_at_ = 1024;
};

bool is_one_block(const Movement& movement) {
  return movement.parts.size() == 1 && movement.parts.front().blocks.size() == 1;
}

}  // namespace

Estimate estimate_engine(const LinkFacts& facts, const Ends& ends) {
  const bool device = on_device(ends.local) || on_device(ends.remote);
  if (!device || !facts.segment || !facts.our_gpu || !facts.why_no_device.empty() ||
      ends.remote == MemoryKind::kDevicePrivate) {
    return {};
  }
  Estimate estimate{.cost = {.viable = true, .latency_us = 8, .bytes_per_us = 200e3F}};
  const std::string way =
      on_device(ends.local) && on_device(ends.remote) ? over(facts) : std::string();
  if (facts.same_process) {
    estimate.choice = {
        OH_PATH_LOCAL, Method::kDirect,
        "one copy by our engine, by plain addresses" + plain_only(facts, ends.remote) + way};
    return estimate;
  }
  if (ends.remote == MemoryKind::kShared) {
    estimate.choice = {OH_PATH_CUDA_IPC, Method::kDirect,
                       "one copy by our engine, the block of host memory being mapped"};
    return estimate;
  }
  if (ends.remote != MemoryKind::kDevice || !facts.why_no_peer_access.empty()) return {};
  estimate.choice = {OH_PATH_CUDA_IPC, Method::kDirect,
                     "one copy by our engine, the region being mapped" + way};
  if (!on_device(ends.local)) return estimate;
  estimate.small_max = facts.worker_max;
  estimate.small = or_by_worker(ends.local, ends.remote, estimate.choice);
  return estimate;
}

// Whether a kernel exists for the movement: many blocks, or a small one for the worker.
bool EnginePath::wants_kernels(const Movement& movement) const {
  if (!is_one_block(movement)) return link_.device->gpu().kernels().batch() != nullptr;
  const Part& part = movement.parts.front();
  return link_.device->worker() && part.local.on_device && part.target.on_device &&
         part.target.imported && movement.bytes <= Worker::kLongest;
}

bool EnginePath::kernels_reach_local(const Part& part) const {
  // This queries the driver for every chunk of the memory. The export is kept, and messages need
  // it, too.
  return part.local.near && find_export(link_.device->gpu(), &part.local).ok() &&
         part.local.exported->for_kernels;
}

bool EnginePath::kernels_reach_target(const Part& part) const {
  // The local device can access an import for as long as the part holds it.
  return part.target.on_device &&
         (part.target.imported ||
          kernels_reach(link_.device->gpu(), part.target.base, part.target.length));
}

// `wanted`: kernels are wanted.
EnginePath::Access EnginePath::access(const Part& part, bool wanted) const {
  if (part.local.on_device && part.target.on_device) {
    const bool both = wanted && kernels_reach_local(part) && kernels_reach_target(part);
    return {.most = both ? kLongestForKernel : 0};
  }
  const std::shared_ptr<cuda::Gpu>& gpu = link_.device->shared_gpu();
  if (part.target.on_device) {
    PinnedView host = view_pinned(gpu, part.local.data, part.local.size, /*ask=*/wanted);
    const bool both = wanted && host.pinned && kernels_reach_target(part);
    const uint64_t shift = host.shift;
    return {both ? kLongestBesideHost : 0, shift, 0, std::move(host)};
  }
  const auto* base = reinterpret_cast<const void*>(part.target.base);
  PinnedView host = part.import ? view_pinned(gpu, part.import)
                                : view_pinned(gpu, base, part.target.length, /*ask=*/wanted);
  const bool both = wanted && host.pinned && kernels_reach_local(part);
  const uint64_t shift = host.shift;
  return {both ? kLongestBesideHost : 0, 0, shift, std::move(host)};
}

// The worker if the movement is one small block, else null. Within one process the worker is not
// faster than the engine.
Worker* EnginePath::worker_for(const Movement& movement) const {
  const bool small =
      is_one_block(movement) && movement.parts.front().import && movement.bytes <= Worker::kLongest;
  return small ? link_.device->worker() : nullptr;
}

// The addresses of a block for the device. OH_ERR_RANGE: the block lies outside of the mapping.
Result<kernels::BatchBlock> EnginePath::placed(const Part& part, const Block& block,
                                               const Access& access, bool put) {
  uint64_t there = part.target.base + block.remote_offset;
  if (part.import) {
    there = reinterpret_cast<uint64_t>(part.import->translate(there, block.size));
    if (there == 0) return error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
  }
  there += access.remote_shift;
  const uint64_t here = reinterpret_cast<uint64_t>(block.local) + access.local_shift;
  return kernels::BatchBlock{put ? there : here, put ? here : there, block.size};
}

Result<oh_path> EnginePath::copy(const Movement& movement) {
  const oh_path path = link_.path == OH_PATH_LOCAL ? OH_PATH_LOCAL : OH_PATH_CUDA_IPC;
  const bool wanted = wants_kernels(movement);
  const Access first = access(movement.parts.front(), wanted);
  std::vector<Access> others;  // of the other parts: one part allocates nothing
  for (const Part& part : movement.parts.subspan(1)) others.push_back(access(part, wanted));
  auto by_kernel = [](const Access& each) { return each.most > 0; };
  const bool all = by_kernel(first) && std::ranges::all_of(others, by_kernel);
  OH_ASSIGN_OR_RETURN(CopyTicket opened, CopyTicket::open(link_.device->gpu()));
  Copies copies(*link_.device, std::move(opened));
  CopyTicket& ticket = copies.ticket();
  if (all && movement.plan) {
    BatchPlan::Post post(*movement.plan);
    if (post.valid()) {
      OH_RETURN_IF_ERROR(ticket.end(post.enqueue(ticket)));
      return path;
    }
  }
  Worker* worker = all ? worker_for(movement) : nullptr;
  const Block* last = &movement.parts.back().blocks.back();
  for (size_t i = 0; i < movement.parts.size(); ++i) {
    const Part& part = movement.parts[i];
    const Access& ends = i == 0 ? first : others[i - 1];
    for (const Block& block : part.blocks) {
      Result<kernels::BatchBlock> there = placed(part, block, ends, movement.put);
      if (!there.ok()) {
        OH_RETURN_IF_ERROR(ticket.end(there.status()));
      }
      if (worker &&
          worker->copy({there->to, there->from, block.size, ticket.word(), ticket.next_value()})) {
        OH_RETURN_IF_ERROR(ticket.end({}));
        return OH_PATH_WORKER;
      }
      Status status = copies.add(*there, ends.most, &block == last);
      if (!status.ok()) OH_RETURN_IF_ERROR(ticket.end(status));
      if (worker) worker->call();
    }
  }
  OH_RETURN_IF_ERROR(ticket.end({}));
  return path;
}

std::unique_ptr<BatchPlan> EnginePath::plan(const Movement& movement) {
  size_t count = 0;
  for (const Part& part : movement.parts) count += part.blocks.size();
  // The plan holds addresses: host memory may be registered anew, at others.
  auto admits = [this](const Part& part) {
    return kernels_reach_local(part) && kernels_reach_target(part);
  };
  if (count < 2 || !link_.device->gpu().kernels().batch() ||
      !std::ranges::all_of(movement.parts, admits)) {
    return nullptr;
  }
  std::vector<kernels::BatchBlock> blocks;
  blocks.reserve(count);
  for (const Part& part : movement.parts) {
    for (const Block& block : part.blocks) {
      Result<kernels::BatchBlock> there = placed(part, block, {}, movement.put);
      if (!there.ok()) return nullptr;
      blocks.push_back(*there);
    }
  }
  Result<std::unique_ptr<BatchPlan>> made =
      BatchPlan::create(link_.device->shared_gpu(), std::move(blocks));
  if (made.ok()) return std::move(*made);
  OH_LOG(kWarn, "a prepared batch of %zu blocks is divided anew at each post, which is slower: %s",
         count, made.status().text().c_str());
  return nullptr;
}

}  // namespace oh
