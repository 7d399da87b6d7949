// SPDX-License-Identifier: Apache-2.0
#include "lane/stream_link.h"

#include <sched.h>

#include <algorithm>

#include "base/log.h"
#include "link/connection.h"
#include "link/memory_exchange.h"

namespace oh {
namespace {
constexpr int64_t kSettleTime = kMillisecond;
constexpr int64_t kOpenTime = 50 * kMicrosecond;
constexpr int64_t kPatience = 2 * kSecond;
}  // namespace

// Until the copy is through; of one in a graph it is never known.
struct StreamLink::Held {
  Held(std::shared_ptr<cuda::Gpu> on, std::shared_ptr<void> memory)
      : gpu(std::move(on)), holder(std::move(memory)) {}
  ~Held() {
    const Deadline deadline = Deadline::after(kPatience);
    while (event && !is_over() && !deadline.passed()) sched_yield();
    const bool over = !event || is_over();
    if (event) gpu->give_event(event);
    if (!over) new std::shared_ptr<void>(std::move(holder));
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;

  bool is_over() const {
    if (gpu->is_lost()) return true;
    Result<bool> done = gpu->is_complete(event);
    return done.ok() && *done;
  }

  std::shared_ptr<cuda::Gpu> gpu;
  cuda::Event event = nullptr;
  std::shared_ptr<void> holder;
};

StreamLink::StreamLink(Link& link, StreamHost& host, std::shared_ptr<Connection> connection,
                       std::shared_ptr<cuda::Gpu> gpu, WhyNot why_not)
    : link_(link),
      host_(host),
      connection_(std::move(connection)),
      gpu_(std::move(gpu)),
      ask_why_no_kernels_(std::move(why_not.ask_by_kernels)),
      why_no_kernels_(std::move(why_not.by_kernels)) {
  if (!why_not.at_all.empty()) why_not_ = Status(OH_ERR_NOT_VIABLE, std::move(why_not.at_all));
}

StreamLink::~StreamLink() {
  abort();
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (partner && partner_ != this) partner_->abort();
  (void)drop_held();
  std::shared_ptr<void> host = host_life_.lock();
  if (!host) return;
  if (lanes_ && lanes_->is_kept()) host_.keep(std::move(lanes_));
  if (proxy_) {
    host_.proxy_ended();
    if (proxy_is_kept_.load()) host_.keep(proxy_->memory());
  }
  MutexLock lock(mutex_);
  for (std::shared_ptr<Held>& held : held_) host_.keep(std::move(held));
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

StreamLink::Living StreamLink::hold_partner() const {
  Living living;
  living.peer = partner_holder_.lock();
  if (living.peer) living.host = partner_->host_life_.lock();
  return living.host ? living : Living();
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
  {
    MutexLock lock(mutex_);
    if (!why_not_.ok()) return;
    why_not_ = status;
  }
  OH_LOG(kDebug, "link to %s: no streams: %s", link_.name.c_str(), status.text().c_str());
  link_.my_bell->ring();
}

std::string StreamLink::waits_for() const {
  if (open_.load(std::memory_order_acquire) || !gpu_) return "the other side has not answered";
  return "kernels of ours have no room on " + gpu_->facts().name;
}

Status StreamLink::prepare() {
  if (is_ready()) return {};
  OH_RETURN_IF_ERROR(why_not());
  const Living partner = hold_partner();
  if (!connection_ && !partner.peer) {
    return error(OH_ERR_PEER_LOST, "the other end within the process is gone");
  }
  make();
  if (!connection_) partner_->make();
  later(0, [this] { advance(); });
  return {};
}

// Our lanes, or why there are none.
void StreamLink::make() {
  MutexLock setup(setup_mutex_);
  if (lanes_ || !why_not().ok() || !why_no_kernels().empty()) return;
  const std::string why = ask_why_no_kernels_ ? ask_why_no_kernels_() : std::string();
  if (!why.empty()) return rule_out_kernels(why);
  Result<std::unique_ptr<Lanes>> lanes =
      Lanes::create(gpu_, host_.stream_slab(), host_.stream_small());
  if (!lanes.ok()) return rule_out_kernels(lanes.status().text());
  const GpuExport& exported = *(*lanes)->slab()->exported();
  if (!exported.mappable() && connection_) {
    return rule_out_kernels(
        strf("the slab cannot be mapped by %s: %s", link_.name.c_str(), exported.why_not.c_str()));
  }
  lanes_ = std::move(*lanes);
  made_.store(true, std::memory_order_release);
  if (aborted_.load()) lanes_->abort();
}

// Goes on as far as what it takes is there, until both sides are ready or it is known why not.
void StreamLink::advance() {
  if (is_ready() || aborted_.load()) return;
  connection_ ? connect() : connect_within();
}

void StreamLink::advance_later() {
  if (std::exchange(advancing_, true)) return;
  later(now_ns() + kOpenTime, [this] {
    advancing_ = false;
    advance();
  });
}

// Whether kernels of ours have opened the lanes; else it is asked again.
bool StreamLink::opens() {
  if (open_.load()) return true;
  if (!has_lanes()) return false;
  Result<bool> open = lanes_->is_open();
  if (!open.ok()) rule_out_kernels(open.status().text());
  if (!open.ok() || !*open) {
    advance_later();
    return false;
  }
  open_.store(true, std::memory_order_release);
  return true;
}

void StreamLink::connect_within() {
  const Living partner = hold_partner();
  if (!partner.peer) {
    return refuse(error(OH_ERR_PEER_LOST, "the other end within the process is gone"));
  }
  if (!why_not().ok()) return partner_->refuse(why_not());
  if (!partner_->why_not().ok()) return refuse(partner_->why_not());
  std::string why = why_no_kernels();
  if (why.empty()) why = partner_->why_no_kernels();
  // Whoever is later looks at both.
  if (why.empty() && !(opens() && partner_->opens())) return;
  if (why.empty() && !(gpu_->reach(partner_->gpu_->facts().ordinal) &&
                       partner_->gpu_->reach(gpu_->facts().ordinal))) {
    why = strf("%s and %s do not reach each other's memory", gpu_->facts().name.c_str(),
               partner_->gpu_->facts().name.c_str());
  }
  for (StreamLink* end : {this, partner_}) {
    if (!why.empty()) {
      end->go_by_proxy(why);
    } else {
      const std::shared_ptr<Slab>& theirs = end->partner_->lanes_->slab();
      end->lanes_->connect(theirs->address(), theirs->bytes(), theirs);
      end->tell_way(StreamWay::kKernels, "");
    }
  }
}

void StreamLink::connect() {
  if (!why_not().ok()) return tell_way(StreamWay::kNone, why_not().text());
  if (std::string why = why_no_kernels(); !why.empty()) return go_by_proxy(why);
  if (!opens()) return;
  tell_lanes();
  if (their_number_ == 0) return;
  if (!lanes_->is_connected() && !map()) {
    return go_by_proxy(strf("the slab of %s cannot be mapped here", link_.name.c_str()));
  }
  tell_way(StreamWay::kKernels, "");
}

void StreamLink::become_ready() {
  ready_.store(true, std::memory_order_release);
  link_.my_bell->ring();
}

// Our slab; a failure means that the connection is gone, which its handler reports.
void StreamLink::tell_lanes() {
  if (std::exchange(told_, true)) return;
  const std::shared_ptr<const GpuExport>& exported = lanes_->slab()->exported();
  {
    LinkGuard guard(link_);
    link_.memory->publish(exported);
  }
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(exported->number);
  writer.u64(lanes_->slab()->bytes());
  (void)connection_->send_control(Control::kLanes, bytes).ok();
}

Status StreamLink::on_lanes(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  const uint64_t bytes = reader.u64();
  if (!reader.at_end() || number == 0 || bytes < kernels::kLeastSlab) {
    return error(OH_ERR_PROTOCOL, "lanes of %zu bytes", payload.size());
  }
  if (their_number_ == 0) {
    their_number_ = number;
    their_bytes_ = bytes;
  }
  // The other side wants it: ours is made, or it hears why not.
  (void)prepare().ok();
  advance();
  return {};
}

// Maps the other side's slab, and what else of its memory is here.
bool StreamLink::map() {
  std::shared_ptr<ImportedBlock> block;
  std::vector<std::shared_ptr<ImportedBlock>> known;
  {
    LinkGuard guard(link_);
    block = link_.imports.find(their_number_);
    known = link_.imports.on_device();
  }
  if (!block || !block->on_device || block->size < their_bytes_) return false;
  lanes_->connect(reinterpret_cast<cuda::DevicePtr>(block->local_base), their_bytes_, block);
  for (const std::shared_ptr<ImportedBlock>& one : known) {
    if (one->number != their_number_) add_import(one);
  }
  return true;
}

// ---- Memory -----------------------------------------------------------------------------------

void StreamLink::add_import(const std::shared_ptr<ImportedBlock>& block) {
  if (!has_lanes() || !lanes_->is_connected() || !block || !block->on_device) return;
  lanes_->add_import(block->number, block->size, reinterpret_cast<uint64_t>(block->local_base),
                     block);
}

void StreamLink::forget_import(uint32_t number) {
  if (has_lanes()) lanes_->forget_import(number);
  settle_later();
}

void StreamLink::forget_within(uint32_t number) {
  std::shared_ptr<void> partner = partner_holder_.lock();
  if (partner && partner_->by_kernels()) partner_->lanes_->forget_import(number);
}

// On the watcher's thread, until nobody is at what was forgotten.
void StreamLink::settle_later() {
  if (std::exchange(settling_, true)) return;
  later(now_ns() + kSettleTime, [this] {
    settling_ = false;
    const bool settled = !has_lanes() || lanes_->settle_imports();
    if (!drop_held() || !settled) settle_later();
    GpuImports::instance().close_unused();
  });
}

uint32_t StreamLink::publish(const std::shared_ptr<const GpuExport>& exported) {
  if (!exported->mappable() && connection_) return 0;
  if (connection_) {
    if (!link_.maps_devices) return 0;
    LinkGuard guard(link_);
    link_.memory->publish(exported);
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
  bool many = false;
  {
    MutexLock lock(mutex_);
    many = held_.size() >= many_held_;
  }
  if (many) (void)drop_held();
  auto held = std::make_shared<Held>(gpu_, std::move(holder));
  if (!capturing) {
    Result<cuda::Event> event = gpu_->take_event();
    if (event.ok() && gpu_->record(*event, stream).ok()) held->event = *event;
  }
  MutexLock lock(mutex_);
  held_.push_back(std::move(held));
}

// Lets go of what no copy is at any more. Whether those that are left wait for nothing: a graph has
// them.
bool StreamLink::drop_held() {
  std::vector<std::shared_ptr<Held>> over;  // without the lock
  MutexLock lock(mutex_);
  bool none_waits = true;
  std::erase_if(held_, [&](std::shared_ptr<Held>& held) {
    const bool drops = held->event && held->is_over();
    none_waits = none_waits && (drops || !held->event);
    if (drops) over.push_back(std::move(held));
    return drops;
  });
  // Each is asked for a few times, however many there are.
  many_held_ = std::max(kFewHeld, 2 * held_.size());
  return none_waits;
}

// A put of the stream domain goes by the engine: where the host's puts go.
void StreamLink::add_to(Stats* stats) const {
  counts_.add_to(stats, connection_ ? OH_PATH_CUDA_IPC : OH_PATH_LOCAL);
  if (has_lanes()) lanes_->count_large(stats);
}

void StreamLink::abort() {
  aborted_.store(true);
  if (has_lanes()) lanes_->abort();
}

}  // namespace oh
