// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages: how they are sent, and how a receive of one is made.
#include "endpoint/endpoint.h"

namespace oh {

struct Endpoint::BatchSend {
  const LocalBlocks& local;
  uint64_t tag;
  LocalMemory memory = {};
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

Status Endpoint::send_batch(Peer& peer, const LocalBlocks& local, uint64_t tag,
                            const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  BatchSend send{local, tag};
  OH_RETURN_IF_ERROR(prepare_local(local.memory, local.size, after, &send.memory));
  // Before a receive has to wait for us.
  OH_RETURN_IF_ERROR(peer.wait_for_producer(send.memory, deadline));
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
    return !lost.ok() || peer.fetch_offer(&fetch, send.tag, &bytes);
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
  if (!fetch.doubts.empty()) peer.keep({std::move(bytes), std::move(fetch.doubts)});
  if (fetched.code() == OH_ERR_TIMEOUT) {
    return error(OH_ERR_IN_DOUBT, "%s; its receive fails, too", fetched.text().c_str());
  }
  OH_RETURN_IF_ERROR(fetched);
  Result<BatchOffer> offer = BatchOffer::decode({bytes.data(), fetch.nbytes});
  if (!offer.ok()) peer.accuse(offer.status());
  OH_RETURN_IF_ERROR(offer.status());
  send.offer = std::move(*offer);
  return {};
}

// Writes into the receive that was offered, and tells it. Its end is a matter of seconds unless
// the other side is stopped, so the deadline is a new one.
Status Endpoint::fulfil(Peer& peer, BatchSend& send) {
  Deadline deadline = Deadline::after(config_.timeout_ns());
  auto end = [&](Status status) {
    peer.end_batch(send.offer.op, send.local.bytes, send.path, status.code());
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
    peer.accuse(lie);
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
  if (put.ok() && peer.sees_board() &&
      !peer.finish_region(send.target, send.local.bytes, send.path)) {
    put = error(OH_ERR_RETIRED, "%s gave the receive up while it was written",
                peer.pair().name.c_str());
  }
  return end(put);
}

Status Endpoint::take_region(Peer& peer, BatchSend& send, Deadline deadline) {
  if (peer.sees_board()) {
    if (peer.take_region(send.target)) return {};
    return error(OH_ERR_RETIRED, "%s has given the receive up", peer.pair().name.c_str());
  }
  // The other side takes it for us.
  Request request;
  request.endpoint = this;
  request.kind = OpKind::kPut;
  auto nothing = std::make_shared<std::vector<Block>>(1, Block{nullptr, 0, 0});
  OH_RETURN_IF_ERROR(peer.post_one_sided(&request, send.target, std::move(nothing), nullptr));
  return wait(&request, deadline, &peer);
}

Status Endpoint::put_pieces(Peer& peer, BatchSend& send, Deadline deadline) {
  const LocalBlocks& local = send.local;
  RemoteTarget& target = send.target;
  auto pieces = std::make_shared<std::vector<Block>>(cut(local, send.offer.blocks));
  send.path = peer.path_of(target, send.memory, local.bytes);
  if (pieces->empty()) return peer.usable();
  if (peer.reaches(target, send.memory.on_device)) {
    if (pieces->size() > 1) admit_kernels(target, local.memory, local.size, &send.memory);
    Movement movement{/*put=*/true, *pieces, local.blocks.count, local.bytes, nullptr};
    return peer.copy(target, send.memory, movement, deadline);
  }
  // Their table knows it as it was offered.
  target.version &= ~kTakenBit;
  Request request;
  request.endpoint = this;
  request.kind = OpKind::kPut;
  request.size = local.bytes;
  if (target.on_device || send.memory.on_device) {
    OH_RETURN_IF_ERROR(export_local(local.memory, local.size, &send.memory));
    OH_RETURN_IF_ERROR(
        peer.post_by_slots(&request, target, send.memory, std::move(pieces), nullptr, deadline));
  } else {
    OH_RETURN_IF_ERROR(peer.post_one_sided(&request, target, std::move(pieces), nullptr));
  }
  Status status = wait(&request, deadline, &peer);
  send.path = request.path;
  return status;
}

Status Endpoint::post_batch(Peer& peer, Request* request, const LocalBlocks& local,
                            const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  LocalMemory memory;
  OH_RETURN_IF_ERROR(prepare_local(local.memory, local.size, after, &memory));
  OH_RETURN_IF_ERROR(peer.wait_for_producer(memory, deadline));
  // No memory at all has a place, too: its word is what the sender takes.
  static uint8_t nowhere;
  auto receive = std::make_unique<BatchReceive>();
  OH_ASSIGN_OR_RETURN(receive->region, add_region(local.size ? local.memory : &nowhere,
                                                  local.size ? local.size : 1, /*for_batch=*/true));
  std::shared_ptr<RegionRecord> region = receive->region;
  receive->offer = BatchOffer::encode(describe(*region), local.blocks);
  Status posted = peer.post_batch(request, std::move(receive));
  if (!posted.ok()) regions_->retire(*region);
  return posted;
}

}  // namespace oh
