// SPDX-License-Identifier: Apache-2.0
//
// RmaPath: puts and gets by UCX RMA, directly from and to the user's memory. A put completes when a
// flush issued after its last block completes. Puts that need one at the same time share it.
//
//   push(): pieces to UCX, as far as there is room ──▶ in flight ──▶ flush (of a put) ──▶ moved()
//
// Threading: guarded by the link's lock.
#pragma once

#include <vector>

#include "path/choice.h"
#include "path/path.h"
#include "path/rma/remote_keys.h"

namespace oh {

Estimate estimate_rma(const LinkFacts& facts, const Ends& ends);

class RmaPath final : public Path {
 public:
  explicit RmaPath(const PathContext& context) : Path(context), keys_(context.link) {
    keys_.open(*context.link.ucx, context.rma_use);
  }
  RemoteKeys& keys() { return keys_; }
  const RemoteKeys& keys() const { return keys_; }

  Ready ready(const Operation& operation) override;
  void begin(Operation& operation) override;
  bool push(Operation& operation) override;
  bool travels_apart(const Operation& operation) const override {
    return operation.kind == OpKind::kPut;
  }
  bool has_begun(const Operation& operation) override;
  bool cancel(Operation& operation, const Status& status, bool give_up) override;
  void fail(Operation& operation, const Status& status) override;
  void forget(Operation& operation) override;
  Status on_frame(const Frame& frame) override;
  void retire(const RegionRecord& region) override { keys_.retire(region); }
  bool leave(const RegionRecord& region) override { return keys_.has_left(region); }
  bool works() const override { return true; }
  void begin_turn() override { turn_ = {}; }
  bool progress() override;
  bool idle() const override { return in_flight_.empty() && keys_.idle(); }
  void fail_all() override { keys_.fail_all(); }

 private:
  // What this turn has issued to UCX. The limits leave time for other work.
  struct Turn {
    static constexpr size_t kMostPieces = 64;
    static constexpr uint64_t kMostBytes = 4 << 20;
    size_t pieces = 0;
    uint64_t bytes = 0;
  };
  bool end(Operation& operation);
  void leave_in_doubt(Operation& operation, const Status& status);

  RemoteKeys keys_;
  Operation* pushing_ = nullptr;       // begun, not fully issued to UCX
  std::vector<Operation*> in_flight_;  // fully issued to UCX
  Turn turn_;
};

}  // namespace oh
