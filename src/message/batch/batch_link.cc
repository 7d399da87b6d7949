// SPDX-License-Identifier: Apache-2.0
#include "message/batch/batch_link.h"

#include "base/log.h"

namespace oh {

void BatchLink::close() {
  LinkGuard guard(link_);
  drop_offers();
  if (kept_.empty()) return;
  OH_LOG(kWarn, "%s may still write offers of batches here: %zu buffers are never freed",
         link_.name.c_str(), kept_.size());
  (void)new std::vector<DoubtfulOffer>(std::move(kept_));
}

Status BatchLink::post(Request* request, std::unique_ptr<BatchReceive> receive) {
  if (receive->region->exported) transfers_.prepare_slab(*receive->region->exported);
  link_.note_post(*request);
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  if (receive->region->exported) OH_RETURN_IF_ERROR(admit_device_memory(link_));
  if (!sender_.has_room()) {
    ++link_.stats.back_pressure;
    return error(OH_AGAIN, "%u sends and offers to %s are not taken: make progress and try again",
                 link_.pending_sends, link_.name.c_str());
  }
  request->peer = link_.peer;
  batches_.post(request, std::move(receive));
  link_.posted();
  return {};
}

Result<bool> BatchLink::fetch_offer(Request* request, uint64_t tag, Bytes* bytes) {
  while (true) {
    uint64_t length = 0;
    {
      LinkGuard guard(link_);
      drop_offers();
      std::optional<Receiver::Announced> first = receiver_.probe(MessageBatches::offer_tag(tag));
      if (!first) return false;
      length = first->length;
      if (length > BatchOffer::kMaxBytes) {
        return error(OH_ERR_PROTOCOL, "%s offers a receive of a batch in %llu bytes",
                     link_.name.c_str(), static_cast<unsigned long long>(length));
      }
      if (length <= bytes->size()) {
        request->peer = link_.peer;
        request->data = bytes->data();
        request->size = length;
        request->tag = MessageBatches::offer_tag(tag);
        bool posted = receiver_.get_unexpected(request);
        link_.posted();
        if (posted) return true;
        continue;  // it was withdrawn
      }
    }
    bytes->resize(length);  // without the lock: allocating takes time
  }
}

void BatchLink::keep(DoubtfulOffer offer) {
  LinkGuard guard(link_);
  kept_.push_back(std::move(offer));
}

void BatchLink::drop_offers() {
  for (auto offer = kept_.begin(); offer != kept_.end();) {
    offer = transfers_.released(offer->doubts) ? kept_.erase(offer) : std::next(offer);
  }
}

bool BatchLink::take_region(RemoteTarget& target) {
  // seq_cst: either this side takes it, or its receive has withdrawn it.
  bool taken = page_->region(target.index)
                   .compare_exchange_strong(target.version, target.version | kTakenBit);
  if (taken) target.version |= kTakenBit;
  return taken;
}

bool BatchLink::finish_region(const RemoteTarget& target, uint64_t size, oh_path path) {
  uint64_t taken = target.version | kTakenBit;
  // seq_cst: after all writes; either this side finishes it, or its receive was cancelled.
  return page_->region(target.index).compare_exchange_strong(taken, whole_word(size, path));
}

void BatchLink::end_batch(uint64_t op, uint64_t size, oh_path path, oh_status status) {
  LinkGuard guard(link_);
  if (!link_.usable().ok()) return;
  // The state of the local link or endpoint does not concern the peer.
  if (status != OH_OK && status_scope(status) != OH_SCOPE_OPERATION) status = OH_ERR_CANCELLED;
  Frame frame;
  frame.type = FrameType::kBatchEnd;
  frame.op = op;
  frame.length = size;
  frame.number = static_cast<uint32_t>(path);
  frame.aux = static_cast<uint32_t>(status);
  link_.send(frame);
  link_.posted();
}

}  // namespace oh
