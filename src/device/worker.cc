// SPDX-License-Identifier: Apache-2.0
#include "device/worker.h"

#include <cstring>
#include <map>
#include <mutex>

#include "base/clock.h"
#include "base/log.h"
#include "onehop/detail/host_atomics.h"

namespace oh {
namespace {

using kernels::WorkerPhase;
using onehop::detail::Command;
using onehop::detail::HostAtomics;

constexpr uint32_t kShift = 8;  // 256 commands in flight
constexpr int64_t kIdle = 50 * kMicrosecond;
// The kernel runs during the first half of each period at most.
constexpr int64_t kPeriod = 2 * kMillisecond;
constexpr int64_t kStay = kPeriod / 2;
// A shorter run is not worth a launch.
constexpr int64_t kShortest = 100 * kMicrosecond;
constexpr uint64_t kMost = 256;
// Copies that follow each other this closely are worth a launch.
constexpr int64_t kOften = 50 * kMicrosecond;
constexpr int64_t kLeaveTime = kSecond;

// Each cache line of this memory has one writer.
constexpr size_t kSlotsAt = 0;
constexpr size_t kThroughAt = kSlotsAt + (sizeof(onehop::detail::CommandSlot) << kShift);
constexpr size_t kStateAt = kThroughAt + 64;
constexpr size_t kStayedAt = kStateAt + 8;
constexpr size_t kSize = kStateAt + 64;

struct Workers {
  std::mutex mutex;
  std::map<const cuda::Gpu*, std::weak_ptr<Worker>> by_gpu;
};

}  // namespace

Result<std::shared_ptr<Worker>> Worker::of(const std::shared_ptr<cuda::Gpu>& gpu) {
  static Workers* const all = new Workers;
  if (!gpu->kernels().worker()) return error(OH_ERR_NOT_VIABLE, "its kernel is not loaded");
  std::lock_guard lock(all->mutex);
  std::weak_ptr<Worker>& known = all->by_gpu[gpu.get()];
  if (std::shared_ptr<Worker> worker = known.lock()) return worker;
  std::shared_ptr<Worker> worker(new Worker);
  OH_RETURN_IF_ERROR(worker->start(gpu));
  known = worker;
  return worker;
}

Status Worker::start(const std::shared_ptr<cuda::Gpu>& gpu) {
  OH_ASSIGN_OR_RETURN(memory_, Mapping::anonymous(kSize));
  OH_ASSIGN_OR_RETURN(pinned_, cuda::Pinned::of(gpu, memory_.data(), kSize));
  OH_ASSIGN_OR_RETURN(stream_, gpu->take_stream());
  gpu_ = gpu;
  ring_.slots = reinterpret_cast<onehop::detail::CommandSlot*>(at(kSlotsAt));
  ring_.through = reinterpret_cast<uint64_t*>(at(kThroughAt));
  ring_.shift = kShift;
  ring_.epoch = 1;
  return {};
}

Worker::~Worker() {
  if (!stream_) return;
  lock_.lock();
  Command leave{};
  leave.kind = onehop::detail::kCommandLeave;
  if (!away_) give(leave);
  lock_.unlock();
  if (gpu_->wait_idle(stream_, Deadline::after(kLeaveTime))) {
    gpu_->give_stream(stream_);
    return;
  }
  OH_LOG(kWarn, "a kernel of onehop still waits for room on %s: %zu bytes of host memory are kept",
         gpu_->facts().name.c_str(), kSize);
  new std::shared_ptr<cuda::Pinned>(std::move(pinned_));
  new Mapping(std::move(memory_));
}

// acquire: what the kernel wrote before the state is visible.
uint64_t Worker::state() const {
  return HostAtomics::load_acquire(reinterpret_cast<const uint64_t*>(at(kStateAt)));
}

bool Worker::copy(const Copy& copy) {
  if (!lock_.try_lock()) return false;
  Command command{};
  command.source = copy.from;
  command.target = copy.to;
  command.bytes = copy.size;
  command.done = copy.word;
  command.done_word = copy.value;
  command.kind = onehop::detail::kCommandCopy;
  bool given = give(command);
  lock_.unlock();
  return given;
}

bool Worker::give(const Command& command) {
  const uint64_t here = kernels::worker_state(run_, WorkerPhase::kHere);
  if (state() != here) return false;
  // The GPU writes that word, so reading it is slow: use the last value while that suffices.
  if (!onehop::detail::fits(kShift, position_, 1, through_)) {
    through_ = onehop::detail::poll<HostAtomics>(ring_.through, ring_.epoch);
    if (!onehop::detail::fits(kShift, position_, 1, through_)) return false;
  }
  onehop::detail::store_command<HostAtomics>(ring_, position_, command);
  // Pairs with the kernel's settle(): either the kernel sees the command, or this thread sees that
  // the kernel is leaving.
  full_fence();
  if (state() != here && !taken_by_leaver()) return false;
  ++position_;
  return true;
}

// Whether an exiting kernel still took the command at position_. Otherwise withdraws the command.
bool Worker::taken_by_leaver() {
  const uint64_t gone = kernels::worker_state(run_, WorkerPhase::kGone);
  const uint64_t position = position_;
  auto through = [&] {
    return onehop::detail::poll<HostAtomics>(ring_.through, ring_.epoch) > position;
  };
  int64_t looked = now_ns();
  while (state() != gone && !through()) {
    cpu_relax();
    if (now_ns() - looked < kMillisecond) continue;
    (void)gpu_->is_idle(stream_).ok();
    // No kernel will take the command, and no caller waits for it.
    if (gpu_->is_lost()) return true;
    looked = now_ns();
  }
  if (through()) return true;
  for (onehop::detail::Pair& lane : ring_.slots[position_ & ((1u << kShift) - 1)].lanes) {
    HostAtomics::store_lane(&lane, {0, 0});
  }
  return false;
}

bool Worker::is_idle() {
  lock_.lock();
  bool idle = onehop::detail::poll<HostAtomics>(ring_.through, ring_.epoch) >= position_;
  lock_.unlock();
  return idle || gpu_->is_lost();
}

void Worker::call() {
  if (!lock_.try_lock()) return;
  int64_t now = now_ns();
  bool often = now - called_ < kOften;
  called_ = now;
  if (!away_ && state() == kernels::worker_state(run_, WorkerPhase::kGone)) {
    away_ = true;
    may_return_ = now + static_cast<int64_t>(HostAtomics::load_relaxed(
                            reinterpret_cast<const uint64_t*>(at(kStayedAt))));
  }
  // All processes of the host share this clock.
  const int64_t stay = kStay - now % kPeriod;
  const bool launches = often && away_ && now >= may_return_ && stay >= kShortest;
  if (launches) away_ = false;
  const uint64_t run = launches ? ++run_ : 0;
  lock_.unlock();
  if (!launches) return;
  // No other thread launches before this run has ended.
  Status launched = launch(run, static_cast<uint64_t>(stay));
  if (launched.ok()) return;
  // The copy engine does small copies from now on, and reports errors of the GPU.
  OH_LOG(kDebug, "the worker of %s was not called: %s", gpu_->facts().name.c_str(),
         launched.text().c_str());
  lock_.lock();
  away_ = true;
  may_return_ = now + kSecond;
  lock_.unlock();
}

Status Worker::launch(uint64_t run, uint64_t stay) {
  auto on_device = [&](size_t offset) { return pinned_->device(at(offset)); };
  kernels::WorkerArgs args;
  args.ring = ring_;
  args.ring.slots = reinterpret_cast<onehop::detail::CommandSlot*>(on_device(kSlotsAt));
  args.ring.through = reinterpret_cast<uint64_t*>(on_device(kThroughAt));
  args.state = reinterpret_cast<uint64_t*>(on_device(kStateAt));
  args.stayed = reinterpret_cast<uint64_t*>(on_device(kStayedAt));
  args.run = run;
  args.idle = kIdle;
  args.stay = stay;
  args.most = kMost;
  return gpu_->kernels().launch(stream_, gpu_->kernels().worker(), 1, kernels::kWorkerThreads,
                                &args);
}

}  // namespace oh
