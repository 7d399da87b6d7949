// SPDX-License-Identifier: Apache-2.0
//
// Matcher: the posted receives of one link. A message matches the first posted receive that accepts
// it, any-tag and any-source receives included (any_source.h).
//
// It counts the messages of each tag, as the sender does. It offers a receive to the sender
// (ready_to_receive.h) only when it is certain which message the receive will get: not while a
// posted wildcard could take that message.
//
// Threading: guarded by the link's lock.
#pragma once

#include "base/list.h"
#include "base/tag_table.h"
#include "link/link.h"
#include "message/any_source.h"
#include "message/ready_to_receive.h"
#include "message/unexpected.h"

namespace oh {

struct InPosting;

// The receiving side of one tag.
struct TagRx : ListNode<InPosting> {
  uint64_t tag = 0;
  TagRx* next_in_bucket = nullptr;
  uint64_t epochs = 0;   // epochs_ as of `arrived`
  uint32_t arrived = 0;  // messages that arrived in that epoch
  bool lost = false;     // a message ended with its link: later ones are dropped
  List<Request, InPosted> posted;
  UnexpectedQueue::OfTag unexpected;
  void reset() { arrived = 0; }
  bool idle() const { return arrived == 0 && !lost && posted.empty() && unexpected.empty(); }
};

class Matcher final : public ClaimListener {
 public:
  Matcher(Link& link, Transfers& transfers)
      : link_(link), transfers_(transfers), ready_(link, transfers) {}

  // The state of a tag, in the current epoch.
  TagRx& tag_of(uint64_t tag) {
    TagRx& entry = tags_.get(tag);
    enter_epoch(entry);
    return entry;
  }
  // The state of a tag, if it is known, in the current epoch and has lost no message; else null.
  TagRx* find_current(uint64_t tag) {
    TagRx* entry = tags_.find(tag);
    return entry && entry->epochs == epochs_ && !entry->lost ? entry : nullptr;
  }
  // The first unexpected message that a receive with this tag takes.
  Unexpected* first_unexpected(uint64_t tag, const UnexpectedQueue& queue) {
    if (tag == OH_ANY_TAG) return queue.front();
    TagRx* entry = tags_.find(tag);
    return entry ? entry->unexpected.front() : nullptr;
  }
  template <typename Visit>
  void for_each_tag(Visit visit) {
    tags_.for_each(visit);
  }
  // Drops tags without messages and receives once there are many.
  void tidy();

  // Whether no wildcard receive is posted.
  bool has_no_wildcards() const { return any_tag_.empty() && link_.any_source->empty(); }
  // The post order of a receive that is posted now.
  PostOrder next_order() { return {offered_, ++serial_}; }
  // Inserts a receive into its list by post order: one whose message was withdrawn regains its
  // place.
  void insert(Request* request);
  // Removes a receive from its list.
  void take(TagRx& tag, Request* request) {
    tag.posted.erase(request);
    if (tag.posted.empty()) posting_.erase(&tag);
    --posted_count_;
  }
  // Removes and returns the receive that a message with this tag matches; null: none is posted.
  Result<Request*> match(TagRx& tag);
  // Removes and returns the receive into which the channel has written message `number`.
  Result<Request*> match_in_place(TagRx& tag, uint32_t number);
  // The sender has claimed a receive that was offered to it, and copies into it.
  void on_claimed(Request* request) override;
  // Removes a posted receive. False: its message is in flight, since the sender has claimed it or
  // one posted after it. `force` checks only whether it was claimed itself, where that can be
  // known.
  bool cancel(Request* request, bool force);

  // Offers a posted receive to the sender, if it is certain which message it will get.
  void offer(Request* request);
  // The sender has restarted its numbers at zero: restarts them here and offers the receives again.
  // Tags without receives follow when they are next used.
  Status begin_epoch(uint32_t epoch);

  // The era up to which unexpected messages were offered to any-source receives.
  uint64_t offered() const { return offered_; }
  void set_offered(uint64_t era) { offered_ = era; }

  void fail_all(const Status& status);
  size_t posted() const { return posted_count_; }

 private:
  void enter_epoch(TagRx& tag) const {
    if (tag.epochs != epochs_) start_epoch(tag);
  }
  void start_epoch(TagRx& tag) const {
    tag.epochs = epochs_;
    tag.arrived = 0;
  }
  bool may_offer(const Request& request) const;
  bool withdraw_from(TagRx& tag, Request* first);
  void renumber(TagRx& tag);

  static constexpr size_t kTidyAt = 32768;

  Link& link_;
  Transfers& transfers_;
  ReadyToReceive ready_;
  TagTable<TagRx> tags_;
  List<TagRx, InPosting> posting_;  // tags with receives
  List<Request, InPosted> any_tag_;
  uint64_t serial_ = 0;
  uint64_t offered_ = 0;
  uint64_t epochs_ = 0;       // number of epochs so far
  size_t tidy_at_ = kTidyAt;  // number of tags at which idle ones are dropped
  size_t posted_count_ = 0;
};

}  // namespace oh
