// SPDX-License-Identifier: Apache-2.0
#include "path/pieces.h"

#include <new>

namespace oh {

Request* PiecewisePath::piece_of(Operation& operation) {
  Request* piece = pieces_.acquire();
  piece->internal = true;
  piece->kind = operation.kind;
  piece->on_device = operation.on_device;
  piece->pinned = operation.pinned;
  piece->device.exported = operation.exported;
  piece->owner = piece->path_of_piece = this;
  piece->parent = &operation;
  piece->detached.store(1, std::memory_order_relaxed);
  return piece;
}

void PiecewisePath::is_under_way(Operation& operation, Request* piece) {
  operation.under_way.push_back(piece);
  ++under_way_;
}

Request* PiecewisePath::piece_of(const RegionRecord& region, bool put) {
  Request* piece = pieces_.acquire();
  piece->internal = true;
  piece->kind = put ? OpKind::kPut : OpKind::kGet;
  piece->on_device = region.exported != nullptr;
  piece->pinned = region.pinned;
  piece->device.exported = region.exported;
  piece->region = region.index;
  piece->version = region.version;
  piece->owner = piece->path_of_piece = this;
  piece->detached.store(1, std::memory_order_relaxed);
  return piece;
}

void PiecewisePath::give_back(Request* piece) {
  piece->clear();
  pieces_.release(piece);
}

void PiecewisePath::piece_ended(Request* piece) {
  if (piece->serves_peer()) {
    std::erase(served_, piece);
    served_ended(*piece);
    return give_back(piece);
  }
  --under_way_;
  Operation& operation = *piece->parent;
  const bool over = operation.piece_ended(*piece);
  give_back(piece);
  if (over) events_.moved(operation, operation.failure);
}

bool PiecewisePath::cancel(Operation& operation, const Status& status, bool give_up) {
  if (operation.under_way.empty()) return Path::cancel(operation, status, give_up);
  if (operation.failure.ok()) operation.failure = status;
  const std::vector<Request*> pieces = operation.under_way;
  size_t left = pieces.size();
  for (Request* piece : pieces) {
    if (end_piece(*piece, status, give_up)) --left;
  }
  return left == 0;
}

// The slots and streams that the pieces used have been withdrawn, or have ended.
void PiecewisePath::fail(Operation& operation, const Status& status) {
  const std::vector<Request*> pieces = operation.under_way;  // the last one ends the operation
  if (operation.failure.code() != OH_ERR_IN_DOUBT) operation.failure = status;
  for (Request* piece : pieces) link_.finish(*piece, status);
}

bool PiecewisePath::leave(const RegionRecord& region) {
  const Status status = error(OH_ERR_RETIRED, "the region was deregistered");
  const std::vector<Request*> pieces = served_;  // ending a piece changes the list
  bool left = true;
  for (Request* piece : pieces) {
    if (piece->region != region.index || piece->version != region.version) continue;
    left = stop_served(*piece, status) && left;
  }
  return left;
}

}  // namespace oh
