// SPDX-License-Identifier: Apache-2.0
#include "lane/stream_domain.h"

#include <utility>

namespace oh {

Result<std::unique_ptr<StreamProxy>> StreamDomain::make_proxy(Link& link,
                                                              std::shared_ptr<ProxyMemory> memory) {
  if (!options_.make_proxy) {
    return error(OH_ERR_NOT_VIABLE, "the endpoint was made without proxies");
  }
  OH_RETURN_IF_ERROR(options_.start_progress(*options_.endpoint));
  std::unique_ptr<StreamProxy> proxy =
      options_.make_proxy(*options_.endpoint, link, std::move(memory));
  proxies_.fetch_add(1, std::memory_order_relaxed);
  // Without proxies the progress thread sleeps until it is woken.
  options_.doorbell.ring();
  return proxy;
}

void StreamDomain::proxy_ended() {
  proxies_.fetch_sub(1, std::memory_order_relaxed);
  options_.doorbell.ring();
}

void StreamDomain::retain(std::shared_ptr<void> used) {
  MutexLock lock(mutex_);
  if (!released_) retained_.push_back(std::move(used));
}

void StreamDomain::release() {
  std::vector<std::shared_ptr<void>> retained;  // destroyed without the lock
  MutexLock lock(mutex_);
  released_ = true;
  retained.swap(retained_);
}

StreamOwners::Held StreamOwners::hold() const {
  Held held{.endpoint = endpoint_.lock(), .peer = peer_.lock()};
  return held.endpoint && held.peer ? held : Held{};
}

void StreamOwners::later(int64_t at, std::function<void()> call) const {
  domain().options().watcher.post_at(at, [owners = *this, call = std::move(call)] {
    if (const Held held = owners.hold()) call();
  });
}

}  // namespace oh
