// SPDX-License-Identifier: Apache-2.0
#include "link/liveness.h"

#include <iterator>

#include "link/link.h"
#include "link/tags.h"

namespace oh {
namespace {
// How long a healthy peer may take to answer a probe.
constexpr int64_t kAnswerTime = 20 * kMillisecond;

constexpr const char* kWaitTexts[] = {"does not wait",
                                      "waits in a send",
                                      "waits in a receive",
                                      "waits for a one-sided operation",
                                      "waits for a signal",
                                      "waits for a connection",
                                      "waits in a send of a batch",
                                      "waits in a receive of a batch"};
static_assert(std::size(kWaitTexts) == static_cast<size_t>(WaitKind::kLast) + 1);
}  // namespace

void Liveness::set_waiting(const Wait& ours) {
  my_waiting_tag_.store(ours.tag, std::memory_order_relaxed);
  my_waiting_.store(static_cast<uint32_t>(ours.kind), std::memory_order_relaxed);
  if (!link_.segment) return;
  SegmentSide& mine = link_.segment->mine();
  mine.waiting_tag.store(ours.tag, std::memory_order_relaxed);
  mine.waiting.store(static_cast<uint32_t>(ours.kind), std::memory_order_relaxed);
}

Wait Liveness::theirs() const {
  uint32_t kind = pong_waiting_.load(std::memory_order_relaxed);
  uint64_t tag = pong_tag_.load(std::memory_order_relaxed);
  if (link_.segment) {
    kind = link_.segment->theirs().waiting.load(std::memory_order_relaxed);
    tag = link_.segment->theirs().waiting_tag.load(std::memory_order_relaxed);
  }
  if (kind > static_cast<uint32_t>(WaitKind::kLast)) kind = 0;
  return {static_cast<WaitKind>(kind), tag};
}

int64_t Liveness::unresponsive_for() {
  if (!connection_ || !link_.usable().ok()) return 0;
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

std::string Liveness::text() {
  const auto [kind, tag] = theirs();
  std::string text = strf("there: %s", kWaitTexts[static_cast<size_t>(kind)]);
  if (kind != WaitKind::kNothing) {
    text += " (" + tag_text(tag) + ")";
  }
  // A probe that has just been sent proves nothing yet.
  int64_t silent = unresponsive_for();
  if (silent > kAnswerTime) {
    text += strf(", no sign of life for %.3f s (stopped?)", static_cast<double>(silent) / 1e9);
  }
  return text;
}

Status Liveness::on_ping(ByteView payload) {
  Reader reader(payload);
  const uint64_t serial = reader.u64();
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a ping of %zu bytes", payload.size());
  Bytes pong;
  Writer writer(pong);
  writer.u64(serial);
  writer.u32(my_waiting_.load(std::memory_order_relaxed));
  writer.u64(my_waiting_tag_.load(std::memory_order_relaxed));
  return connection_->send_control(Control::kPong, pong);
}

Status Liveness::on_pong(ByteView payload) {
  Reader reader(payload);
  uint64_t serial = reader.u64();
  pong_waiting_.store(reader.u32(), std::memory_order_relaxed);
  pong_tag_.store(reader.u64(), std::memory_order_relaxed);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a pong of %zu bytes", payload.size());
  probe_answered_.store(serial, std::memory_order_release);
  return {};
}

}  // namespace oh
