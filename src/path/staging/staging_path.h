// SPDX-License-Identifier: Apache-2.0
//
// StagingPath: puts and gets between hosts that involve device memory. Blocks travel in runs. A run
// is like a message that needs no receive: staging pipelines copy it, and the target's progress is
// needed. If either end is host memory, no part of a run crosses a block boundary.
//
//   initiator of a put                            target
//   kPut, kStaged: op, the blocks ─────────────▶ checks them; Cts, Data ... as of a message
//                                                ◀─ kAck: op, done or error
//   initiator of a get
//   kGet, kStaged: op, the blocks ─────────────▶ checks them: kRts, kOneSided: tag = op, its op;
//                                                  or kAck: error
//   Cts, Data ... as of a message                  kAbort: error
//
// Threading: guarded by the link's lock.
#pragma once

#include <vector>

#include "path/choice.h"
#include "path/pieces.h"

namespace oh {

Estimate estimate_staging(const LinkFacts& facts, const Ends& ends);

// The message streams, which carry the bytes of runs on both sides.
class RunStreams {
 public:
  virtual ~RunStreams() = default;
  // Starts a run that waits for the peer's next frame, or one that this side receives as the peer's
  // `op`.
  virtual void await_cts(Request* run) = 0;
  virtual Status begin_incoming(Request* run, uint64_t op) = 0;
  // The peer has refused the run.
  virtual void refuse(Request* run, const Status& why) = 0;
  // Cancels a local run. False: part of it is in flight and cannot be revoked; with `give_up` its
  // buffer is left in doubt instead.
  virtual bool cancel(Request* run, const Status& status, bool give_up) = 0;
  // The same for a run that serves the peer.
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
  // Accesses to a region's memory that may outlive their run.
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
  Bytes list_;  // block list of the frame that is being sent
};

}  // namespace oh
