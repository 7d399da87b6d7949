// SPDX-License-Identifier: Apache-2.0
//
// BatchLink: what both halves of a message batch need of the link: the offers of receives, the word
// of an offer's region, and the frame that ends the batch.
//
// Threading: any thread; the link's lock is taken inside.
#pragma once

#include <memory>
#include <vector>

#include "memory/control_page.h"
#include "message/batch/message_batches.h"
#include "message/receiver.h"
#include "path/direct/transfers.h"

namespace oh {

// The buffer of an abandoned fetch of an offer, into which the peer may still write.
struct DoubtfulOffer {
  Bytes bytes;
  std::vector<Doubt> doubts;
};

class BatchLink {
 public:
  BatchLink(Link& link, Transfers& transfers, Sender& sender, Receiver& receiver,
            MessageBatches& batches)
      : link_(link),
        transfers_(transfers),
        sender_(sender),
        receiver_(receiver),
        batches_(batches) {}
  // `page`: the peer's control page; null: it is not mapped here.
  void open(std::shared_ptr<ControlPage> page) { page_ = std::move(page); }
  // Frees the buffers that were kept, but leaks those into which the peer may still write.
  void close();

  // Posts a receive with its region and offer. OH_AGAIN: too many sends are pending.
  Status post(Request* request, std::unique_ptr<BatchReceive> receive);
  // Begins to fetch the next offer of the tag, into `bytes`; false: none has arrived. An error: the
  // peer violated the protocol.
  Result<bool> fetch_offer(Request* request, uint64_t tag, Bytes* bytes);
  // Keeps the buffer of an abandoned fetch until the peer does not write into it any more.
  void keep(DoubtfulOffer offer);
  // Whether take_region() is possible; else an empty put takes the region of an offer.
  bool sees_page() const { return page_ != nullptr; }
  // False: its receive was cancelled.
  bool take_region(RemoteTarget& target);
  // False: its receive was cancelled meanwhile. True: the receive has the batch, even if this side
  // dies.
  bool finish_region(const RemoteTarget& target, uint64_t size, oh_path path);
  // Reports the result of a batch of `size` bytes to its receive.
  void end_batch(uint64_t op, uint64_t size, oh_path path, oh_status status);

 private:
  void drop_offers() OH_REQUIRES(link_.lock);

  Link& link_;
  Transfers& transfers_;
  Sender& sender_;
  Receiver& receiver_;
  MessageBatches& batches_;
  std::shared_ptr<ControlPage> page_;
  std::vector<DoubtfulOffer> kept_;  // guarded by link_.lock
};

}  // namespace oh
