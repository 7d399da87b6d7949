// SPDX-License-Identifier: Apache-2.0
#include "endpoint/operations.h"

#include "base/fault.h"
#include "base/log.h"
#include "endpoint/endpoint.h"

namespace oh {
namespace {
constexpr size_t kLooksAtOnce = 64;
constexpr size_t kFramesBehindFocus = 16;
// How long the end of a link waits for local staging copies. They end by themselves: the
// application's earlier work was done before they were enqueued.
constexpr int64_t kCopyTime = kSecond;
// After this many empty polls in a row, nothing more is expected from a dead process.
constexpr int kQuietLooks = 10;
}  // namespace

Operations::Operations(Peer& peer, Endpoint& endpoint, Connection* connection,
                       const Id& peer_endpoint)
    : peer_(peer),
      endpoint_(endpoint),
      peer_endpoint_(peer_endpoint),
      link_(*this, endpoint.requests().completions(), connection),
      transfers_(link_),
      pipeline_(link_),
      bounce_copies_(link_),
      matcher_(link_, transfers_),
      short_receives_(link_, matcher_),
      sender_(link_, transfers_, pipeline_),
      receiver_(link_, {transfers_, pipeline_, bounce_copies_, matcher_}),
      messages_(link_, {transfers_, matcher_, short_receives_, sender_, receiver_}),
      streams_(sender_, receiver_),
      one_sided_(link_, endpoint.notifications().arrived(), endpoint.memory().regions()),
      calls_(link_, one_sided_, endpoint.memory().regions()),
      atomics_(link_, endpoint.memory().regions(), one_sided_.copies()),
      batches_(link_, sender_, one_sided_, calls_, endpoint.memory().regions()),
      batch_link_(link_, transfers_, sender_, receiver_, batches_),
      router_(link_, sender_, receiver_, matcher_, one_sided_, atomics_, batches_) {
  link_.peer = &peer;
  link_.selection = &selection_;
}

Operations::~Operations() { batch_link_.close(); }

void Operations::open_paths(RmaUse rma_use) {
  if (link_.segment) transfers_.start(&matcher_);
  one_sided_.open(transfers_, streams_, rma_use);
  calls_.open();
}

void Operations::open(const LinkFacts& facts, std::shared_ptr<ControlPage> page) {
  selection_ = MessageSelection(facts);
  one_sided_.open(facts, page);
  batch_link_.open(std::move(page));
}

void Operations::serve() { endpoint_.progress_thread().serve(); }

std::shared_ptr<Endpoint> Operations::endpoint_there() const {
  return std::static_pointer_cast<Endpoint>(endpoint_.node()->find_acceptor(peer_endpoint_));
}

void Operations::serve_there() {
  if (auto there = endpoint_there()) there->progress_thread().serve();
}

bool Operations::progress_there() {
  if (!link_.within_process()) return false;
  auto there = endpoint_there();
  return there && there->progress();
}

bool Operations::poll(Request* focus) {
  if (!link_.has_frames() && !link_.busy.load(std::memory_order_relaxed)) return false;
  bool any = false;
  {
    if (!link_.lock.try_lock()) return false;
    LinkGuard guard(link_, LinkGuard::Adopt{});
    any = progress_locked(focus);
  }
  return copy_slice(focus) || any;
}

bool Operations::spin(Request* focus) { return spin_locked(focus) || copy_slice(focus); }

bool Operations::spin_locked(Request* focus) {
  if (!link_.lock.try_lock()) return false;
  LinkGuard guard(link_, LinkGuard::Adopt{});
  for (size_t i = 0; i < kLooksAtOnce && !link_.lock.contended(); ++i) {
    if (link_.ucx) link_.ucx->worker().progress();
    if (!link_.has_frames() && !link_.busy.load(std::memory_order_relaxed)) {
      continue;
    }
    if (progress_locked(focus)) return true;
    if (one_sided_.has_slice()) break;
  }
  return false;
}

bool Operations::progress(Request* focus) {
  bool any = false;
  {
    LinkGuard guard(link_);
    any = progress_locked(focus);
  }
  // After the lock: this sees a slice that another thread left before.
  return copy_slice(focus) || any;
}

// A thread whose request has ended leaves the copies to other threads.
bool Operations::copy_slice(const Request* focus) {
  return !(focus && focus->ended()) && one_sided_.copy_slice();
}

bool Operations::progress_locked(Request* focus) {
  if (!link_.is_open()) {
    // Messages that arrived before the link was lost are still delivered, and copy engines may
    // still be running.
    bool moved = move_devices_on();
    bool settled = transfers_.settle_rest();
    update_busy();
    return moved || settled;
  }
  const size_t drained = drain(focus);
  bool any = drained > 0;
  if (focus && focus->ended()) {
    // Frames handled before the one that ended the focus may have left work.
    if (drained > 1 || !link_.outbox.empty()) update_busy();
    return true;
  }
  if (!link_.outbox.empty()) any = link_.outbox.flush() || any;
  if (!sender_.idle()) any = sender_.progress() || any;
  if (!receiver_.idle()) any = receiver_.progress() || any;
  if (!one_sided_.idle()) any = one_sided_.progress() || any;
  if (!batches_.idle()) any = batches_.progress() || any;
  any = move_devices_on() || any;
  if (link_.ucx) any = calls_.map_for_keys() || any;
  if (link_.segment) {
    Transfer* transfer = focus && owns(*focus) ? focus->transfer : nullptr;
    any = transfers_.poll(transfer) || any;
    if (transfers_.has_active()) any = transfers_.work(transfer) || any;
    if (Status broken = transfers_.broken(); !broken.ok()) {
      fail_everything(broken, /*dead=*/false);
      return true;
    }
    if (!any && link_.segment->their_state() == SideState::kFailed) {
      // The peer sets this state after its last frame, so all its frames have arrived.
      if (!link_.ring->ready()) {
        link_.said_goodbye.store(true, std::memory_order_relaxed);
        fail_everything(error(OH_ERR_PEER_LOST, "%s closed the link", link_.name.c_str()),
                        /*dead=*/true);
        return true;
      }
    }
  }
  if (!any && link_.ucx && !link_.has_frames()) {
    if (Status broken = link_.ucx->broken(); !broken.ok()) {
      fail_everything(
          error(broken.code(), "lost %s: %s", link_.name.c_str(), broken.text().c_str()),
          /*dead=*/false);
      // The peer may not have noticed the failure.
      link_.hang_up();
      return true;
    }
  }
  update_busy();
  return any;
}

// Advances the bounce copies and the staging pipeline.
bool Operations::move_devices_on() {
  bool any = !bounce_copies_.empty() && bounce_copies_.progress();
  if (!pipeline_.empty()) any = pipeline_.progress() || any;
  return any;
}

void Operations::update_busy() {
  if (link_.ucx && one_sided_.idle()) link_.ucx->packer().leave_line();
  if (!link_.is_open()) {
    bool rest = !bounce_copies_.empty() || !pipeline_.empty() || transfers_.has_active();
    link_.busy.store(rest, std::memory_order_relaxed);
    return;
  }
  bool busy = !link_.outbox.empty() || !sender_.idle() || !one_sided_.idle() || !batches_.idle() ||
              !receiver_.idle() || !bounce_copies_.empty() ||
              (link_.segment && transfers_.in_use());
  link_.busy.store(busy, std::memory_order_relaxed);
}

void Operations::update_posted() {
  update_busy();
  // A closed link may outlive its endpoint.
  if (link_.segment || !link_.busy.load(std::memory_order_relaxed) || !link_.is_open()) return;
  if (link_.ucx) return endpoint_.ucx().schedule_progress();
  // A full socket needs no wake-up: the watcher is notified when it becomes writable.
  if (!one_sided_.idle() && link_.outbox.empty()) link_.wake_watcher();
}

// Handles received frames, up to a limit or until the focus has ended. Returns their number.
size_t Operations::drain(Request* focus) {
  size_t count = 0;
  const size_t most = link_.ucx ? kPackedFramesAtOnce : kFramesAtOnce;
  while (count < most && link_.has_frames()) {
    ++count;
    if (link_.short_ring && short_receives_.take_posted()) {
      if (!focus || !focus->ended()) continue;
      // A thread that posted several receives waits for the others next: handle them under the same
      // lock.
      for (size_t i = 0; i < kFramesBehindFocus; ++i, ++count) {
        if (!link_.has_frames() || !short_receives_.take_posted()) break;
      }
      break;
    }
    Frame frame;
    Status status = link_.ring ? link_.ring->peek(&frame) : link_.ucx->peek(&frame);
    if (status.ok()) status = router_.on_frame(frame);
    if (!status.ok()) {
      break_off(status);
      return count;
    }
    if (link_.ucx) {
      link_.ucx->pop();
    } else if (link_.ring->pop()) {
      link_.wake_them = true;
    }
    if (focus && focus->ended()) break;
  }
  return count;
}

bool Operations::try_end(Request* request, const Status& status, Force force) {
  LinkGuard guard(link_);
  if (request->ended()) return true;
  if (!owns(*request)) return false;
  bool ended = false;
  switch (request->kind) {
    case OpKind::kSend:
      ended = sender_.cancel(request, status, force == Force::kGiveUp);
      break;
    case OpKind::kRecv:
      ended = receiver_.cancel(request, status, force == Force::kGiveUp);
      // The awaited data has already arrived over UCX. The lock is held, so no other thread can
      // delay it.
      if (!ended && force == Force::kGiveUp && link_.ucx) {
        progress_locked(request);
        if (request->ended()) return true;
      }
      break;
    case OpKind::kRecvBatch:
      ended = batches_.cancel(request, status, force == Force::kGiveUp);
      break;
    default:
      if (force == Force::kCancel && one_sided_.has_begun(*request)) break;
      ended = one_sided_.cancel(request, status, force == Force::kGiveUp);
      break;
  }
  if (!ended && force != Force::kCancel && request->transfer && request->phase == Phase::kDirect) {
    ended = transfers_.end(request->transfer, status, force == Force::kGiveUp);
  }
  if (ended && !request->status.ok()) {
    force == Force::kCancel ? ++link_.stats.cancelled : ++link_.stats.timeouts;
  }
  update_busy();
  return ended;
}

void Operations::attend(Request* request, bool attended) {
  LinkGuard guard(link_);
  if (!request->ended() && owns(*request)) transfers_.attend(request, attended);
}

bool Operations::is_enqueued(const Request& request) {
  LinkGuard guard(link_);
  return !request.ended() && owns(request) && request.transfer &&
         transfers_.is_enqueued(*request.transfer);
}

Result<bool> Operations::enqueue_wait(Request& request, cuda::Stream stream) {
  LinkGuard guard(link_);
  if (request.ended() || !owns(request) || !request.transfer) return false;
  Transfer& transfer = *request.transfer;
  if (!transfers_.is_enqueued(transfer)) return false;
  OH_RETURN_IF_ERROR(transfers_.enqueue_wait(transfer, stream));
  return true;
}

bool Operations::detach(Request* request) {
  LinkGuard guard(link_);
  if (request->ended()) {
    endpoint_.requests().recycle(request);
  } else if (owns(*request)) {
    request->detached.store(1, std::memory_order_relaxed);
  } else {
    return false;
  }
  return true;
}

bool Operations::buffer_released(const Request* request) {
  if (!request->ended()) return false;
  if (request->doubts.empty() && !request->doubt_region) return true;
  LinkGuard guard(link_);
  if (request->doubt_region && !batches_.released(*request)) return false;
  return transfers_.released(request->doubts);
}

void Operations::lose(const Status& status, bool dead) {
  {
    LinkGuard guard(link_);
    if (!link_.is_open()) return;
    // Frames that the peer sent before it died still count: at most one full ring.
    if (link_.ucx) link_.ucx->worker().progress();
    for (size_t round = 0; round <= kCells / kFramesAtOnce; ++round) {
      if (!link_.is_open() || drain(nullptr) == 0) break;
    }
    if (!link_.is_open()) return;
    bool link_text = status.code() == OH_ERR_PEER_LOST;
    fail_everything(error(link_text ? OH_ERR_PEER_LOST : status.code(), "lost %s: %s",
                          link_.name.c_str(), status.text().c_str()),
                    dead);
  }
  OH_LOG(kDebug, "link to %s: lost: %s", link_.name.c_str(), status.text().c_str());
}

// Ends every request. Requires the lock, and releases it temporarily while local threads finish a
// copy.
void Operations::fail_everything(const Status& why, bool dead) {
  const Status status = status_scope(why.code()) == OH_SCOPE_LINK
                            ? Status(why.code(), why.text() + "; " + link_.remedy())
                            : why;
  ending_ = true;
  link_.set_lost(status);
  link_.gone.store(true, std::memory_order_seq_cst);
  OH_FAULT_POINT("link.ends");
  // After an orderly close, Peer::close() disconnects once the Bye is sent.
  bool ended_well = link_.state() == Link::State::kClosed && sender_.idle() && receiver_.idle();
  if (link_.ucx) link_.ucx->targets().revoke_all();
  if (link_.ucx && !ended_well) link_.ucx->disconnect();
  stream_->abort();
  const Deadline engines = Deadline::after(kCopyTime);
  // Bounce copies go on: their messages have arrived and need only the local device.
  while (!transfers_.fail_all(status, dead) || !pipeline_.stop_all(status, engines) ||
         one_sided_.copying()) {
    let_others_work();
  }
  OH_FAULT_POINT("link.offers_withdrawn");
  // Not earlier: to the peer this state means that we no longer access its memory.
  if (link_.segment) link_.segment->advance(SideState::kFailed);
  link_.wake_them = link_.wake_me = true;
  sender_.fail_all(status);
  receiver_.fail_all(status);
  pipeline_.end_receives(status, /*whole=*/false);
  one_sided_.fail_all(status);
  batches_.fail_all(status);
  link_.outbox.clear();
  update_busy();
  ending_ = false;
}

// Called while the end of the link waits for local copies.
void Operations::let_others_work() {
  (void)move_devices_on();  // also detects a failed device
  link_.without_lock([] {
    OH_FAULT_POINT("link.awaits_copies");
    return sched_yield();
  });
}

// Sends the control frames queued behind ended operations, and flushes the channel.
void Operations::flush(Deadline until) {
  auto there = [this] { return link_.still_there().ok(); };
  if (link_.outbox.flush()) (void)one_sided_.push_last();
  bool any = link_.ucx != nullptr;
  while (any && link_.outbox.flush() && link_.ucx->flush(until, there)) {
    any = sender_.end_zero_copies();
    any = one_sided_.push_last() || any;  // completed sends free room for more
  }
}

void Operations::break_off(const Status& status) {
  OH_LOG(kError, "link to %s: %s", link_.name.c_str(), status.text().c_str());
  fail_everything(status, /*dead=*/false);
  link_.hang_up();
}

void Operations::accuse(const Status& status) {
  LinkGuard guard(link_);
  if (link_.is_open()) break_off(status);
}

bool Operations::close(Deadline until) {
  LinkGuard guard(link_);
  while (ending_) link_.without_lock(sched_yield);
  if (link_.state() == Link::State::kClosed) return false;
  Status status = error(OH_ERR_CANCELLED, "the link to %s was closed", link_.name.c_str());
  bool was_open = link_.set_closed() == Link::State::kOpen;
  if (was_open) {
    flush(until);
    fail_everything(status, /*dead=*/false);
  }
  const Deadline engines = Deadline::after(kCopyTime);
  while (!bounce_copies_.fail_all(status) || pipeline_.at_work(engines)) {
    let_others_work();
  }
  pipeline_.end_receives(status, /*whole=*/true);
  return true;
}

bool Operations::has_nothing_left() {
  LinkGuard guard(link_);
  return !link_.is_open() && !ending_ && receiver_.unexpected() == 0 && receiver_.idle() &&
         bounce_copies_.empty() && pipeline_.empty() && !transfers_.has_active();
}

bool Operations::left_to_engines() {
  LinkGuard guard(link_);
  return transfers_.left_to_engines();
}

void Operations::let_go() {
  LinkGuard guard(link_);
  pipeline_.close();
  transfers_.leave_rest();
}

bool Operations::expects_more(std::optional<uint64_t> sent) {
  // After close() the process may exit, beside which UCX must not be called.
  if (!link_.ucx || !link_.is_open()) return false;
  link_.ucx->worker().progress();
  LinkGuard guard(link_);
  if (!link_.is_open()) return false;
  quiet_looks_ = drain(nullptr) > 0 ? 0 : quiet_looks_ + 1;
  if (!sent) return quiet_looks_ < kQuietLooks;
  return link_.ucx->taken() < *sent || !receiver_.idle();
}

Status Operations::on_frame_message(ByteView payload) {
  Frame frame;
  OH_RETURN_IF_ERROR(decode_frame(payload, &frame));
  LinkGuard guard(link_);
  if (!link_.is_open()) return {};
  if (link_.segment || link_.ucx) {
    return error(OH_ERR_PROTOCOL, "%s sent a frame over the socket, though the link has %s",
                 link_.name.c_str(), link_.segment ? "a segment" : "UCX");
  }
  return router_.on_frame(frame);
}

std::string Operations::flight_record() {
  LinkGuard guard(link_);
  return link_.flight.text(now_ns());
}

Status Operations::take_async_error() {
  LinkGuard guard(link_);
  return router_.take_error();
}

std::string Operations::describe(const Request* request) {
  LinkGuard guard(link_);
  return strf("here: %s, %zu receives posted, %zu unexpected messages, %u sends pending",
              request && owns(*request) ? phase_text(request->phase) : "waiting", matcher_.posted(),
              receiver_.unexpected(), link_.pending_sends);
}

}  // namespace oh
