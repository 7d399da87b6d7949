// SPDX-License-Identifier: Apache-2.0
#include "message/matcher.h"

#include <algorithm>

#include "base/fault.h"
#include "link/tags.h"

namespace oh {

void Matcher::tidy() {
  if (tags_.size() < tidy_at_) return;
  tags_.for_each([this](TagRx& tag) { enter_epoch(tag); });
  tags_.drop_idle();
  tidy_at_ = std::max(kTidyAt, 2 * tags_.size());
}

void Matcher::insert(Request* request) {
  TagRx* tag = request->tag == OH_ANY_TAG ? nullptr : &tag_of(request->tag);
  List<Request, InPosted>& list = tag ? tag->posted : any_tag_;
  if (tag && list.empty()) posting_.push_back(tag);
  Request* later = nullptr;
  for (Request* other = list.back(); other && request->order.before(other->order);
       other = list.previous(other)) {
    later = other;
  }
  list.insert_before(later, request);
  ++posted_count_;
}

Result<Request*> Matcher::match(TagRx& tag) {
  OH_FAULT_POINT("receiver.match");
  Request* request;
  while ((request = tag.posted.front()) && request->transfer &&
         !transfers_.withdraw(request->transfer)) {
    // An earlier message of this tag is being copied into it: the receive has left the list.
  }
  Request* any_tag = is_user_tag(tag.tag) ? any_tag_.front() : nullptr;
  const bool any_tag_first = any_tag && (!request || any_tag->order.before(request->order));
  Request* first = any_tag_first ? any_tag : request;
  if (is_user_tag(tag.tag) && !link_.any_source->empty()) {
    Request* other =
        link_.any_source->take(tag.tag, first ? &first->order : nullptr, offered_, link_.peer);
    if (other) {
      OH_FAULT_POINT("receiver.taken");
      return other;
    }
  }
  if (any_tag_first) {
    any_tag_.erase(first);
    --posted_count_;
  } else if (first) {
    // Messages arrive in the order of their numbers. If the withdraw fails, the sender has put a
    // later message into this receive.
    if (!ready_.withdraw(first)) {
      return error(OH_ERR_PROTOCOL, "%s put message %u with tag %llu before an earlier one",
                   link_.name.c_str(), first->number, static_cast<unsigned long long>(tag.tag));
    }
    take(tag, first);
  }
  return first;
}

Result<Request*> Matcher::match_in_place(TagRx& tag, uint32_t number) {
  Request* request = tag.posted.front();
  while (request && !(request->in_place && request->number == number)) {
    request = tag.posted.next(request);
  }
  if (!request) {
    return error(OH_ERR_PROTOCOL, "%s put message %u with tag %llu where no receive is",
                 link_.name.c_str(), number, static_cast<unsigned long long>(tag.tag));
  }
  ready_.take_in_place(request);
  take(tag, request);
  return request;
}

void Matcher::on_claimed(Request* request) {
  TagRx& tag = tag_of(request->tag);
  take(tag, request);
  ++tag.arrived;
}

bool Matcher::cancel(Request* request, bool force) {
  if (request->tag == OH_ANY_TAG) {
    any_tag_.erase(request);
    --posted_count_;
    return true;
  }
  TagRx& tag = tag_of(request->tag);
  bool free = withdraw_from(tag, request);
  // Over UCX its message and all before it are in the inbox, where progress finds them.
  if (!free && force && !link_.ucx) {
    free = request->phase == Phase::kPosted && ready_.withdraw(request);
  }
  if (free) take(tag, request);
  renumber(tag);
  return free;
}

bool Matcher::may_offer(const Request& request) const {
  if (!ready_.may_offer(request) || request.tag == OH_ANY_TAG) return false;
  return !is_user_tag(request.tag) ||
         (any_tag_.empty() && !link_.any_source->may_match(request.tag));
}

void Matcher::offer(Request* request) {
  if (request->phase != Phase::kPosted || !may_offer(*request)) return;
  TagRx& tag = tag_of(request->tag);
  // Another thread has posted behind it: its number is unknown.
  if (request != tag.posted.back()) return;
  ready_.offer(request, tag.arrived + static_cast<uint32_t>(tag.posted.size()) - 1);
}

// Withdraws the offers, from the last receive back to `first`. False as soon as one was claimed:
// the messages for the receives before that one are in flight.
bool Matcher::withdraw_from(TagRx& tag, Request* first) {
  for (Request* request = tag.posted.back(); request;) {
    Request* previous = tag.posted.previous(request);
    const bool last = request == first;
    if (!ready_.withdraw(request)) return false;
    if (last) break;
    request = previous;
  }
  return true;
}

// Offers every receive that may be offered and is not, with its current number.
void Matcher::renumber(TagRx& tag) {
  uint32_t number = tag.arrived;
  for (Request* request = tag.posted.front(); request; request = tag.posted.next(request)) {
    if (may_offer(*request)) ready_.offer(request, number);
    ++number;
  }
}

Status Matcher::begin_epoch(uint32_t epoch) {
  ready_.begin_epoch(epoch);
  ++epochs_;
  for (TagRx* tag = posting_.front(); tag;) {
    TagRx* next = posting_.next(tag);
    while (tag->posted.front() && !withdraw_from(*tag, tag->posted.front())) {
      // The receive was claimed before the epoch ended, and has left the list. Over UCX a message
      // that was put in place before the epoch was also handled before it.
      if (!link_.ucx) continue;
      return error(OH_ERR_PROTOCOL, "%s began epoch %u and sent a message of the one before",
                   link_.name.c_str(), epoch);
    }
    start_epoch(*tag);
    renumber(*tag);
    tag = next;
  }
  tidy();
  return {};
}

void Matcher::fail_all(const Status& status) {
  while (Request* request = any_tag_.pop_front()) link_.finish(*request, status);
  while (TagRx* tag = posting_.pop_front()) {
    while (Request* request = tag->posted.pop_front()) link_.finish(*request, status);
  }
  posted_count_ = 0;
}

}  // namespace oh
