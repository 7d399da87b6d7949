// SPDX-License-Identifier: Apache-2.0
//
// Matcher: posted receives of one link, and which of them a message goes to: the first posted of
// those that take it, any-tag and any-source receives among them (any_source.h).
//
// It counts the messages of each tag, as the sender does. A receive is offered to the sender
// (ready_to_receive.h) only when it is certain which message it will get: not while a wildcard that
// could take that message was posted before it.
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
  uint64_t epochs = 0;   // of the sender, when `arrived` was counted last
  uint32_t arrived = 0;  // messages of that epoch
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
  // The same if it is known and in the current epoch, and its messages are not lost.
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
  // Forgets tags without messages and receives once there are many.
  void tidy();

  // Whether no wildcard could take a message.
  bool has_no_wildcards() const { return any_tag_.empty() && link_.any_source->empty(); }
  // The place of a receive that is posted now.
  PostOrder next_order() { return {offered_, ++serial_}; }
  // Into its list, by its order: a receive whose message was withdrawn gets its former place again.
  void insert(Request* request);
  // Off its list.
  void take(TagRx& tag, Request* request) {
    tag.posted.erase(request);
    if (tag.posted.empty()) posting_.erase(&tag);
    --posted_count_;
  }
  // Takes the receive that a message with this tag goes to off its list; null: none is posted.
  Result<Request*> match(TagRx& tag);
  // The receive that the channel has written message `number` into.
  Result<Request*> match_in_place(TagRx& tag, uint32_t number);
  // The sender copies into a receive that was offered to it.
  void on_claimed(Request* request) override;
  // Takes a posted receive back. False: a message for it, or for one before it, is under way;
  // `force` asks only about its own, where that can be known.
  bool cancel(Request* request, bool force);

  // Offers a posted receive to the sender, if it is certain which message it will get.
  void offer(Request* request);
  // The sender counts from zero again: so do we, and offer anew. Tags without receives follow when
  // they are used next.
  Status begin_epoch(uint32_t epoch);

  // The era of the any-source receives that unexpected messages were offered to.
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
  uint64_t epochs_ = 0;       // how many there were
  size_t tidy_at_ = kTidyAt;  // tags at which idle ones are forgotten
  size_t posted_count_ = 0;
};

}  // namespace oh
