// SPDX-License-Identifier: Apache-2.0
#include "message/send_tags.h"

#include <utility>

namespace oh {

TagTx* SendTags::next(uint64_t tag) {
  if (is_full(tag)) begin_epoch();
  if (std::exchange(unannounced_, false)) {
    Frame frame;
    frame.type = FrameType::kEpoch;
    frame.aux = epoch_;
    link_.send(frame);
    if (!link_.outbox.empty()) return nullptr;
  }
  return &tags_.get(tag);
}

void SendTags::begin_epoch() {
  if (std::exchange(unannounced_, true)) return;
  ++epoch_;
  tags_.for_each([](TagTx& tag) { tag.reset(); });
  tags_.drop_idle();
}

void SendTags::drop_ready(TagTx& tag) {
  std::erase_if(tag.ready,
                [&](const Rtr& rtr) { return static_cast<int32_t>(rtr.number - tag.number) <= 0; });
}

Status SendTags::on_rtr(const Frame& frame) {
  if (frame.slot >= kSlots || !link_.segment) {
    return error(OH_ERR_PROTOCOL, "%s offers a receive with slot %u", link_.name.c_str(),
                 frame.slot);
  }
  if (frame.aux != epoch_ || unannounced_) return {};
  // Any earlier RTR with this slot is stale: its receive was withdrawn.
  if (TagTx* former = tags_.find(slot_tags_[frame.slot])) {
    std::erase_if(former->ready, [&](const Rtr& rtr) { return rtr.offer.slot == frame.slot; });
  }
  // An RTR may be left unused: the message is then announced (RTS).
  if (is_full(frame.tag)) return {};
  TagTx& tag = tags_.get(frame.tag);
  if (static_cast<int32_t>(frame.number - tag.number) < 0) return {};  // that message has been sent
  Transfers::Offer offer;
  offer.slot = frame.slot;
  offer.sequence = static_cast<uint32_t>(frame.op);
  offer.remote = frame.address;
  offer.block = frame.region;
  // Its send will write to both cache lines of the slot.
  const TransferSlot& slot = link_.segment->incoming().slots[offer.slot];
  __builtin_prefetch(&slot, 1);
  __builtin_prefetch(&slot.cursor, 1);
  tag.ready.push_back({frame.number, frame.length, offer});
  slot_tags_[frame.slot] = frame.tag;
  return {};
}

}  // namespace oh
