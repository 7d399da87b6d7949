// SPDX-License-Identifier: Apache-2.0
//
// Batches: their blocks are checked, then moved at once, or kept to be posted.
#include "capi/one_sided.h"
#include "device/batch_plan.h"

using namespace oh;  // NOLINT: the C API is a thin skin over it

namespace oh {

// A caller's batch without what is empty, neighbours joined.
struct CheckedBatch {
  void* local = nullptr;
  size_t local_size = 0;
  bool put = false;
  BlockList blocks;
  uint64_t count = 0;  // before they were joined
  uint64_t bytes = 0;

  Move move(const AttachedRegion& region, BatchPlan* plan = nullptr) const {
    return {.target = region.target,
            .data = local,
            .size = local_size,
            .movement = {put, *blocks, count, bytes, plan},
            .list = blocks};
  }
};

// What a handle stands for; posts that are under way hold it, too.
struct PreparedBatch {
  std::shared_ptr<const AttachedRegion> region;
  CheckedBatch batch;
  std::unique_ptr<BatchPlan> plan;  // null: its blocks are gone through at each post
};

}  // namespace oh

struct oh_prepared_batch {
  std::shared_ptr<PreparedBatch> prepared;
};

namespace oh {
namespace {

// What the target of a get by messages holds for one peer at most.
constexpr size_t kMostBlocks = OH_BATCH_BLOCKS_MAX;

// Block `index` of a caller's batch, as it stands there.
struct Place {
  uint64_t local;
  uint64_t remote;
  uint64_t length;
};

// Goes through the blocks of a batch in order.
class Places {
 public:
  explicit Places(const oh_batch& batch) : batch_(batch), packed_at_(batch.local_base) {
    listed_ = batch.remote_offsets || batch.lengths || (!batch.packed && batch.local_offsets);
    if (batch.packed) batch_.local_stride = batch.length;
  }

  Status check() const {
    if (batch_.count > kMostBlocks) {
      return error(OH_ERR_INVALID, "a batch of %zu blocks: at most %zu go at once, make several",
                   batch_.count, kMostBlocks);
    }
    bool all = batch_.remote_offsets && batch_.lengths && (batch_.packed || batch_.local_offsets);
    if (!listed_ || all || batch_.count == 0) return {};
    return error(OH_ERR_INVALID,
                 "a batch of %zu blocks: give all three arrays (packed: remote_offsets and "
                 "lengths), or none for the strided form",
                 batch_.count);
  }

  // False: its offset does not fit into 64 bits.
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

Result<CheckedBatch> check_batch(const oh_remote_region& remote, const oh_batch& batch, bool put) {
  Places places(batch);
  OH_RETURN_IF_ERROR(places.check());
  OH_RETURN_IF_ERROR(check_buffer(batch.local, batch.local_size));
  const uint64_t remote_size = remote.attached->target.length;
  CheckedBatch checked{batch.local, batch.local_size, put, nullptr};
  std::vector<Block> blocks;
  blocks.reserve(batch.count);
  for (size_t i = 0; i < batch.count; ++i) {
    Place place;
    if (!places.next(&place)) return block_beyond_offsets(i);
    if (!slice_fits(place.local, place.length, batch.local_size)) {
      return block_outside(i, place.local, place.length, {batch.local_size, "local buffer"});
    }
    if (!slice_fits(place.remote, place.length, remote_size)) {
      return block_outside(i, place.remote, place.length, {remote_size, "remote region"});
    }
    if (place.length == 0) continue;
    ++checked.count;
    checked.bytes += place.length;
    Block block{static_cast<uint8_t*>(batch.local) + place.local, place.remote, place.length};
    if (blocks.empty() || !blocks.back().join(block)) blocks.push_back(block);
  }
  checked.blocks = std::make_shared<const std::vector<Block>>(std::move(blocks));
  return checked;
}

// How the caller gave it.
struct Given {
  oh_peer* peer;
  oh_remote_region* remote;
  const oh_batch* batch;
  bool put;
  bool packed = false;
};

Result<CheckedBatch> read_batch(const Given& given) {
  OH_RETURN_IF_ERROR(check_attached_at(*given.remote, *given.peer));
  oh_batch batch;
  OH_RETURN_IF_ERROR(read_options(given.batch, &batch));
  if (given.packed) batch.packed = 1;
  return check_batch(*given.remote, batch, given.put);
}

oh_status run_batch(const Given& given, const oh_put_options* options, oh_request** request) {
  Result<CheckedBatch> batch = read_batch(given);
  OH_REPORT_IF_ERROR(batch.status());
  const AttachedRegion& region = *given.remote->attached;
  return run(region, batch->move(region), options, request);
}

oh_status prepare_batch(const Given& given, oh_prepared_batch** out) {
  OH_REPORT_IF_ERROR(given.peer->endpoint->usable());
  OH_REPORT_IF_ERROR(given.peer->peer->usable());
  Result<CheckedBatch> batch = read_batch(given);
  OH_REPORT_IF_ERROR(batch.status());
  const AttachedRegion& region = *given.remote->attached;
  Result<std::unique_ptr<BatchPlan>> plan = region.peer->operations().plan(batch->move(region));
  OH_REPORT_IF_ERROR(plan.status());
  std::shared_ptr<PreparedBatch> prepared(
      new PreparedBatch{given.remote->attached, std::move(*batch), std::move(*plan)});
  *out = new oh_prepared_batch{std::move(prepared)};
  return OH_OK;
}

}  // namespace
}  // namespace oh

extern "C" {

#define OH_CHECK_BATCH(peer, remote, batch) \
  OH_CHECK_ARGUMENT(peer);                  \
  OH_CHECK_ARGUMENT(remote);                \
  OH_CHECK_ARGUMENT(batch)

oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch({peer, remote, batch, /*put=*/true}, options, request);
}

oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch({peer, remote, batch, /*put=*/false}, options, request);
}

oh_status oh_peer_scatter(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                          const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch({peer, remote, batch, /*put=*/true, /*packed=*/true}, options, request);
}

oh_status oh_peer_gather(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                         const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch({peer, remote, batch, /*put=*/false, /*packed=*/true}, options, request);
}

oh_status oh_peer_prepare_put(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                              oh_prepared_batch** prepared) {
  OH_CHECK_BATCH(peer, remote, batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch({peer, remote, batch, /*put=*/true}, prepared);
}

oh_status oh_peer_prepare_get(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                              oh_prepared_batch** prepared) {
  OH_CHECK_BATCH(peer, remote, batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch({peer, remote, batch, /*put=*/false}, prepared);
}

oh_status oh_prepared_batch_post(oh_prepared_batch* prepared, const oh_put_options* options,
                                 oh_request** request) {
  OH_CHECK_ARGUMENT(prepared);
  std::shared_ptr<PreparedBatch> held = prepared->prepared;
  return run(*held->region, held->batch.move(*held->region, held->plan.get()), options, request);
}

void oh_prepared_batch_release(oh_prepared_batch* prepared) {
  if (prepared && prepared->prepared->region->endpoint->is_of_this_process()) delete prepared;
}

}  // extern "C"
