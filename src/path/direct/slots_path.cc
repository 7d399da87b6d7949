// SPDX-License-Identifier: Apache-2.0
#include "path/direct/slots_path.h"

#include <algorithm>

namespace oh {
namespace {
constexpr size_t kPiecesUnderWay = 64;  // per operation
constexpr size_t kMaxServed = kSlots;   // for the peer: each uses one of its slots
}  // namespace

Estimate estimate_slots(const LinkFacts& facts, const Ends& ends) {
  const bool device = on_device(ends.local) || on_device(ends.remote);
  if (!device || !facts.segment || !why_not_at_all(facts, on_device(ends.local)).empty()) return {};
  Estimate estimate{
      .cost = {.viable = true, .by_target = true, .latency_us = 15, .bytes_per_us = 25e3F}};
  estimate.choice = through_devices(facts, ends.local, ends.remote);
  estimate.choice.why += ", with the target's progress";
  return estimate;
}

Status SlotsPath::admit(const LocalBuffer& local, bool put) {
  if (local.on_device && !put) transfers_.prepare_slab(*local.exported);
  return link_.ask_to_serve();
}

// Offers more blocks. True when all are offered.
bool SlotsPath::push(Operation& operation) {
  const bool put = operation.kind == OpKind::kPut;
  while (operation.failure.ok() && operation.block < operation.blocks.size()) {
    if (operation.under_way.size() >= kPiecesUnderWay) return false;
    const Block& block = operation.blocks[operation.block];
    Request* piece = piece_of(operation);
    piece->phase = Phase::kOffered;
    piece->data = block.local;
    piece->size = block.size;
    Transfer* transfer = transfers_.offer(piece, /*source=*/put);
    Frame frame;
    frame.type = put ? FrameType::kPut : FrameType::kGet;
    frame.flags = kBySlot;
    frame.region = operation.region;
    frame.tag = operation.version;
    frame.address = block.remote_offset;
    frame.length = block.size;
    if (transfer) {
      frame.slot = transfer->index;
      frame.number = transfer->sequence;
    }
    const bool sent = transfer && link_.push(frame);
    // A faulty peer claims the slot of a frame that it did not get: the block is under way then.
    if (!sent && (!transfer || transfers_.withdraw(transfer))) {
      give_back(piece);
      return false;
    }
    is_under_way(operation, piece);
    ++operation.block;
  }
  return true;
}

bool SlotsPath::has_begun(const Operation& operation) {
  if (operation.block != operation.under_way.size()) return true;
  return std::ranges::any_of(operation.under_way, [&](Request* piece) {
    return piece->phase != Phase::kOffered ||
           (piece->transfer && transfers_.claimed(piece->transfer));
  });
}

bool SlotsPath::end_piece(Request& piece, const Status& status, bool give_up) {
  Transfer* transfer = piece.transfer;
  if (!transfer) return false;
  if (piece.phase == Phase::kOffered && transfers_.withdraw(transfer)) {
    link_.finish(piece, status);
    return true;
  }
  return transfers_.end(transfer, status, give_up);
}

// The peer offers a block of an operation on a local region.
Status SlotsPath::on_frame(const Frame& frame) {
  const bool put = frame.type == FrameType::kPut;
  if (frame.slot >= kSlots || served() >= kMaxServed) {
    return error(OH_ERR_PROTOCOL, "%s offers a block with slot %u, %zu others are under way",
                 link_.name.c_str(), frame.slot, served());
  }
  Transfers::Offer offer;
  offer.slot = frame.slot;
  offer.sequence = frame.number;
  offer.length = frame.length;
  const TransferSlot& slot = link_.segment->incoming().slots[frame.slot];
  offer.remote = slot.owner_address.load(std::memory_order_relaxed);
  offer.block = slot.owner_block.load(std::memory_order_relaxed);
  std::shared_ptr<RegionRecord> region = regions_.find(frame.region, frame.tag);
  oh_status refusal = OH_OK;
  if (!region) {
    refusal = OH_ERR_RETIRED;
  } else if (region->refuses(put)) {
    refusal = OH_ERR_READ_ONLY;
  } else if (!slice_fits(frame.address, frame.length, region->length) || frame.length == 0) {
    refusal = OH_ERR_RANGE;
  } else if (region->exported && link_.selection->device_way() != DeviceWay::kSegment) {
    refusal = OH_ERR_NOT_VIABLE;
  }
  if (refusal != OH_OK) {
    transfers_.refuse(offer, refusal);
    return {};
  }
  Request* piece = piece_of(*region, put);
  piece->data = region->base + frame.address;
  piece->size = frame.length;
  if (transfers_.claim(piece, /*source=*/!put, offer)) {
    is_served(piece);
  } else {
    give_back(piece);
  }
  return {};
}

bool SlotsPath::leave(const RegionRecord& region) {
  const bool left = PiecewisePath::leave(region);
  return left && !transfers_.engine_within(region.base, region.length);
}

}  // namespace oh
