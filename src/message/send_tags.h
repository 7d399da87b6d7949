// SPDX-License-Identifier: Apache-2.0
//
// SendTags: the sending side of each tag: numbers of messages, and the receives that the other side
// has offered for them (RTR).
//
// Messages are numbered per tag when they go out; an RTR is used for its number only. After a send
// that was announced is withdrawn, the numbers of both sides would differ: all RTRs are void, and a
// new epoch starts with the next message that goes out, one for all that were withdrawn until then.
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <vector>

#include "base/tag_table.h"
#include "path/direct/transfers.h"

namespace oh {

// A receive that the other side has offered.
struct Rtr {
  uint32_t number;  // of the message that it is for
  uint64_t capacity;
  Transfers::Offer offer;
};

struct TagTx {
  uint64_t tag = 0;
  TagTx* next_in_bucket = nullptr;
  uint32_t number = 0;  // of the next message
  std::vector<Rtr> ready;
  void reset() {
    number = 0;
    ready.clear();
  }
  bool idle() const { return true; }
};

class SendTags {
 public:
  explicit SendTags(Link& link) : link_(link) {}

  TagTx* find(uint64_t tag) { return tags_.find(tag); }
  // For a message that goes out now. Null: the frame of the epoch has to go first, and waits.
  TagTx* next(uint64_t tag);
  uint32_t epoch() const { return epoch_; }
  // A message that was numbered is withdrawn, or there are too many tags.
  void begin_epoch();
  // Drops what was offered for the next number of the tag, or an earlier one.
  static void drop_ready(TagTx& tag);
  Status on_rtr(const Frame& frame);

 private:
  bool is_full(uint64_t tag) { return tags_.size() >= kMaxTags && !tags_.find(tag); }

  static constexpr size_t kMaxTags = 8192;

  Link& link_;
  TagTable<TagTx> tags_;
  uint32_t epoch_ = 0;
  bool unannounced_ = false;  // the other side does not know the epoch; no number is in use
  std::array<uint64_t, kSlots> slot_tags_{};  // tag that each slot was last offered with
};

}  // namespace oh
