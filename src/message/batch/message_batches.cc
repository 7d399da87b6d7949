// SPDX-License-Identifier: Apache-2.0
#include "message/batch/message_batches.h"

#include <utility>

namespace oh {

void MessageBatches::post(Request* request, std::unique_ptr<BatchReceive> receive) {
  request->op = link_.ops.add(request);
  request->phase = Phase::kPosted;
  request->message_tag = request->tag;
  request->batch = receive.get();
  BatchOffer::set_op(receive->offer, request->op);
  receive->request = request;
  Request& offering = receive->offering;
  offering.endpoint = request->endpoint;
  offering.peer = request->peer;
  offering.data = receive->offer.data();
  offering.size = receive->offer.size();
  offering.tag = offering.message_tag = offer_tag(request->tag);
  offering.batch = receive.get();
  offering.owner = this;
  offering.internal = true;
  offering.detached.store(1, std::memory_order_relaxed);
  receives_.push_back(std::move(receive));
  sender_.post(&offering);
  link_.note_posted(*request);
}

void MessageBatches::piece_ended(Request* offering) {
  BatchReceive& receive = *offering->batch;
  receive.offer = {};
  const Status& status = receive.offering.status;
  if (!receive.request) return forget(receive);
  // No sender will take it. progress() ends it: the caller may be iterating over the transfers.
  if (!status.ok() && !receive.outcome) decide(receive, status, retire(*receive.region));
}

Status MessageBatches::on_end(const Frame& frame) {
  Request* request = link_.ops.find(frame.op);
  if (!request || request->kind != OpKind::kRecvBatch) return {};  // the receive was given up
  BatchReceive& receive = *request->batch;
  if (receive.outcome) return {};
  oh_status code = frame.aux == 0 ? OH_OK : frame_failure(frame);
  if (frame.number >= OH_PATH_COUNT || (code == OH_OK && frame.length > request->size)) {
    return error(OH_ERR_PROTOCOL, "%s wrote a batch of %llu bytes into a receive of %llu",
                 link_.name.c_str(), static_cast<unsigned long long>(frame.length),
                 static_cast<unsigned long long>(request->size));
  }
  request->path = static_cast<oh_path>(frame.number);
  uint64_t word = retire(*receive.region);
  Status outcome;
  if (code == OH_OK && word == receive.region->version) {
    return error(OH_ERR_PROTOCOL, "%s wrote a batch into a receive that it has not taken",
                 link_.name.c_str());
  } else if (code == OH_OK) {
    request->nbytes = frame.length;
  } else if (code == OH_ERR_TRUNCATED) {
    outcome = error(code,
                    "a batch of %llu bytes from %s does not fit into the receive of %llu bytes: "
                    "give it more room",
                    static_cast<unsigned long long>(frame.length), link_.name.c_str(),
                    static_cast<unsigned long long>(request->size));
  } else {
    outcome =
        error(code, "the batch of %llu bytes failed at %s: %s",
              static_cast<unsigned long long>(frame.length), link_.name.c_str(), status_text(code));
  }
  decide(receive, std::move(outcome), word);
  settle(receive);
  return {};
}

// Sets the outcome. `word`: the previous word of the region; if the sender had finished the batch
// by then, the receive has all of it and succeeds.
void MessageBatches::decide(BatchReceive& receive, Status outcome, uint64_t word) {
  uint64_t size = word & ((uint64_t{1} << kWholePathShift) - 1);
  uint64_t path = (word & ~(kTakenBit | kWholeBit)) >> kWholePathShift;
  if ((word & kWholeBit) && size <= receive.request->size && path < OH_PATH_COUNT) {
    receive.request->nbytes = size;
    receive.request->path = static_cast<oh_path>(path);
    outcome = {};
  }
  receive.outcome = std::move(outcome);
  ++decided_;
}

// Ends the receive unless its memory is still accessed; true: it has ended. A sender that reports
// success has left the memory; only copies by the local engine remain to be checked.
bool MessageBatches::settle(BatchReceive& receive) {
  const RegionRecord& region = *receive.region;
  bool left = receive.outcome->ok() ? one_sided_.leave(region) : is_left(region);
  if (left) finish(receive, *receive.outcome);
  return left;
}

bool MessageBatches::progress() {
  bool any = false;
  for (size_t i = receives_.size(); decided_ > 0 && i-- > 0;) {
    BatchReceive& receive = *receives_[i];
    if (receive.request && receive.outcome) any = settle(receive) || any;
  }
  return any;
}

bool MessageBatches::cancel(Request* request, const Status& status, bool give_up) {
  BatchReceive& receive = *request->batch;
  const std::shared_ptr<RegionRecord> region = receive.region;
  if (regions_.withdraw(*region)) {
    Frame frame;
    frame.type = FrameType::kAbort;
    frame.flags = kOffer;
    frame.op = request->op;
    frame.tag = offer_tag(request->tag);
    bool has_arrived = receive.offering.phase == Phase::kEnded;
    if (has_arrived && !link_.gone.load(std::memory_order_relaxed)) link_.send(frame);
    finish(receive, status);
    return true;
  }
  if (!give_up) return false;
  if (!receive.outcome) decide(receive, status, retire(*region));
  if (settle(receive)) return true;
  request->doubt_region = region;
  request->doubt_peer = link_.keep_alive();
  finish(receive, error(OH_ERR_IN_DOUBT,
                        "%s; %s has begun to write and may still touch the blocks: keep them until "
                        "buffer_released()",
                        status.text().c_str(), link_.name.c_str()));
  return true;
}

void MessageBatches::fail_all(const Status& status) {
  for (size_t i = receives_.size(); i-- > 0;) {
    if (Request* request = receives_[i]->request) cancel(request, status, /*give_up=*/true);
  }
}

// Retires a region: no operation begins on it any more. Returns its previous word.
uint64_t MessageBatches::retire(const RegionRecord& region) {
  uint64_t word = regions_.retire(region);
  one_sided_.retire(region);
  return word;
}

bool MessageBatches::is_left(const RegionRecord& region) {
  if (!one_sided_.leave(region)) return false;
  return !link_.segment ||
         calls_.wait_until_outside(Deadline::after(0), calls_.is_open_to_engines(region));
}

void MessageBatches::finish(BatchReceive& receive, Status status) {
  Request* request = std::exchange(receive.request, nullptr);
  if (receive.outcome) --decided_;
  if (status.ok()) link_.stats.count(MetricOp::kRecv, request->path, request->nbytes);
  request->batch = nullptr;
  link_.finish(*request, std::move(status));
  const Request& offering = receive.offering;
  if (offering.phase == Phase::kEnded) return forget(receive);
  // An offer that is being transferred is read to the end.
  bool unread = offering.phase == Phase::kQueued || offering.phase == Phase::kOffered;
  if (!unread) return;
  (void)sender_.cancel(&receive.offering, error(OH_ERR_CANCELLED, "it was given up"),
                       /*give_up=*/false);
}

void MessageBatches::forget(const BatchReceive& receive) {
  std::erase_if(receives_, [&](const auto& other) { return other.get() == &receive; });
}

}  // namespace oh
