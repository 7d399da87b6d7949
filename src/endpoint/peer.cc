// SPDX-License-Identifier: Apache-2.0
//
// Progress of a peer; peer_operations.cc posts, peer_control.cc talks on the socket, peer_end.cc
// ends it.
#include "endpoint/peer.h"

#include "base/fault.h"
#include "base/log.h"

namespace oh {
namespace {
constexpr size_t kLooksAtOnce = 64;
constexpr size_t kFramesBehindFocus = 16;
constexpr size_t kMaxAnswers = 1 << 20;
}  // namespace

Peer::Peer(const std::shared_ptr<PeerOwner>& owner, LinkParts parts)
    : owner_(*owner),
      living_owner_(owner),
      heap_(SharedHeap::instance()),
      identity_(std::move(parts.identity)),
      why_no_segment_(std::move(parts.why_no_segment)),
      why_no_ucx_(std::move(parts.why_no_ucx)),
      why_no_mover_(std::move(parts.why_no_mover)),
      their_board_(std::move(parts.their_board)),
      connection_(std::move(parts.connection)),
      transfers_(pair_),
      crossings_(pair_),
      sender_(pair_, transfers_, crossings_),
      receiver_(pair_, transfers_, crossings_),
      streams_(sender_, receiver_),
      one_sided_(pair_, *owner, owner->regions()),
      batches_(pair_, sender_, one_sided_, owner->regions()) {
  pair_.host = this;
  pair_.peer = this;
  static std::atomic<uint64_t> last_id{0};
  pair_.id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  pair_.rank = identity_.rank;
  pair_.name = identity_.rank >= 0 ? strf("rank %lld (%s)", static_cast<long long>(identity_.rank),
                                          identity_.label.c_str())
                                   : identity_.label;
  nvml_library_ = std::move(parts.nvml_library);
  if (parts.gpu) our_gpu_ = cuda::uuid_text(parts.gpu->facts().uuid);
  pair_.gpu = parts.gpu;
  pair_.their_gpu = !identity_.gpu.empty();
  pair_.same_gpu = parts.gpu && our_gpu_ == identity_.gpu;
  pair_.staging = std::move(parts.staging);
  pair_.staging_depth = parts.staging_depth;
  pair_.segment = std::move(parts.segment);
  pair_.mover = std::move(parts.mover);
  pair_.they_reach_us = parts.they_reach_us;
  pair_.mine = parts.mine;
  pair_.theirs = parts.theirs;
  pair_.imports.set_limit(parts.import_cache);
  pair_.any_source = &owner->any_source();
  pair_.my_bell = &owner->doorbell();
  if (their_board_) pair_.their_bell = &their_board_->doorbell();
  if (pair_.segment) {
    auto ring = std::make_unique<RingChannel>(*pair_.segment);
    pair_.ring = ring.get();
    pair_.channel = std::move(ring);
    pair_.path = connection_ ? OH_PATH_SHM : OH_PATH_LOCAL;
    pair_.stream_when_attended = connection_ != nullptr;
    transfers_.start(&receiver_);
    open_device(parts);
    pair_.maps_devices = parts.why_no_mapping.empty();
    // Within the process nothing is mapped.
    if (!pair_.maps_devices && connection_) why_no_peer_access_ = parts.why_no_mapping;
  } else {
    std::unique_ptr<CountedCredit> counted = std::move(parts.ucx);
    pair_.ucx = static_cast<UcxChannel*>(counted.get());
    pair_.path = pair_.ucx ? OH_PATH_UCX : OH_PATH_SOCKET;
    if (pair_.ucx) {
      pair_.mine.eager_max = pair_.mine.ucx_eager_max;
      pair_.mine.eager_credit = pair_.mine.ucx_eager_credit;
      pair_.theirs.eager_credit = pair_.theirs.ucx_eager_credit;
    }
    if (!counted) {
      counted = std::make_unique<SocketChannel>(*connection_, parts.mine.eager_credit);
    }
    pair_.counted = counted.get();
    pair_.channel = std::move(counted);
  }
  pair_.granted_inline = std::min<uint64_t>(parts.asked_inline, pair_.channel->max_inline());
  pair_.single_frame = pair_.ring  ? RingChannel::kMaxShort
                       : pair_.ucx ? pair_.granted_inline
                                   : pair_.channel->max_payload();
  pair_.outbox.attach(pair_.channel.get());
  one_sided_.open(transfers_, streams_, parts.rma_use);
  rma_ = static_cast<RmaPath*>(one_sided_.path(PathName::kRma));
  one_sided_.open(facts(), their_board_);
  open_stream(parts);
}

Peer::~Peer() {
  close();
  // The endpoint may have closed unused imports before: on the watcher's thread we may be last.
  // Lanes hold the other side's slab, and wait for their kernels before they let go of it.
  stream_.reset();
  Imports imports;
  {
    PairGuard guard(pair_);
    std::swap(imports, pair_.imports);
  }
  imports = {};
  if (pair_.device) GpuImports::instance().close_unused();
  PairGuard guard(pair_);
  drop_offers();
  if (kept_offers_.empty()) return;
  OH_LOG(kWarn, "%s may still write offers of batches here: %zu buffers are never freed",
         pair_.name.c_str(), kept_offers_.size());
  (void)new std::vector<DoubtfulOffer>(std::move(kept_offers_));
}

Status Peer::start() {
  if (!connection_) return {};
  bind_stream();
  return connection_->start(weak_from_this());
}

bool Peer::poll(Request* focus) {
  if (!pair_.has_frames() && !pair_.busy.load(std::memory_order_relaxed)) return false;
  if (!pair_.lock.try_lock()) return false;
  PairGuard guard(pair_, PairGuard::Adopt{});
  return progress_locked(focus);
}

bool Peer::spin(Request* focus) {
  if (!pair_.lock.try_lock()) return false;
  PairGuard guard(pair_, PairGuard::Adopt{});
  for (size_t i = 0; i < kLooksAtOnce && !pair_.lock.contended(); ++i) {
    if (pair_.ucx) pair_.ucx->worker().progress();
    if (!pair_.has_frames() && !pair_.busy.load(std::memory_order_relaxed)) {
      continue;
    }
    if (progress_locked(focus)) return true;
  }
  return false;
}

bool Peer::progress(Request* focus) {
  PairGuard guard(pair_);
  return progress_locked(focus);
}

void Peer::offer_early() {
  PairGuard guard(pair_);
  receiver_.offer_early();
}

void Peer::discard(uint64_t tag) {
  PairGuard guard(pair_);
  receiver_.discard(tag);
}

bool Peer::progress_locked(Request* focus) {
  if (state_.load(std::memory_order_relaxed) != State::kOpen) {
    // What had come before the link was lost still goes where it belongs, and engines may still be
    // at what they had begun.
    bool landed = move_devices_on();
    bool settled = transfers_.settle_rest();
    update_busy();
    return landed || settled;
  }
  const size_t drained = drain(focus);
  bool any = drained > 0;
  if (focus && focus->ended()) {
    // What came before the frame that ended it may have left something to do.
    if (drained > 1 || !pair_.outbox.empty()) update_busy();
    return true;
  }
  if (!pair_.outbox.empty()) any = pair_.outbox.flush() || any;
  if (!sender_.idle()) any = sender_.progress() || any;
  if (!receiver_.idle()) any = receiver_.progress() || any;
  if (!one_sided_.idle()) any = one_sided_.progress() || any;
  if (!batches_.idle()) any = batches_.progress() || any;
  any = move_devices_on() || any;
  if (pair_.ucx) any = map_for_keys() || any;
  if (pair_.segment) {
    Transfer* transfer = focus && owns(*focus) ? focus->transfer : nullptr;
    any = transfers_.poll(transfer) || any;
    if (transfers_.has_active()) any = transfers_.work(transfer) || any;
    if (Status broken = transfers_.broken(); !broken.ok()) {
      fail_everything(broken, /*dead=*/false);
      return true;
    }
    if (!any && pair_.segment->their_state() == SideState::kFailed) {
      // Everything it had sent is here by now: its state comes after its last frame.
      if (!pair_.ring->ready()) {
        fail_everything(error(OH_ERR_PEER_LOST, "%s closed the link", pair_.name.c_str()),
                        /*dead=*/true);
        return true;
      }
    }
  }
  if (!any && pair_.ucx && !pair_.has_frames()) {
    if (Status broken = pair_.ucx->broken(); !broken.ok()) {
      fail_everything(
          error(broken.code(), "lost %s: %s", pair_.name.c_str(), broken.text().c_str()),
          /*dead=*/false);
      // The other side may not have noticed.
      if (connection_) connection_->break_off();
      return true;
    }
  }
  update_busy();
  return any;
}

// What frames have to do with devices.
bool Peer::move_devices_on() {
  bool any = !receiver_.landings().empty() && receiver_.landings().progress();
  if (!crossings_.empty()) any = crossings_.progress() || any;
  return any;
}

void Peer::update_busy() {
  if (pair_.ucx && one_sided_.idle()) pair_.ucx->leave_line();
  if (state_.load(std::memory_order_relaxed) != State::kOpen) {
    bool rest = !receiver_.landings().empty() || !crossings_.empty() || transfers_.has_active();
    pair_.busy.store(rest, std::memory_order_relaxed);
    return;
  }
  bool busy = !pair_.outbox.empty() || !sender_.idle() || !one_sided_.idle() || !batches_.idle() ||
              !receiver_.idle() || !receiver_.landings().empty() ||
              (pair_.segment && transfers_.in_use());
  pair_.busy.store(busy, std::memory_order_relaxed);
}

void Peer::update_posted() {
  update_busy();
  if (pair_.segment || !pair_.busy.load(std::memory_order_relaxed)) return;
  if (pair_.ucx) return owner_.look_at_ucx_soon();
  // A socket that is full tells when there is room.
  if (!one_sided_.idle() && pair_.outbox.empty()) connection_->look_again();
}

// Handles received frames, up to a bound, or until the focus has ended. Returns how many.
size_t Peer::drain(Request* focus) {
  size_t count = 0;
  const size_t most = pair_.ucx ? kPackedFramesAtOnce : kFramesAtOnce;
  while (count < most && pair_.has_frames()) {
    ++count;
    if (pair_.ring && receiver_.take_posted()) {
      if (!focus || !focus->ended()) continue;
      // A thread that posted several receives waits for the others next: one lock for all of them.
      for (size_t i = 0; i < kFramesBehindFocus; ++i, ++count) {
        if (!pair_.has_frames() || !receiver_.take_posted()) break;
      }
      break;
    }
    Frame frame;
    Status status = pair_.ring ? pair_.ring->peek(&frame) : pair_.ucx->peek(&frame);
    if (status.ok()) status = handle(frame);
    if (!status.ok()) {
      break_off(status);
      return count;
    }
    if (pair_.ucx) {
      pair_.ucx->pop();
    } else if (pair_.ring->pop()) {
      pair_.wake_them = true;
    }
    if (focus && focus->ended()) break;
  }
  return count;
}

// The other side does not keep to the protocol.
void Peer::break_off(const Status& status) {
  OH_LOG(kError, "link to %s: %s", pair_.name.c_str(), status.text().c_str());
  fail_everything(status, /*dead=*/false);
  if (connection_) connection_->break_off();
}

Status Peer::handle(const Frame& frame) {
  OH_FAULT_POINT("peer.frame");
  if (pair_.outbox.size() > kMaxAnswers) {
    return error(OH_ERR_PROTOCOL, "it does not read: %zu answers wait for it", pair_.outbox.size());
  }
  if (frame.remote && (frame.type != FrameType::kData || frame.flags & kOneSided)) {
    return error(OH_ERR_PROTOCOL, "the payload of a frame of type %u has to be fetched",
                 static_cast<unsigned>(frame.type));
  }
  switch (frame.type) {
    case FrameType::kEager:
      return receiver_.on_eager(frame);
    case FrameType::kData:
      if (!(frame.flags & kOneSided)) return receiver_.on_data(frame);
      return one_sided_.on_frame(frame);
    case FrameType::kRts:
      return frame.flags & kOneSided ? one_sided_.on_frame(frame) : receiver_.on_rts(frame);
    case FrameType::kReady:
      receiver_.on_ready(frame);
      return {};
    case FrameType::kCts:
      sender_.on_cts(frame);
      return {};
    case FrameType::kReject:
      sender_.on_reject(frame);
      return {};
    case FrameType::kAdvert:
      return sender_.on_advert(frame);
    case FrameType::kEpoch:
      return receiver_.on_epoch(frame);
    case FrameType::kAbort:
      if (frame.flags & kOneSided) return one_sided_.on_frame(frame);
      receiver_.on_abort(frame);
      return {};
    case FrameType::kNotify:
    case FrameType::kPut:
    case FrameType::kGet:
    case FrameType::kAck:
    case FrameType::kSignal:
    case FrameType::kKeyWanted:
    case FrameType::kKey:
    case FrameType::kRetireKey:
    case FrameType::kKeyGone:
      return one_sided_.on_frame(frame);
    case FrameType::kComplaint: {
      oh_status code = frame_failure(frame);
      async_error_ = error(code,
                           "a message with tag %llu that was sent to %s failed there: %s (its "
                           "receive has room for %llu bytes)",
                           static_cast<unsigned long long>(frame.tag), pair_.name.c_str(),
                           status_text(code), static_cast<unsigned long long>(frame.length));
      return {};
    }
    case FrameType::kCredit:
      if (pair_.counted) pair_.counted->add_credit(frame.length);
      return {};
    case FrameType::kBatchEnd:
      return batches_.on_end(frame);
    case FrameType::kPad:
      return {};
    case FrameType::kNone:
      break;
  }
  return error(OH_ERR_PROTOCOL, "a frame of type %u", static_cast<unsigned>(frame.type));
}

Status Peer::usable() const {
  switch (state_.load(std::memory_order_acquire)) {
    case State::kOpen:
      return {};
    case State::kClosed:
      return error(OH_ERR_LINK, "the link to %s was closed here; %s", pair_.name.c_str(),
                   remedy().c_str());
    case State::kLost:
      break;
  }
  return why_;
}

Status Peer::check_open() {
  return state_.load(std::memory_order_relaxed) == State::kOpen ? Status() : usable();
}

}  // namespace oh
