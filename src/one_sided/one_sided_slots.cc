// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations on memory that the initiator cannot map, where a device takes part: each
// block is offered through a transfer slot, and the target claims it for its region, as if both had
// called send and receive. So they travel like messages: by an engine, or through the relay. The
// target's progress is needed for the claim.
//
//   initiator: slot POSTED, frame kPut|kGet with kBySlot   target: checks region and bounds, claims
#include <algorithm>

#include "one_sided/one_sided.h"

namespace oh {
namespace {
constexpr size_t kBlocksUnderWay = 64;  // of one operation
constexpr size_t kMaxServed = kSlots;   // for the other side: each has one of its slots
}  // namespace

void OneSided::post_by_slots(Request* request, const RemoteTarget& target, const LocalMemory& local,
                             BlockList blocks, const ByteView* notify) {
  Operation& operation = enqueue(request, target, std::move(blocks), notify);
  operation.by_slots = true;
  operation.on_device = local.on_device;
  operation.exported = local.exported;
  progress();
}

// Offers more blocks; true when none is left to be offered.
bool OneSided::push_blocks(Operation& operation) {
  bool put = operation.kind == OpKind::kPut;
  while (operation.failure.ok() && operation.block < operation.blocks.size()) {
    if (operation.under_way.size() >= kBlocksUnderWay) return false;
    const Block& block = operation.blocks[operation.block];
    Request* request = blocks_.acquire();
    request->kind = operation.kind;
    request->phase = Phase::kOffered;
    request->data = block.local;
    request->size = block.size;
    request->on_device = operation.on_device;
    request->device.exported = operation.exported;
    request->parent = &operation;
    request->detached.store(1, std::memory_order_relaxed);
    Transfer* transfer = transfers_.offer(request, /*source=*/put);
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
      give_back_block(request);
      return false;
    }
    operation.under_way.push_back(request);
    ++operation.block;
  }
  return true;
}

void OneSided::give_back_block(Request* block) {
  block->~Request();
  new (block) Request();
  blocks_.release(block);
}

void OneSided::block_ended(Request* block) {
  if (block->serves_peer) {
    std::erase(served_, block);
    if (block->is_run()) served_run_ended(*block);
    give_back_block(block);
    return;
  }
  if (block->is_run()) --runs_;
  Operation& operation = *block->parent;
  std::erase(operation.under_way, block);
  operation.path = block->path;
  const bool in_doubt = block->status.code() == OH_ERR_IN_DOUBT;
  if (!block->status.ok() && (operation.failure.ok() || in_doubt)) {
    operation.failure = block->status;
  }
  if (operation.request && !block->doubts.empty()) {
    operation.request->doubts.insert(operation.request->doubts.end(), block->doubts.begin(),
                                     block->doubts.end());
    operation.request->doubt_peer = block->doubt_peer;
  }
  give_back_block(block);
  bool all = operation.block == operation.blocks.size() || !operation.failure.ok();
  if (!all || !operation.under_way.empty()) return;
  if (operation.failure.ok() && operation.notify) {
    notify_behind(operation);
  } else {
    end(&operation, operation.failure);
  }
}

// Whether something before it, whose bytes travel apart from the frames, has not ended.
bool OneSided::must_wait(const Operation& operation) const {
  if (operation.moves() || operation.is_released()) return false;
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const auto& other) { return other->travels_apart(); });
}

bool OneSided::has_begun(const Request& request) {
  Operation* operation = find(request.op);
  if (operation && operation->key) return !operation->flight->is_over();
  if (!operation || !operation->by_slots) return false;
  size_t offered = 0;
  for (const Request* block : operation->under_way) {
    offered += std::max<size_t>(block->run.blocks().size(), 1);
  }
  if (operation->block != offered) return true;
  return std::any_of(operation->under_way.begin(), operation->under_way.end(), [&](Request* block) {
    return block->phase != Phase::kOffered ||
           (block->transfer && transfers_.claimed(block->transfer));
  });
}

// Takes all blocks back; true when none is under way any more.
bool OneSided::stop_blocks(Operation& operation, const Status& status, bool give_up) {
  if (operation.failure.ok()) operation.failure = status;
  // Ending one changes the list, and the last one ends the operation.
  std::vector<Request*> blocks = operation.under_way;
  size_t left = blocks.size();
  for (Request* block : blocks) {
    if (block->is_run()) {
      if (end_run(*block, status, give_up)) --left;
      continue;
    }
    Transfer* transfer = block->transfer;
    if (block->phase == Phase::kOffered && transfer && transfers_.withdraw(transfer)) {
      --left;
      pair_.finish(*block, status);
    } else if (transfer && transfers_.abandon(transfer, status)) {
      --left;
    } else if (transfer && give_up && transfer->copiers == 0) {
      transfers_.orphan(transfer);
      --left;
      pair_.finish(*block, error(OH_ERR_IN_DOUBT,
                                 "%s; %s has begun to copy and may still touch the buffer: keep it "
                                 "until buffer_released()",
                                 status.text().c_str(), pair_.name.c_str()));
    }
  }
  return left == 0;
}

// ---- The target's side ------------------------------------------------------------------------

// The other side offers a block of an operation on a region of ours.
Status OneSided::on_block(const Frame& frame, bool put) {
  if (frame.slot >= kSlots || !pair_.segment || served_.size() >= kMaxServed) {
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
  std::shared_ptr<RegionRecord> region = host_.find_region(frame.region, frame.tag);
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
  Request* request = blocks_.acquire();
  request->kind = put ? OpKind::kPut : OpKind::kGet;
  request->data = region->base + frame.address;
  request->size = frame.length;
  request->on_device = region->exported != nullptr;
  request->device.exported = region->exported;
  request->region = region->index;
  request->version = region->version;
  request->serves_peer = true;
  request->detached.store(1, std::memory_order_relaxed);
  if (transfers_.claim(request, /*source=*/!put, offer)) {
    served_.push_back(request);
  } else {
    give_back_block(request);
  }
  return {};
}

bool OneSided::leave(const RegionRecord& region) {
  if (!keys_.has_left(region)) return false;
  Status status = error(OH_ERR_RETIRED, "the region was deregistered");
  std::vector<Request*> blocks = served_;
  bool left = true;
  for (Request* block : blocks) {
    if (block->region != region.index || block->version != region.version) continue;
    bool ended = block->is_run() ? stop_run(*block, status)
                                 : block->transfer && transfers_.abandon(block->transfer, status);
    left = left && ended;
  }
  if (!all_have_left()) {
    left = left && std::none_of(leaving_.begin(), leaving_.end(), [&](const Leaving& some) {
             return some.region == region.index && some.version == region.version;
           });
  }
  return left && !transfers_.engine_within(region.base, region.length);
}

}  // namespace oh
