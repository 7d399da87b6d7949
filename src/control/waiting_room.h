// SPDX-License-Identifier: Apache-2.0
//
// WaitingRoom: unauthenticated connections, limited in time and number. A connection beyond the
// limit displaces the oldest one of the source with the most connections, so a flooding source
// displaces its own connections first.
//
// Threading: one thread.
#pragma once

#include <algorithm>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "platform/os/net.h"

namespace oh {

template <typename Guest>
class WaitingRoom {
 public:
  explicit WaitingRoom(size_t places) : places_(places) {}

  bool empty() const { return guests_.empty(); }

  // Adds a guest with the deadline `until`. Returns the guest that it displaces, or null.
  std::shared_ptr<Guest> enter(std::shared_ptr<Guest> guest, const ConnectionSource& source,
                               int64_t until) {
    auto count = counts_.try_emplace(source, 0).first;
    ++count->second;
    auto later = guests_.end();
    while (later != guests_.begin() && std::prev(later)->until > until) --later;
    guests_.insert(later, {std::move(guest), until, count});
    if (guests_.size() <= places_) return nullptr;
    size_t most = 0;
    for (const auto& [each, connections] : counts_) most = std::max(most, connections);
    return take(std::find_if(guests_.begin(), guests_.end(),
                             [most](const Entry& entry) { return entry.count->second == most; }));
  }

  // Removes and returns the guest; null if it is not in the room.
  std::shared_ptr<Guest> leave(const Guest* guest) {
    auto entry = std::find_if(guests_.begin(), guests_.end(),
                              [guest](const Entry& each) { return each.guest.get() == guest; });
    return entry == guests_.end() ? nullptr : take(entry);
  }

  // Removes and returns a guest whose deadline has passed, or null.
  std::shared_ptr<Guest> take_late(int64_t now) {
    return empty() || next_deadline() > now ? nullptr : take(guests_.begin());
  }
  // Removes and returns all guests for which `leaves(guest)` is true.
  template <typename Leaves>
  std::vector<std::shared_ptr<Guest>> take_if(Leaves leaves) {
    std::vector<std::shared_ptr<Guest>> taken;
    for (auto entry = guests_.begin(); entry != guests_.end();) {
      const auto next = std::next(entry);
      if (leaves(*entry->guest)) taken.push_back(take(entry));
      entry = next;
    }
    return taken;
  }
  // The earliest deadline. Precondition: not empty.
  int64_t next_deadline() const { return guests_.front().until; }

 private:
  using Counts = std::map<ConnectionSource, size_t>;
  struct Entry {
    std::shared_ptr<Guest> guest;
    int64_t until;
    typename Counts::iterator count;
  };

  std::shared_ptr<Guest> take(typename std::list<Entry>::iterator entry) {
    std::shared_ptr<Guest> guest = std::move(entry->guest);
    if (--entry->count->second == 0) counts_.erase(entry->count);
    guests_.erase(entry);
    return guest;
  }

  const size_t places_;
  std::list<Entry> guests_;  // sorted by deadline, and so by age
  Counts counts_;            // connections per source
};

}  // namespace oh
