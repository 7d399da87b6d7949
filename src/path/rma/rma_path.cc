// SPDX-License-Identifier: Apache-2.0
#include "path/rma/rma_path.h"

#include <algorithm>
#include <utility>

namespace oh {

Estimate estimate_rma(const LinkFacts& facts, const Ends& ends) {
  if (!facts.rma || on_device(ends.local) || on_device(ends.remote)) return {};
  return {.cost = {.viable = true, .latency_us = 3, .bytes_per_us = 12e3F},
          .choice = {bulk_path(facts), Method::kStream,
                     "straight from and to the memory, by UCX's remote memory access, with the "
                     "target's watcher where it has no RDMA; as messages until the region's key "
                     "has come"}};
}

Path::Ready RmaPath::ready(const Operation& operation) {
  if (!keys_.is_open()) return Ready::kNever;
  const std::shared_ptr<RemoteKey> key = keys_.find(operation.region, operation.version);
  if (!key) return Ready::kNever;
  if (key->state == RemoteKey::State::kHeld) return Ready::kNow;
  const bool comes = key->state == RemoteKey::State::kAsked && keys_.use() == RmaUse::kOn;
  return comes ? Ready::kLater : Ready::kNever;
}

void RmaPath::begin(Operation& operation) {
  const bool put = operation.kind == OpKind::kPut;
  operation.key = keys_.find(operation.region, operation.version);
  operation.in_flight =
      std::make_shared<RmaInFlight>(link_.ucx->worker(), put ? ucx::symbol::put : ucx::symbol::get);
  pushing_ = &operation;
}

bool RmaPath::push(Operation& operation) {
  const bool put = operation.kind == OpKind::kPut;
  UcxRma& rma = keys_.rma();
  while (operation.block < operation.blocks.size() && operation.failure.ok()) {
    if (turn_.pieces >= Turn::kMostPieces || turn_.bytes >= Turn::kMostBytes) return false;
    const Block& block = operation.blocks[operation.block];
    UcxRma::Piece piece;
    piece.local = block.local + operation.offset;
    piece.size = std::min(block.size - operation.offset, UcxRma::kMostAtOnce);
    piece.remote = operation.base + block.remote_offset + operation.offset;
    piece.key = operation.key->key;
    const bool taken =
        put ? rma.put(operation.in_flight, piece) : rma.get(operation.in_flight, piece);
    if (!taken) return false;
    ++turn_.pieces;
    turn_.bytes += piece.size;
    operation.offset += piece.size;
    if (operation.offset < block.size) continue;
    ++operation.block;
    operation.offset = 0;
  }
  pushing_ = nullptr;
  in_flight_.push_back(&operation);
  return true;
}

// Flushes puts that are fully issued, and completes operations that are over.
bool RmaPath::progress() {
  bool any = keys_.progress();
  if (in_flight_.empty()) return any;
  std::shared_ptr<InFlight> flush;
  std::vector<Operation*> over;
  for (Operation* operation : in_flight_) {
    const bool put = operation->kind == OpKind::kPut;
    if (put && !operation->flush) {
      if (!flush) flush = keys_.rma().flush();
      operation->flush = flush;
      any = true;
    }
    if (!operation->in_flight->is_over()) continue;
    // Complete the request of a failed operation. The operation stays until the pieces that were
    // issued have arrived: signals behind it wait for them.
    if (!operation->failure.ok() && operation->in_flight->code == ucx::kOk) {
      end_request(link_, *operation, operation->failure);
    }
    if (!put || operation->flush->is_over()) over.push_back(operation);
  }
  for (Operation* operation : over) any = end(*operation) || any;
  return any;
}

bool RmaPath::end(Operation& operation) {
  for (const InFlight* in_flight :
       {operation.flush.get(), static_cast<InFlight*>(operation.in_flight.get())}) {
    if (!in_flight || in_flight->code == ucx::kOk) continue;
    // The channel reports the broken link, which ends the operation, too.
    (void)link_.ucx->broken_by(*in_flight).ok();
    return false;
  }
  forget(operation);
  events_.moved(operation, operation.failure);
  return true;
}

bool RmaPath::has_begun(const Operation& operation) {
  return operation.in_flight && !operation.in_flight->is_over();
}

// Called at the operation's deadline. False: UCX still uses the buffer.
bool RmaPath::cancel(Operation& operation, const Status& status, bool give_up) {
  if (operation.failure.ok()) operation.failure = status;  // no more pieces are issued
  if (!operation.in_flight->is_over()) {
    if (!give_up) return false;
    leave_in_doubt(operation, status);
  }
  if (operation.kind == OpKind::kPut && operation.begun()) {
    // The operation stays until its flush is over.
    end_request(link_, operation, status);
  } else {
    events_.moved(operation, status);
  }
  return true;
}

void RmaPath::fail(Operation& operation, const Status& status) {
  const bool in_doubt = operation.in_flight && !operation.in_flight->is_over();
  if (operation.request && in_doubt) leave_in_doubt(operation, status);
}

void RmaPath::leave_in_doubt(Operation& operation, const Status& status) {
  Request* request = std::exchange(operation.request, nullptr);
  request->in_flight = operation.in_flight;
  request->path = link_.path;
  link_.leave_in_doubt(*request, status);
}

void RmaPath::forget(Operation& operation) {
  std::erase(in_flight_, &operation);
  if (pushing_ == &operation) pushing_ = nullptr;
  operation.key.reset();
  operation.in_flight.reset();
  operation.flush.reset();
}

Status RmaPath::on_frame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kKeyWanted:
      return keys_.on_wanted(frame,
                             regions_.find(frame.region, frame.tag, RegionTable::Taking::kNo));
    case FrameType::kKey:
      return keys_.on_key(frame);
    case FrameType::kRetireKey: {
      // Operations that are fully issued to UCX complete as usual.
      const std::shared_ptr<RemoteKey> key = keys_.on_retired(frame);
      if (key && pushing_ && pushing_->key == key) {
        pushing_->failure = error(OH_ERR_RETIRED, "%s has deregistered the region, or dropped it",
                                  link_.name.c_str());
      }
      return {};
    }
    case FrameType::kKeyGone:
      keys_.on_gone(frame);
      return {};
    default:
      return Path::on_frame(frame);
  }
}

}  // namespace oh
