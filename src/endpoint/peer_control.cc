// SPDX-License-Identifier: Apache-2.0
//
// The messages of a peer on the control socket.
#include "base/log.h"
#include "base/text.h"
#include "endpoint/peer.h"

namespace oh {
namespace {
// How long a peer that is well may take to answer a probe.
constexpr int64_t kAnswerTime = 20 * kMillisecond;
// A dead process has sent nothing more when so many looks have found nothing.
constexpr int kQuietLooks = 10;
constexpr size_t kMaxText = 1024;  // of a goodbye
}  // namespace

const char* wait_kind_text(WaitKind kind) {
  switch (kind) {
    case WaitKind::kNothing:
      return "does not wait";
    case WaitKind::kSend:
      return "waits in a send";
    case WaitKind::kRecv:
      return "waits in a receive";
    case WaitKind::kOneSided:
      return "waits for a one-sided operation";
    case WaitKind::kSignal:
      return "waits for a signal";
    case WaitKind::kConnect:
      return "waits for a connection";
    case WaitKind::kSendBatch:
      return "waits in a send of a batch";
    case WaitKind::kRecvBatch:
      return "waits in a receive of a batch";
  }
  return "is in an unknown state";
}

Status Peer::on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) {
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  if (!owner) return error(OH_ERR_CLOSED, "the endpoint is closed");
  if (type != kFrameMessage) {
    return on_control(static_cast<Control>(type), payload, std::move(fds));
  }
  Frame frame;
  OH_RETURN_IF_ERROR(decode_frame(payload, &frame));
  PairGuard guard(pair_);
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return {};
  if (pair_.segment || pair_.ucx) {
    return error(OH_ERR_PROTOCOL, "a frame on the socket beside %s",
                 pair_.segment ? "a segment" : "UCX");
  }
  return handle(frame);
}

Status Peer::on_control(Control type, ByteView payload, std::vector<UniqueFd> fds) {
  Reader reader(payload);
  switch (type) {
    case Control::kPing: {
      Bytes pong;
      Writer writer(pong);
      writer.u64(reader.u64());
      writer.u32(my_waiting_.load(std::memory_order_relaxed));
      writer.u64(my_waiting_tag_.load(std::memory_order_relaxed));
      return connection_->send_control(Control::kPong, pong);
    }
    case Control::kPong:
      return on_pong(payload);
    case Control::kBye: {
      std::string why = printable(reader.text(kMaxText), kMaxText);
      if (pair_.ucx) frames_before_bye_ = reader.u64();
      return error(OH_ERR_PEER_LOST, "it said goodbye: %s", why.c_str());
    }
    case Control::kBlock:
      return on_block(payload, std::move(fds));
    case Control::kBlockRetired: {
      std::shared_ptr<ImportedBlock> retired;  // let go of without the lock
      const uint32_t number = reader.u32();
      {
        PairGuard guard(pair_);
        retired = pair_.imports.retire(number);
      }
      stream_->forget_import(number);
      retired.reset();
      GpuImports::instance().close_unused();
      return {};
    }
    case Control::kBlockWanted: {
      PairGuard guard(pair_);
      return send_block(reader.u32());
    }
    case Control::kServe:
      owner_.serve();
      return {};
    case Control::kLanes:
      return stream_->on_lanes(payload);
    case Control::kLaneReady:
      return stream_->on_ready(payload);
    case Control::kStreamWay:
      return stream_->on_way(payload);
    case Control::kExport:
    case Control::kExportMore:
      return on_export(payload, std::move(fds), type == Control::kExport);
  }
  return error(OH_ERR_PROTOCOL, "a control message of type %u", static_cast<unsigned>(type));
}

void Peer::on_idle() {
  // Where there is no segment, the watcher's thread is what moves things on.
  if (pair_.segment) return;
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  // One round does a bounded amount of work; no event may be left to bring the next one.
  if (owner && progress(nullptr)) connection_->look_again();
}

// What it sent over UCX may come behind its goodbye, or behind the news of its death. How much it
// is only the goodbye tells.
bool Peer::expects_more() {
  if (!pair_.ucx) return false;
  pair_.ucx->worker().progress();
  PairGuard guard(pair_);
  if (state_.load(std::memory_order_relaxed) != State::kOpen) return false;
  quiet_looks_ = drain(nullptr) > 0 ? 0 : quiet_looks_ + 1;
  if (!frames_before_bye_) return quiet_looks_ < kQuietLooks;
  return pair_.ucx->taken() < *frames_before_bye_ || !receiver_.idle();
}

void Peer::on_lost(const Status& status) {
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  if (owner) lose(status, /*dead=*/status.code() == OH_ERR_PEER_LOST);
}

// ---- Signs of life ----------------------------------------------------------------------------

Status Peer::on_pong(ByteView payload) {
  Reader reader(payload);
  uint64_t serial = reader.u64();
  pong_waiting_.store(reader.u32(), std::memory_order_relaxed);
  pong_tag_.store(reader.u64(), std::memory_order_relaxed);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a pong of %zu bytes", payload.size());
  probe_answered_.store(serial, std::memory_order_release);
  return {};
}

int64_t Peer::unresponsive_for() {
  if (!connection_ || !usable().ok()) return 0;
  int64_t now = now_ns();
  // acquire: pairs with on_pong().
  uint64_t answered = probe_answered_.load(std::memory_order_acquire);
  if (answered != probe_serial_.load(std::memory_order_relaxed)) {
    return now - probe_sent_.load(std::memory_order_relaxed);
  }
  probe_sent_.store(now, std::memory_order_relaxed);
  Bytes ping;
  Writer writer(ping);
  writer.u64(probe_serial_.fetch_add(1, std::memory_order_relaxed) + 1);
  (void)connection_->send_control(Control::kPing, ping).ok();
  return 0;
}

void Peer::set_waiting(WaitKind kind, uint64_t tag) {
  my_waiting_tag_.store(tag, std::memory_order_relaxed);
  my_waiting_.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
  if (!pair_.segment) return;
  SegmentSide& mine = pair_.segment->mine();
  mine.waiting_tag.store(tag, std::memory_order_relaxed);
  mine.waiting.store(static_cast<uint32_t>(kind), std::memory_order_relaxed);
}

// What their side says that it waits for.
Peer::Wait Peer::their_wait() const {
  uint32_t kind = pong_waiting_.load(std::memory_order_relaxed);
  uint64_t tag = pong_tag_.load(std::memory_order_relaxed);
  if (pair_.segment) {
    kind = pair_.segment->theirs().waiting.load(std::memory_order_relaxed);
    tag = pair_.segment->theirs().waiting_tag.load(std::memory_order_relaxed);
  }
  if (kind > static_cast<uint32_t>(WaitKind::kLast)) kind = 0;
  return {static_cast<WaitKind>(kind), tag};
}

std::string Peer::mismatch(const Wait& wait) {
  struct Never {
    WaitKind ours, theirs;
    const char* text;
  };
  static constexpr Never kNever[] = {
      {WaitKind::kSend, WaitKind::kRecvBatch,
       "The other side receives a batch with this tag, which takes no message: use send_batch "
       "here, or recv there"},
      {WaitKind::kSendBatch, WaitKind::kRecv,
       "The other side receives a message with this tag, which takes no batch: use send here, or "
       "recv_batch there"},
      {WaitKind::kRecv, WaitKind::kSendBatch,
       "The other side sends a batch with this tag, which no recv takes: use recv_batch here, or "
       "send there"},
      {WaitKind::kRecvBatch, WaitKind::kSend,
       "The other side sends a message with this tag, which no recv_batch takes: use recv here, "
       "or send_batch there"},
  };
  const Wait theirs = their_wait();
  const bool met = theirs.tag == wait.tag || wait.tag == OH_ANY_TAG || theirs.tag == OH_ANY_TAG;
  for (const Never& never : kNever) {
    if (wait.kind != never.ours) continue;
    if (theirs.kind == never.theirs && met) return never.text;
    if (has_come(never.theirs, wait.tag)) return never.text;
  }
  return {};
}

// Whether what such a call of theirs begins with is here, and waits.
bool Peer::has_come(WaitKind kind, uint64_t tag) {
  if (tag == OH_ANY_TAG) return false;
  PairGuard guard(pair_);
  if (kind == WaitKind::kSend) return receiver_.probe(tag).has_value();
  if (kind != WaitKind::kRecvBatch) return false;
  return receiver_.probe(MessageBatches::offer_tag(tag)).has_value();
}

std::string Peer::describe(const Request* request) {
  static constexpr const char* kPhases[] = {"not begun",
                                            "queued for room",
                                            "posted, unmatched",
                                            "offered, not matched",
                                            "being copied",
                                            "partly transferred",
                                            "ended"};
  std::string text;
  {
    PairGuard guard(pair_);
    text = strf("here: %s, %zu receives posted, %zu early messages, %u sends pending",
                request && owns(*request) ? kPhases[static_cast<int>(request->phase)] : "waiting",
                receiver_.posted(), receiver_.early(), pair_.pending_sends);
  }
  auto [kind, tag, unused] = their_wait();
  text += strf("; there: %s", wait_kind_text(kind));
  if (kind != WaitKind::kNothing) {
    text += tag == OH_ANY_TAG ? " (any tag)"
                              : strf(" (tag %llu)", static_cast<unsigned long long>(tag));
  }
  // A probe that has just been sent says nothing yet.
  int64_t silent = unresponsive_for();
  if (silent > kAnswerTime) {
    text += strf(", no sign of life for %.3f s (stopped?)", static_cast<double>(silent) / 1e9);
  }
  return text;
}

}  // namespace oh
