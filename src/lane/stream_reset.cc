// SPDX-License-Identifier: Apache-2.0
//
// How a lane begins a new epoch, both sides in step.
#include "lane/stream_link.h"
#include "link/connection.h"

namespace oh {
namespace {
constexpr int64_t kStepTime = 200 * kMicrosecond;
}

using kernels::LanesStep;
using onehop::detail::next_epoch;

uint64_t StreamLink::resets(uint32_t lane) const {
  return by_proxy() ? proxy_->resets(lane) : resets_[lane].load(std::memory_order_acquire);
}

bool StreamLink::is_resetting(uint32_t lane) const {
  const bool resetting =
      by_proxy() ? proxy_->is_resetting(lane) : resetting_[lane].load(std::memory_order_acquire);
  return resetting && !aborted_.load();
}

void StreamLink::reset(uint32_t lane, uint64_t before) {
  if (by_proxy()) return proxy_->reset(lane, before);
  later(0, [this, lane, before] {
    if (reset_[lane].phase == Phase::kIdle && resets(lane) == before) begin(lane);
  });
}

void StreamLink::begin(uint32_t lane) {
  Reset& reset = reset_[lane];
  reset.phase = Phase::kStopping;
  resetting_[lane].store(true, std::memory_order_release);
  lanes_->set_resetting(lane, true);
  lanes_->abort(lane, true);
  launch(lane, reset);
  step_later(lane);
}

// What the phase waits for. A launch that fails is tried again: others may need the memory for it
// no more.
void StreamLink::launch(uint32_t lane, Reset& reset) {
  const LanesStep step = reset.phase == Phase::kStopping    ? LanesStep::kStop
                         : reset.phase == Phase::kBeginning ? LanesStep::kBegin
                                                            : LanesStep::kOpen;
  reset.launched = lanes_->launch_step(lane, step, next_epoch(reset.epoch)).ok();
}

void StreamLink::step_later(uint32_t lane) {
  const int64_t pause = reset_[lane].pause;
  later(now_ns() + (pause != 0 ? pause : kStepTime), [this, lane] { step(lane); });
}

// Whether no kernel has a half of the lane any more. Those of ours give it back in any case, and of
// one that has not begun with all of its blocks nothing is seen but its event.
bool StreamLink::is_left(uint32_t lane, Reset& reset, bool busy) {
  if (!lanes_->is_through(lane)) return false;
  return !busy || reset.holder.is_over(gpu_);
}

// A link or a device that is lost stays as it is: waits have ended, and nothing is to be taken up
// again.
void StreamLink::step(uint32_t lane) {
  Reset& reset = reset_[lane];
  if (reset.phase == Phase::kIdle || aborted_.load() || gpu_->is_lost()) return;
  reset.launched ? move_on(lane, reset) : launch(lane, reset);
  if (reset.phase != Phase::kIdle) step_later(lane);
}

void StreamLink::move_on(uint32_t lane, Reset& reset) {
  const uint8_t next = next_epoch(reset.epoch);
  uint32_t busy = 0;
  const bool answered = lanes_->answered(lane, &busy);
  switch (reset.phase) {
    case Phase::kStopping:
      if (!answered) return;
      // Kernels that wait look at the abort word now and then.
      if (!is_left(lane, reset, busy != 0)) {
        reset.pause = reset.holder.pause();
        return launch(lane, reset);
      }
      reset.pause = 0;
      reset.phase = Phase::kBeginning;
      return launch(lane, reset);
    case Phase::kBeginning:
      if (!answered) return;
      lanes_->clear_notice(lane);
      lanes_->abort(lane, false);
      reset.phase = Phase::kReady;
      return tell(lane, next);
    case Phase::kReady:
      if (!reset.ready_there) return;
      reset.phase = Phase::kOpening;
      return launch(lane, reset);
    case Phase::kOpening: {
      if (!answered) return;
      const bool again = reset.ready_early;
      reset = {};
      reset.epoch = next;
      lanes_->set_resetting(lane, false);
      resetting_[lane].store(false, std::memory_order_release);
      resets_[lane].fetch_add(1, std::memory_order_release);
      link_.my_bell->ring();
      if (!again) return;
      reset.ready_there = true;
      return begin(lane);
    }
    case Phase::kIdle:
      return;
  }
}

void StreamLink::tell(uint32_t lane, uint8_t epoch) {
  if (connection_) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(lane);
    writer.u8(epoch);
    (void)connection_->send_control(Control::kLaneReady, bytes).ok();
    return;
  }
  if (const Living partner = hold_partner(); partner.peer) partner_->heard(lane, epoch);
}

Status StreamLink::on_ready(ByteView payload) {
  Reader reader(payload);
  const uint32_t lane = reader.u32();
  const uint8_t epoch = reader.u8();
  if (!reader.at_end() || lane >= OH_LANES || epoch == 0 || !by_kernels()) {
    return error(OH_ERR_PROTOCOL, "lane %u is ready for epoch %u", lane, epoch);
  }
  heard(lane, epoch);
  return {};
}

// Of another epoch than the next it is one that we have had, or that comes after the next.
void StreamLink::heard(uint32_t lane, uint8_t epoch) {
  Reset& reset = reset_[lane];
  const uint8_t next = next_epoch(reset.epoch);
  if (epoch != next) {
    reset.ready_early = epoch == next_epoch(next);
    return;
  }
  reset.ready_there = true;
  if (reset.phase == Phase::kIdle) begin(lane);
}

}  // namespace oh
