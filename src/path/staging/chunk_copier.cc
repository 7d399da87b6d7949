// SPDX-License-Identifier: Apache-2.0
#include "path/staging/chunk_copier.h"

#include <algorithm>

#include "base/log.h"

namespace oh {
namespace {

constexpr size_t kForKernel = 4;  // pieces; the engine copies fewer

// Calls visit(memory, offset from `begin`, size) for each piece of bytes [begin, end) of the
// request.
template <typename Visit>
Status for_each_piece(const Request& request, uint64_t begin, uint64_t end, Visit visit) {
  const Block whole{request.data, 0, end};
  uint64_t at = 0;
  for (const Block& block : request.is_run() ? request.run.blocks() : std::span(&whole, 1)) {
    const uint64_t from = std::max(at, begin);
    const uint64_t to = std::min(at + block.size, end);
    if (from < to) {
      const bool last = to == end;
      Status status = visit(block.local + (from - at), from - begin, to - from);
      // Once the last piece is enqueued, another thread may end the request.
      if (last || !status.ok()) return status;
    }
    at += block.size;
  }
  return {};
}

// A copy from freed memory fails; a kernel access destroys the context.
bool is_there(const cuda::Driver& driver, const GpuExport& exported) {
  const auto* base = reinterpret_cast<const void*>(exported.record.base);
  return GpuExports::instance().find_known(driver, base, exported.record.length).get() == &exported;
}

}  // namespace

// Whether the batch kernel is faster than the engine, and may access the memory.
bool ChunkCopier::is_for_kernel(const Request& request) const {
  const GpuExport* exported = request.device.exported.get();
  return request.run.blocks().size() >= kForKernel && link_.gpu->kernels().batch() && exported &&
         exported->for_kernels && exported->device == link_.gpu->facts().ordinal;
}

void ChunkCopier::prepare(const Request& request, Chunk& chunk) {
  if (lists_.empty() || !is_for_kernel(request)) return;
  chunk.list = std::move(lists_.back());
  lists_.pop_back();
}

void ChunkCopier::make_list(Chunk& chunk) {
  if (chunk.list) return;
  if (lists_left_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
    lists_left_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  Result<std::unique_ptr<BatchBuffer>> made = BatchBuffer::create(link_.gpu);
  if (made.ok()) {
    chunk.list = std::move(*made);
    return;
  }
  lists_left_.store(-kMostLists, std::memory_order_relaxed);
  OH_LOG_ONCE(kWarn, "batches to and from %s are gathered block by block, which is slower: %s",
              link_.name.c_str(), made.status().text().c_str());
}

Status ChunkCopier::copy(StagingTransfer& transfer, Chunk& chunk) {
  const Request& request = *transfer.request;
  if (is_for_kernel(request) && is_there(link_.gpu->driver(), *request.device.exported)) {
    make_list(chunk);
    if (chunk.list) return launch(transfer, chunk);
  }
  return for_each_piece(request, chunk.begin, chunk.end(),
                        [&](uint8_t* memory, uint64_t offset, uint64_t size) {
                          uint8_t* buffer = chunk.buffer.data + offset;
                          const bool in = transfer.receives();
                          const bool last = offset + size == chunk.size;
                          return transfer.ticket.copy(in ? memory : buffer, in ? buffer : memory,
                                                      size, last ? chunk.value : 0);
                        });
}

Status ChunkCopier::launch(const StagingTransfer& transfer, Chunk& chunk) {
  const cuda::DevicePtr begin = StagingPool::on_device(chunk.buffer);
  OH_RETURN_IF_ERROR(for_each_piece(*transfer.request, chunk.begin, chunk.end(),
                                    [&](uint8_t* data, uint64_t offset, uint64_t size) {
                                      const auto memory = reinterpret_cast<uint64_t>(data);
                                      const uint64_t buffer = begin + offset;
                                      const bool in = transfer.receives();
                                      chunk.list->add(
                                          {in ? memory : buffer, in ? buffer : memory, size});
                                      return Status();
                                    }));
  return chunk.list->launch(transfer.ticket.stream(), transfer.ticket.word(), chunk.value);
}

void ChunkCopier::recycle(Chunk& chunk) {
  if (!chunk.list) return;
  chunk.list->clear();
  lists_.push_back(std::move(chunk.list));
}

}  // namespace oh
