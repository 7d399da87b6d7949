// SPDX-License-Identifier: Apache-2.0
#include "calls/batch_messages.h"

#include <utility>
#include <vector>

namespace oh {
namespace {

// Keeps the mapping of a receive's region while it is in use.
class Attached {
 public:
  explicit Attached(const RemoteTarget& target) : target_(target) {}
  ~Attached() { EndpointMemory::detach(target_); }
  Attached(const Attached&) = delete;
  Attached& operator=(const Attached&) = delete;

 private:
  const RemoteTarget& target_;
};

// Classifies the batch's memory and waits for earlier work on it.
Result<LocalBuffer> locate_batch(const Endpoint& endpoint, const LocalBlocks& local,
                                 const AfterOption& after, Deadline limit) {
  const Deadline deadline = endpoint.until_closed(limit);
  OH_ASSIGN_OR_RETURN(LocalBuffer buffer, locate(endpoint.device().gpu(), local.memory, local.size,
                                                 after, {.host = deadline}));
  OH_RETURN_IF_ERROR(wait_for_producer(&buffer.after, deadline, "the memory of a batch"));
  return buffer;
}

}  // namespace

Status BatchSend::run(const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint_.usable());
  // Wait for the memory first, so that no receive waits for it.
  OH_ASSIGN_OR_RETURN(memory_, locate_batch(endpoint_, local_, after, deadline));
  while (true) {
    Status offered = next_offer(deadline);
    if (offered.code() == OH_ERR_RETIRED) continue;  // cancelled while its offer was fetched
    OH_RETURN_IF_ERROR(offered);
    Status status = fulfil();
    // The receive was cancelled before this send took it: wait for the next one.
    if (!taken_ && status.code() == OH_ERR_RETIRED) continue;
    if (status.code() != OH_ERR_TIMEOUT) return status;
    return error(OH_ERR_IN_DOUBT, "%s; its receive had begun, and fails, too",
                 status.text().c_str());
  }
}

// Waits for the offer of a receive with the tag.
Status BatchSend::next_offer(Deadline deadline) {
  Request fetch;
  fetch.endpoint = &endpoint_;
  fetch.kind = OpKind::kRecv;
  fetch.internal = true;
  Bytes bytes;
  Status lost;
  auto found = [&] {
    lost = peer_.usable();
    if (!lost.ok()) return true;
    Result<bool> begun = batches().fetch_offer(&fetch, tag_, &bytes);
    if (begun.ok()) return *begun;
    peer_.operations().accuse(begun.status());
    lost = peer_.usable();
    return true;
  };
  if (!endpoint_.requests().wait_for(found, &peer_, WaitKind::kSendBatch, tag_, deadline)) {
    return timed_out(
        deadline.length(),
        "send of a batch of %llu bytes with tag %llu, peer %s receives no batch; %s",
        static_cast<unsigned long long>(local_.bytes), static_cast<unsigned long long>(tag_),
        peer_.link().name.c_str(),
        endpoint_.requests().state_at_timeout(peer_, {WaitKind::kSendBatch, tag_}).c_str());
  }
  OH_RETURN_IF_ERROR(lost);
  Status fetched =
      endpoint_.requests().wait(&fetch, Deadline::after(endpoint_.config().timeout_ns()), &peer_);
  // Decode before the bytes move to the list of buffers in doubt, where a copy may still write
  // them.
  Result<BatchOffer> offer =
      fetched.ok() ? BatchOffer::decode({bytes.data(), fetch.nbytes}) : Result<BatchOffer>(fetched);
  if (!fetch.doubts.empty()) batches().keep({std::move(bytes), std::move(fetch.doubts)});
  if (fetched.code() == OH_ERR_TIMEOUT) {
    return error(OH_ERR_IN_DOUBT, "%s; its receive fails, too", fetched.text().c_str());
  }
  OH_RETURN_IF_ERROR(fetched);
  if (!offer.ok()) peer_.operations().accuse(offer.status());
  OH_RETURN_IF_ERROR(offer.status());
  offer_ = std::move(*offer);
  return {};
}

// Writes the batch into the offered receive and reports its end to the peer. That takes at most
// seconds unless the peer is stopped, so a new deadline applies.
Status BatchSend::fulfil() {
  Deadline deadline = Deadline::after(endpoint_.config().timeout_ns());
  auto end = [&](Status status) {
    batches().end_batch(offer_.op, local_.bytes, path_, status.code());
    return status;
  };
  Result<RemoteTarget> target = endpoint_.memory().attach(peer_, offer_.descriptor, deadline);
  if (!target.ok()) return end(target.status());
  target_ = std::move(*target);
  Attached attached(target_);
  Result<uint64_t> room = offer_.blocks.measure(target_.length, "receive");
  if (!room.ok()) {
    Status lie = error(OH_ERR_PROTOCOL, "%s offered: %s", peer_.link().name.c_str(),
                       room.status().text().c_str());
    peer_.operations().accuse(lie);
    return lie;
  }
  Status taken = take_region(deadline);
  if (taken.code() == OH_ERR_RETIRED) return taken;
  if (!taken.ok()) return end(taken);  // the peer may have marked it as taken nevertheless
  taken_ = true;
  if (local_.bytes > *room) {
    return end(error(OH_ERR_TRUNCATED,
                     "a batch of %llu bytes does not fit into the receive of %llu bytes that %s "
                     "has posted",
                     static_cast<unsigned long long>(local_.bytes),
                     static_cast<unsigned long long>(*room), peer_.link().name.c_str()));
  }
  Status put = put_pieces(deadline);
  if (put.ok() && batches().sees_page() && !batches().finish_region(target_, local_.bytes, path_)) {
    put = error(OH_ERR_RETIRED, "%s gave the receive up while it was written",
                peer_.link().name.c_str());
  }
  return end(put);
}

Status BatchSend::take_region(Deadline deadline) {
  if (batches().sees_page()) {
    if (batches().take_region(target_)) return {};
    return error(OH_ERR_RETIRED, "%s has given the receive up", peer_.link().name.c_str());
  }
  // The page is not mapped here: the peer takes the region on request.
  Request request;
  request.endpoint = &endpoint_;
  request.kind = OpKind::kPut;
  request.internal = true;
  // Zero bytes travel as a message, also to device memory.
  RemoteTarget word = target_;
  word.on_device = false;
  const Block nothing{nullptr, 0, 0};
  LocalBuffer nowhere;
  const MovePart part{.target = word, .blocks = {&nothing, 1}};
  OH_RETURN_IF_ERROR(peer_.operations().one_sided().move(
      &request, {.put = true, .parts = {&part, 1}, .deadline = deadline, .located = &nowhere}));
  return endpoint_.requests().wait(&request, deadline, &peer_);
}

Status BatchSend::put_pieces(Deadline deadline) {
  auto pieces = std::make_shared<const std::vector<Block>>(cut(local_, offer_.blocks));
  Request request;
  request.endpoint = &endpoint_;
  request.kind = OpKind::kPut;
  request.size = local_.bytes;
  const MovePart part{target_, local_.memory,       local_.size,
                      *pieces, local_.blocks.count, local_.bytes};
  Status status = peer_.operations().one_sided().move(&request, {.put = true,
                                                                 .parts = {&part, 1},
                                                                 .list = pieces,
                                                                 .deadline = deadline,
                                                                 .located = &memory_});
  if (status.ok()) status = endpoint_.requests().wait(&request, deadline, &peer_);
  path_ = request.path;
  return status;
}

Status post_batch(Endpoint& endpoint, Peer& peer, Request* request, const LocalBlocks& local,
                  const AfterOption& after, Deadline deadline) {
  OH_RETURN_IF_ERROR(endpoint.usable());
  OH_RETURN_IF_ERROR(locate_batch(endpoint, local, after, deadline).status());
  // A receive of zero bytes needs a region, too: the sender takes it through its word on the
  // control page.
  static uint8_t nowhere;
  auto receive = std::make_unique<BatchReceive>();
  OH_ASSIGN_OR_RETURN(receive->region, endpoint.memory().register_region(
                                           local.size ? local.memory : &nowhere,
                                           local.size ? local.size : 1, RegionAccess::kBatch));
  std::shared_ptr<RegionRecord> region = receive->region;
  receive->offer = BatchOffer::encode(endpoint.memory().describe(*region), local.blocks);
  Status posted = peer.operations().batches().post(request, std::move(receive));
  if (!posted.ok()) endpoint.memory().regions().retire(*region);
  return posted;
}

}  // namespace oh
