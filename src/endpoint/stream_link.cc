// SPDX-License-Identifier: Apache-2.0
#include "endpoint/stream_link.h"

#include "base/log.h"
#include "endpoint/connection.h"

namespace oh {
namespace {
constexpr int64_t kSettleTime = kMillisecond;
constexpr size_t kMaxText = 1024;
}  // namespace

StreamLink::StreamLink(Pair& pair, StreamHost& host, std::shared_ptr<Connection> connection,
                       std::shared_ptr<cuda::Gpu> gpu, std::string why_not)
    : pair_(pair), host_(host), connection_(std::move(connection)), gpu_(std::move(gpu)) {
  if (!why_not.empty()) why_not_ = Status(OH_ERR_NOT_VIABLE, std::move(why_not));
}

// Within the process our memory is not to go while kernels of the other end may be at it.
StreamLink::~StreamLink() {
  abort();
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (partner && partner_ != this && is_ready()) {
    partner_->abort();
    // Else it waits for us to be told again, by the end of its own link.
    (void)partner_->lanes_->stop_all();
  }
  drop_held(/*all=*/true);
  std::shared_ptr<void> host = host_life_.lock();
  if (host && lanes_ && lanes_->is_kept()) host_.keep(std::move(lanes_));
}

void StreamLink::bind(std::weak_ptr<void> holder, std::weak_ptr<void> host) {
  holder_ = std::move(holder);
  host_life_ = std::move(host);
}

void StreamLink::introduce(StreamLink& one, StreamLink& other) {
  one.partner_ = &other;
  one.partner_holder_ = other.holder_;
  other.partner_ = &one;
  other.partner_holder_ = one.holder_;
}

void StreamLink::later(int64_t at, std::function<void()> call) {
  host_.later(at, [holder = holder_, host = host_life_, call = std::move(call)] {
    std::shared_ptr<void> living_host = host.lock();
    std::shared_ptr<void> living = holder.lock();
    if (living_host && living) call();
  });
}

Status StreamLink::why_not() const {
  MutexLock lock(mutex_);
  return why_not_;
}

void StreamLink::refuse(Status status) {
  MutexLock lock(mutex_);
  if (why_not_.ok()) why_not_ = std::move(status);
}

Status StreamLink::prepare() {
  if (is_ready()) return {};
  OH_RETURN_IF_ERROR(why_not());
  Status made = make();
  if (!made.ok()) refuse(made);
  if (connection_) {
    tell_lanes();
    connect_if_known();
    return made;
  }
  OH_RETURN_IF_ERROR(made);
  return connect_within();
}

Status StreamLink::connect_within() {
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (!partner) return error(OH_ERR_PEER_LOST, "the other end within the process is gone");
  Status theirs = partner_->make();
  if (!theirs.ok()) refuse(theirs);
  OH_RETURN_IF_ERROR(theirs);
  const bool near =
      gpu_->reach(partner_->gpu_->facts().ordinal) && partner_->gpu_->reach(gpu_->facts().ordinal);
  if (!near) {
    refuse(error(OH_ERR_NOT_VIABLE, "%s and %s do not reach each other's memory",
                 gpu_->facts().name.c_str(), partner_->gpu_->facts().name.c_str()));
    return why_not();
  }
  static Mutex* const both = new Mutex;  // two threads may begin at either end
  MutexLock lock(*both);
  lanes_->connect(partner_->lanes_->slab_address(), partner_->lanes_->slab_bytes(), nullptr);
  partner_->lanes_->connect(lanes_->slab_address(), lanes_->slab_bytes(), nullptr);
  ready_.store(true, std::memory_order_release);
  partner_->ready_.store(true, std::memory_order_release);
  return {};
}

Status StreamLink::make() {
  MutexLock setup(setup_mutex_);
  if (lanes_) return {};
  OH_RETURN_IF_ERROR(why_not());
  OH_ASSIGN_OR_RETURN(std::unique_ptr<Lanes> lanes,
                      Lanes::create(gpu_, host_.stream_slab(), host_.stream_small()));
  if (!lanes->slab()->mappable() && connection_) {
    return error(OH_ERR_NOT_VIABLE, "the slab cannot be mapped by %s: %s", pair_.name.c_str(),
                 lanes->slab()->why_not.c_str());
  }
  lanes_ = std::move(lanes);
  made_.store(true, std::memory_order_release);
  if (aborted_.load()) lanes_->abort();
  return {};
}

// Our slab, or why there is none; a failure means that the connection is gone, which its handler
// reports.
void StreamLink::tell_lanes() {
  {
    MutexLock lock(mutex_);
    if (std::exchange(told_, true)) return;
  }
  Bytes bytes;
  Writer writer(bytes);
  const bool made = has_lanes();
  if (made) {
    PairGuard guard(pair_);
    pair_.host->publish(lanes_->slab());
  }
  writer.u32(made ? lanes_->slab()->number : 0);
  writer.u64(made ? lanes_->slab_bytes() : 0);
  writer.text(made ? std::string() : why_not().text().substr(0, kMaxText));
  (void)connection_->send_control(Control::kLanes, bytes).ok();
}

Status StreamLink::on_lanes(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  const uint64_t bytes = reader.u64();
  const std::string why = reader.text(kMaxText);
  if (!reader.at_end() || (number != 0 && bytes < kernels::kLeastSlab)) {
    return error(OH_ERR_PROTOCOL, "lanes of %zu bytes", payload.size());
  }
  if (number == 0) {
    refuse(error(OH_ERR_NOT_VIABLE, "%s has no lanes: %s", pair_.name.c_str(), why.c_str()));
  } else {
    MutexLock lock(mutex_);
    their_number_ = number;
    their_bytes_ = bytes;
  }
  // The other side wants it: ours is made, or it hears why not.
  Status prepared = prepare();
  if (!prepared.ok()) {
    OH_LOG(kInfo, "no lanes with %s: %s", pair_.name.c_str(), prepared.text().c_str());
    tell_lanes();
  }
  pair_.my_bell->ring();
  return {};
}

void StreamLink::connect_if_known() {
  uint32_t number = 0;
  uint64_t bytes = 0;
  {
    MutexLock lock(mutex_);
    number = their_number_;
    bytes = their_bytes_;
  }
  if (number == 0 || !has_lanes() || is_ready()) return;
  std::shared_ptr<ImportedBlock> block;
  std::vector<std::shared_ptr<ImportedBlock>> known;
  {
    PairGuard guard(pair_);
    block = pair_.imports.find(number);
    known = pair_.imports.on_device();
  }
  if (!block || !block->on_device || block->size < bytes) {
    refuse(error(OH_ERR_NOT_VIABLE, "the slab of %s cannot be mapped here", pair_.name.c_str()));
    return;
  }
  {
    MutexLock setup(setup_mutex_);
    lanes_->connect(reinterpret_cast<cuda::DevicePtr>(block->local_base), bytes, block);
  }
  ready_.store(true, std::memory_order_release);
  for (const std::shared_ptr<ImportedBlock>& one : known) {
    if (one->number != number) add_import(one);
  }
}

// ---- Memory -----------------------------------------------------------------------------------

void StreamLink::add_import(const std::shared_ptr<ImportedBlock>& block) {
  if (!is_ready() || !block || !block->on_device) return;
  lanes_->add_import(block->number, block->size, reinterpret_cast<uint64_t>(block->local_base),
                     block);
}

void StreamLink::forget_import(uint32_t number) {
  if (!is_ready()) return;
  lanes_->forget_import(number);
  settle_later();
}

void StreamLink::forget_within(uint32_t number) {
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (partner && partner_->is_ready()) partner_->lanes_->forget_import(number);
}

// On the watcher's thread, until nobody is at what was forgotten.
void StreamLink::settle_later() {
  if (std::exchange(settling_, true)) return;
  later(now_ns() + kSettleTime, [this] {
    settling_ = false;
    if (!lanes_->settle_imports()) settle_later();
    GpuImports::instance().close_unused();
  });
}

uint32_t StreamLink::publish(const std::shared_ptr<const GpuExport>& exported) {
  if (!exported->mappable() && connection_) return 0;
  if (connection_) {
    if (!pair_.maps_devices) return 0;
    PairGuard guard(pair_);
    pair_.host->publish(exported);
    return exported->number;
  }
  // Within the process addresses are enough, where the other GPU reaches them.
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (!partner || !partner_->has_lanes()) return 0;
  const cuda::Device there = partner_->gpu_->facts().ordinal;
  const bool plain = exported->record.chunks.front().kind == ChunkKind::kCudaIpc;
  if (exported->device != there && !plain) return 0;
  partner_->lanes_->add_import(exported->number, exported->record.length, exported->record.base,
                               nullptr);
  return exported->number;
}

void StreamLink::hold(cuda::Stream stream, bool capturing, std::shared_ptr<void> holder) {
  drop_held(/*all=*/false);
  Held held;
  held.holder = std::move(holder);
  if (!capturing) {
    Result<cuda::Event> event = gpu_->take_event();
    if (event.ok() && gpu_->record(*event, stream).ok()) held.event = *event;
  }
  MutexLock lock(mutex_);
  held_.push_back(std::move(held));
}

void StreamLink::drop_held(bool all) {
  std::vector<Held> held;
  {
    MutexLock lock(mutex_);
    held.swap(held_);
  }
  std::erase_if(held, [&](Held& one) {
    if (!one.event) return all;
    Result<bool> done = gpu_->is_complete(one.event);
    const bool over = all || (done.ok() && *done) || gpu_->is_lost();
    if (over) gpu_->give_event(one.event);
    return over;
  });
  MutexLock lock(mutex_);
  for (Held& one : held) held_.push_back(std::move(one));
}

void StreamLink::abort() {
  aborted_.store(true);
  if (has_lanes()) lanes_->abort();
}

}  // namespace oh
