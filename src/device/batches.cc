// SPDX-License-Identifier: Apache-2.0
#include "device/batches.h"

#include <algorithm>

namespace oh {
namespace {
// Cost of a block in addition to its bytes, in bytes: the worker reads its description over the
// bus.
constexpr uint64_t kBlockCost = 512;
// Bytes. A smaller share is not worth another worker.
constexpr uint64_t kLeastShare = 4096;
// Shares begin where whole warps write whole lines.
constexpr uint64_t kShareAlignment = 512;

constexpr size_t kSharesAt = BatchBuffer::kMostBlocks * sizeof(kernels::BatchBlock);
constexpr size_t kZeroAt = kSharesAt + (kernels::kBatchWorkers + 1) * sizeof(kernels::BatchShare);
constexpr size_t kBufferSize = kZeroAt + sizeof(uint64_t);
}  // namespace

template <typename Share>
uint32_t divide(std::span<const kernels::BatchBlock> blocks, uint32_t workers, Share* shares) {
  using Number = decltype(Share::block);
  uint64_t cost = 0;
  for (const kernels::BatchBlock& block : blocks) cost += kBlockCost + block.size;
  uint64_t share = std::max(kLeastShare, (cost + workers - 1) / workers);
  uint32_t count = 0;
  uint64_t next = 0;    // where the next share begins, in cost
  uint64_t behind = 0;  // the cost of the blocks before this one
  for (size_t i = 0; i < blocks.size(); ++i) {
    uint64_t whole = kBlockCost + blocks[i].size;
    for (; next < behind + whole; next += share) {
      uint64_t within = next - behind;
      uint64_t offset = within > kBlockCost ? (within - kBlockCost) / kShareAlignment : 0;
      shares[count++] = {static_cast<Number>(i), static_cast<Number>(offset * kShareAlignment)};
    }
    behind += whole;
  }
  shares[count] = {static_cast<Number>(blocks.size()), 0};
  return count;
}
template uint32_t divide(std::span<const kernels::BatchBlock>, uint32_t, kernels::BatchShare*);
template uint32_t divide(std::span<const kernels::BatchBlock>, uint32_t, kernels::SmallBatchShare*);

namespace {

unsigned thread_blocks(uint64_t workers) {
  constexpr uint64_t kWorkersOfBlock = kernels::kBatchThreads / 32;
  return static_cast<unsigned>((workers + kWorkersOfBlock - 1) / kWorkersOfBlock);
}

Status launch_in_stream(cuda::Gpu& gpu, cuda::Stream stream, kernels::StreamBatchArgs* args,
                        size_t count) {
  args->workers = divide(std::span(args->blocks, count), kernels::kBatchWorkers, args->shares);
  const cuda::Grid grid{.blocks = thread_blocks(args->workers), .threads = kernels::kBatchThreads};
  return gpu.kernels().launch_remote(stream, gpu.kernels().stream_batch(), grid, args);
}

// Precondition: 1 to kFewBlocks.
Status launch_few_in_stream(cuda::Gpu& gpu, cuda::Stream stream,
                            std::span<const kernels::BatchBlock> blocks, uint64_t longest) {
  constexpr uint64_t kOfThreadBlock = 16 * 1024;  // bytes
  kernels::FewBlocksArgs args{
      .count = static_cast<uint32_t>(blocks.size()), .each = 1, .blocks = {}};
  std::ranges::copy(blocks, args.blocks);
  const uint64_t useful = (longest + kOfThreadBlock - 1) / kOfThreadBlock;
  args.each =
      static_cast<uint32_t>(std::clamp<uint64_t>(useful, 1, kernels::kBatchGrid / args.count));
  const cuda::Grid grid{.blocks = args.count * args.each, .threads = kernels::kBatchThreads};
  return gpu.kernels().launch_remote(stream, gpu.kernels().stream_few_blocks(), grid, &args);
}

}  // namespace

Status launch_batch(cuda::Gpu& gpu, cuda::Stream stream, kernels::BatchArgs args) {
  return gpu.kernels().launch(stream, gpu.kernels().batch(), thread_blocks(args.workers),
                              kernels::kBatchThreads, &args);
}

Status copy_in_stream(cuda::Gpu& gpu, cuda::Stream stream,
                      std::span<const kernels::BatchBlock> blocks) {
  if (blocks.size() <= kernels::kFewBlocks) {
    uint64_t longest = 0;
    uint64_t total = 0;
    for (const kernels::BatchBlock& block : blocks) {
      longest = std::max(longest, block.size);
      total += block.size;
    }
    // All blocks get equal numbers of thread blocks: only if they have similar lengths.
    const bool similar = blocks.size() * longest <= 2 * total;
    if (similar) return launch_few_in_stream(gpu, stream, blocks, longest);
  }
  auto args = std::make_unique_for_overwrite<kernels::StreamBatchArgs>();
  size_t count = 0;
  for (const kernels::BatchBlock& block : blocks) {
    args->blocks[count++] = block;
    if (count < kernels::kStreamBatchBlocks) continue;
    OH_RETURN_IF_ERROR(launch_in_stream(gpu, stream, args.get(), count));
    count = 0;
  }
  return count == 0 ? Status() : launch_in_stream(gpu, stream, args.get(), count);
}

Result<std::unique_ptr<BatchBuffer>> BatchBuffer::create(const std::shared_ptr<cuda::Gpu>& gpu) {
  std::unique_ptr<BatchBuffer> made(new BatchBuffer);
  made->gpu_ = gpu;
  OH_ASSIGN_OR_RETURN(made->memory_, Mapping::anonymous(kBufferSize));
  OH_ASSIGN_OR_RETURN(made->pinned_, cuda::Pinned::of(gpu, made->memory_.data(), kBufferSize));
  OH_ASSIGN_OR_RETURN(made->finished_, gpu->allocate(sizeof(uint64_t)));
  return made;
}

BatchBuffer::~BatchBuffer() {
  if (finished_) gpu_->free(finished_);
}

Status BatchBuffer::launch(cuda::Stream stream, cuda::DevicePtr word, uint64_t value) {
  auto on_device = [&](size_t offset) { return pinned_->device(memory_.data() + offset); };
  auto* shares = reinterpret_cast<kernels::BatchShare*>(memory_.data() + kSharesAt);
  kernels::BatchArgs args;
  args.workers = divide({blocks(), count_}, kernels::kBatchWorkers, shares);
  args.blocks = reinterpret_cast<const kernels::BatchBlock*>(on_device(0));
  args.shares = reinterpret_cast<const kernels::BatchShare*>(on_device(kSharesAt));
  args.finished = reinterpret_cast<uint64_t*>(finished_);
  args.word = reinterpret_cast<uint64_t*>(word);
  args.value = value;
  count_ = 0;
  in_use_until_ = value;
  if (!zeroed_) {
    OH_RETURN_IF_ERROR(
        gpu_->copy(stream, finished_, on_device(kZeroAt), sizeof(uint64_t), nullptr, 0, 0));
    zeroed_ = true;
  }
  return launch_batch(*gpu_, stream, args);
}

}  // namespace oh
