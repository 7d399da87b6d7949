// SPDX-License-Identifier: Apache-2.0
//
// The end of a peer: lost, failed or closed.
#include "base/fault.h"
#include "base/log.h"
#include "endpoint/peer.h"

namespace oh {
namespace {
// How long a peer may take to leave our memory.
constexpr int64_t kLeaveTime = kSecond;
// How long the end of a link waits for staging copies of our own engine, which end by themselves:
// earlier work of the application was done before they were enqueued.
constexpr int64_t kCopyTime = kSecond;
}  // namespace

void Peer::lose(const Status& status, bool dead) {
  {
    PairGuard guard(pair_);
    if (state_.load(std::memory_order_relaxed) != State::kOpen) return;
    // What it sent before it died counts: at most a ring full.
    if (pair_.ucx) pair_.ucx->worker().progress();
    for (size_t round = 0; round <= kCells / kFramesAtOnce; ++round) {
      if (state_.load(std::memory_order_relaxed) != State::kOpen || drain(nullptr) == 0) break;
    }
    if (state_.load(std::memory_order_relaxed) != State::kOpen) return;
    bool link_text = status.code() == OH_ERR_PEER_LOST;
    fail_everything(error(link_text ? OH_ERR_PEER_LOST : status.code(), "lost %s: %s",
                          pair_.name.c_str(), status.text().c_str()),
                    dead);
  }
  OH_LOG(kDebug, "link to %s: lost: %s", pair_.name.c_str(), status.text().c_str());
}

// How there can be a link again.
std::string Peer::remedy() const {
  if (identity_.rank < 0) {
    return "connect again: endpoint.connect() on one side, endpoint.accept() on the other";
  }
  return strf(
      "connect again: comm.reconnect(%lld) here, and there comm.reconnect() with our rank, or a "
      "new "
      "Communicator in a process that was restarted",
      static_cast<long long>(identity_.rank));
}

// Ends every request; with the lock held, which is let go while threads of ours finish a copy.
void Peer::fail_everything(const Status& why, bool dead) {
  const Status status = status_scope(why.code()) == OH_SCOPE_LINK
                            ? Status(why.code(), why.text() + "; " + remedy())
                            : why;
  if (state_.load(std::memory_order_relaxed) == State::kOpen) {
    why_ = status;
    state_.store(State::kLost, std::memory_order_release);
  }
  pair_.gone.store(true, std::memory_order_seq_cst);
  OH_FAULT_POINT("link.ends");
  // A link that ends well is disconnected behind its goodbye.
  bool ended_well = state_.load(std::memory_order_relaxed) == State::kClosed && sender_.idle() &&
                    receiver_.idle();
  if (pair_.ucx) pair_.ucx->forbid_all();
  if (pair_.ucx && !ended_well) pair_.ucx->disconnect();
  stream_->abort();
  const Deadline engines = Deadline::after(kCopyTime);
  while (!transfers_.fail_all(status, dead) || !receiver_.landings().fail_all(status) ||
         !crossings_.stop_all(status, engines) || one_sided_.copying()) {
    let_others_work();
  }
  OH_FAULT_POINT("link.offers_withdrawn");
  // Only now: the other side takes it as our word that we touch its memory no more.
  if (pair_.segment) pair_.segment->advance(SideState::kFailed);
  pair_.wake_them = pair_.wake_me = true;
  sender_.fail_all(status);
  receiver_.fail_all(status);
  crossings_.end_receives(status, /*whole=*/false);
  one_sided_.fail_all(status);
  batches_.fail_all(status);
  pair_.outbox.clear();
  update_busy();
}

// While the end of the link waits for copies of ours.
void Peer::let_others_work() {
  (void)move_devices_on();  // asks what became of the device
  pair_.without_lock(sched_yield);
}

// What was said behind operations that have ended, and what the channel has, still leaves.
void Peer::say_last(Deadline until) {
  auto there = [this] { return connection_->is_open(); };
  if (pair_.outbox.flush()) (void)one_sided_.push_last();
  bool any = pair_.ucx != nullptr;
  while (any && pair_.outbox.flush() && pair_.ucx->flush(until, there)) {
    any = sender_.take_back_lent();
    any = one_sided_.push_last() || any;  // what has left gives room
  }
}

void Peer::close(Deadline until) {
  {
    PairGuard guard(pair_);
    if (state_.load(std::memory_order_relaxed) == State::kClosed) return;
    Status status = error(OH_ERR_CANCELLED, "the link to %s was closed", pair_.name.c_str());
    bool was_open = state_.exchange(State::kClosed, std::memory_order_acq_rel) == State::kOpen;
    if (was_open) {
      say_last(until);
      fail_everything(status, /*dead=*/false);
    }
    const Deadline engines = Deadline::after(kCopyTime);
    while (!receiver_.landings().fail_all(status) || crossings_.at_work(engines)) {
      let_others_work();
    }
    crossings_.end_receives(status, /*whole=*/true);
  }
  OH_LOG(kDebug, "link to %s: closed from here", pair_.name.c_str());
  stream_->close();
  if (connection_) {
    Bytes bye;
    Writer writer(bye);
    writer.text("closed");
    if (pair_.ucx) writer.u64(pair_.ucx->sent());
    connection_->close(bye, until);
    if (pair_.ucx) pair_.ucx->disconnect();
  }
  if (!wait_until_outside(Deadline::after(kLeaveTime))) {
    OH_LOG(kWarn,
           "%s is still inside a one-sided operation (stopped?): deregister the regions it knows "
           "before their memory is given away",
           pair_.name.c_str());
  }
  // Holders of this peer use none of the other side's memory any more; what a copy that has not
  // ended needs is held by its transfer.
  Imports imports;
  PairGuard guard(pair_);
  crossings_.close();
  std::swap(imports, pair_.imports);
  transfers_.leave_rest();
}

}  // namespace oh
