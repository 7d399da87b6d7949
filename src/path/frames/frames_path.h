// SPDX-License-Identifier: Apache-2.0
//
// FramesPath: puts and gets of host memory as frames of the channel, in FIFO order, where the
// initiator cannot reach the target's memory. The target's progress copies the bytes.
//
//   initiator of a put                      target
//   kPut: block, kData ... ────────────────▶ copies to the region
//   the last block: kFlush                 ◀─ kAck: op, status of all blocks
//
//   initiator of a get
//   kGet: block ───────────────────────────▶ checks it
//                                          ◀─ kData, kReply: bytes of the block; or kAck: error
//
// Threading: guarded by the link's lock.
#pragma once

#include <algorithm>
#include <deque>
#include <memory>

#include "path/choice.h"
#include "path/path.h"

namespace oh {

Estimate estimate_frames(const LinkFacts& facts, const Ends& ends);

class FramesPath final : public Path {
 public:
  using Path::Path;

  void begin(Operation& operation) override;
  bool push(Operation& operation) override;
  bool has_begun(const Operation& operation) override;
  bool cancel(Operation& operation, const Status& status, bool give_up) override;
  void forget(Operation& operation) override;
  Status on_answer(Operation& operation, const Frame& frame) override;
  Status on_frame(const Frame& frame) override;
  bool works() const override { return true; }
  bool answer() override;
  void retire(const RegionRecord& region) override;
  bool idle() const override { return serving_.empty(); }
  void fail_all() override { serving_.clear(); }

 private:
  // A block of a peer's get that this side answers.
  struct Serving {
    uint64_t op;
    uint64_t block;
    std::shared_ptr<RegionRecord> region;
    uint64_t position;
    uint64_t length;
    uint64_t sent;
  };
  // The block of a peer's put that is arriving; one at a time.
  struct Arriving {
    uint64_t op = 0;
    std::shared_ptr<RegionRecord> region;
    uint64_t position = 0;
    uint64_t length = 0;
    uint64_t received = 0;
    bool flush = false;
    oh_status status = OH_OK;  // of this op's blocks so far
  };

  // Over UCX the packer's buffers limit a turn, not the number of frames.
  size_t frames_at_once() const { return link_.ucx ? 4096 : 32; }
  size_t part_of(uint64_t size, uint64_t left) const {
    return link_.ucx ? link_.ucx->packer().part_of_list(left)
                     : std::min(left, link_.channel->part_of(size));
  }
  bool push_put(Operation& operation);
  bool push_get(Operation& operation);
  bool serve(Serving& serving);
  Status on_put(const Frame& frame);
  Status on_get(const Frame& frame);
  Status on_data(const Frame& frame);
  void on_abort(const Frame& frame);
  Status place(const Frame& frame);

  std::deque<Serving> serving_;
  Arriving arriving_;
};

}  // namespace oh
