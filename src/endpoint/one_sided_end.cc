// SPDX-License-Identifier: Apache-2.0
//
// How one-sided operations end: well, taken back, or with the link.
#include <algorithm>
#include <utility>

#include "endpoint/one_sided.h"

namespace oh {

void OneSided::end(Operation* operation, Status status) {
  if (pair_.ucx && operation->kind == OpKind::kGet) pair_.ucx->take_back(operation->op);
  if (Request* request = std::exchange(operation->request, nullptr)) {
    request->path = operation->by_slots ? operation->path : pair_.path;
    if (status.ok()) request->nbytes = request->size;
    pair_.finish(*request, std::move(status));
  }
  const bool by_rma = operation->key != nullptr;
  auto is_it = [&](const auto& other) { return other.get() == operation; };
  const size_t waited = std::erase_if(waiting_, is_it);
  if (by_rma) in_rma_ -= waited;
  std::erase_if(queue_, is_it);
}

// A put has ended well: its notification is next.
void OneSided::notify_behind(Operation& operation) {
  for (auto& waiting : waiting_) {
    if (waiting.get() != &operation) continue;
    operation.kind = OpKind::kNotify;
    operation.by_slots = operation.by_crossings = false;
    queue_.push_back(std::move(waiting));
    std::erase(waiting_, nullptr);
    return;
  }
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
  in_rma_ = 0;
  keys_.fail_all();
}

}  // namespace oh
