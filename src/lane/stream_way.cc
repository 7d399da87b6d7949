// SPDX-License-Identifier: Apache-2.0
//
// How both sides agree on how messages of streams travel: by kernels when each has mapped the slab
// of the other and knows the link for one that their protocol works over, by proxy when either says
// that it cannot, and where they share no memory. A side that has said KERNELS says PROXY
// afterwards only if it hears it, so what both have said is what stays.
#include "base/log.h"
#include "base/text.h"
#include "lane/stream_link.h"
#include "link/connection.h"

namespace oh {
namespace {
constexpr size_t kMaxText = 1024;
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

// Whether kernels of ours have opened it; an error: it cannot be.
Result<bool> StreamLink::make_proxy() {
  MutexLock setup(setup_mutex_);
  if (proxy_) return proxy_->memory()->is_open();
  OH_ASSIGN_OR_RETURN(std::shared_ptr<ProxyMemory> memory, ProxyMemory::create(gpu_));
  // Memory is pinned before kernels wait for messages that travel through it.
  if (!link_.segment && link_.staging) link_.staging->grow_if_low();
  OH_ASSIGN_OR_RETURN(proxy_, host_.make_proxy(link_, std::move(memory)));
  if (closed_.load()) proxy_->close();
  // Between hosts there is no faster way.
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
  // What both have said stays.
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
  // release: what either way needs was made before; pairs with by_proxy() and is_ready().
  by_proxy_.store(!kernels, std::memory_order_release);
  OH_LOG(kDebug, "link to %s: streams by %s", link_.name.c_str(),
         kernels ? "nvlink" : ("proxy; not nvlink: " + why_no_kernels()).c_str());
  become_ready();
}

void StreamLink::close() {
  closed_.store(true);
  MutexLock setup(setup_mutex_);
  if (proxy_) proxy_->close();
}

Status StreamLink::take_error() {
  if (by_proxy()) return proxy_->take_error();
  return has_lanes() ? lanes_->take_error(link_.name) : Status();
}

}  // namespace oh
