// SPDX-License-Identifier: Apache-2.0
//
// BatchLink: what the two halves of a batch as a message need of a link: the offers of receives,
// the word of the region behind an offer, and the frame that says how the batch has ended.
//
// Threading: any thread; the link's lock is taken inside.
#pragma once

#include <memory>
#include <vector>

#include "memory/board.h"
#include "message/batch/message_batches.h"
#include "message/receiver.h"
#include "path/direct/transfers.h"

namespace oh {

// Where an offer was to go, while the other side may still write there.
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
  // `board` is the other side's; null: it cannot be seen.
  void open(std::shared_ptr<Board> board) { board_ = std::move(board); }
  // Frees the offers that were kept. One that the other side may still write is never freed.
  void close();

  // A receive whose `memory` and offer are made. OH_AGAIN: too many sends are pending.
  Status post(Request* request, std::unique_ptr<BatchReceive> receive);
  // Begins to fetch the next offer of the tag, into `bytes`; false when there is none. An error:
  // the other side does not keep to the protocol.
  Result<bool> fetch_offer(Request* request, uint64_t tag, Bytes* bytes);
  // Keeps what a fetch that was given up has left, until the other side has left it, too.
  void keep(DoubtfulOffer offer);
  // Whether take_region() can be asked; else an empty put takes the region of an offer.
  bool sees_board() const { return board_ != nullptr; }
  // False: its receive was given up.
  bool take_region(RemoteTarget& target);
  // False: its receive was given up since. Else it has the batch, whatever becomes of us.
  bool finish_region(const RemoteTarget& target, uint64_t size, oh_path path);
  // Tells the receive how its batch has ended, of `size` bytes.
  void end_batch(uint64_t op, uint64_t size, oh_path path, oh_status status);

 private:
  void drop_offers() OH_REQUIRES(link_.lock);

  Link& link_;
  Transfers& transfers_;
  Sender& sender_;
  Receiver& receiver_;
  MessageBatches& batches_;
  std::shared_ptr<Board> board_;
  std::vector<DoubtfulOffer> kept_;  // guarded by link_.lock
};

}  // namespace oh
