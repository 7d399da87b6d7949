// SPDX-License-Identifier: Apache-2.0
#include "lane/lane_commands.h"

#include <algorithm>
#include <utility>

#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::LanesStep;
using onehop::detail::HostAtomics;
using onehop::detail::kBusy;

void LaneCommands::open(Target target, uint64_t slab_bytes) {
  target_ = std::move(target);
  agree(slab_bytes);
}

Status LaneCommands::launch(uint32_t first, uint32_t count, kernels::LanesArgs args) {
  args.slab = target_.slab;
  args.slab_bytes = slab_bytes_.load(std::memory_order_acquire);
  const bool looks = args.step == LanesStep::kLook;
  args.answers = reinterpret_cast<kernels::LanesAnswer*>(
      target_.answers_on_device + (looks ? offsetof(Answers, looks) : offsetof(Answers, steps)));
  args.lane = first;
  args.blocks = count;
  return target_.gpu->kernels().launch_remote(target_.stream, target_.kernel,
                                              {count, kernels::kLanesThreads}, &args);
}

Status LaneCommands::step(uint32_t lane, LanesStep step, uint8_t epoch) {
  kernels::LanesArgs args{};
  args.step = step;
  args.epoch = epoch;
  args.serial = next_serial();
  {
    MutexLock lock(mutex_);
    serials_[lane] = args.serial;
  }
  return launch(lane, 1, args);
}

Status LaneCommands::step_all(LanesStep step, uint8_t epoch) {
  kernels::LanesArgs args{};
  args.step = step;
  args.epoch = epoch;
  args.serial = next_serial();
  return launch(0, OH_LANES, args);
}

bool LaneCommands::answered(uint32_t lane, uint32_t* busy) const {
  const kernels::LanesAnswer& answer = target_.answers->steps[lane];
  MutexLock lock(mutex_);
  if (HostAtomics::load_acquire(&answer.serial) != serials_[lane]) return false;
  *busy = 0;
  for (uint64_t state : answer.states) *busy += (state & kBusy) != 0 ? 1 : 0;
  return true;
}

bool LaneCommands::any_busy() const {
  const auto& steps = target_.answers->steps;
  return std::any_of(std::begin(steps), std::end(steps), [](const auto& answer) {
    return ((answer.states[0] | answer.states[1]) & kBusy) != 0;
  });
}

Result<uint64_t> LaneCommands::look() {
  kernels::LanesArgs args{};
  args.step = LanesStep::kLook;
  args.serial = next_serial();
  OH_RETURN_IF_ERROR(launch(0, OH_LANES, args));
  return args.serial;
}

bool LaneCommands::looked(uint64_t serial, uint32_t lane, uint64_t* sender) const {
  const kernels::LanesAnswer& answer = target_.answers->looks[lane];
  if (HostAtomics::load_acquire(&answer.serial) != serial) return false;
  *sender = answer.states[0];
  return true;
}

// A kernel writes the entry, in stream order: writes of a copy engine are not ordered for kernels
// that read the table meanwhile.
Status LaneCommands::write_import(const ImportPlaces::Write& write) {
  kernels::LanesArgs args{};
  args.slab = target_.slab;
  args.step = LanesStep::kImport;
  args.place = write.place;
  args.number = write.entry.number;
  args.size = write.entry.size;
  args.base = write.entry.base;
  return target_.gpu->kernels().launch_remote(target_.stream, target_.kernel, {1, 32}, &args);
}

}  // namespace oh
