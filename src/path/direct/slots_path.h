// SPDX-License-Identifier: Apache-2.0
//
// SlotsPath: puts and gets that involve device memory and that the initiator's engine cannot do
// alone. The initiator offers each block through a transfer slot, and the target claims the slot
// for its region, as if the two had called send and receive. So blocks travel like messages: by an
// engine, or through the relay. The claim needs the target's progress.
//
//   initiator: slot POSTED, frame kPut|kGet with kBySlot   target: checks region and bounds, claims
//
// Threading: guarded by the link's lock, except admit().
#pragma once

#include "path/choice.h"
#include "path/direct/transfers.h"
#include "path/pieces.h"

namespace oh {

Estimate estimate_slots(const LinkFacts& facts, const Ends& ends);

class SlotsPath final : public PiecewisePath {
 public:
  explicit SlotsPath(const PathContext& context)
      : PiecewisePath(context), transfers_(context.transfers) {}

  Status admit(const LocalBuffer& local, bool put) override;
  bool push(Operation& operation) override;
  bool has_begun(const Operation& operation) override;
  Status on_frame(const Frame& frame) override;
  bool leave(const RegionRecord& region) override;

 private:
  bool end_piece(Request& piece, const Status& status, bool give_up) override;
  bool stop_served(Request& piece, const Status& why) override {
    return piece.transfer && transfers_.abandon(piece.transfer, why);
  }

  Transfers& transfers_;
};

}  // namespace oh
