// SPDX-License-Identifier: Apache-2.0
//
// Selection: which path an operation takes, and why. A put or get takes the cheapest path that is
// viable for its two ends. The data path and explain() use the same estimates; for messages both
// use MessageSelection.
//
// Threading: none needed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "path/choice.h"
#include "path/paths.h"

namespace oh {

// How a message of `size` bytes travels when its receive is posted and credit is left.
Choice choose_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size);
// The same, when earlier work on the source is still pending as its receive is posted.
Choice choose_pending(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size);
// How a put or get travels: Selection::explain().
Choice choose_one_sided(const LinkFacts& facts, MemoryKind local, MemoryKind remote, uint64_t size);

// Whether a put or get of host memory may need the target's progress.
bool may_need_target(const LinkFacts& facts);

// The paths of puts and gets over one link.
class Selection {
 public:
  explicit Selection(const LinkFacts& facts, const PathTable& table = path_table());

  // The cheapest viable path for `size` bytes among those that `usable` admits; kCount: none.
  template <typename Usable>
  PathName cheapest(const Ends& ends, uint64_t size, const Usable& usable) const {
    return cheapest_of(rows_[index(ends.local)][index(ends.remote)], size, usable);
  }
  // How a put or get of `size` bytes travels if every viable path is usable; if none is viable,
  // why.
  Choice explain(const Ends& ends, uint64_t size) const {
    return explain(facts_, table_, ends, size);
  }
  // The same, without computing the costs of all other ends.
  static Choice explain(const LinkFacts& facts, const PathTable& table, const Ends& ends,
                        uint64_t size);

 private:
  struct Row {
    std::array<Cost, kPathCount> costs;
    uint32_t viable = 0;  // one bit per path
    void set(size_t i, const Cost& cost) {
      costs[i] = cost;
      viable |= static_cast<uint32_t>(cost.viable) << i;
    }
  };
  template <typename Usable>
  static PathName cheapest_of(const Row& row, uint64_t size, const Usable& usable) {
    PathName best = PathName::kCount;
    const Cost* least = nullptr;
    for (uint32_t rest = row.viable; rest != 0; rest &= rest - 1) {
      const auto name = static_cast<PathName>(std::countr_zero(rest));
      const Cost& cost = row.costs[static_cast<size_t>(name)];
      if (!usable(name) || (least && !cost.is_less(*least, size))) continue;
      best = name;
      least = &cost;
    }
    return best;
  }
  static size_t index(MemoryKind kind) { return static_cast<size_t>(kind); }

  LinkFacts facts_;
  const PathTable& table_;
  std::array<std::array<Row, 5>, 5> rows_;  // indexed by the kinds of local and remote memory
};

// One row of explain(), for sizes [first, last]. `source` is the local memory, also of a get; for
// atomic operations it is "host", the calling thread.
struct PathRow {
  // "message", "put/get", "atomic" or "stream"; "pending message" where pending work changes the
  // path.
  std::string operation;
  MemoryKind source;
  MemoryKind target;
  uint64_t first = 0;
  uint64_t last = 0;
  Choice choice = {};
};
// A side has rows for device memory only if it has a GPU. Pinned memory has rows of its own only
// beside device memory.
std::vector<PathRow> explain(const LinkFacts& facts);

// For the log: which path large messages take over this link, and why not the faster ones.
std::string describe_choice(const LinkFacts& facts);

// Why device memory takes a slower path over this link than the hardware allows, and what to do
// about it. Empty: no such reason is known.
std::string why_slower(const LinkFacts& facts);

// A transport of this build, and whether it is viable on this host.
struct TransportFact {
  const char* name;
  bool viable;
  std::string why;
};
std::vector<TransportFact> transports(const std::string& cuda_library,
                                      const std::string& ucx_library);

}  // namespace oh
