// SPDX-License-Identifier: Apache-2.0
//
// SlotsPath: puts and gets on memory that the initiator cannot map, where a device takes part. Each
// block is offered through a transfer slot, and the target claims it for its region, as if both had
// called send and receive. So blocks travel like messages: by an engine, or through the relay. The
// target's progress is needed for the claim.
//
//   initiator: slot POSTED, frame kPut|kGet with kBySlot   target: checks region and bounds, claims
//
// Threading: guarded by the link's lock, but for admit().
#pragma once

#include <vector>

#include "base/pool.h"
#include "path/choice.h"
#include "path/direct/transfers.h"
#include "path/path.h"

namespace oh {

Estimate estimate_slots(const LinkFacts& facts, const Ends& ends);

class SlotsPath final : public Path {
 public:
  explicit SlotsPath(const PathContext& context) : Path(context), transfers_(context.transfers) {}

  Status admit(const LocalBuffer& local, bool put) override;
  bool push(Operation& operation) override;
  bool travels_apart(const Operation&) const override { return true; }
  bool has_begun(const Operation& operation) override;
  bool cancel(Operation& operation, const Status& status, bool give_up) override;
  void fail(Operation& operation, const Status& status) override;
  Status on_frame(const Frame& frame) override;
  bool leave(const RegionRecord& region) override;
  void piece_ended(Request* piece) override;

 private:
  void give_back(Request* piece);

  Transfers& transfers_;
  Pool<Request> pieces_;          // ours and the other side's
  std::vector<Request*> served_;  // those of the other side
};

}  // namespace oh
