// SPDX-License-Identifier: Apache-2.0
//
// Batches for the kernel: the blocks, and their division among its workers, in pinned memory that
// the device reads.
//
// Threading: a buffer belongs to the thread that has taken it.
#pragma once

#include <memory>
#include <span>

#include "kernels/batch.h"
#include "platform/cuda/gpu.h"
#include "platform/os/handles.h"

namespace oh {

// Divides the blocks by bytes. `shares` has room for one more than `workers`; returns how many
// workers have something to do. Share: BatchShare or SmallBatchShare.
template <typename Share>
uint32_t divide(std::span<const kernels::BatchBlock> blocks, uint32_t workers, Share* shares);

// Longer blocks go to the engine, which then needs nothing of the device's processors.
inline constexpr uint64_t kLongestForKernel = 2 * 1024 * 1024;

// Enqueues the kernel.
Status launch_batch(cuda::Gpu& gpu, cuda::Stream stream, kernels::BatchArgs args);
// Copies the blocks in the order of a stream, also into a capture: by the kernel, and long ones by
// the engine.
Status copy_in_stream(cuda::Gpu& gpu, cuda::Stream stream,
                      std::span<const kernels::BatchBlock> blocks);

class BatchBuffer {
 public:
  static constexpr size_t kMostBlocks = 8192;

  static Result<std::unique_ptr<BatchBuffer>> create(const std::shared_ptr<cuda::Gpu>& gpu);
  ~BatchBuffer();

  void add(const kernels::BatchBlock& block) { blocks()[count_++] = block; }
  size_t count() const { return count_; }
  // Enqueues the copies of all blocks, and the write of `value` behind them; then it is empty, but
  // read until the word is there.
  Status launch(cuda::Stream stream, cuda::DevicePtr word, uint64_t value);
  // The value of the last launch, 0: none. Who takes it again waits for that.
  uint64_t in_use_until() const { return in_use_until_; }
  // For another operation: what this one left is not copied.
  void clear() { count_ = in_use_until_ = 0; }

 private:
  BatchBuffer() = default;
  kernels::BatchBlock* blocks() { return reinterpret_cast<kernels::BatchBlock*>(memory_.data()); }

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::DevicePtr finished_ = 0;  // BatchArgs::finished
  bool zeroed_ = false;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;  // goes before the memory
  size_t count_ = 0;
  uint64_t in_use_until_ = 0;
};

}  // namespace oh
