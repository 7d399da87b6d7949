// SPDX-License-Identifier: Apache-2.0
//
// Counts visits of each place, and injects the requested failures.
//
// Threading: any thread.
#include "faults.h"

namespace oh::cuda::fake {
namespace {
struct Entry {
  const char* name;
  void (*function)();  // so that a missing entry point fails to link
};
constexpr size_t kPlaces = static_cast<size_t>(Symbol::kCount);
const Entry kEntries[kPlaces] = {
#define FAKE_CUDA_ENTRY(name, symbol, parameters) \
  {#symbol, reinterpret_cast<void (*)()>(&oh::cuda::symbol)},
    OH_CUDA_FUNCTIONS(FAKE_CUDA_ENTRY) OH_CUDA_NEWER_FUNCTIONS(FAKE_CUDA_ENTRY)
        OH_CUDA_TEST_FUNCTIONS(FAKE_CUDA_ENTRY)
#undef FAKE_CUDA_ENTRY
            {"copy", nullptr},
    {"operation", nullptr},
};
}  // namespace

Symbol find_symbol(const std::string& name) {
  for (size_t i = 0; i < kPlaces; ++i) {
    if (name == kEntries[i].name) return static_cast<Symbol>(i);
  }
  return Symbol::kCount;
}

Faults& Faults::instance() {
  static Faults* const kFaults = new Faults;  // outlives every thread
  return *kFaults;
}

Faults::Faults() {
  for (const Failure& failure : config().failures) {
    if (!add(failure)) refuse("fail: there is no \"" + failure.where + "\"");
  }
}

bool Faults::add(const Failure& failure) {
  const Symbol where = find_symbol(failure.where);
  if (where == Symbol::kCount) return false;
  std::lock_guard<std::mutex> lock(mutex_);
  pending_.push_back({where, failure.nth == 0, failure.nth, failure.code});
  armed_.store(true, std::memory_order_relaxed);
  return true;
}

void Faults::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  pending_.clear();
  armed_.store(false, std::memory_order_relaxed);
}

Code Faults::visit(Symbol where) {
  visits_[static_cast<int>(where)].fetch_add(1, std::memory_order_relaxed);
  if (!armed_.load(std::memory_order_relaxed)) return kSuccess;
  std::lock_guard<std::mutex> lock(mutex_);
  Code code = kSuccess;
  for (size_t i = 0; i < pending_.size();) {
    Pending& pending = pending_[i];
    const bool strikes = pending.where == where && (pending.always || --pending.left == 0);
    if (strikes && code == kSuccess) code = pending.code;
    if (strikes && !pending.always) {
      pending_.erase(pending_.begin() + static_cast<ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return code;
}

uint64_t Faults::visits(Symbol where) const {
  return visits_[static_cast<int>(where)].load(std::memory_order_relaxed);
}

}  // namespace oh::cuda::fake
