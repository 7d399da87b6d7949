// SPDX-License-Identifier: Apache-2.0
//
// Totals: the counters of all links of the process, including those that are gone: a counter of a
// process never decreases.
//
// Threading: any thread. No lock is taken under the mutex: reading a link needs none.
#pragma once

#include <cstdint>
#include <vector>

#include "base/sync.h"
#include "link/stats.h"

namespace oh {

class CountedLink {
 public:
  // Any thread, without a lock.
  virtual void add_to(Stats* stats) const = 0;
  virtual bool is_open() const = 0;

 protected:
  ~CountedLink() = default;
};

class Totals {
 public:
  // One per process: a child of fork() starts without links.
  static Totals& instance();

  void enter(const CountedLink& link);
  // Must be called before the link is destroyed. Its counts are kept.
  void leave(const CountedLink& link);

  struct Sum {
    Stats stats;
    uint64_t open = 0;  // links
  };
  Sum sum() const;

 private:
  Totals() = default;

  mutable Mutex mutex_;
  Stats gone_ OH_GUARDED_BY(mutex_);
  std::vector<const CountedLink*> links_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
