// SPDX-License-Identifier: Apache-2.0
//
// Receiver: the receiving half of the host domain: matches messages with receives, keeps what comes
// early, advertises receives whose number is certain: to the sender, or over UCX to our channel.
//
//   POSTED ──▶ an eager message, whole ──────────────────────────────────────▶ ENDED
//      │  ──▶ the first part of one, or a ready-to-send that we let stream ─▶ STREAM ──▶ ENDED
//      │  ──▶ a ready-to-send with a slot that we claim ────────────────────▶ DIRECT ──▶ ENDED
//      └──▶ the sender claims our advert ───────────────────────────────────▶ DIRECT ──▶ ENDED
//
// A receive is advertised only when it is certain which message it will get: not while a wildcard
// that could take that message was posted before it.
//
// Threading: guarded by the link's lock.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/list.h"
#include "base/pool.h"
#include "base/tag_table.h"
#include "link/link.h"
#include "message/any_source.h"
#include "path/direct/transfers.h"
#include "path/staging/bounce_copies.h"
#include "path/staging/staging_pipeline.h"

namespace oh {

// Tags above OH_TAG_MAX are the library's own; wildcards do not see them.
inline constexpr bool is_user_tag(uint64_t tag) { return tag <= OH_TAG_MAX; }
// Of them, those of MessageBatches::offer_tag().
inline constexpr bool is_offer_tag(uint64_t tag) {
  return !is_user_tag(tag) && tag - OH_TAG_MAX - 1 < uint64_t{1} << 62;
}

class Receiver final : public ClaimListener {
 public:
  Receiver(Link& link, Transfers& transfers, StagingPipeline& pipeline)
      : link_(link), transfers_(transfers), pipeline_(pipeline), bounce_copies_(link) {}

  void post(Request* request);
  // Gives it a message that is here already; false when there is none, or, with a tag of the
  // library's own, when the first one is too long for it.
  bool post_early(Request* request);
  // Drops what is here with a tag of the library's own, which its sender is through with.
  void discard(uint64_t tag);
  // Of a message that no receive has taken yet.
  struct Announced {
    uint64_t length = 0;
    uint64_t tag = 0;
  };
  // The one that a receive with this tag would get at once, if there is one.
  std::optional<Announced> probe(uint64_t tag) {
    Early* early = first_early(tag);
    return early ? std::optional(Announced{early->length, early->tag}) : std::nullopt;
  }
  // Offers a receive that is still posted to the sender, or shows it to our own channel over UCX,
  // if it is certain which message it will get.
  void advertise_posted(Request* request);
  // An advertised receive is being copied into by its sender.
  void on_claimed(Request* request) override;
  // For a thread that spins with the lock held and posts nothing: whether the next message with
  // this tag can only be its own, and then that message, if it is the next frame, whole, and fits.
  struct TagRx;
  struct Received {
    uint64_t size = 0;
    uint64_t tag = 0;
    oh_path path = OH_PATH_NONE;
  };
  TagRx* watch(uint64_t tag);
  bool take_next(TagRx& tag, uint8_t* data, size_t capacity, Received* received);
  // The same with one look for a receive that is being posted: true when that has ended it.
  bool take_now(Request* request);
  // Ends the receive that the next frame is for, if the frame is a short message and no wildcard
  // could take it. False: the frame is still there.
  bool take_posted();

  // A run of blocks that the other side sends as `op`: lets it come.
  Status begin_run(Request* run, uint64_t op);
  // Ends one that is the other side's to wait for, once nobody is at its memory: true if it has.
  bool stop(Request* run, const Status& why);

  // Gives early messages to the any-source receives that were posted or given back since the last
  // call, in the order of their posts.
  void offer_early();

  // Takes a receive back: false when a message for it is under way: look again after progress,
  // which will find it. `force` does not believe that.
  bool cancel(Request* request, const Status& status, bool force);
  void fail_all(const Status& status);

  // Looks at parts that are being fetched, and at receives that cannot go on.
  bool progress();
  bool idle() const { return fetching_.empty() && pipeline_.empty(); }

  Status on_eager(const Frame& frame);
  Status on_data(const Frame& frame);
  Status on_rts(const Frame& frame);
  void on_ready(const Frame& frame);
  Status on_epoch(const Frame& frame);
  void on_abort(const Frame& frame);

  BounceCopies& bounce_copies() { return bounce_copies_; }

  size_t posted() const { return posted_count_; }
  size_t early() const { return early_count_; }

 private:
  struct InTag;
  struct InArrival;
  struct InPosting;
  struct Incoming;

  // A message that came before its receive.
  struct Early : ListNode<InTag>, ListNode<InArrival> {
    uint64_t tag = 0;
    uint64_t length = 0;
    uint64_t op = 0;  // the sender's name for it; of a whole offer, for the receive of the batch
    bool ready_to_send = false;
    bool has_slot = false;
    bool not_yet = false;  // its sender is not ready
    Transfers::Offer offer;
    uint64_t received = 0;
    uint8_t small[64];
    std::unique_ptr<uint8_t[]> large;
    uint8_t* bytes() { return large ? large.get() : small; }
  };
  // A message that comes in parts. Goes to `request`, else to `early`, else nowhere.
  struct Incoming {
    uint64_t op = 0;
    uint64_t length = 0;
    uint64_t received = 0;
    uint64_t charge = 0;
    uint64_t tag = 0;
    Request* request = nullptr;
    Early* early = nullptr;
    std::shared_ptr<InFlight> in_flight;  // a part that is being fetched
    uint64_t fetched = 0;                 // its size
    bool aborted = false;                 // it ends when that is over
  };

 public:
  struct TagRx : ListNode<InPosting> {
    uint64_t tag = 0;
    TagRx* next_in_bucket = nullptr;
    uint64_t epochs = 0;   // of the sender, when `arrived` was counted last
    uint32_t arrived = 0;  // messages of that epoch
    bool lost = false;     // a message ended with its link: what follows goes nowhere
    List<Request, InPosted> posted;
    List<Early, InTag> early;
    void reset() { arrived = 0; }
    bool idle() const { return arrived == 0 && !lost && posted.empty() && early.empty(); }
  };

 private:
  // The state of a tag, in the current epoch.
  TagRx& tag_of(uint64_t tag) {
    TagRx& entry = tags_.get(tag);
    enter_epoch(entry);
    return entry;
  }
  void enter_epoch(TagRx& tag) const {
    if (tag.epochs != epochs_) start_epoch(tag);
  }
  void start_epoch(TagRx& tag) const {
    tag.epochs = epochs_;
    tag.arrived = 0;
  }

  void tidy();
  void lose_rest(TagRx& tag);

  // Matching.
  Result<Request*> match(TagRx& tag);
  void insert_posted(Request* request);
  void take_posted(TagRx& tag, Request* request);
  bool match_early(Request* request, bool must_fit = false);
  Early* first_early(uint64_t tag);
  // Messages by the name that the other side refers to them with.
  using Names = std::vector<Early*>;  // by index
  static void name(Names& names, Early* early, uint64_t op);
  static Early* find(const Names& names, uint64_t op);
  static void drop_name(Names& names, const Early* early);
  void name_offer(Early* early);
  bool deliver(Request* request, Early* early);
  Early* keep_early(TagRx& tag, const Frame& frame);
  void forget(Early* early);
  void give_credit_back(uint64_t charge);
  void repost(Request* request);
  void drop_offer(const Frame& frame);

  // What becomes of a matched message.
  bool start_rts(Request* request, Early& rts);
  void let_come(Request* request, const Early& rts);
  bool refuse_longer(Request* request, uint64_t length);
  bool refuse_eager(Request* request, uint64_t tag, uint64_t length);
  // A message whose bytes are all here.
  struct Whole {
    uint64_t tag;
    uint64_t length;
    bool early;  // they came before the receive was known to its sender
  };
  void finish_whole(Request* request, const Whole& message);
  void continue_into(Incoming* incoming, Request* request);

  // Adverts.
  bool may_advertise(const Request* request) const;
  void advertise(TagRx& tag, Request* request, uint32_t number);
  bool take_back(Request* request);
  Result<Request*> match_in_place(TagRx& tag, uint32_t number);
  bool withdraw_from(TagRx& tag, Request* first);
  void renumber(TagRx& tag);

  // Messages in parts.
  Incoming* begin_incoming(uint64_t op, uint64_t tag, uint64_t length, uint64_t charge);
  bool is_name_in_use(uint64_t op) const;
  Incoming* find_incoming(uint64_t op) const;
  Incoming* incoming_of(const Request* request) const;
  void end_incoming(Incoming* incoming);
  void advance(Incoming* incoming, uint64_t size);
  Result<uint8_t*> place_of(Incoming& incoming, const Frame& frame);
  void message_withdrawn(Request* request);
  void abort(Incoming* incoming);
  // The channel puts nothing more of it anywhere.
  void revoke(const Incoming& incoming) {
    if (link_.ucx) link_.ucx->targets().revoke(incoming.op);
  }

  static constexpr size_t kTidyAt = 32768;
  static constexpr size_t kMaxOps = 1 << 20;  // names a sender may have in use at once

  Link& link_;
  Transfers& transfers_;
  StagingPipeline& pipeline_;
  BounceCopies bounce_copies_;
  TagTable<TagRx> tags_;
  List<TagRx, InPosting> posting_;  // tags with receives
  List<Request, InPosted> any_tag_;
  List<Early, InArrival> arrivals_;  // with user tags only
  Pool<Early> early_pool_;
  Pool<Incoming> incoming_pool_;
  std::vector<Incoming*> incoming_;  // by index of the sender's name
  Names announced_;
  Names offers_;                     // of batches, where they are here as a whole
  std::vector<Incoming*> fetching_;  // those that are being fetched
  uint64_t serial_ = 0;
  uint64_t offered_ = 0;  // era of the any-source receives that early messages were offered to
  uint32_t epoch_ = 0;
  uint64_t epochs_ = 0;       // how many there were
  size_t tidy_at_ = kTidyAt;  // tags at which idle ones are forgotten
  size_t posted_count_ = 0;
  size_t early_count_ = 0;
  uint64_t charge_held_ = 0;  // eager credit of messages that no receive has taken
};

}  // namespace oh
