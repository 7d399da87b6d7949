// SPDX-License-Identifier: Apache-2.0
//
// PiecewisePath: what paths have in common that move an operation in pieces. Each piece is a
// request of the path's own, at the initiator as at the target, and ends by itself.
//
// Threading: guarded by the link's lock, but for admit().
#pragma once

#include <vector>

#include "base/pool.h"
#include "path/path.h"

namespace oh {

class PiecewisePath : public Path {
 public:
  using Path::Path;
  bool travels_apart(const Operation&) const override { return true; }
  // Cancels all pieces; the last one ends the operation.
  bool cancel(Operation& operation, const Status& status, bool give_up) final;
  void fail(Operation& operation, const Status& status) override;
  void piece_ended(Request* piece) override;
  bool leave(const RegionRecord& region) override;

 protected:
  // A piece of an operation of ours; then it is under way, or is given back.
  Request* piece_of(Operation& operation);
  void is_under_way(Operation& operation, Request* piece);
  // A piece of an operation of the other side, on a region of ours; likewise.
  Request* piece_of(const RegionRecord& region, bool put);
  void is_served(Request* piece) { served_.push_back(piece); }
  void give_back(Request* piece);
  size_t under_way() const { return under_way_; }
  size_t served() const { return served_.size(); }

  // Ends a piece of ours; false: something of it is still under way. `give_up` leaves that in
  // doubt.
  virtual bool end_piece(Request& piece, const Status& status, bool give_up) = 0;
  // A piece of the other side's has ended.
  virtual void served_ended(Request&) {}
  // Ends a piece of the other side's; false: something of it is still under way.
  virtual bool stop_served(Request& piece, const Status& why) = 0;

 private:
  Pool<Request> pieces_;          // ours and the other side's
  std::vector<Request*> served_;  // those of the other side
  size_t under_way_ = 0;          // of ours
};

}  // namespace oh
