// SPDX-License-Identifier: Apache-2.0
#include "orphans.h"

namespace onehop::python {
namespace {

// Checked per call: more than a call can add, so that the list shrinks.
constexpr size_t kSweep = 8;

}  // namespace

void Orphans::adopt(std::unique_ptr<Orphan> orphan) {
  if (orphan && !orphan->try_release()) keep(std::move(orphan));
}

void Orphans::sweep() {
  if (!orphans_.empty()) sweep(kSweep);
}

size_t Orphans::sweep_all() {
  sweep(orphans_.size());
  return orphans_.size();
}

void Orphans::sweep(size_t count) {
  while (count-- > 0 && !orphans_.empty()) {
    // Remove it first: releasing a buffer may run code that calls sweep() again.
    std::unique_ptr<Orphan> orphan = std::move(orphans_.front());
    orphans_.pop_front();
    if (!orphan->try_release()) keep(std::move(orphan));
  }
}

Orphans& orphans() {
  static auto* const instance = new Orphans;
  return *instance;
}

}  // namespace onehop::python
