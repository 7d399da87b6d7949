// SPDX-License-Identifier: Apache-2.0
#include "lane/stream_memory.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "lane/launch_turn.h"
#include "link/memory_exchange.h"

namespace oh {
namespace {
constexpr int64_t kSettleTime = kMillisecond;
constexpr int64_t kReleaseTime = 2 * kSecond;
}  // namespace

// Memory held until a copy has ended. The end of a captured copy is never known.
struct StreamMemory::Held {
  Held(std::shared_ptr<cuda::Gpu> on, std::shared_ptr<void> memory)
      : gpu(std::move(on)), holder(std::move(memory)) {}
  ~Held() {
    const Deadline deadline = Deadline::after(kReleaseTime);
    while (event && !event->is_over() && !deadline.passed()) sched_yield();
    if (event && !event->is_over()) new std::shared_ptr<void>(std::move(holder));
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  std::shared_ptr<cuda::Gpu> gpu;
  std::shared_ptr<LaunchEvent> event;  // null: its end is never known
  std::shared_ptr<void> holder;
};

StreamMemory::StreamMemory(Link& link, const StreamOwners& owners, std::shared_ptr<cuda::Gpu> gpu,
                           bool within_process)
    : link_(link), owners_(owners), gpu_(std::move(gpu)), within_process_(within_process) {}

StreamMemory::~StreamMemory() = default;

void StreamMemory::add_import(const std::shared_ptr<ImportedBlock>& block) {
  Lanes* lanes = this->lanes();
  if (!lanes || !lanes->is_connected() || !block || !block->on_device) return;
  const bool added = lanes->imports().add(
      {block->number, block->size, reinterpret_cast<uint64_t>(block->local_base)}, block);
  if (added) link_.memory->tell_reached(block->number);
}

void StreamMemory::forget_import(uint32_t number) {
  if (Lanes* lanes = this->lanes()) lanes->imports().remove(number);
  settle_later();
}

void StreamMemory::forget_within(uint32_t number) {
  if (!partner_) return;
  const std::shared_ptr<void> held = partner_owners_->peer();
  Lanes* lanes = held ? partner_->lanes() : nullptr;
  if (!lanes || !lanes->is_connected()) return;
  lanes->imports().remove(number);
  // By this side's owners: the partner's endpoint, which its own refer to, may be gone.
  owners_.later(0, [partner = partner_, theirs = *partner_owners_] {
    if (const StreamOwners::Held both = theirs.hold()) partner->settle_later();
  });
}

// Retries on the watcher's thread until no kernel uses removed memory.
void StreamMemory::settle_later() {
  if (std::exchange(settling_, true)) return;
  owners_.later(now_ns() + kSettleTime, [this] {
    settling_ = false;
    const bool settled = !lanes() || lanes()->imports().settle(gpu_->is_lost());
    if (!drop_held() || !settled) settle_later();
    GpuImports::instance().close_unused();
  });
}

StreamMemory::Published StreamMemory::publish(const std::shared_ptr<const GpuExport>& exported) {
  if (!within_process_) {
    if (!exported->mappable() || !link_.maps_devices) return {};
    LinkGuard guard(link_);
    return {exported->number, link_.memory->publish(exported)};
  }
  // Within the process no mapping is needed if the other GPU can access the address.
  if (!partner_) return {};
  const std::shared_ptr<void> held = partner_owners_->peer();
  Lanes* theirs = held ? partner_->lanes() : nullptr;
  if (!theirs) return {};
  const cuda::Device there = partner_->gpu_->facts().ordinal;
  if (exported->device != there && !exported->plain()) return {};
  // A new entry is written by a kernel, which may run after the next message.
  const bool reached = theirs->imports().has(exported->number);
  if (!reached) {
    (void)theirs->imports().add({exported->number, exported->record.length, exported->record.base},
                                nullptr);
  }
  return {exported->number, reached};
}

void StreamMemory::hold(cuda::Stream stream, bool capturing, std::shared_ptr<void> memory) {
  bool many = false;
  {
    MutexLock lock(mutex_);
    many = held_.size() >= many_held_;
  }
  if (many) (void)drop_held();
  auto held = std::make_shared<Held>(gpu_, std::move(memory));
  if (!capturing) {
    Result<std::shared_ptr<LaunchEvent>> event = LaunchEvent::take(*gpu_);
    if (event.ok() && (*event)->record(stream).ok()) held->event = std::move(*event);
  }
  MutexLock lock(mutex_);
  held_.push_back(std::move(held));
}

// Releases memory that no copy uses any more. Returns whether all that remains is of captured
// copies, whose end is never known.
bool StreamMemory::drop_held() {
  std::vector<std::shared_ptr<Held>> over;  // destroyed without the lock
  MutexLock lock(mutex_);
  bool none_waits = true;
  std::erase_if(held_, [&](std::shared_ptr<Held>& held) {
    const bool drops = held->event && held->event->is_over();
    none_waits = none_waits && (drops || !held->event);
    if (drops) over.push_back(std::move(held));
    return drops;
  });
  // Doubling keeps the checks for each copy few, however many copies there are.
  many_held_ = std::max(kFewHeld, 2 * held_.size());
  return none_waits;
}

void StreamMemory::give_up() {
  (void)drop_held();
  std::vector<std::shared_ptr<Held>> left;  // given up without the lock
  {
    MutexLock lock(mutex_);
    left.swap(held_);
  }
  for (std::shared_ptr<Held>& held : left) owners_.domain().retain(std::move(held));
}

}  // namespace oh
