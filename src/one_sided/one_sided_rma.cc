// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations by UCX's remote memory access, straight from and to the user's memory. A put
// has ended when a flush behind its last block has; whatever was issued until then shares one.
//
//   queue_ ──▶ pieces to UCX, as far as there is room ──▶ waiting_ ──▶ flush (of a put) ──▶ end
#include <algorithm>

#include "one_sided/one_sided.h"

namespace oh {
// How the operation at the head of the queue goes, which is decided when its turn has come.
OneSided::Way OneSided::choose_way(Operation& operation) {
  if (operation.key) return Way::kRma;
  const bool moves = operation.kind == OpKind::kPut || operation.kind == OpKind::kGet;
  if (!keys_.is_open() || !moves || operation.by_slots || operation.begun()) return Way::kMessages;
  std::shared_ptr<RemoteKey> key = keys_.find(operation.region, operation.version);
  if (!key) return Way::kMessages;
  if (key->state == RemoteKey::State::kAsked && keys_.use() == RmaUse::kOn) return Way::kNotYet;
  if (key->state != RemoteKey::State::kHeld) return Way::kMessages;
  operation.key = std::move(key);
  operation.flight = std::make_shared<RmaFlight>(
      pair_.ucx->worker(), operation.kind == OpKind::kPut ? ucx::symbol::put : ucx::symbol::get);
  return Way::kRma;
}

// Gives UCX more of it; true when no more is to be given.
bool OneSided::push_rma(Operation& operation) {
  UcxRma& rma = keys_.rma();
  while (operation.block < operation.blocks.size() && operation.failure.ok()) {
    if (turn_.pieces >= Turn::kMostPieces || turn_.bytes >= Turn::kMostBytes) return false;
    const Block& block = operation.blocks[operation.block];
    UcxRma::Piece piece;
    piece.local = block.local + operation.offset;
    piece.size = std::min(block.size - operation.offset, UcxRma::kMostAtOnce);
    piece.remote = operation.base + block.remote_offset + operation.offset;
    piece.key = operation.key->key;
    const bool put = operation.kind == OpKind::kPut;
    if (!(put ? rma.put(operation.flight, piece) : rma.get(operation.flight, piece))) return false;
    ++turn_.pieces;
    turn_.bytes += piece.size;
    operation.offset += piece.size;
    if (operation.offset < block.size) continue;
    ++operation.block;
    operation.offset = 0;
  }
  return true;
}

// Flushes what was issued, and ends what is over.
bool OneSided::progress_rma() {
  bool any = keys_.progress();
  if (in_rma_ == 0) return any;
  std::shared_ptr<Flight> flush;
  std::vector<Operation*> over;
  for (auto& waiting : waiting_) {
    Operation& operation = *waiting;
    if (!operation.key) continue;
    const bool put = operation.kind == OpKind::kPut;
    if (put && !operation.flush) {
      if (!flush) flush = keys_.rma().flush();
      operation.flush = flush;
      any = true;
    }
    if (!operation.flight->is_over()) continue;
    // What has failed has nothing to confirm, but what was issued of it still comes: signals wait.
    if (!operation.failure.ok() && operation.flight->code == ucx::kOk) {
      end_request(operation, operation.failure);
    }
    if (!put || operation.flush->is_over()) over.push_back(&operation);
  }
  for (Operation* operation : over) any = end_rma(*operation) || any;
  return any;
}

bool OneSided::end_rma(Operation& operation) {
  for (const Flight* flight :
       {operation.flush.get(), static_cast<Flight*>(operation.flight.get())}) {
    if (!flight || flight->code == ucx::kOk) continue;
    // The link is found to be broken, which ends the operation, too.
    (void)pair_.ucx->broken_by(*flight).ok();
    return false;
  }
  --in_rma_;
  operation.key.reset();
  operation.flush.reset();
  if (operation.failure.ok() && operation.notify) {
    notify_behind(operation);
  } else {
    end(&operation, operation.failure);
  }
  return true;
}

// At its deadline. False: UCX has some of its buffer, and may be through soon.
bool OneSided::stop_rma(Operation& operation, const Status& status, bool give_up) {
  if (operation.failure.ok()) operation.failure = status;  // no more is given to UCX
  if (!operation.flight->is_over()) {
    if (!give_up) return false;
    leave_in_doubt(operation, status);
  }
  if (operation.kind == OpKind::kPut && operation.begun()) {
    // The operation stays until a flush behind it is over.
    end_request(operation, status);
  } else {
    end(&operation, status);
  }
  return true;
}

void OneSided::leave_in_doubt(Operation& operation, const Status& status) {
  Request* request = std::exchange(operation.request, nullptr);
  request->flight = operation.flight;
  request->path = pair_.path;
  pair_.leave_in_doubt(*request, status);
}

// The other side takes a key back. What has been given to UCX as a whole ends as it would have.
void OneSided::on_retire_key(const Frame& frame) {
  std::shared_ptr<RemoteKey> key = keys_.on_retired(frame);
  if (!key) return;
  for (auto& operation : queue_) {
    if (operation->key != key) continue;
    operation->failure =
        error(OH_ERR_RETIRED, "%s has deregistered the region", pair_.name.c_str());
  }
}

}  // namespace oh
