// SPDX-License-Identifier: Apache-2.0
//
// FramesPath: puts and gets of host memory as messages, first in, first out: where neither side
// reaches the other's memory. The target's progress does the copy.
//
//   initiator of a put                      target
//   kPut: block, kData ... ────────────────▶ copies to the region
//   the last block: kFlush                 ◀─ kAck: op, how all of it went
//
//   initiator of a get
//   kGet: block ───────────────────────────▶ checks it
//                                          ◀─ kData, kReply: bytes of the block; or kAck: why not
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
  // A get of the other side that we answer.
  struct Serving {
    uint64_t op;
    uint64_t block;
    std::shared_ptr<RegionRecord> region;
    uint64_t position;
    uint64_t length;
    uint64_t sent;
  };
  // The put of the other side that is arriving; there is one at a time.
  struct Arriving {
    uint64_t op = 0;
    std::shared_ptr<RegionRecord> region;
    uint64_t position = 0;
    uint64_t length = 0;
    uint64_t received = 0;
    bool flush = false;
    oh_status status = OH_OK;  // of all blocks of this op so far
  };

  // Over UCX the buffers that they are packed into are the bound.
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
