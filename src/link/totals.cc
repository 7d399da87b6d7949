// SPDX-License-Identifier: Apache-2.0
#include "link/totals.h"

#include <algorithm>
#include <atomic>

#include "platform/os/fork.h"

namespace oh {

void Stats::add(const Stats& other) {
  for (size_t op = 0; op < kMetricOps; ++op) {
    for (size_t path = 0; path < OH_PATH_COUNT; ++path) moved[op][path] += other.moved[op][path];
  }
  for (Tally Stats::* each :
       {&Stats::unexpected, &Stats::out_of_credit, &Stats::rtrs_used, &Stats::back_pressure,
        &Stats::timeouts, &Stats::cancelled, &Stats::stream_put, &Stats::stream_staged,
        &Stats::packed, &Stats::deferred, &Stats::outstanding}) {
    this->*each += other.*each;
  }
}

Totals::Totals() : generation_(fork_generation()) {}

// Takes no lock: another thread may have held it at the fork.
Totals& Totals::instance() {
  static std::atomic<Totals*> current{nullptr};
  // acquire: pairs with the exchange that publishes it.
  Totals* found = current.load(std::memory_order_acquire);
  if (found && found->generation_ == fork_generation()) return *found;
  auto* made = new Totals;  // the parent's object is left alone
  if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made;
  delete made;  // another thread was faster
  return *found;
}

void Totals::enter(const CountedLink& link) {
  MutexLock lock(mutex_);
  links_.push_back(&link);
}

void Totals::leave(const CountedLink& link) {
  MutexLock lock(mutex_);
  if (std::erase(links_, &link) == 0) return;
  link.add_to(&gone_);
  gone_.outstanding = {};
}

Totals::Sum Totals::sum() const {
  MutexLock lock(mutex_);
  Sum sum{gone_};
  for (const CountedLink* link : links_) {
    link->add_to(&sum.stats);
    sum.open += link->is_open();
  }
  return sum;
}

}  // namespace oh
