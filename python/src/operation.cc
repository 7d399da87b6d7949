// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

#include <deque>

namespace onehop::python {
namespace {

// Never destroyed: what is left at exit may still be written by a peer.
std::deque<std::unique_ptr<Operation>>& orphans() {
  static auto* const instance = new std::deque<std::unique_ptr<Operation>>;
  return *instance;
}

// So many are looked at per call: more than can be added, so that the list shrinks.
constexpr size_t kSweep = 8;

void sweep(size_t count) {
  while (count-- > 0 && !orphans().empty()) {
    // Taken out first: what a buffer's release runs may come back here.
    std::unique_ptr<Operation> operation = std::move(orphans().front());
    orphans().pop_front();
    if (!operation->try_release()) orphans().push_back(std::move(operation));
  }
}

}  // namespace

bool Operation::try_release() {
  if (oh_request_buffer_released(handle()) == 0) return false;
  local.release();
  locals.reset();
  return true;
}

void adopt_orphan(std::unique_ptr<Operation> operation) {
  if (operation && !operation->try_release()) orphans().push_back(std::move(operation));
}

void sweep_orphans() {
  if (!orphans().empty()) sweep(kSweep);
}

size_t sweep_all_orphans() {
  sweep(orphans().size());
  return orphans().size();
}

}  // namespace onehop::python
