// SPDX-License-Identifier: Apache-2.0
//
// The target of a large message: the receiver posts it, and the sender looks it up in its table of
// imports.
//
//   posted   region 4 | offset 6, position 2 | flag 4      the flag: epoch 8 | position 24
//            capacity 8 | position 4 | flag 4
//
// Both lines hold the position of the message, so that a posting of another message is not mistaken
// for it.
//
// Threading: one thread of the receiver posts, one of each part of the sender reads. One thread at
// a time changes a table, while others read it.
#pragma once

#include "onehop/detail/lane.h"

namespace onehop::detail {

// The memory of a receive: in a region that the peer may have mapped, or in none.
struct Place {
  uint32_t region = 0;  // 0: none
  uint64_t offset = 0;  // 48 bits
  bool idle = false;    // not posted: no earlier access to the memory is in flight
};

// The place of a receive into `target`; none, unless all its bytes lie within.
ONEHOP_PROTOCOL Place place_in(const oh_lane_target& target, const void* data, uint64_t bytes) {
  const uint64_t at = reinterpret_cast<uint64_t>(data) - target.base;
  if (at > target.size || bytes > target.size - at) return {};
  return {target.region, target.offset + at};
}

// A region of the peer that is mapped here. A table has 2^shift places. An entry lies at its
// number's place or less than kMostLooks after it, with no empty place in between, so a look-up
// ends soon, even for an unknown number. Both halves of an entry hold the number, so both are
// loaded at once.
inline constexpr uint64_t kMostLooks = 64;
struct ImportEntry {
  Pair size;  // size | number; number 0: the place is empty
  Pair base;  // local address | number
};
struct ImportTable {
  uint64_t shift;
  uint64_t reserved[7];
  ImportEntry entries[1];
};

struct Posting {
  Place place;
  uint64_t capacity;
};

template <typename A>
ONEHOP_PROTOCOL void post(Pair* to, uint8_t epoch, uint64_t position, const Posting& posting) {
  const uint32_t flag = static_cast<uint32_t>(epoch) << 24 | (position & 0xffffffu);
  const uint32_t high = static_cast<uint32_t>(position >> 24);
  const uint64_t offset = posting.place.offset;
  store_line<A>(&to[0], {{posting.place.region, static_cast<uint32_t>(offset),
                          static_cast<uint32_t>(offset >> 32 & 0xffff) | high << 16},
                         flag});
  store_line<A>(&to[1], {{static_cast<uint32_t>(posting.capacity),
                          static_cast<uint32_t>(posting.capacity >> 32), high},
                         flag});
}

// Returns false until the whole posting has arrived.
template <typename A>
ONEHOP_PROTOCOL bool read_posting(const Pair* from, uint8_t epoch, uint64_t position,
                                  Posting* posting) {
  const uint32_t flag = static_cast<uint32_t>(epoch) << 24 | (position & 0xffffffu);
  const uint32_t high = static_cast<uint32_t>(position >> 24);
  const Line first = load_line<A>(&from[0]);
  const Line second = load_line<A>(&from[1]);
  if (first.flag != flag || second.flag != flag) return false;
  if (first.words[2] >> 16 != (high & 0xffff) || second.words[2] != high) return false;
  posting->place = {first.words[0], first.words[1] | static_cast<uint64_t>(first.words[2] & 0xffff)
                                                         << 32};
  posting->capacity = second.words[0] | static_cast<uint64_t>(second.words[1]) << 32;
  return true;
}

// The stores need no order: the number in each half identifies its region.
template <typename A>
ONEHOP_PROTOCOL void write_import(ImportEntry* entry, uint64_t number, uint64_t size,
                                  uint64_t base) {
  A::store_keyed(&entry->base, {base, number});
  A::store_keyed(&entry->size, {size, number});
}

// Load it early: it never changes.
template <typename A>
ONEHOP_PROTOCOL uint64_t import_mask(const oh_lane_handle& lane) {
  if (lane.imports == 0) return 0;
  return (uint64_t{1} << A::load_relaxed(reinterpret_cast<const uint64_t*>(lane.imports))) - 1;
}

template <typename A>
ONEHOP_PROTOCOL ImportEntry load_import(const oh_lane_handle& lane, uint64_t place) {
  const ImportEntry& entry = reinterpret_cast<const ImportTable*>(lane.imports)->entries[place];
  return {A::load_keyed(&entry.size), A::load_keyed(&entry.base)};
}

// The local address of `bytes` at a place of the entry's region, or 0 if they do not lie within.
ONEHOP_PROTOCOL uint64_t address_in(const ImportEntry& entry, const Place& place, uint64_t bytes) {
  const bool within = place.offset <= entry.size.low && bytes <= entry.size.low - place.offset;
  return entry.base.high == place.region && within ? entry.base.low + place.offset : 0;
}

// Returns the local address of `bytes` at a place, or 0 if they are not mapped. May miss an entry
// that changes or moves concurrently.
template <typename A>
ONEHOP_PROTOCOL uint64_t find_import(const oh_lane_handle& lane, uint64_t mask, const Place& place,
                                     uint64_t bytes) {
  if (lane.imports == 0 || place.region == 0) return 0;
  for (uint64_t i = 0; i <= mask && i < kMostLooks; ++i) {
    const ImportEntry entry = load_import<A>(lane, (place.region + i) & mask);
    if (entry.size.high == 0) return 0;
    if (entry.size.high == place.region) return address_in(entry, place, bytes);
  }
  return 0;
}

// What a sender loads before the target of its message is posted: the entry of the region that the
// peer posted last on this lane.
struct ImportGuess {
  uint64_t mask = 0;
  ImportEntry entry{};
};
template <typename A>
ONEHOP_PROTOCOL ImportGuess guess_import(const oh_lane_handle& lane) {
  if (lane.imports == 0) return {};
  const uint64_t mask = import_mask<A>(lane);
  const Line last = load_line<A>(&mine(lane)->posted[0]);
  return {mask, load_import<A>(lane, last.words[0] & mask)};
}

}  // namespace onehop::detail
