// SPDX-License-Identifier: Apache-2.0
//
// PiecewisePath: the base of paths that move an operation in pieces. Each piece is an internal
// request of the path, on the initiator as on the target, and completes on its own.
//
// Threading: guarded by the link's lock, except admit().
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
  // A new piece of a local operation. The caller then calls is_under_way() or give_back().
  Request* piece_of(Operation& operation);
  void is_under_way(Operation& operation, Request* piece);
  // A new piece of a peer's operation on a local region. The caller then calls is_served() or
  // give_back().
  Request* piece_of(const RegionRecord& region, bool put);
  void is_served(Request* piece) { served_.push_back(piece); }
  void give_back(Request* piece);
  size_t under_way() const { return under_way_; }
  size_t served() const { return served_.size(); }

  // Ends a local piece. False: part of it is still in flight; with `give_up` its buffer is left in
  // doubt instead.
  virtual bool end_piece(Request& piece, const Status& status, bool give_up) = 0;
  // A piece of a peer's operation has ended.
  virtual void served_ended(Request&) {}
  // Ends a piece of a peer's operation. False: part of it is still in flight.
  virtual bool stop_served(Request& piece, const Status& why) = 0;

 private:
  Pool<Request> pieces_;          // of local and of the peer's operations
  std::vector<Request*> served_;  // pieces of the peer's operations
  size_t under_way_ = 0;          // pieces of local operations
};

}  // namespace oh
