// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/peer_port.h"

#include "endpoint/endpoint.h"

namespace oh {

Status PeerPort::usable() { return link_.peer->usable(); }

Status PeerPort::post(Request& request, bool on_device) {
  request.endpoint = &endpoint_;
  if (on_device) {
    AfterOption plain;
    plain.on_device = true;
    OH_RETURN_IF_ERROR(endpoint_.requests().locate_memory(&request, plain));
  }
  MessageCalls& messages = link_.peer->operations().messages();
  return request.kind == OpKind::kSend ? messages.post_send(&request)
                                       : messages.post_recv(&request);
}

Status PeerPort::move(Request& request, const RemoteTarget& target, const Block& block) {
  request.endpoint = &endpoint_;
  const MovePart part{target, block.local, block.size, {&block, 1}, 1, block.size};
  return link_.peer->operations().one_sided().move(
      &request,
      {.put = request.kind == OpKind::kPut, .parts = {&part, 1}, .after = {.on_device = true}});
}

Atomics& PeerPort::atomics() { return link_.peer->operations().atomics(); }

// Without shared memory the peer may stop in the middle of a message. The request is then in doubt
// until copy engines and UCX have ended; it does not wait for the peer.
bool PeerPort::try_end(Request& request, const Status& why) {
  Operations& operations = link_.peer->operations();
  return operations.try_end(&request, why, Operations::Force::kDeadline) ||
         (!link_.segment && operations.try_end(&request, why, Operations::Force::kGiveUp));
}

bool PeerPort::released(const Request& request) {
  return link_.peer->operations().buffer_released(&request);
}

void PeerPort::discard(uint64_t tag) { link_.peer->operations().messages().discard(tag); }

void PeerPort::accuse(const Status& status) { link_.peer->operations().accuse(status); }

}  // namespace oh
