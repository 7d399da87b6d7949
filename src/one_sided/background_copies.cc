// SPDX-License-Identifier: Apache-2.0
#include "one_sided/background_copies.h"

#include <sched.h>

#include <algorithm>

namespace oh {
namespace {

// About 100 us of copying: the longest delay for other work of the thread, and for a cancel.
// Smaller slices cost bandwidth.
constexpr uint64_t kSliceBytes = 1 << 20;
constexpr size_t kSliceBlocks = 4096;

}  // namespace

void BackgroundCopies::add(Operation& operation, const ChosenPart& chosen) {
  operation.path = this;
  operation.copier = chosen.path;
  operation.target = chosen.part->target;
  operation.import = chosen.part->target.import.lock();
  count_.fetch_add(1, std::memory_order_relaxed);
}

bool BackgroundCopies::push(Operation& operation) {
  queue_.push_back(&operation);
  update();
  // A sleeping thread may be the only one that makes progress.
  link_.wake_me = true;
  return true;
}

bool BackgroundCopies::copy_next_slice() {
  Slice slice;
  {
    LinkGuard guard(link_);
    if (!begin_slice(&slice)) return false;
  }
  copy(&slice);
  LinkGuard guard(link_);
  end_slice(slice);
  return true;
}

bool BackgroundCopies::begin_slice(Slice* slice) {
  if (current_ || stopping_ > 0 || queue_.empty() || !link_.is_open()) return false;
  Operation& operation = *queue_.front();
  const std::span<const Block> rest = operation.blocks.subspan(operation.block);
  const Block& first = rest.front();
  if (first.size > kSliceBytes) {
    const uint64_t at = operation.offset;
    slice->bytes = std::min(kSliceBytes, first.size - at);
    slice->cut = {first.local + at, first.remote_offset + at, slice->bytes};
    slice->blocks = {&slice->cut, 1};
  } else {
    size_t count = 0;
    while (count < std::min(rest.size(), kSliceBlocks) &&
           slice->bytes + rest[count].size <= kSliceBytes) {
      slice->bytes += rest[count++].size;
    }
    slice->blocks = rest.first(count);
  }
  slice->operation = current_ = &operation;
  update();
  return true;
}

void BackgroundCopies::copy(Slice* slice) {
  const Operation& operation = *slice->operation;
  LocalBuffer host;
  const MovePart part{.target = operation.target,
                      .blocks = slice->blocks,
                      .count = slice->blocks.size(),
                      .bytes = slice->bytes};
  const ChosenPart chosen{&part, &host, operation.ends, operation.copier};
  const Move move{.put = operation.kind == OpKind::kPut, .parts = {&part, 1}};
  slice->status = copies_.copy({&chosen, 1}, move, &slice->taken);
}

void BackgroundCopies::end_slice(const Slice& slice) {
  current_ = nullptr;
  update();
  link_.wake_me = true;  // this thread may leave the rest to a sleeping one
  // The link has ended: its teardown has waited for this slice and ends the operation.
  if (!link_.is_open()) return;
  Operation& operation = *slice.operation;
  operation.taken = slice.taken;
  if (slice.blocks.data() == &slice.cut) {
    operation.offset += slice.bytes;
    if (operation.offset == operation.blocks[operation.block].size) {
      operation.offset = 0;
      ++operation.block;
    }
  } else {
    operation.block += slice.blocks.size();
  }
  if (!slice.status.ok() || operation.block == operation.blocks.size()) {
    events_.moved(operation, slice.status);
    link_.posted();
  }
}

void BackgroundCopies::stop() {
  ++stopping_;
  while (current_) link_.without_lock(sched_yield);
  --stopping_;
  link_.wake_me = true;  // other threads found no slice meanwhile
}

void BackgroundCopies::forget(Operation& operation) {
  std::erase(queue_, &operation);
  operation.import.reset();
  count_.fetch_sub(1, std::memory_order_relaxed);
  update();
}

}  // namespace oh
