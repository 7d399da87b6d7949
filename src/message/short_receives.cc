// SPDX-License-Identifier: Apache-2.0
#include "message/short_receives.h"

#include "base/fault.h"
#include "path/message_selection.h"

namespace oh {

TagRx* ShortReceives::watch(uint64_t tag) {
  if (!link_.short_ring || !matcher_.has_no_wildcards()) return nullptr;
  TagRx* entry = matcher_.find_current(tag);
  return entry && entry->posted.empty() && entry->unexpected.empty() ? entry : nullptr;
}

bool ShortReceives::take_next(TagRx& tag, uint8_t* data, size_t capacity, Received* received) {
  size_t size;
  bool given_back;
  if (!link_.ring->take_short(tag.tag, data, capacity, &size, &given_back)) return false;
  link_.wake_them = link_.wake_them || given_back;
  ++tag.arrived;
  link_.ring->return_credit(eager_charge(size));
  *received = {size, tag.tag, link_.selection->framed_path(size, /*eager=*/true)};
  link_.stats.count(MetricOp::kRecv, received->path, size);
  link_.flight.note(OpKind::kRecv, received->path, tag.tag, size);
  return true;
}

bool ShortReceives::take_now(Request* request) {
  if (request->on_device) return false;
  TagRx* tag = watch(request->tag);
  if (!tag || !link_.ring->ready() || link_.ring->skip_pad()) return false;
  Received received;
  if (!take_next(*tag, request->data, request->size, &received)) return false;
  link_.finish_posted(*request, received.path, received.tag, received.size);
  return true;
}

bool ShortReceives::take_posted() {
  RingChannel::Short next;
  if (!matcher_.has_no_wildcards() || !link_.ring->next_short(&next)) return false;
  TagRx* tag = matcher_.find_current(next.tag);
  if (!tag) return false;
  Request* request = tag->posted.front();
  if (!request || request->transfer || request->on_device || next.size > request->size) {
    return false;
  }
  OH_FAULT_POINT("peer.frame");
  const bool given_back = link_.ring->take(next, request->data);
  link_.wake_them = link_.wake_them || given_back;
  ++tag->arrived;
  link_.ring->return_credit(eager_charge(next.size));
  matcher_.take(*tag, request);
  link_.finish_short(*request, link_.selection->framed_path(next.size, /*eager=*/true), next.tag,
                     next.size);
  return true;
}

}  // namespace oh
