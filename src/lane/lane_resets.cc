// SPDX-License-Identifier: Apache-2.0
#include "lane/lane_resets.h"

#include <utility>

#include "base/clock.h"
#include "link/connection.h"

namespace oh {
namespace {
constexpr int64_t kStepTime = 200 * kMicrosecond;
}

using kernels::LanesStep;
using onehop::detail::next_epoch;

void LaneResets::open(Lanes& lanes, std::shared_ptr<cuda::Gpu> gpu) {
  lanes_ = &lanes;
  gpu_ = std::move(gpu);
}

void LaneResets::reset(uint32_t lane, uint64_t before) {
  owners_.later(0, [this, lane, before] {
    if (reset_[lane].phase == Phase::kIdle && count(lane) == before) begin(lane);
  });
}

void LaneResets::begin(uint32_t lane) {
  Reset& reset = reset_[lane];
  reset.phase = Phase::kStopping;
  resetting_[lane].store(true, std::memory_order_release);
  lanes_->notices().set_resetting(lane, true);
  lanes_->notices().abort(lane, true);
  launch(lane, reset);
  step_later(lane);
}

// Launches the step of the phase. step() retries a failed launch, which may have failed for lack of
// memory.
void LaneResets::launch(uint32_t lane, Reset& reset) {
  const LanesStep step = reset.phase == Phase::kStopping    ? LanesStep::kStop
                         : reset.phase == Phase::kBeginning ? LanesStep::kBegin
                                                            : LanesStep::kOpen;
  reset.launched = lanes_->commands().step(lane, step, next_epoch(reset.epoch)).ok();
}

void LaneResets::step_later(uint32_t lane) {
  const int64_t pause = reset_[lane].pause;
  owners_.later(now_ns() + (pause != 0 ? pause : kStepTime), [this, lane] { step(lane); });
}

// Whether no kernel holds a half of the lane any more. The library's kernels always release it. Of
// a kernel whose blocks have not all begun the host sees only its event (is_through()).
bool LaneResets::is_left(uint32_t lane, Reset& reset, bool busy) {
  if (!lanes_->is_through(lane)) return false;
  return !busy || reset.holder.is_over(gpu_);
}

// When the link or the device is lost, the reset stays in its phase: all waits have ended.
void LaneResets::step(uint32_t lane) {
  Reset& reset = reset_[lane];
  if (reset.phase == Phase::kIdle || stopped_.load() || gpu_->is_lost()) return;
  reset.launched ? advance(lane, reset) : launch(lane, reset);
  if (reset.phase != Phase::kIdle) step_later(lane);
}

void LaneResets::advance(uint32_t lane, Reset& reset) {
  const uint8_t next = next_epoch(reset.epoch);
  uint32_t busy = 0;
  const bool answered = lanes_->commands().answered(lane, &busy);
  switch (reset.phase) {
    case Phase::kStopping:
      if (!answered) return;
      // Waiting kernels poll the abort word only now and then: query the lane again.
      if (!is_left(lane, reset, busy != 0)) {
        reset.pause = reset.holder.pause();
        return launch(lane, reset);
      }
      reset.pause = 0;
      reset.phase = Phase::kBeginning;
      return launch(lane, reset);
    case Phase::kBeginning:
      if (!answered) return;
      lanes_->notices().clear(lane);
      lanes_->notices().abort(lane, false);
      reset.phase = Phase::kReady;
      return tell(lane, next);
    case Phase::kReady:
      if (!reset.ready_there) return;
      reset.phase = Phase::kOpening;
      return launch(lane, reset);
    case Phase::kOpening:
      if (answered) end(lane, reset);
      return;
    case Phase::kIdle:
      return;
  }
}

void LaneResets::end(uint32_t lane, Reset& reset) {
  const uint8_t epoch = next_epoch(reset.epoch);
  const bool again = reset.ready_early;
  reset = {};
  reset.epoch = epoch;
  lanes_->notices().set_resetting(lane, false);
  resetting_[lane].store(false, std::memory_order_release);
  counts_[lane].fetch_add(1, std::memory_order_release);
  link_.my_bell->ring();
  if (!again) return;
  reset.ready_there = true;
  begin(lane);
}

void LaneResets::tell(uint32_t lane, uint8_t epoch) {
  if (connection_) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(lane);
    writer.u8(epoch);
    (void)connection_->send_control(Control::kLaneReady, bytes).ok();
    return;
  }
  if (const StreamOwners::Held held = partner_owners_->hold()) {
    partner_->peer_is_ready(lane, epoch);
  }
}

Status LaneResets::on_ready(ByteView payload) {
  Reader reader(payload);
  const uint32_t lane = reader.u32();
  const uint8_t epoch = reader.u8();
  if (!reader.at_end() || lane >= OH_LANES || epoch == 0 || !lanes_) {
    return error(OH_ERR_PROTOCOL, "lane %u is ready for epoch %u", lane, epoch);
  }
  peer_is_ready(lane, epoch);
  return {};
}

// An epoch other than the next one has already ended on this side, or follows the next one.
void LaneResets::peer_is_ready(uint32_t lane, uint8_t epoch) {
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
