// SPDX-License-Identifier: Apache-2.0
//
// StagingPath: puts and gets between hosts where a device takes part. Blocks travel in runs, each
// like a message that needs no receive: staging pipelines copy, and the target's progress is
// needed. Where either side is host memory, no part of a run crosses the border of a block.
//
//   initiator of a put                            target
//   kPut, kStaged: op, the blocks ─────────────▶ checks them; Cts, Data ... as of a message
//                                                ◀─ kAck: op, they are there; or why not
//   initiator of a get
//   kGet, kStaged: op, the blocks ─────────────▶ checks them: kRts, kOneSided: tag = op, its op;
//                                                  or kAck: why not
//   Cts, Data ... as of a message                  kAbort: why it does not go on
//
// Threading: guarded by the link's lock.
#pragma once

#include <vector>

#include "path/choice.h"
#include "path/pieces.h"

namespace oh {

Estimate estimate_staging(const LinkFacts& facts, const Ends& ends);

// The streams of messages carry the bytes of a run, at either end.
class RunStreams {
 public:
  virtual ~RunStreams() = default;
  // A run that we send, or one that we receive as the other side's `op`.
  virtual void await_cts(Request* run) = 0;
  virtual Status begin_incoming(Request* run, uint64_t op) = 0;
  // The other side refuses it.
  virtual void refuse(Request* run, const Status& why) = 0;
  // False: part of it is in flight and cannot be cancelled; `give_up` leaves that in doubt.
  virtual bool cancel(Request* run, const Status& status, bool give_up) = 0;
  // The same of a run that the other side waits for.
  virtual bool stop(Request* run, const Status& why) = 0;
};

class StagingPath final : public PiecewisePath {
 public:
  explicit StagingPath(const PathContext& context)
      : PiecewisePath(context), streams_(context.streams) {}

  Status admit(const LocalBuffer& local, bool put) override;
  bool push(Operation& operation) override;
  bool has_begun(const Operation& operation) override;
  Status on_frame(const Frame& frame) override;
  bool leave(const RegionRecord& region) override;
  bool has_left() override;

 private:
  // What may still access memory of a region, though its run has ended.
  struct Leaving {
    uint32_t region;
    uint64_t version;
    std::vector<Doubt> doubts;
  };

  Request* next_run(Operation& operation);
  bool end_piece(Request& run, const Status& status, bool give_up) override;
  Status on_ready(const Frame& frame);
  void on_ack(Request& run, const Frame& frame);
  Status on_run(const Frame& frame);
  Result<Request*> run_of(const Frame& frame, const RegionRecord& region);
  void served_ended(Request& run) override;
  bool stop_served(Request& run, const Status& why) override { return streams_.stop(&run, why); }

  RunStreams& streams_;
  std::vector<Leaving> leaving_;
  Bytes list_;  // of the frame at hand
};

}  // namespace oh
