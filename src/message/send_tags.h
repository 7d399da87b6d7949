// SPDX-License-Identifier: Apache-2.0
//
// SendTags: the sending side of each tag: message numbers, and the receives that the peer has
// offered for them (RTR).
//
// Messages are numbered per tag when they are sent; an RTR is used only for its number. When an
// announced send is withdrawn, the numbers of the two sides would differ: all RTRs are void, and
// the next message starts a new epoch, one for all sends that were withdrawn until then.
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <vector>

#include "base/tag_table.h"
#include "path/direct/transfers.h"

namespace oh {

// A receive that the peer has offered.
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
  // The state for a message that is sent now. Null: the epoch's frame has to be sent first, and
  // waits for room.
  TagTx* next(uint64_t tag);
  uint32_t epoch() const { return epoch_; }
  // Begins an epoch: a numbered message was withdrawn, or there are too many tags.
  void begin_epoch();
  // Drops the RTRs for the next number of the tag and for earlier ones.
  static void drop_ready(TagTx& tag);
  Status on_rtr(const Frame& frame);

 private:
  bool is_full(uint64_t tag) { return tags_.size() >= kMaxTags && !tags_.find(tag); }

  static constexpr size_t kMaxTags = 8192;

  Link& link_;
  TagTable<TagTx> tags_;
  uint32_t epoch_ = 0;
  bool unannounced_ = false;  // the peer does not know the epoch yet; it has no numbers in use
  std::array<uint64_t, kSlots> slot_tags_{};  // tag that each slot was last offered with
};

}  // namespace oh
