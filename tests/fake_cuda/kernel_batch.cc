// SPDX-License-Identifier: Apache-2.0
//
// The library's batch kernels, compiled for the host from the device sources; their workers run one
// after the other.
//
// Threading: any thread.
#include <algorithm>
#include <cstring>

#include "kernels.h"
#include "kernels/batch.h"

namespace oh::cuda::fake {
void copy_pieces(std::vector<Piece> target, std::vector<Piece> source, uint64_t size) {
  size_t t = 0;
  size_t s = 0;
  while (size > 0) {
    Piece& into = target[t];
    Piece& out_of = source[s];
    const size_t take = std::min(into.size, out_of.size);
    onehop::detail::copy_together(onehop::detail::OneLane(), reinterpret_cast<uint8_t*>(into.bytes),
                                  reinterpret_cast<const uint8_t*>(out_of.bytes), take);
    for (Piece* piece : {&into, &out_of}) {
      piece->bytes += take;
      piece->size -= take;
    }
    if (into.size == 0) ++t;
    if (out_of.size == 0) ++s;
    size -= take;
  }
}

bool copy_mapped(const ContextState& context, uint64_t to, uint64_t from, uint64_t size) {
  std::vector<Piece> target;
  std::vector<Piece> source;
  if (!pieces_of(context, to, size, &target) || !pieces_of(context, from, size, &source)) {
    return false;
  }
  copy_pieces(std::move(target), std::move(source), size);
  return true;
}

namespace {

template <typename Args>
Code run_shares(const ContextState& context, const Grid& grid, const Args& args) {
  if (uint64_t{grid.blocks} * (grid.threads / kWarp) < args.workers) return kLaunchFailed;
  bool good = true;
  for (uint32_t worker = 0; worker < args.workers; ++worker) {
    kernels::walk_share(args, worker, [&](uint64_t to, uint64_t from, uint64_t size) {
      good = good && copy_mapped(context, to, from, size);
    });
  }
  return good ? kSuccess : kIllegalAddress;
}

Code run_in_stream(ContextState& context, const Grid& grid, const void* argument) {
  return run_shares(context, grid, *static_cast<const kernels::StreamBatchArgs*>(argument));
}

Code run_few(ContextState& context, const Grid& grid, const void* argument) {
  const auto* args = static_cast<const kernels::FewBlocksArgs*>(argument);
  if (args->count == 0 || args->count > kernels::kFewBlocks) return kLaunchFailed;
  if (args->each == 0 || grid.blocks != args->count * args->each) return kLaunchFailed;
  bool good = true;
  for (uint32_t i = 0; i < args->count; ++i) {
    const kernels::BatchBlock& block = args->blocks[i];
    good = good && copy_mapped(context, block.to, block.from, block.size);
  }
  return good ? kSuccess : kIllegalAddress;
}

Code run(ContextState& context, const Grid& grid, const void* argument) {
  kernels::BatchArgs args;
  memcpy(&args, argument, sizeof(args));
  const auto shares = mapped(context, args.shares, args.workers + 1);
  if (shares == nullptr) return kIllegalAddress;
  args.shares = shares.get();
  const auto blocks = mapped(context, args.blocks, args.shares[args.workers].block);
  if (blocks == nullptr) return kIllegalAddress;
  args.blocks = blocks.get();
  const Code code = run_shares(context, grid, args);
  if (code != kSuccess) return code;
  const auto finished = mapped(context, args.finished);
  const auto word = mapped(context, args.word);
  if (finished == nullptr || word == nullptr) return kIllegalAddress;
  if (*finished != 0) return kLaunchFailed;  // the host did not zero it
  // Release: a thread that reads the word with acquire sees the preceding copies.
  __atomic_store_n(word.get(), args.value, __ATOMIC_RELEASE);
  return kSuccess;
}

}  // namespace

const Kernel kBatch = {kernels::kBatchKernel, sizeof(kernels::BatchArgs), kernels::kBatchThreads,
                       true, run};
const Kernel kStreamBatch = {kernels::kStreamBatchKernel, sizeof(kernels::StreamBatchArgs),
                             kernels::kBatchThreads, true, run_in_stream};
const Kernel kStreamFewBlocks = {kernels::kStreamFewBlocksKernel, sizeof(kernels::FewBlocksArgs),
                                 kernels::kBatchThreads, true, run_few};

}  // namespace oh::cuda::fake
