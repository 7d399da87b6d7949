// SPDX-License-Identifier: Apache-2.0
//
// How one-sided operations end: well, taken back, or with the link.
#include <algorithm>
#include <utility>

#include "one_sided/one_sided.h"

namespace oh {

void OneSided::end_request(Operation& operation, Status status) {
  Request* request = std::exchange(operation.request, nullptr);
  if (!request) return;
  request->path = operation.by_slots ? operation.path : pair_.path;
  if (status.ok()) request->nbytes = request->size;
  pair_.finish(*request, std::move(status));
}

void OneSided::end(Operation* operation, Status status) {
  if (pair_.ucx && operation->kind == OpKind::kGet) pair_.ucx->take_back(operation->op);
  end_request(*operation, std::move(status));
  const bool by_rma = operation->key != nullptr;
  const bool notifies = !operation->moves();
  auto is_it = [&](const auto& other) { return other.get() == operation; };
  const size_t waited = std::erase_if(waiting_, is_it);
  if (by_rma) in_rma_ -= waited;
  if (notifies) notifying_ -= waited;
  std::erase_if(queue_, is_it);
  release_notifications();
}

// A put has ended well: its notification is next.
void OneSided::notify_behind(Operation& operation) {
  auto is_it = [&](const auto& other) { return other.get() == &operation; };
  if (std::none_of(waiting_.begin(), waiting_.end(), is_it)) return;
  operation.kind = OpKind::kNotify;
  if (operation.by_slots && operation.request) operation.request->path = operation.path;
  operation.by_slots = operation.by_crossings = false;
  ++notifying_;
  release_notifications();
}

// Once all that was posted before its put has ended, too, a notification leaves ahead of what was
// posted behind it. waiting_ is in the order of posting.
void OneSided::release_notifications() {
  if (notifying_ == 0) return;
  auto is_released = [](const auto& queued) { return queued->is_released(); };
  auto next = std::find_if_not(queue_.begin(), queue_.end(), is_released);
  for (auto& waiting : waiting_) {
    if (waiting->travels_apart()) break;
    if (waiting->moves()) continue;
    next = std::next(queue_.insert(next, std::move(waiting)));
    --notifying_;
  }
  std::erase(waiting_, nullptr);
}

bool OneSided::cancel(Request* request, const Status& status, bool give_up) {
  Operation* operation = find(request->op);
  if (!operation) return false;
  if (operation->by_slots && !operation->under_way.empty()) {
    return stop_blocks(*operation, status, give_up);
  }
  if (operation->key) return stop_rma(*operation, status, give_up);
  // What is on its way stays so, and its answer will find nobody. A put that is half on the wire is
  // broken off, or what follows would be taken for its rest.
  if (operation->kind == OpKind::kPut && operation->offset > 0) {
    Frame frame;
    frame.type = FrameType::kAbort;
    frame.flags = kOneSided;
    frame.op = operation->op;
    pair_.send(frame);
  }
  end(operation, status);
  return true;
}

void OneSided::fail_all(const Status& status) {
  // Blocks whose transfers were withdrawn; the last one of an operation ends it.
  std::vector<Request*> blocks;
  for (auto& operation : queue_)
    std::ranges::copy(operation->under_way, std::back_inserter(blocks));
  for (auto& operation : waiting_) {
    std::ranges::copy(operation->under_way, std::back_inserter(blocks));
  }
  for (Request* block : blocks) {
    Status& failure = block->parent->failure;
    if (failure.code() != OH_ERR_IN_DOUBT) failure = status;
    pair_.finish(*block, status);
  }
  auto fail = [&](const std::unique_ptr<Operation>& operation) {
    if (!operation->request) return;
    const bool in_doubt = operation->flight && !operation->flight->is_over();
    in_doubt ? leave_in_doubt(*operation, status) : pair_.finish(*operation->request, status);
  };
  for (auto& operation : queue_) fail(operation);
  for (auto& operation : waiting_) fail(operation);
  queue_.clear();
  waiting_.clear();
  serving_.clear();
  in_rma_ = notifying_ = 0;
  keys_.fail_all();
}

}  // namespace oh
