// SPDX-License-Identifier: Apache-2.0
#include "lane/stream_link.h"

#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "link/connection.h"
#include "link/memory_exchange.h"

namespace oh {
namespace {
constexpr int64_t kOpenTime = 50 * kMicrosecond;
constexpr size_t kMaxText = 1024;
}  // namespace

StreamLink::StreamLink(Link& link, Parts parts, WhyNot why_not)
    : link_(link),
      connection_(std::move(parts.connection)),
      gpu_(std::move(parts.gpu)),
      ask_why_no_kernels_(std::move(why_not.ask_by_kernels)),
      owners_(parts.domain),
      resets_(link, owners_, connection_.get()),
      memory_(link, owners_, gpu_, /*within_process=*/!connection_),
      why_no_kernels_(std::move(why_not.by_kernels)) {
  if (!why_not.at_all.empty()) why_not_ = Status(OH_ERR_NOT_VIABLE, std::move(why_not.at_all));
}

StreamLink::~StreamLink() {
  abort();
  if (partner_owners_) {
    if (const std::shared_ptr<void> partner = partner_owners_->peer()) partner_->abort();
  }
  const std::shared_ptr<void> endpoint = owners_.endpoint();
  if (!endpoint) return;
  StreamDomain& domain = owners_.domain();
  if (lanes_ && lanes_->is_kept()) domain.retain(std::move(lanes_));
  if (proxy_) {
    domain.proxy_ended();
    if (proxy_->memory()->is_kept()) domain.retain(proxy_->memory());
  }
  memory_.give_up();
}

void StreamLink::introduce(StreamLink& one, StreamLink& other) {
  for (auto [end, partner] : {std::pair(&one, &other), std::pair(&other, &one)}) {
    end->partner_ = partner;
    end->partner_owners_ = partner->owners_;
    end->resets_.introduce(partner->resets_);
    end->memory_.introduce(partner->memory_);
  }
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
  return "kernels of onehop have no room on " + gpu_->facts().name;
}

Status StreamLink::prepare() {
  if (is_ready()) return {};
  OH_RETURN_IF_ERROR(why_not());
  StreamOwners::Held partner;
  if (!connection_) {
    if (partner_owners_) partner = partner_owners_->hold();
    if (!partner) return error(OH_ERR_PEER_LOST, "the other end within the process is gone");
  }
  make();
  if (!connection_) partner_->make();
  owners_.later(0, [this] { advance(); });
  return {};
}

void StreamLink::make() {
  MutexLock setup(setup_mutex_);
  if (lanes_ || !why_not().ok() || !why_no_kernels().empty()) return;
  const std::string why = ask_why_no_kernels_ ? ask_why_no_kernels_() : std::string();
  if (!why.empty()) return rule_out_kernels(why);
  const StreamDomain::Options& options = owners_.domain().options();
  Result<std::unique_ptr<Lanes>> lanes = Lanes::create(gpu_, options.slab_bytes, options.small_max);
  if (!lanes.ok()) return rule_out_kernels(lanes.status().text());
  const GpuExport& exported = *(*lanes)->slab()->exported();
  if (!exported.mappable() && connection_) {
    return rule_out_kernels(
        strf("the slab cannot be mapped by %s: %s", link_.name.c_str(), exported.why_not.c_str()));
  }
  lanes_ = std::move(*lanes);
  memory_.open(*lanes_);
  made_.store(true, std::memory_order_release);
  if (aborted_.load()) lanes_->notices().abort();
}

// Advances as far as it can, until both sides are ready or one side cannot be.
void StreamLink::advance() {
  if (is_ready() || aborted_.load()) return;
  connection_ ? connect() : connect_within();
}

void StreamLink::advance_later() {
  if (std::exchange(advancing_, true)) return;
  owners_.later(now_ns() + kOpenTime, [this] {
    advancing_ = false;
    advance();
  });
}

// Whether this side's lanes are open. If not yet, schedules another advance().
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
  const StreamOwners::Held partner = partner_owners_->hold();
  if (!partner) {
    return refuse(error(OH_ERR_PEER_LOST, "the other end within the process is gone"));
  }
  if (!why_not().ok()) return partner_->refuse(why_not());
  if (!partner_->why_not().ok()) return refuse(partner_->why_not());
  std::string why = why_no_kernels();
  if (why.empty()) why = partner_->why_no_kernels();
  // The side that opens last connects both.
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
      const Lanes& theirs = *end->partner_->lanes_;
      end->lanes_->connect(theirs.slab()->address(), theirs.sizes(), theirs.slab());
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

// A failed send means that the connection is gone, which its handler reports.
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
  writer.u64(lanes_->sizes().slab);
  writer.u32(OH_LANE_LAYOUT);
  writer.u64(lanes_->sizes().small);
  (void)connection_->send_control(Control::kLanes, bytes).ok();
}

Status StreamLink::on_lanes(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  Lanes::Sizes sizes;
  sizes.slab = reader.u64();
  const uint32_t layout = reader.u32();
  // What follows, and the slab, depends on the layout.
  const bool known = layout == OH_LANE_LAYOUT;
  if (known) sizes.small = reader.u64();
  if (!reader.ok() || number == 0 ||
      (known && (!reader.at_end() || sizes.slab < kernels::kLeastSlab))) {
    return error(OH_ERR_PROTOCOL, "lanes of %zu bytes", payload.size());
  }
  if (!known) {
    rule_out_kernels(strf("%s runs a version of onehop with lanes of layout %u, this one has %u",
                          link_.name.c_str(), layout, OH_LANE_LAYOUT));
  }
  if (their_number_ == 0) {
    their_number_ = number;
    their_sizes_ = sizes;
  }
  // The peer wants the lanes: create this side's, or send the reason why not.
  (void)prepare().ok();
  advance();
  return {};
}

// Connects to the peer's slab, and imports the peer's other mapped memory. False: the slab is not
// mapped here.
bool StreamLink::map() {
  std::shared_ptr<ImportedBlock> block;
  std::vector<std::shared_ptr<ImportedBlock>> known;
  {
    LinkGuard guard(link_);
    block = link_.imports.find(their_number_);
    known = link_.imports.on_device();
  }
  if (!block || !block->on_device || block->size < their_sizes_.slab) return false;
  lanes_->connect(reinterpret_cast<cuda::DevicePtr>(block->local_base), their_sizes_, block);
  for (const std::shared_ptr<ImportedBlock>& one : known) {
    if (one->number != their_number_) memory_.add_import(one);
  }
  return true;
}

std::string StreamLink::why_no_kernels() const {
  MutexLock lock(mutex_);
  return why_no_kernels_;
}

void StreamLink::rule_out_kernels(const std::string& why) {
  MutexLock lock(mutex_);
  if (why_no_kernels_.empty()) why_no_kernels_ = why;
}

void StreamLink::go_by_proxy(const std::string& why) {
  if (!why_not().ok()) return tell_way(StreamWay::kNone, why_not().text());
  rule_out_kernels(why);
  Result<bool> open = make_proxy();
  if (open.ok() && !*open) return advance_later();
  if (open.ok()) {
    open_.store(true, std::memory_order_release);
    return tell_way(StreamWay::kProxy, why);
  }
  refuse(
      error(OH_ERR_NOT_VIABLE, "%s; nor by proxy: %s", why.c_str(), open.status().text().c_str()));
  tell_way(StreamWay::kNone, why_not().text());
}

// Creates the proxy once. Returns whether it is open; an error: it cannot be created.
Result<bool> StreamLink::make_proxy() {
  MutexLock setup(setup_mutex_);
  if (proxy_) return proxy_->memory()->is_open();
  OH_ASSIGN_OR_RETURN(std::shared_ptr<ProxyMemory> memory, ProxyMemory::create(gpu_));
  // Pin staging memory before kernels wait for messages that travel through it.
  if (!link_.segment && link_.staging) link_.staging->grow_if_low();
  OH_ASSIGN_OR_RETURN(proxy_, owners_.domain().make_proxy(link_, std::move(memory)));
  if (closed_.load()) proxy_->close();
  // No warning between hosts: there the proxy is the only path.
  if (link_.segment) {
    OH_LOG_ONCE(kWarn, "messages of streams go through the host to %s: %s", link_.name.c_str(),
                why_no_kernels().c_str());
  }
  return proxy_->memory()->is_open();
}

void StreamLink::tell_way(StreamWay way, const std::string& why) {
  if (std::exchange(ours_, way) == way) return settle_way();
  if (connection_) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u8(static_cast<uint8_t>(way));
    writer.text(cut_text(why, kMaxText));
    (void)connection_->send_control(Control::kStreamWay, bytes).ok();
  } else if (way == StreamWay::kNone) {
    partner_->refuse(why_not());
  } else {
    partner_->heard_way(way);
  }
  settle_way();
}

Status StreamLink::on_way(ByteView payload) {
  Reader reader(payload);
  const auto way = static_cast<StreamWay>(reader.u8());
  const std::string why = printable(reader.text(kMaxText), kMaxText);
  // A choice that both sides have sent is final.
  if (!reader.at_end() || way > StreamWay::kProxy || (is_ready() && way != ours_)) {
    return error(OH_ERR_PROTOCOL, "a way of streams of %zu bytes", payload.size());
  }
  if (way == StreamWay::kNone) {
    refuse(error(OH_ERR_NOT_VIABLE, "not at %s: %s", link_.name.c_str(), why.c_str()));
  }
  if (way == StreamWay::kProxy) go_by_proxy(why);
  heard_way(way);
  return {};
}

void StreamLink::heard_way(StreamWay way) {
  theirs_ = way;
  settle_way();
}

void StreamLink::settle_way() {
  const bool kernels = ours_ == StreamWay::kKernels;
  if (is_ready() || ours_ != theirs_ || !(kernels || ours_ == StreamWay::kProxy)) return;
  // release: publishes lanes_ or proxy_; pairs with by_proxy() and is_ready().
  by_proxy_.store(!kernels, std::memory_order_release);
  OH_LOG(kDebug, "link to %s: streams by %s", link_.name.c_str(),
         kernels ? "nvlink" : ("proxy; not nvlink: " + why_no_kernels()).c_str());
  if (kernels) resets_.open(*lanes_, gpu_);
  ready_.store(true, std::memory_order_release);
  link_.my_bell->ring();
}

void StreamLink::close() {
  closed_.store(true);
  MutexLock setup(setup_mutex_);
  if (proxy_) proxy_->close();
}

Status StreamLink::take_error() {
  if (by_proxy()) return proxy_->take_error();
  return has_lanes() ? lanes_->notices().take_error(link_.name) : Status();
}

// Puts of the stream domain use the copy engine, like puts of the host domain.
void StreamLink::add_to(Stats* stats) const {
  counts_.add_to(stats, connection_ ? OH_PATH_CUDA_IPC : OH_PATH_LOCAL);
  if (has_lanes()) lanes_->notices().count_large(stats);
}

void StreamLink::abort() {
  aborted_.store(true);
  resets_.stop();
  if (has_lanes()) lanes_->notices().abort();
}

}  // namespace oh
