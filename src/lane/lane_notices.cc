// SPDX-License-Identifier: Apache-2.0
#include "lane/lane_notices.h"

#include <utility>

#include "onehop/detail/host_atomics.h"

namespace oh {

using onehop::detail::HostAtomics;

namespace {

constexpr const char* kSides[] = {"send", "receive"};
constexpr uint32_t kSignalNotice = OH_LANES;  // the notice of signals, which belong to no lane

std::string text_of(uint64_t fault, uint64_t bytes, uint64_t capacity) {
  auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
  switch (fault) {
    case OH_LANE_TRUNCATED:
      return strf("a message of %llu bytes met a receive of %llu", number(bytes), number(capacity));
    case OH_LANE_RANGE:
      return strf("a size of %llu bytes was read, but at most %llu are there: so many were sent",
                  number(bytes), number(capacity));
    case OH_LANE_TIMEOUT:
      return "the deadline passed before the other side came";
    case OH_LANE_ABORTED:
      return "it was ended or refused, for the link is lost or the lane is being reset";
    case OH_LANE_OVERLAP:
      return "two operations were at it at once: order the streams or graphs that share a lane";
    case OH_LANE_PROTOCOL:
      return "the peer sent what no sender writes: another version of onehop, or memory that was "
             "overwritten";
    default:
      return "it had failed before";
  }
}

oh_status status_of(uint64_t fault) {
  switch (fault) {
    case OH_LANE_TRUNCATED:
      return OH_ERR_TRUNCATED;
    case OH_LANE_RANGE:
      return OH_ERR_RANGE;
    case OH_LANE_TIMEOUT:
      return OH_ERR_TIMEOUT;
    case OH_LANE_ABORTED:
      return OH_ERR_CANCELLED;
    case OH_LANE_PROTOCOL:
      return OH_ERR_PROTOCOL;
    default:
      return OH_ERR_INVALID;
  }
}

}  // namespace

void LaneNotices::abort() {
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) abort(lane, true);
  abort(kSignalNotice, true);
}

// Relaxed: the word publishes no other data. Kernels poll it in Patience.
void LaneNotices::abort(uint32_t lane, bool set) {
  HostAtomics::store_relaxed(&notice(lane).abort.word, set ? 1 : 0);
}

void LaneNotices::set_resetting(uint32_t lane, bool resetting) {
  HostAtomics::store_relaxed(&notice(lane).abort.resetting, resetting ? 1 : 0);
}

Status LaneNotices::failure(uint32_t lane, LaneSide side) const {
  const auto& place = notice(lane).failed[static_cast<uint32_t>(side)];
  // acquire: the other fields are visible; pairs with Half::fail().
  const uint64_t fault = HostAtomics::load_acquire(&place.fault);
  if (fault == OH_LANE_OK) return {};
  return error(status_of(fault), "the %s side of lane %u has failed: %s; oh_peer_reset_lane",
               kSides[static_cast<uint32_t>(side)], lane,
               text_of(fault, place.bytes, place.capacity).c_str());
}

Status LaneNotices::take_error(const std::string& peer) {
  Status found = take_unreported();
  for (uint32_t lane = 0; lane < OH_LANES && found.ok(); ++lane) {
    for (uint32_t side = 0; side < 2 && found.ok(); ++side) {
      found = take_failure(lane, side);
      if (found.ok()) found = take_warning(lane, side);
    }
  }
  if (found.ok()) found = take_signal_warning();
  if (found.ok()) return {};
  return error(found.code(), "with %s: %s", peer.c_str(), found.text().c_str());
}

Status LaneNotices::take_unreported() {
  MutexLock lock(mutex_);
  return std::exchange(unreported_, Status());
}

Status LaneNotices::take_failure(uint32_t lane, uint32_t side) {
  MutexLock lock(mutex_);
  Status failed = failure(lane, static_cast<LaneSide>(side));
  if (failed.ok() || std::exchange(reported_[lane][side], true)) return {};
  return failed;
}

Status LaneNotices::take_warning(uint32_t lane, uint32_t side) {
  auto& place = notice(lane).warned[side];
  const uint64_t fault = HostAtomics::load_acquire(&place.fault);
  if (fault == OH_LANE_OK) return {};
  const std::string text = text_of(fault, place.bytes, place.capacity);
  HostAtomics::store_relaxed(&place.fault, OH_LANE_OK);
  return error(status_of(fault), "on the %s side of lane %u: %s", kSides[side], lane, text.c_str());
}

Status LaneNotices::take_signal_warning() {
  auto& place = notice(kSignalNotice).warned[1];
  const uint64_t fault = HostAtomics::load_acquire(&place.fault);
  if (fault == OH_LANE_OK) return {};
  const auto count = static_cast<unsigned long long>(place.capacity);
  const auto slot = static_cast<unsigned long long>(place.bytes);
  HostAtomics::store_relaxed(&place.fault, OH_LANE_OK);
  return error(status_of(fault), "%llu signals on slot %llu: %s", count, slot,
               text_of(fault, 0, 0).c_str());
}

// Relaxed: the counters are independent.
void LaneNotices::count_large(Stats* stats) const {
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
    stats->stream_put += HostAtomics::load_relaxed(&notice(lane).large.put);
    stats->stream_staged += HostAtomics::load_relaxed(&notice(lane).large.staged);
  }
}

void LaneNotices::clear(uint32_t lane) {
  MutexLock lock(mutex_);
  for (uint32_t side = 0; side < 2; ++side) {
    Status failed = failure(lane, static_cast<LaneSide>(side));
    if (!failed.ok() && !reported_[lane][side] && unreported_.ok()) unreported_ = std::move(failed);
    HostAtomics::store_relaxed(&notice(lane).failed[side].fault, OH_LANE_OK);
    reported_[lane][side] = false;
  }
}

}  // namespace oh
