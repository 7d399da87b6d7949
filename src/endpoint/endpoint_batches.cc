// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages: how they are sent, and how a receive of one is made.
#include "endpoint/endpoint.h"

namespace oh {

struct Endpoint::BatchSend {
  const LocalBlocks& local;
  uint64_t tag;
  LocalBuffer memory = {};
  BatchOffer offer = {};
  RemoteTarget target = {};
  oh_path path = OH_PATH_NONE;
  bool taken = false;  // the receive is ours
};

namespace {

// Holds what was mapped for the region of a receive against being unmapped.
class Attached {
 public:
  explicit Attached(const RemoteTarget& target) : target_(target) {}
  ~Attached() { Endpoint::detach(target_); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

 private:
  const RemoteTarget& target_;
};

}  // namespace

// Where its memory is; earlier work on that is done.
Result<LocalBuffer> Endpoint::locate_batch(const LocalBlocks& local, const AfterOption& after,
                                           Deadline deadline) const {
  OH_ASSIGN_OR_RETURN(LocalBuffer buffer,
                      locate(gpu_, local.memory, local.size, after, {.host = deadline}));
  OH_RETURN_IF_ERROR(wait_for_producer(&buffer.after, deadline, "the memory of a batch"));
  return buffer;
}

Status Endpoint::send_batch(Peer& peer, const LocalBlocks& local, uint64_t tag,
                            const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  BatchSend send{local, tag};
  // Before a receive has to wait for us.
  OH_ASSIGN_OR_RETURN(send.memory, locate_batch(local, after, deadline));
  while (true) {
    Status offered = next_offer(peer, send, deadline);
    if (offered.code() == OH_ERR_RETIRED) continue;  // taken back while it came
    OH_RETURN_IF_ERROR(offered);
    Status status = fulfil(peer, send);
    // One that was given up has not been there.
    if (!send.taken && status.code() == OH_ERR_RETIRED) continue;
    if (status.code() != OH_ERR_TIMEOUT) return status;
    return error(OH_ERR_IN_DOUBT, "%s; its receive had begun, and fails, too",
                 status.text().c_str());
  }
}

// Waits for a receive of the tag.
Status Endpoint::next_offer(Peer& peer, BatchSend& send, Deadline deadline) {
  Request fetch;
  fetch.endpoint = this;
  fetch.kind = OpKind::kRecv;
  Bytes bytes;
  Status lost;
  auto found = [&] {
    lost = peer.usable();
    return !lost.ok() || peer.operations().batches().fetch_offer(&fetch, send.tag, &bytes);
  };
  if (!wait_for(found, &peer, WaitKind::kSendBatch, send.tag, deadline)) {
    return timed_out(deadline.length(),
                     "send of a batch of %llu bytes with tag %llu, peer %s receives no batch; %s",
                     static_cast<unsigned long long>(send.local.bytes),
                     static_cast<unsigned long long>(send.tag), peer.pair().name.c_str(),
                     state_at_timeout(peer, {WaitKind::kSendBatch, send.tag}).c_str());
  }
  OH_RETURN_IF_ERROR(lost);
  Status fetched = wait(&fetch, Deadline::after(config_.timeout_ns()), &peer);
  if (!fetch.doubts.empty())
    peer.operations().batches().keep({std::move(bytes), std::move(fetch.doubts)});
  if (fetched.code() == OH_ERR_TIMEOUT) {
    return error(OH_ERR_IN_DOUBT, "%s; its receive fails, too", fetched.text().c_str());
  }
  OH_RETURN_IF_ERROR(fetched);
  Result<BatchOffer> offer = BatchOffer::decode({bytes.data(), fetch.nbytes});
  if (!offer.ok()) peer.operations().accuse(offer.status());
  OH_RETURN_IF_ERROR(offer.status());
  send.offer = std::move(*offer);
  return {};
}

// Writes into the receive that was offered, and tells it. Its end is a matter of seconds unless
// the other side is stopped, so the deadline is a new one.
Status Endpoint::fulfil(Peer& peer, BatchSend& send) {
  Deadline deadline = Deadline::after(config_.timeout_ns());
  auto end = [&](Status status) {
    peer.operations().batches().end_batch(send.offer.op, send.local.bytes, send.path,
                                          status.code());
    return status;
  };
  Result<RemoteTarget> target = attach(peer, send.offer.descriptor, deadline);
  if (!target.ok()) return end(target.status());
  send.target = std::move(*target);
  Attached attached(send.target);
  Result<uint64_t> room = send.offer.blocks.measure(send.target.length, "receive");
  if (!room.ok()) {
    Status lie = error(OH_ERR_PROTOCOL, "%s offered: %s", peer.pair().name.c_str(),
                       room.status().text().c_str());
    peer.operations().accuse(lie);
    return lie;
  }
  Status taken = take_region(peer, send, deadline);
  if (taken.code() == OH_ERR_RETIRED) return taken;
  if (!taken.ok()) return end(taken);  // it may be taken nevertheless
  send.taken = true;
  if (send.local.bytes > *room) {
    return end(error(OH_ERR_TRUNCATED,
                     "a batch of %llu bytes does not fit into the receive of %llu bytes that %s "
                     "has posted",
                     static_cast<unsigned long long>(send.local.bytes),
                     static_cast<unsigned long long>(*room), peer.pair().name.c_str()));
  }
  Status put = put_pieces(peer, send, deadline);
  if (put.ok() && peer.operations().batches().sees_board() &&
      !peer.operations().batches().finish_region(send.target, send.local.bytes, send.path)) {
    put = error(OH_ERR_RETIRED, "%s gave the receive up while it was written",
                peer.pair().name.c_str());
  }
  return end(put);
}

Status Endpoint::take_region(Peer& peer, BatchSend& send, Deadline deadline) {
  if (peer.operations().batches().sees_board()) {
    if (peer.operations().batches().take_region(send.target)) return {};
    return error(OH_ERR_RETIRED, "%s has given the receive up", peer.pair().name.c_str());
  }
  // The other side takes it for us.
  Request request;
  request.endpoint = this;
  request.kind = OpKind::kPut;
  // No bytes: a message, also to device memory.
  RemoteTarget word = send.target;
  word.on_device = false;
  const Block nothing{nullptr, 0, 0};
  LocalBuffer nowhere;
  OH_RETURN_IF_ERROR(peer.operations().move(&request, {.target = word,
                                                       .movement = {/*put=*/true, {&nothing, 1}},
                                                       .deadline = deadline,
                                                       .located = &nowhere}));
  return wait(&request, deadline, &peer);
}

Status Endpoint::put_pieces(Peer& peer, BatchSend& send, Deadline deadline) {
  const LocalBlocks& local = send.local;
  auto pieces = std::make_shared<const std::vector<Block>>(cut(local, send.offer.blocks));
  Request request;
  request.endpoint = this;
  request.kind = OpKind::kPut;
  request.size = local.bytes;
  Status status = peer.operations().move(
      &request, {.target = send.target,
                 .data = local.memory,
                 .size = local.size,
                 .movement = {/*put=*/true, *pieces, local.blocks.count, local.bytes},
                 .list = pieces,
                 .deadline = deadline,
                 .located = &send.memory});
  if (status.ok()) status = wait(&request, deadline, &peer);
  send.path = request.path;
  return status;
}

Status Endpoint::post_batch(Peer& peer, Request* request, const LocalBlocks& local,
                            const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  OH_RETURN_IF_ERROR(locate_batch(local, after, deadline).status());
  // No memory at all has a place, too: its word is what the sender takes.
  static uint8_t nowhere;
  auto receive = std::make_unique<BatchReceive>();
  OH_ASSIGN_OR_RETURN(receive->region, add_region(local.size ? local.memory : &nowhere,
                                                  local.size ? local.size : 1, /*for_batch=*/true));
  std::shared_ptr<RegionRecord> region = receive->region;
  receive->offer = BatchOffer::encode(describe(*region), local.blocks);
  Status posted = peer.operations().batches().post(request, std::move(receive));
  if (!posted.ok()) regions_->retire(*region);
  return posted;
}

}  // namespace oh
