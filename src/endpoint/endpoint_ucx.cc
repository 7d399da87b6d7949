// SPDX-License-Identifier: Apache-2.0
#include "endpoint/endpoint_ucx.h"

#include "endpoint/endpoint.h"

namespace oh {
namespace {
// Free file descriptors required before UCX is used. A worker opens 10 with one network device, and
// more with further devices and for RDMA. UCX 1.13 and 1.22 abort the process when none are left.
constexpr size_t kDescriptors = 64;

UcxPoolLimits pool_limits(const Config& config) {
  return {
      static_cast<size_t>(config.pipeline_buffer), static_cast<uint32_t>(config.pipeline_buffers),
      static_cast<uint32_t>(config.pipeline_window), static_cast<uint32_t>(config.pipeline_depth)};
}
}  // namespace

// Holds the endpoint weakly: links may outlive their endpoint.
class EndpointUcx::Events final : public UcxListener, public std::enable_shared_from_this<Events> {
 public:
  Events(std::weak_ptr<Endpoint> endpoint, std::shared_ptr<Node> node)
      : endpoint_(std::move(endpoint)), node_(std::move(node)) {}
  void on_arrival() override {
    std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    if (!endpoint) return;
    endpoint->doorbell().ring();
    endpoint->ucx().schedule_progress();
  }
  // The thread that called UCX may stop polling, while the peer still waits.
  void on_broken() override {
    node_->watcher().post_at(0, [weak = endpoint_] {
      std::shared_ptr<Endpoint> endpoint = weak.lock();
      if (endpoint)
        endpoint->for_each_peer([](Peer& peer) { peer.operations().progress(nullptr); });
    });
  }
  void on_room() override {
    if (told_of_room_.exchange(true)) return;
    node_->watcher().post_at(0, [weak = weak_from_this(), of = endpoint_] {
      if (std::shared_ptr<Events> self = weak.lock()) self->told_of_room_.store(false);
      std::shared_ptr<Endpoint> endpoint = of.lock();
      if (endpoint)
        endpoint->for_each_peer([](Peer& peer) { peer.operations().progress(nullptr); });
    });
  }
  // The thread that left work to UCX may make no further progress.
  void count_polled(int change) override {
    std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    if (!endpoint) return;
    endpoint->requests().completions().count_polled(change);
    if (change > 0) endpoint->ucx().schedule_progress();
  }

 private:
  std::weak_ptr<Endpoint> endpoint_;
  std::shared_ptr<Node> node_;
  std::atomic<bool> told_of_room_{false};
};

Result<std::shared_ptr<UcxWorker>> EndpointUcx::worker() {
  OH_RETURN_IF_ERROR(check_room_for_fds(kDescriptors));
  MutexLock lock(mutex_);
  if (!watch_) {
    if (closed_) return error(OH_ERR_CLOSED, "the endpoint is closed");
    const Config& config = endpoint_.config();
    const bool rma = uses_rma(rma_use(config.ucx_rma), ucx::has_rdma());
    OH_ASSIGN_OR_RETURN(const UcxContext* context, UcxContext::get(config.ucx_library, rma));
    OH_ASSIGN_OR_RETURN(
        std::shared_ptr<UcxWorker> worker,
        UcxWorker::create(*context, pool_limits(config),
                          std::make_shared<Events>(endpoint_.weak_from_this(), endpoint_.node())));
    auto watch = std::make_shared<UcxWatch>(
        endpoint_.node(), std::move(worker), [weak = endpoint_.weak_from_this()] {
          std::shared_ptr<Endpoint> endpoint = weak.lock();
          bool any = false;
          if (endpoint)
            endpoint->for_each_peer(
                [&any](Peer& peer) { any = peer.operations().poll(nullptr) || any; });
          return any;
        });
    OH_RETURN_IF_ERROR(watch->start());
    watch_ = std::move(watch);
    polled_watch_.store(watch_.get(), std::memory_order_release);
  }
  return watch_->shared_worker();
}

void EndpointUcx::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  if (watch_) watch_->stop();
}

bool EndpointUcx::progress() {
  UcxWatch* watch = polled_watch_.load(std::memory_order_acquire);
  return watch && watch->worker().progress();
}

bool EndpointUcx::look_before_sleep() {
  UcxWatch* watch = polled_watch_.load(std::memory_order_acquire);
  return watch && watch->look_before_sleep();
}

void EndpointUcx::schedule_progress() {
  if (UcxWatch* ucx = polled_watch_.load(std::memory_order_acquire)) ucx->look_soon();
}

PoolStats EndpointUcx::pipeline_stats() const {
  UcxWatch* ucx = polled_watch_.load(std::memory_order_acquire);
  return ucx ? ucx->worker().pool().stats() : PoolStats{};
}

}  // namespace oh
