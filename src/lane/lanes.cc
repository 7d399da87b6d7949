// SPDX-License-Identifier: Apache-2.0
#include "lane/lanes.h"

#include <sched.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/atomic.h"
#include "kernels/image.h"
#include "kernels/proxy.h"
#include "lane/holder_watch.h"

namespace oh {

using kernels::LanesStep;

namespace {
constexpr int64_t kStopTime = 2 * kSecond;
constexpr uint8_t kFirstEpoch = 1;
}  // namespace

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
  notices_.open(&page()->notices);
  commands_.open({.gpu = gpu_,
                  .kernel = kernels_.lanes,
                  .stream = stream_,
                  .slab = slab_->address(),
                  .answers = &page()->answers,
                  .answers_on_device = on_device(&page()->answers)},
                 slab_bytes);
  return open_all();
}

Status Lanes::load_kernels() {
  const std::pair<const char*, cuda::Function*> wanted[] = {
      {kernels::kStreamKernel, &kernels_.one},    {kernels::kStreamLargeKernel, &kernels_.large},
      {kernels::kStreamFewKernel, &kernels_.few}, {kernels::kStreamManyKernel, &kernels_.many},
      {kernels::kLanesKernel, &kernels_.lanes},   {kernels::kAtomicKernel, &kernels_.atomic}};
  for (auto [name, function] : wanted) {
    Result<cuda::Function> found = gpu_->kernels().find(kernel_image(), name);
    if (!found.ok()) {
      return error(OH_ERR_NOT_VIABLE, "the kernels of the stream domain are not there: %s",
                   found.status().text().c_str());
    }
    *function = *found;
  }
  OH_ASSIGN_OR_RETURN(kernels_.clusters, gpu_->kernels().runs_clusters(kernels_.one));
  return {};
}

// Zeroes the slab, then begins and opens every lane. Launches each kernel once, since the first
// launch of a kernel may wait for running kernels.
Status Lanes::open_all() {
  OH_RETURN_IF_ERROR(gpu_->zero(stream_, slab_->address(), slab_->bytes()));
  OH_RETURN_IF_ERROR(commands_.step_all(LanesStep::kBegin, kFirstEpoch));
  OH_RETURN_IF_ERROR(commands_.step_all(LanesStep::kOpen, kFirstEpoch));
  auto nothing = std::make_unique<kernels::StreamManyArgs>();
  static_assert(sizeof(kernels::ProxyArgs) <= sizeof(kernels::StreamManyArgs));
  Result<cuda::Function> proxy = gpu_->kernels().find(kernel_image(), kernels::kProxyKernel);
  OH_RETURN_IF_ERROR(proxy.status());
  for (cuda::Function kernel :
       {kernels_.one, kernels_.large, kernels_.few, kernels_.many, kernels_.atomic, *proxy}) {
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
  const Deadline deadline = Deadline::after(kStopTime);
  HolderWatch holder;
  while (!gpu_->is_lost() && !deadline.passed()) {
    // A launch can fail for lack of memory; the next round retries it.
    const bool stopped = commands_.step_all(LanesStep::kStop, 0).ok();
    if (!gpu_->wait_idle(stream_, deadline)) return false;
    const bool through = stopped && all_through();
    if (through && (!commands_.any_busy() || holder.is_over(gpu_))) return true;
    const int64_t next = now_ns() + holder.pause();
    while (now_ns() < next) sched_yield();
  }
  return gpu_->is_lost();
}

Lanes::~Lanes() {
  bool all = true;
  if (slab_) {
    notices_.abort();
    all = stop_all();
    if (!all) {
      OH_LOG(kWarn,
             "kernels on %s still wait on a link that is closed: %llu bytes are kept for them",
             gpu_->facts().name.c_str(), static_cast<unsigned long long>(slab_->bytes()));
    }
  }
  if (!all) imports_.leak();
  if (stream_ && (all || gpu_->wait_idle(stream_, Deadline::after(0)))) gpu_->give_stream(stream_);
  if (all) return;
  new std::shared_ptr<Slab>(std::move(slab_));
  new std::shared_ptr<void>(std::move(holder_));
  new std::shared_ptr<cuda::Pinned>(std::move(pinned_));
  new Mapping(std::move(memory_));
}

void Lanes::connect(cuda::DevicePtr base, const Sizes& theirs, std::shared_ptr<void> holder) {
  if (is_connected()) return;
  theirs_ = base;
  agreed_ = {std::min(theirs.slab, slab_->bytes()), std::min(theirs.small, small_max_)};
  holder_ = std::move(holder);
  commands_.agree(agreed_.slab);
  // release: publishes the fields that handle() reads; pairs with is_connected().
  connected_.store(true, std::memory_order_release);
}

oh_lane_handle Lanes::handle(uint32_t lane) const {
  const kernels::LanePlace place = kernels::lane_place(agreed_.slab, lane);
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
  handle.small_max = agreed_.small;
  handle.signals = slab_->address();
  handle.their_signals = theirs_;
  return handle;
}

uint64_t Lanes::most_buffered(uint32_t lane) const {
  return std::min<uint64_t>(agreed_.small, onehop::detail::most_small(handle(lane)));
}

// Never 0, which means no token, and never the token of a grid.
uint32_t Lanes::next_token() {
  const uint32_t number = token_.fetch_add(1, std::memory_order_relaxed) + 1;
  const uint32_t token = number & ~onehop::detail::kGridToken;
  return token != 0 ? token : next_token();
}

bool Lanes::is_through(uint32_t lane) const {
  return turns_[lane][0].is_through() && turns_[lane][1].is_through();
}

bool Lanes::all_through() const {
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
    if (!is_through(lane)) return false;
  }
  return apart_.are_over();
}

}  // namespace oh
