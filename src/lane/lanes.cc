// SPDX-License-Identifier: Apache-2.0
#include "lane/lanes.h"

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/image.h"
#include "kernels/proxy.h"
#include "lane/holder_watch.h"
#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::LanesStep;
using onehop::detail::HostAtomics;
using onehop::detail::LaneNotice;

namespace {
constexpr uint32_t kMostImports = 3u << kernels::kImportShift >> 2;  // so that most find a place
constexpr int64_t kPatience = 2 * kSecond;
constexpr uint8_t kFirstEpoch = 1;
}  // namespace

struct Lanes::Page {
  LaneNotice notices[OH_LANES + 1];  // the last: of signals
  // Looks have answers of their own: a step may be under way beside one.
  kernels::LanesAnswer steps[OH_LANES];
  kernels::LanesAnswer looks[OH_LANES];
};

LaneNotice* Lanes::notices() const { return page()->notices; }

Result<std::shared_ptr<Slab>> Slab::create(std::shared_ptr<cuda::Gpu> gpu, uint64_t bytes) {
  std::shared_ptr<Slab> slab(new Slab(std::move(gpu), bytes));
  OH_ASSIGN_OR_RETURN(slab->address_, slab->gpu_->allocate(bytes));
  OH_ASSIGN_OR_RETURN(slab->export_,
                      GpuExports::instance().find(slab->gpu_->driver(),
                                                  reinterpret_cast<void*>(slab->address_), bytes));
  slab->export_->regions.fetch_add(1, std::memory_order_relaxed);
  return slab;
}

Slab::~Slab() {
  if (export_) export_->regions.fetch_sub(1, std::memory_order_release);
  if (address_) gpu_->free(address_);
}

Result<std::unique_ptr<Lanes>> Lanes::create(std::shared_ptr<cuda::Gpu> gpu, uint64_t slab_bytes,
                                             uint64_t small_max) {
  std::unique_ptr<Lanes> lanes(new Lanes(std::move(gpu)));
  lanes->small_max_ = small_max;
  OH_RETURN_IF_ERROR(lanes->start(slab_bytes));
  return lanes;
}

Status Lanes::start(uint64_t slab_bytes) {
  OH_RETURN_IF_ERROR(load_kernels());
  OH_ASSIGN_OR_RETURN(memory_, Mapping::anonymous(sizeof(Page)));
  OH_ASSIGN_OR_RETURN(pinned_, cuda::Pinned::of(gpu_, memory_.data(), sizeof(Page)));
  OH_ASSIGN_OR_RETURN(stream_, gpu_->take_stream());
  OH_ASSIGN_OR_RETURN(slab_, Slab::create(gpu_, slab_bytes));
  return open_all();
}

Status Lanes::load_kernels() {
  const std::pair<const char*, cuda::Function*> wanted[] = {
      {kernels::kStreamKernel, &kernels_.one},
      {kernels::kStreamFewKernel, &kernels_.few},
      {kernels::kStreamManyKernel, &kernels_.many},
      {kernels::kLanesKernel, &kernels_.lanes}};
  for (auto [name, function] : wanted) {
    Result<cuda::Function> found = gpu_->kernels().find(kernel_image(), name);
    if (!found.ok()) {
      return error(OH_ERR_NOT_VIABLE, "the kernels of the stream domain are not there: %s",
                   found.status().text().c_str());
    }
    *function = *found;
  }
  return {};
}

// The whole slab is zero, then every lane begins and opens. Each kernel is launched once here, for
// its first launch may wait for others that run.
Status Lanes::open_all() {
  OH_RETURN_IF_ERROR(gpu_->zero(stream_, slab_->address(), slab_->bytes()));
  OH_RETURN_IF_ERROR(launch(0, OH_LANES, LanesStep::kBegin, kFirstEpoch, ++last_serial_));
  OH_RETURN_IF_ERROR(launch(0, OH_LANES, LanesStep::kOpen, kFirstEpoch, ++last_serial_));
  auto nothing = std::make_unique<kernels::StreamManyArgs>();
  static_assert(sizeof(kernels::ProxyArgs) <= sizeof(kernels::StreamManyArgs));
  Result<cuda::Function> proxy = gpu_->kernels().find(kernel_image(), kernels::kProxyKernel);
  OH_RETURN_IF_ERROR(proxy.status());
  for (cuda::Function kernel : {kernels_.one, kernels_.few, kernels_.many, *proxy}) {
    OH_RETURN_IF_ERROR(gpu_->kernels().launch_remote(stream_, kernel, {1, 32}, nothing.get()));
  }
  return {};
}

Result<bool> Lanes::is_open() {
  OH_ASSIGN_OR_RETURN(bool idle, gpu_->is_idle(stream_));
  OH_RETURN_IF_ERROR(gpu_->loss());
  return idle;
}

bool Lanes::stop_all() {
  if (gpu_->is_lost()) return true;
  const Deadline deadline = Deadline::after(kPatience);
  HolderWatch holder;
  while (!deadline.passed()) {
    if (!launch(0, OH_LANES, LanesStep::kStop, 0, ++last_serial_).ok()) return gpu_->is_lost();
    if (!gpu_->wait_idle(stream_, deadline)) return false;
    const bool busy = std::any_of(page()->steps, page()->steps + OH_LANES, [](const auto& answer) {
      return ((answer.states[0] | answer.states[1]) & onehop::detail::kBusy) != 0;
    });
    if (!busy || holder.is_over(gpu_)) return true;
    const int64_t next = now_ns() + holder.pause();
    while (now_ns() < next) sched_yield();
  }
  return false;
}

Lanes::~Lanes() {
  bool all = true;
  if (slab_) {
    abort();
    all = stop_all();
    if (!all) {
      OH_LOG(kWarn,
             "kernels on %s still wait on a link that is closed: %llu bytes are kept for them",
             gpu_->facts().name.c_str(), static_cast<unsigned long long>(slab_->bytes()));
    }
  }
  for (auto& sides : turns_) {
    for (LaunchTurn& turn : sides) turn.give_back(*gpu_);
  }
  {
    MutexLock lock(imports_mutex_);
    if (!all) {
      new std::vector<Import>(std::move(imports_));
      new std::vector<std::shared_ptr<void>>(std::move(leaving_));
      new std::vector<std::shared_ptr<void>>(std::move(forgotten_));
    }
  }
  if (stream_ && (all || gpu_->wait_idle(stream_, Deadline::after(0)))) gpu_->give_stream(stream_);
  if (all) return;
  new std::shared_ptr<Slab>(std::move(slab_));
  new std::shared_ptr<void>(std::move(holder_));
  new std::shared_ptr<cuda::Pinned>(std::move(pinned_));
  new Mapping(std::move(memory_));
}

void Lanes::connect(cuda::DevicePtr base, uint64_t bytes, std::shared_ptr<void> holder) {
  if (is_connected()) return;
  theirs_ = base;
  agreed_ = std::min(bytes, slab_->bytes());
  holder_ = std::move(holder);
  // release: what handles are made of; pairs with is_connected().
  connected_.store(true, std::memory_order_release);
}

oh_lane_handle Lanes::handle(uint32_t lane) const {
  const kernels::LanePlace place = kernels::lane_place(agreed_, lane);
  oh_lane_handle handle{};
  handle.layout = OH_LANE_LAYOUT;
  handle.lane = lane;
  handle.ring_shift = place.ring_shift;
  handle.lines_at = place.lines - place.memory;
  handle.chunks_at = place.chunks - place.memory;
  handle.mine = slab_->address() + place.memory;
  handle.theirs = theirs_ + place.memory;
  handle.chunk_slots = place.chunk_slots;
  handle.chunk_shift = place.chunk_shift;
  handle.notice = on_device(&page()->notices[lane]);
  handle.imports = slab_->address() + kernels::kImportsAt;
  handle.small_max = small_max_;
  handle.signals = slab_->address();
  handle.their_signals = theirs_;
  return handle;
}

uint64_t Lanes::most_buffered(uint32_t lane) const {
  return std::min<uint64_t>(small_max_, onehop::detail::most_small(handle(lane)));
}

// Never 0, which is nobody's.
uint32_t Lanes::next_token() {
  const uint32_t token = token_.fetch_add(1, std::memory_order_relaxed) + 1;
  return token != 0 ? token : next_token();
}

Status Lanes::launch(uint32_t first, uint32_t count, LanesStep step, uint8_t epoch,
                     uint64_t serial) {
  kernels::LanesArgs args{};
  args.slab = slab_->address();
  args.slab_bytes = is_connected() ? agreed_ : slab_->bytes();
  auto* answers = step == LanesStep::kLook ? page()->looks : page()->steps;
  args.answers = reinterpret_cast<kernels::LanesAnswer*>(on_device(answers));
  args.serial = serial;
  args.lane = first;
  args.epoch = epoch;
  args.step = step;
  args.blocks = count;
  return gpu_->kernels().launch_remote(stream_, kernels_.lanes, {count, kernels::kLanesThreads},
                                       &args);
}

Status Lanes::launch_step(uint32_t lane, LanesStep step, uint8_t epoch) {
  const uint64_t serial = last_serial_.fetch_add(1) + 1;
  {
    MutexLock lock(mutex_);
    serials_[lane] = serial;
  }
  return launch(lane, 1, step, epoch, serial);
}

bool Lanes::answered(uint32_t lane, uint32_t* busy) const {
  const kernels::LanesAnswer& answer = page()->steps[lane];
  MutexLock lock(mutex_);
  if (HostAtomics::load_acquire(&answer.serial) != serials_[lane]) return false;
  *busy = 0;
  for (uint64_t state : answer.states) *busy += (state & onehop::detail::kBusy) != 0 ? 1 : 0;
  return true;
}

// ---- The peer's memory ------------------------------------------------------------------------

// By a kernel, in stream order: a copy of the engine says nothing of the order in which it is seen.
Status Lanes::write_entry(const ImportPlaces::Write& write) {
  kernels::LanesArgs args{};
  args.slab = slab_->address();
  args.step = LanesStep::kImport;
  args.place = write.place;
  args.number = write.entry.number;
  args.size = write.entry.size;
  args.base = write.entry.base;
  return gpu_->kernels().launch_remote(stream_, kernels_.lanes, {1, 32}, &args);
}

void Lanes::add_import(uint32_t number, uint64_t size, cuda::DevicePtr base,
                       std::shared_ptr<void> holder) {
  MutexLock lock(imports_mutex_);
  if (imports_.size() >= kMostImports) return;
  const std::optional<ImportPlaces::Write> write = places_.add({number, size, base});
  if (!write) return;
  if (write_entry(*write).ok()) {
    imports_.push_back({number, std::move(holder)});
  } else {
    (void)places_.remove(number);
  }
}

void Lanes::forget_import(uint32_t number) {
  MutexLock lock(imports_mutex_);
  auto found = std::find_if(imports_.begin(), imports_.end(),
                            [&](const Import& import) { return import.number == number; });
  if (found == imports_.end()) return;
  // If even that fails the context is lost, and no kernel runs.
  for (const ImportPlaces::Write& write : places_.remove(number)) (void)write_entry(write).ok();
  if (found->holder) forgotten_.push_back(std::move(found->holder));
  imports_.erase(found);
}

bool Lanes::settle_imports() {
  std::vector<std::shared_ptr<void>> gone;  // without the lock
  MutexLock lock(imports_mutex_);
  if (leaving_.empty() && forgotten_.empty()) return true;
  if (gpu_->is_lost() || settle_locked()) std::swap(gone, leaving_);
  return leaving_.empty() && forgotten_.empty();
}

// Whether no sender that began before they were forgotten is still at it.
bool Lanes::settle_locked() {
  using onehop::detail::kBusy;
  const bool first = leaving_.empty();
  if (look_ != 0) {
    bool all_left = true;
    for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
      const kernels::LanesAnswer& answer = page()->looks[lane];
      if (HostAtomics::load_acquire(&answer.serial) != look_) return false;
      const uint64_t state = answer.states[0];
      if (seen_[lane] == UINT64_MAX) seen_[lane] = state;
      if ((state & kBusy) == 0 || state != seen_[lane]) seen_[lane] = 0;
      all_left = all_left && seen_[lane] == 0;
    }
    look_ = 0;
    if (all_left && !first) return true;
  } else if (first) {
    std::swap(leaving_, forgotten_);
    std::fill(std::begin(seen_), std::end(seen_), UINT64_MAX);
  }
  const uint64_t serial = last_serial_.fetch_add(1) + 1;
  if (launch(0, OH_LANES, LanesStep::kLook, 0, serial).ok()) look_ = serial;
  return false;
}

}  // namespace oh
