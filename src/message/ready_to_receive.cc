// SPDX-License-Identifier: Apache-2.0
#include "message/ready_to_receive.h"

namespace oh {

bool ReadyToReceive::may_offer(const Request& request) const {
  if (request.transfer || request.in_place || request.pending()) return false;
  return transfers_.has_use(link_.selection->ready_to_receive(request.on_device, request.size),
                            request);
}

void ReadyToReceive::offer(Request* request, uint32_t number) {
  if (link_.ucx) {
    request->number = number;
    request->in_place = link_.ucx->targets().post_message(
        request->tag, {number, epoch_, request->data, request->size, false});
    return;
  }
  Transfer* transfer = transfers_.offer(request, /*source=*/false);
  if (!transfer) return;
  Frame frame;
  frame.type = FrameType::kRtr;
  frame.tag = request->tag;
  frame.number = number;
  frame.aux = epoch_;
  frame.length = request->size;
  frame.slot = transfer->index;
  frame.op = transfer->sequence;
  frame.address = transfer->slot->owner_address.load(std::memory_order_relaxed);
  frame.region = transfer->slot->owner_block.load(std::memory_order_relaxed);
  if (!link_.outbox.empty() || !link_.push(frame)) transfers_.withdraw(transfer);
}

bool ReadyToReceive::withdraw(Request* request) {
  if (request->transfer) return transfers_.withdraw(request->transfer);
  if (!request->in_place) return true;
  request->in_place =
      !link_.ucx->targets().revoke_message(request->tag, request->number, /*taken=*/false);
  return !request->in_place;
}

void ReadyToReceive::take_in_place(Request* request) {
  request->in_place = false;
  link_.ucx->targets().revoke_message(request->tag, request->number, /*taken=*/true);
}

}  // namespace oh
