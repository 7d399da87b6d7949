// SPDX-License-Identifier: Apache-2.0
#include "capi/batch_check.h"

#include <algorithm>

#include "capi/one_sided.h"

namespace oh {
namespace {

// The target of a get by messages holds at most this many blocks for one peer.
constexpr size_t kMostBlocks = OH_BATCH_BLOCKS_MAX;

Status too_many(size_t count) {
  return error(OH_ERR_INVALID, "a batch of %zu blocks: at most %zu go at once, make several", count,
               kMostBlocks);
}

// One block of a caller's batch, with unchecked offsets.
struct Place {
  uint64_t local;
  uint64_t remote;
  uint64_t length;
};

// Iterates over the blocks of a batch in order.
class Places {
 public:
  explicit Places(const oh_batch& batch) : batch_(batch), packed_at_(batch.local_base) {
    listed_ = batch.remote_offsets || batch.lengths || (!batch.packed && batch.local_offsets);
    if (batch.packed) batch_.local_stride = batch.length;
  }

  Status check() const {
    if (batch_.count > kMostBlocks) {
      return too_many(batch_.count);
    }
    bool all = batch_.remote_offsets && batch_.lengths && (batch_.packed || batch_.local_offsets);
    if (!listed_ || all || batch_.count == 0) return {};
    return error(OH_ERR_INVALID,
                 "a batch of %zu blocks: give all three arrays (packed: remote_offsets and "
                 "lengths), or none for the strided form",
                 batch_.count);
  }

  // False: an offset of the block does not fit into 64 bits.
  bool next(Place* place) {
    const size_t i = index_++;
    if (!listed_) {
      place->length = batch_.length;
      return stride_to(batch_.local_base, batch_.local_stride, i, &place->local) &&
             stride_to(batch_.remote_base, batch_.remote_stride, i, &place->remote);
    }
    place->length = batch_.lengths[i];
    place->remote = batch_.remote_offsets[i];
    place->local = batch_.packed ? packed_at_ : batch_.local_offsets[i];
    return !batch_.packed || !__builtin_add_overflow(packed_at_, place->length, &packed_at_);
  }

 private:
  oh_batch batch_;
  bool listed_;
  size_t index_ = 0;
  uint64_t packed_at_;
};

// A block and the indices of its local memory and its region.
struct Entry {
  uint64_t ends;   // local << 32 | remote
  uint64_t order;  // position in the caller's batch
  Block block;
  bool operator<(const Entry& other) const {
    return ends != other.ends ? ends < other.ends : order < other.order;
  }
};

// Reads the runs of a batch over many regions.
class Runs {
 public:
  explicit Runs(const oh_region_batch& batch) : batch_(batch) {}

  // Checks everything except the individual blocks; returns the number of blocks.
  Result<size_t> check(const oh_peer& peer, bool put) const {
    const bool empty = batch_.count == 0;
    if (!empty && !(batch_.locals && batch_.remotes && batch_.local_offsets &&
                    batch_.remote_offsets && batch_.lengths)) {
      return error(OH_ERR_INVALID,
                   "a batch of %zu blocks over regions: give locals, remotes, local_offsets, "
                   "remote_offsets and lengths",
                   batch_.count);
    }
    if (batch_.counts && !(batch_.local_strides && batch_.remote_strides)) {
      return error(OH_ERR_INVALID,
                   "a batch of %zu runs: give local_strides and remote_strides beside counts",
                   batch_.count);
    }
    if (batch_.local_count > UINT32_MAX || batch_.remote_count > UINT32_MAX) {
      return error(OH_ERR_INVALID,
                   "a batch over %zu local pieces and %zu regions: at most 2^32 - 1",
                   batch_.local_count, batch_.remote_count);
    }
    for (size_t i = 0; !empty && i < batch_.local_count; ++i) {
      OH_RETURN_IF_ERROR(check_buffer(batch_.locals[i].data, batch_.locals[i].size));
    }
    for (size_t i = 0; !empty && i < batch_.remote_count; ++i) {
      if (!batch_.remotes[i]) return error(OH_ERR_INVALID, "remotes[%zu] is NULL", i);
      OH_RETURN_IF_ERROR(check_remote(*batch_.remotes[i], peer, put));
    }
    return count_blocks();
  }
  // Appends the non-empty blocks of run i.
  Status append(size_t i, std::vector<Entry>* entries) const {
    const uint32_t local = batch_.local_index ? batch_.local_index[i] : 0;
    const uint32_t remote = batch_.remote_index ? batch_.remote_index[i] : 0;
    if (local >= batch_.local_count || remote >= batch_.remote_count) {
      return error(OH_ERR_RANGE,
                   "block %zu is between local piece %u of %zu and remote region %u of %zu", i,
                   local, batch_.local_count, remote, batch_.remote_count);
    }
    const oh_memory& memory = batch_.locals[local];
    const uint64_t length = batch_.lengths[i];
    const uint64_t remote_length = batch_.remotes[remote]->attached->target.length;
    const uint64_t count = batch_.counts ? batch_.counts[i] : 1;
    for (uint64_t j = 0; j < count; ++j) {
      uint64_t here = batch_.local_offsets[i];
      uint64_t there = batch_.remote_offsets[i];
      if (j > 0 && !(stride_to(here, batch_.local_strides[i], j, &here) &&
                     stride_to(there, batch_.remote_strides[i], j, &there))) {
        return block_beyond_offsets(i);
      }
      if (!slice_fits(here, length, memory.size)) {
        return block_outside(i, here, length, {memory.size, "local buffer"});
      }
      if (!slice_fits(there, length, remote_length)) {
        return block_outside(i, there, length, {remote_length, "remote region"});
      }
      if (length == 0) continue;
      entries->push_back({uint64_t{local} << 32 | remote,
                          entries->size(),
                          {static_cast<uint8_t*>(memory.data) + here, there, length}});
    }
    return {};
  }
  MovePart part_of(uint64_t ends) const {
    const oh_memory& memory = batch_.locals[ends >> 32];
    const oh_remote_region& remote = *batch_.remotes[static_cast<uint32_t>(ends)];
    return {.target = remote.attached->target, .data = memory.data, .size = memory.size};
  }

 private:
  // Number of blocks in all runs.
  Result<size_t> count_blocks() const {
    if (batch_.count > kMostBlocks) return too_many(batch_.count);
    if (!batch_.counts) return batch_.count;
    size_t sum = 0;
    for (size_t i = 0; i < batch_.count; ++i) {
      if (batch_.counts[i] > kMostBlocks - sum) return too_many(kMostBlocks + 1);
      sum += batch_.counts[i];
    }
    return sum;
  }

  const oh_region_batch& batch_;
};

// The target of a batch without blocks.
const RemoteTarget kNowhere = {};

// Groups the blocks into parts by local memory and region. Within a part they keep the caller's
// order.
void divide(const Runs& runs, std::vector<Entry>& entries, CheckedBatch* checked) {
  if (!std::is_sorted(entries.begin(), entries.end())) std::sort(entries.begin(), entries.end());
  std::vector<Block> blocks;
  std::vector<size_t> begins;  // of each part
  blocks.reserve(entries.size());
  uint64_t ends = 0;
  for (const Entry& entry : entries) {
    const bool next = checked->parts.empty() || entry.ends != ends;
    if (next) {
      ends = entry.ends;
      checked->parts.push_back(runs.part_of(ends));
      begins.push_back(blocks.size());
    }
    MovePart& part = checked->parts.back();
    ++part.count;
    part.bytes += entry.block.size;
    if (next || !blocks.back().join(entry.block)) blocks.push_back(entry.block);
  }
  begins.push_back(blocks.size());
  checked->blocks = std::make_shared<const std::vector<Block>>(std::move(blocks));
  for (size_t i = 0; i < checked->parts.size(); ++i) {
    checked->parts[i].blocks =
        std::span(*checked->blocks).subspan(begins[i], begins[i + 1] - begins[i]);
  }
  if (checked->parts.empty()) checked->parts.push_back({.target = kNowhere});
}

Result<CheckedBatch> check_batch(const oh_remote_region& remote, const oh_batch& batch, bool put) {
  Places places(batch);
  OH_RETURN_IF_ERROR(places.check());
  OH_RETURN_IF_ERROR(check_buffer(batch.local, batch.local_size));
  const RemoteTarget& target = remote.attached->target;
  MovePart part{.target = target, .data = batch.local, .size = batch.local_size};
  std::vector<Block> blocks;
  blocks.reserve(batch.count);
  for (size_t i = 0; i < batch.count; ++i) {
    Place place;
    if (!places.next(&place)) return block_beyond_offsets(i);
    if (!slice_fits(place.local, place.length, batch.local_size)) {
      return block_outside(i, place.local, place.length, {batch.local_size, "local buffer"});
    }
    if (!slice_fits(place.remote, place.length, target.length)) {
      return block_outside(i, place.remote, place.length, {target.length, "remote region"});
    }
    if (place.length == 0) continue;
    ++part.count;
    part.bytes += place.length;
    Block block{static_cast<uint8_t*>(batch.local) + place.local, place.remote, place.length};
    if (blocks.empty() || !blocks.back().join(block)) blocks.push_back(block);
  }
  CheckedBatch checked{put, std::make_shared<const std::vector<Block>>(std::move(blocks)), {}, {}};
  part.blocks = *checked.blocks;
  checked.regions.push_back(remote.attached);
  checked.parts.push_back(part);
  return checked;
}

Result<CheckedBatch> check_batch(const oh_peer& peer, const oh_region_batch& batch, bool put) {
  const Runs runs(batch);
  OH_ASSIGN_OR_RETURN(const size_t count, runs.check(peer, put));
  std::vector<Entry> entries;
  entries.reserve(count);
  for (size_t i = 0; i < batch.count; ++i) OH_RETURN_IF_ERROR(runs.append(i, &entries));
  CheckedBatch checked{.put = put};
  for (size_t i = 0; batch.count > 0 && i < batch.remote_count; ++i) {
    checked.regions.push_back(batch.remotes[i]->attached);
  }
  divide(runs, entries, &checked);
  return checked;
}

}  // namespace

Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_remote_region& remote,
                                const oh_batch& given, bool put, bool packed) {
  OH_RETURN_IF_ERROR(check_remote(remote, peer, put));
  oh_batch batch;
  OH_RETURN_IF_ERROR(read_options(&given, &batch));
  if (packed) batch.packed = 1;
  return check_batch(remote, batch, put);
}

Result<CheckedBatch> read_batch(const oh_peer& peer, const oh_region_batch& given, bool put) {
  oh_region_batch batch;
  OH_RETURN_IF_ERROR(read_options(&given, &batch));
  return check_batch(peer, batch, put);
}

}  // namespace oh
