// SPDX-License-Identifier: Apache-2.0
#include "link/totals.h"

#include <algorithm>

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

Totals& Totals::instance() {
  return of_this_process([] { return new Totals; });
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
