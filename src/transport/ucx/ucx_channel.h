// SPDX-License-Identifier: Apache-2.0
//
// UcxChannel: the channel over UCX. A frame is one active message (ucx_head.h). Its payload is
// copied (push) or sent from the user's memory (send_zero_copy). The channel consists of:
//
//   UcxEndpoint   UCX's endpoint, and why the link is broken
//   UcxPacker     copied frames on their way to UCX: numbers, packs, buffers, turns
//   UcxInbox      arrived frames: their order, and the targets of payloads (UcxTargets)
//
// Threading: guarded by the link's lock, as Channel; UCX's callbacks are guarded by the worker's
// lock. The parts document the functions that any thread may call.
#pragma once

#include <functional>
#include <memory>

#include "base/clock.h"
#include "transport/counted_credit.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_in_flight.h"
#include "transport/ucx/ucx_inbox.h"
#include "transport/ucx/ucx_packer.h"

namespace oh {

class UcxChannel final : public CountedCredit {
 public:
  // Maximum payload of one frame with a copied payload.
  static constexpr size_t kMaxPayload = 64 * 1024;

  // `most_zero_copy`: maximum bytes of a zero-copy part; 0: a default for this machine.
  UcxChannel(std::shared_ptr<UcxWorker> worker, uint64_t peer_credit, uint32_t key,
             uint64_t most_zero_copy);
  ~UcxChannel() override;

  // What the peer needs to reach this channel.
  struct Remote {
    Bytes address;
    uint32_t link = 0;
    uint32_t key = 0;
    uint64_t max_header = 0;
  };
  Result<Remote> own(bool network) const;
  // `asked_inline`: the requested inline limit; the longest headers of both workers may lower it.
  Status connect(const Remote& remote, uint64_t asked_inline);
  // Sends a header as long as the largest inline message's to the peer, which returns it.
  // OH_ERR_NOT_VIABLE: it does not return in time. Precondition: the peer has connected.
  Status probe(Deadline deadline);

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t) const override { return kMaxPayload; }
  size_t max_inline() const override { return max_inline_; }
  bool push(const Frame& frame) override { return packer_.push(frame); }
  UcxPacker& packer() { return packer_; }
  // Sends the payload from the user's memory, which must not change until the result is_over().
  // Null when there is no room now.
  std::shared_ptr<InFlight> send_zero_copy(const Frame& frame);
  // Size of a zero-copy part of a message of `size` bytes. All parts are about equal, so that the
  // receiver copies one while the sender sends the next.
  uint64_t zero_copy_part(uint64_t size) const;

  // Whether a received frame is ready, in order; the worker's progress receives them. Any thread.
  bool ready() const { return inbox_.ready(); }
  // The first frame, valid until pop(). Precondition: ready().
  Status peek(Frame* frame) { return inbox_.peek(frame); }
  void pop() {
    if (void* data = inbox_.pop()) give_back(data);
  }
  // Fetches the payload of the first frame, which is still at the sender (Frame::remote), to `to`.
  std::shared_ptr<InFlight> fetch(const Frame& frame, uint8_t* to);
  UcxTargets& targets() { return inbox_.targets(); }
  UcxWorker& worker() { return endpoint_.worker(); }
  UcxEndpoint& endpoint() { return endpoint_; }

  // Frames sent, and frames handled, so far.
  uint64_t sent() const { return packer_.sent(); }
  uint64_t taken() const { return inbox_.taken(); }
  // OH_ERR_PEER_LOST with the reason once the link is broken.
  Status broken() { return endpoint_.broken(); }
  // Breaks the link because `in_flight` failed; returns broken(). Frames are numbered, so the peer
  // would wait for ever for a frame that was not sent or a part that was not fetched.
  Status broken_by(const InFlight& in_flight);
  // Waits until UCX has sent everything. False at the deadline, when the link is broken, or once
  // `there` returns false because the peer is gone, which UCX may not report.
  bool flush(Deadline deadline, const std::function<bool()>& there) {
    return endpoint_.flush(deadline, there);
  }
  // Ends the link: drops unsent packs and force-closes UCX's endpoint, which cancels its requests.
  void disconnect();

  // Handles an active message; called by the worker with its lock held. kInProgress: the channel
  // keeps `data` until am_release() or am_receive().
  ucx::Code arrived(const UcxHead& head, ByteView header, void* data, size_t size,
                    uint64_t attributes);
  bool uses(ucx::Endpoint endpoint) const { return endpoint_.handle() == endpoint; }
  // Breaks the link: UCX reported an error of its endpoint.
  void failed(ucx::Code code);

 private:
  void give_back(void* data);

  UcxEndpoint endpoint_;
  UcxPacker packer_;
  UcxInbox inbox_;
  uint32_t link_ = 0;
  uint32_t key_;
  Remote remote_;
  size_t max_inline_ = 0;
  uint64_t most_zero_copy_;
  std::shared_ptr<InFlight> spare_;  // of the last send, which completed at once; reused
  size_t probe_answer_ = 0;          // guarded by the worker's lock
};

}  // namespace oh
