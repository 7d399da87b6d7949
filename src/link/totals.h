// SPDX-License-Identifier: Apache-2.0
//
// Totals: what all links of the process have counted, also those that are gone: a counter of a
// process never goes back.
//
// Threading: any thread. The mutex is the last one taken: reading a link takes no lock.
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
  // One per process: a child of fork() has none of the links.
  static Totals& instance();

  void enter(const CountedLink& link);
  // Before it goes: what it has counted stays.
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
