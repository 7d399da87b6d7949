// SPDX-License-Identifier: Apache-2.0
//
// UcxChannel: the channel over UCX. A frame is one active message (ucx_head.h), whose payload comes
// from a copy of ours (push) or straight from the user's memory (send_zero_copy). Its parts have
// classes of their own:
//
//   UcxEndpoint   UCX's endpoint, and why the link is broken
//   UcxPacker     what is copied on its way to UCX: numbers, packs, buffers, turns
//   UcxInbox      what has arrived: its order, and the targets of payloads (UcxTargets)
//
// Threading: as Channel, guarded by the peer's lock; what UCX calls is guarded by the worker's. The
// parts say which functions of theirs any thread may call.
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
  // Of one frame whose payload is copied.
  static constexpr size_t kMaxPayload = 64 * 1024;

  // `most_zero_copy`: bytes of a large message that are given to UCX at once; 0: what is best here.
  UcxChannel(std::shared_ptr<UcxWorker> worker, uint64_t peer_credit, uint32_t key,
             uint64_t most_zero_copy);
  ~UcxChannel() override;

  // What the other side needs to reach us.
  struct Remote {
    Bytes address;
    uint32_t link = 0;
    uint32_t key = 0;
    uint64_t max_header = 0;
  };
  Result<Remote> own(bool network) const;
  // `asked_inline`: more would be granted than is of use.
  Status connect(const Remote& remote, uint64_t asked_inline);
  // Sends a header as large as the largest small message's there and back. The other side has
  // connected before.
  Status probe(Deadline deadline);

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t) const override { return kMaxPayload; }
  size_t max_inline() const override { return max_inline_; }
  bool push(const Frame& frame) override { return packer_.push(frame); }
  UcxPacker& packer() { return packer_; }
  // Sends the payload from where it is; until that is over it must stay there unchanged. Null when
  // there is no room now. One that is over well at once is not kept.
  std::shared_ptr<InFlight> send_zero_copy(const Frame& frame);
  // So much of a message of `size` bytes is sent so at once: parts are alike, so that the other
  // side copies one while the next is sent.
  uint64_t zero_copy_part(uint64_t size) const;

  // Received frames, in order, by the worker's progress. ready(): any thread.
  bool ready() const { return inbox_.ready(); }
  // The first of them, until pop(); ready() has said that there is one.
  Status peek(Frame* frame) { return inbox_.peek(frame); }
  void pop() {
    if (void* data = inbox_.pop()) give_back(data);
  }
  // Fetches the payload of the first frame, where that is still at the sender (Frame::remote).
  std::shared_ptr<InFlight> fetch(const Frame& frame, uint8_t* to);
  UcxTargets& targets() { return inbox_.targets(); }
  UcxWorker& worker() { return endpoint_.worker(); }
  UcxEndpoint& endpoint() { return endpoint_; }

  // Frames sent and received so far.
  uint64_t sent() const { return packer_.sent(); }
  uint64_t taken() const { return inbox_.taken(); }
  // Not ok: UCX has given the link up.
  Status broken() { return endpoint_.broken(); }
  // UCX has failed at it. That breaks the link: frames are numbered, so the other side awaits what
  // was not sent for ever, as it does for a part that is not fetched. Says why it is broken.
  Status broken_by(const InFlight& in_flight);
  // Until everything that was sent has left. False at the deadline, or once `there` says that the
  // other side has gone, of which UCX may say nothing.
  bool flush(Deadline deadline, const std::function<bool()>& there) {
    return endpoint_.flush(deadline, there);
  }
  // The link is over. What is in flight ends soon.
  void disconnect();

  // Called by the worker, with its lock held. kInProgress: the data is ours until am_release() or
  // am_receive().
  ucx::Code arrived(const UcxHead& head, ByteView header, void* data, size_t size,
                    uint64_t attributes);
  bool uses(ucx::Endpoint endpoint) const { return endpoint_.handle() == endpoint; }
  // UCX has given the link up.
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
  std::shared_ptr<InFlight> spare_;  // of the last message, which was over at once
  size_t probe_answer_ = 0;          // guarded by the worker's lock
};

}  // namespace oh
