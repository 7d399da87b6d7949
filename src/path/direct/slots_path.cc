// SPDX-License-Identifier: Apache-2.0
#include "path/direct/slots_path.h"

#include <algorithm>
#include <new>

namespace oh {
namespace {
constexpr size_t kPiecesUnderWay = 64;  // of one operation
constexpr size_t kMaxServed = kSlots;   // for the other side: each has one of its slots
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
  return pair_.host->ask_to_serve();
}

// Offers more blocks; true when none is left to be offered.
bool SlotsPath::push(Operation& operation) {
  const bool put = operation.kind == OpKind::kPut;
  while (operation.failure.ok() && operation.block < operation.blocks.size()) {
    if (operation.under_way.size() >= kPiecesUnderWay) return false;
    const Block& block = operation.blocks[operation.block];
    Request* piece = pieces_.acquire();
    piece->kind = operation.kind;
    piece->phase = Phase::kOffered;
    piece->data = block.local;
    piece->size = block.size;
    piece->on_device = operation.on_device;
    piece->device.exported = operation.exported;
    piece->path_of_piece = this;
    piece->parent = &operation;
    piece->detached.store(1, std::memory_order_relaxed);
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
    if (!transfer || !pair_.push(frame)) {
      if (transfer) transfers_.withdraw(transfer);
      give_back(piece);
      return false;
    }
    operation.under_way.push_back(piece);
    ++operation.block;
  }
  return true;
}

void SlotsPath::give_back(Request* piece) {
  piece->~Request();
  new (piece) Request();
  pieces_.release(piece);
}

void SlotsPath::piece_ended(Request* piece) {
  if (piece->serves_peer()) {
    std::erase(served_, piece);
    return give_back(piece);
  }
  Operation& operation = *piece->parent;
  const bool over = operation.piece_ended(*piece);
  give_back(piece);
  if (over) events_.moved(operation, operation.failure);
}

bool SlotsPath::has_begun(const Operation& operation) {
  if (operation.block != operation.under_way.size()) return true;
  return std::ranges::any_of(operation.under_way, [&](Request* piece) {
    return piece->phase != Phase::kOffered ||
           (piece->transfer && transfers_.claimed(piece->transfer));
  });
}

// Takes all pieces back; the last one ends the operation.
bool SlotsPath::cancel(Operation& operation, const Status& status, bool give_up) {
  if (operation.under_way.empty()) return Path::cancel(operation, status, give_up);
  if (operation.failure.ok()) operation.failure = status;
  const std::vector<Request*> pieces = operation.under_way;
  size_t left = pieces.size();
  for (Request* piece : pieces) {
    Transfer* transfer = piece->transfer;
    if (piece->phase == Phase::kOffered && transfer && transfers_.withdraw(transfer)) {
      --left;
      pair_.finish(*piece, status);
    } else if (transfer && transfers_.abandon(transfer, status)) {
      --left;
    } else if (transfer && give_up && transfer->copiers == 0) {
      transfers_.orphan(transfer);
      --left;
      pair_.finish(*piece, error(OH_ERR_IN_DOUBT,
                                 "%s; %s has begun to copy and may still touch the buffer: keep it "
                                 "until buffer_released()",
                                 status.text().c_str(), pair_.name.c_str()));
    }
  }
  return left == 0;
}

// Their transfers have been withdrawn, or have ended.
void SlotsPath::fail(Operation& operation, const Status& status) {
  const std::vector<Request*> pieces = operation.under_way;
  if (operation.failure.code() != OH_ERR_IN_DOUBT) operation.failure = status;
  for (Request* piece : pieces) pair_.finish(*piece, status);
}

// The other side offers a block of an operation on a region of ours.
Status SlotsPath::on_frame(const Frame& frame) {
  const bool put = frame.type == FrameType::kPut;
  if (frame.slot >= kSlots || served_.size() >= kMaxServed) {
    return error(OH_ERR_PROTOCOL, "%s offers a block with slot %u, %zu others are under way",
                 pair_.name.c_str(), frame.slot, served_.size());
  }
  Transfers::Offer offer;
  offer.slot = frame.slot;
  offer.sequence = frame.number;
  offer.length = frame.length;
  const TransferSlot& slot = pair_.segment->incoming().slots[frame.slot];
  offer.remote = slot.owner_address;
  offer.block = slot.owner_block;
  std::shared_ptr<RegionRecord> region = regions_.find(frame.region, frame.tag);
  oh_status refusal = OH_OK;
  if (!region) {
    refusal = OH_ERR_RETIRED;
  } else if (!slice_fits(frame.address, frame.length, region->length) || frame.length == 0) {
    refusal = OH_ERR_RANGE;
  } else if (region->exported && !pair_.device) {
    refusal = OH_ERR_NOT_VIABLE;
  }
  if (refusal != OH_OK) {
    transfers_.refuse(offer, refusal);
    return {};
  }
  Request* piece = pieces_.acquire();
  piece->kind = put ? OpKind::kPut : OpKind::kGet;
  piece->data = region->base + frame.address;
  piece->size = frame.length;
  piece->on_device = region->exported != nullptr;
  piece->device.exported = region->exported;
  piece->region = region->index;
  piece->version = region->version;
  piece->path_of_piece = this;
  piece->detached.store(1, std::memory_order_relaxed);
  if (transfers_.claim(piece, /*source=*/!put, offer)) {
    served_.push_back(piece);
  } else {
    give_back(piece);
  }
  return {};
}

bool SlotsPath::leave(const RegionRecord& region) {
  const Status status = error(OH_ERR_RETIRED, "the region was deregistered");
  const std::vector<Request*> pieces = served_;
  bool left = true;
  for (Request* piece : pieces) {
    if (piece->region != region.index || piece->version != region.version) continue;
    const bool ended = piece->transfer && transfers_.abandon(piece->transfer, status);
    left = left && ended;
  }
  return left && !transfers_.engine_within(region.base, region.length);
}

}  // namespace oh
