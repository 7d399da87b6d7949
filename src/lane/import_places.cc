// SPDX-License-Identifier: Apache-2.0
#include "lane/import_places.h"

#include <utility>

#include "onehop/detail/posting.h"

namespace oh {

uint32_t ImportPlaces::find(uint64_t number) const {
  uint32_t place = distance(0, number);
  while (entries_[place].number != 0 && entries_[place].number != number) {
    place = distance(0, place + 1);
  }
  return place;
}

std::optional<ImportPlaces::Write> ImportPlaces::add(const Entry& entry) {
  const uint32_t place = find(entry.number);
  const bool known = entries_[place].number != 0;
  if (known || distance(entry.number, place) >= onehop::detail::kMostLooks) return {};
  entries_[place] = entry;
  return Write{place, entry};
}

std::vector<ImportPlaces::Write> ImportPlaces::remove(uint64_t number) {
  std::vector<Write> writes;
  uint32_t gap = find(number);
  if (entries_[gap].number == 0) return writes;
  // Each later entry that a lookup would no longer reach moves into the gap.
  for (uint32_t at = distance(0, gap + 1); entries_[at].number != 0; at = distance(0, at + 1)) {
    if (distance(entries_[at].number, at) < distance(gap, at)) continue;
    entries_[gap] = entries_[at];
    writes.push_back({gap, entries_[gap]});
    gap = at;
  }
  entries_[gap] = {};
  writes.push_back({gap, {}});
  return writes;
}

}  // namespace oh
