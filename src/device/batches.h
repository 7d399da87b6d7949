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

// Divides the blocks among the workers by bytes. `shares` has `workers` + 1 entries. Returns how
// many workers have a share. Share: BatchShare or SmallBatchShare.
template <typename Share>
uint32_t divide(std::span<const kernels::BatchBlock> blocks, uint32_t workers, Share* shares);

// Bytes. Longer blocks go to the copy engine, which leaves the SMs free.
inline constexpr uint64_t kLongestForKernel = 2 * 1024 * 1024;
// The same where one side is host memory: the bus is the limit.
inline constexpr uint64_t kLongestBesideHost = 512 * 1024;

// Enqueues the kernel.
Status launch_batch(cuda::Gpu& gpu, cuda::Stream stream, kernels::BatchArgs args);
// Enqueues copies of one block or more, each of at most kLongestForKernel bytes, on a stream, which
// may be captured: by a kernel for few blocks of similar length, or by one for many.
Status copy_in_stream(cuda::Gpu& gpu, cuda::Stream stream,
                      std::span<const kernels::BatchBlock> blocks);

class BatchBuffer {
 public:
  static constexpr size_t kMostBlocks = 8192;

  static Result<std::unique_ptr<BatchBuffer>> create(const std::shared_ptr<cuda::Gpu>& gpu);
  ~BatchBuffer();

  void add(const kernels::BatchBlock& block) { blocks()[count_++] = block; }
  size_t count() const { return count_; }
  // Enqueues the copies of all blocks, and the write of `value` to `word` after them. The buffer is
  // empty then, but the device reads it until the word is written.
  Status launch(cuda::Stream stream, cuda::DevicePtr word, uint64_t value);
  // The value of the last launch; 0: none. Wait for it before the next use of the buffer.
  uint64_t in_use_until() const { return in_use_until_; }
  // Empties the buffer for another operation. Blocks that were not launched are dropped.
  void clear() { count_ = in_use_until_ = 0; }

 private:
  BatchBuffer() = default;
  kernels::BatchBlock* blocks() { return reinterpret_cast<kernels::BatchBlock*>(memory_.data()); }

  std::shared_ptr<cuda::Gpu> gpu_;
  cuda::DevicePtr finished_ = 0;  // BatchArgs::finished
  bool zeroed_ = false;
  Mapping memory_;
  std::shared_ptr<cuda::Pinned> pinned_;  // destroyed before the memory
  size_t count_ = 0;
  uint64_t in_use_until_ = 0;
};

}  // namespace oh
