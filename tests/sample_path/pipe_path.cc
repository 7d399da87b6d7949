// SPDX-License-Identifier: Apache-2.0
#include "sample_path/pipe_path.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

namespace sample {
namespace {
constexpr uint64_t kAtOnce = 4096;  // an empty pipe takes as much without waiting
std::atomic<uint64_t> g_copies{0};

oh::PathTable with_pipe() {
  oh::PathTable table = oh::kPaths;
  table[static_cast<size_t>(oh::PathName::kCopy)] = {estimate_pipe, PipePath::create};
  return table;
}
}  // namespace

oh::Estimate estimate_pipe(const oh::LinkFacts& facts, const oh::Ends& ends) {
  const bool addressed = facts.same_process || ends.remote == oh::MemoryKind::kShared;
  if (oh::on_device(ends.local) || oh::on_device(ends.remote) || !facts.segment || !addressed) {
    return {};
  }
  return {.cost = {.viable = true, .latency_us = 2, .bytes_per_us = 1e3F},
          .choice = {oh::bulk_path(facts), oh::Method::kDirect, "two copies through a pipe"}};
}

PipePath::PipePath(const oh::PathContext& context) : Path(context) {
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) return;
  out_ = oh::UniqueFd(ends[0]);
  in_ = oh::UniqueFd(ends[1]);
}

std::unique_ptr<oh::Path> PipePath::create(const oh::PathContext& context) {
  return context.link.segment ? std::make_unique<PipePath>(context) : nullptr;
}

oh::Result<oh_path> PipePath::copy(const oh::Movement& movement) {
  oh::MutexLock lock(mutex_);
  for (const oh::Part& part : movement.parts) {
    for (const oh::Block& block : part.blocks) {
      const uint64_t address = part.target.base + block.remote_offset;
      uint8_t* remote = part.import ? part.import->translate(address, block.size)
                                    : reinterpret_cast<uint8_t*>(address);
      if (!remote) return oh::error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
      OH_RETURN_IF_ERROR(movement.put ? move(remote, block.local, block.size)
                                      : move(block.local, remote, block.size));
    }
  }
  g_copies.fetch_add(1, std::memory_order_relaxed);
  return link_.path;
}

oh::Status PipePath::move(void* to, const void* from, uint64_t size) {
  for (uint64_t at = 0; at < size;) {
    const ssize_t given =
        write(in_.get(), static_cast<const uint8_t*>(from) + at, std::min(kAtOnce, size - at));
    if (given < 0 && errno == EINTR) continue;
    if (given <= 0) return oh::error(OH_ERR_FAULT, "the pipe takes no bytes: errno %d", errno);
    for (ssize_t taken = 0; taken < given;) {
      const ssize_t got = read(out_.get(), static_cast<uint8_t*>(to) + at + taken,
                               static_cast<size_t>(given - taken));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return oh::error(OH_ERR_FAULT, "the pipe gives no bytes: errno %d", errno);
      taken += got;
    }
    at += static_cast<uint64_t>(given);
  }
  return {};
}

const oh::PathTable kWithPipe = with_pipe();
uint64_t copies() { return g_copies.load(std::memory_order_relaxed); }

}  // namespace sample
