// SPDX-License-Identifier: Apache-2.0
//
// Life and links of an endpoint; endpoint_memory.cc has its regions.
#include "endpoint/endpoint.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"
#include "base/log.h"
#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {
namespace {
constexpr size_t kSpares = 2;
// What a peer has to close in, whatever the others took.
constexpr int64_t kLeastCloseTime = 100 * kMillisecond;
}  // namespace

Result<std::shared_ptr<Endpoint>> Endpoint::create(const Config& config,
                                                   const EndpointOptions& options) {
  log_configure(config);
  std::shared_ptr<Endpoint> endpoint(new Endpoint(config));
  OH_RETURN_IF_ERROR(endpoint->start(options));
  return endpoint;
}

Status Endpoint::start(const EndpointOptions& options) {
  fork_watch();
  generation_ = fork_generation();
  asked_inline_ =
      options.max_inline_given ? options.max_inline : static_cast<uint64_t>(config_.max_inline);
  OH_ASSIGN_OR_RETURN(crypto_, Crypto::open(config_.libcrypto));
  OH_ASSIGN_OR_RETURN(id_, random_id());
  OH_ASSIGN_OR_RETURN(address_.key, random_key());
  int result = os().getrandom(nonce_, sizeof(nonce_));
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  OH_ASSIGN_OR_RETURN(Board board, Board::create());
  board_ = std::make_shared<Board>(std::move(board));
  regions_ = std::make_unique<RegionTable>(*board_);
  {
    MutexLock lock(peers_mutex_);
    peers_ = std::make_shared<const Peers>();
  }
  OH_ASSIGN_OR_RETURN(node_, Node::get(config_));
  address_.endpoint = id_;
  node_->describe(&address_);
  streams_ = std::make_unique<StreamDomain>(StreamDomain::Options{
      .watcher = node_->watcher(),
      .doorbell = doorbell(),
      .slab_bytes = static_cast<uint64_t>(config_.stream_slab),
      .small_max = static_cast<uint64_t>(config_.stream_small),
      .make_proxy = options.make_proxy,
      .endpoint = this,
      .start_progress = [](Endpoint& endpoint) { return endpoint.start_progress_thread(); }});
  OH_RETURN_IF_ERROR(open_device(options.device));
  refill_spares();
  SharedHeap::instance().add_listener(this, [weak = weak_from_this()](uint32_t number) {
    std::shared_ptr<Endpoint> endpoint = weak.lock();
    if (!endpoint) return;
    endpoint->for_each_peer([number](Peer& peer) { peer.retire_block(number); });
  });
  node_->add_acceptor(id_, weak_from_this());
  if (options.progress_thread || config_.progress_thread == "on") return start_progress_thread();
  return {};
}

Endpoint::~Endpoint() { close(); }

Status Endpoint::why_unusable() const {
  if (generation_ != fork_generation()) {
    return error(OH_ERR_FORKED,
                 "this endpoint belongs to the process before fork(): create one in this process");
  }
  return error(OH_ERR_CLOSED, "the endpoint is closed");
}

void Endpoint::close() {
  if (!is_of_this_process()) return;
  if (closed_.exchange(true) || !node_) return;
  __atomic_store_n(&closing_, 1, __ATOMIC_RELEASE);  // pairs with Deadline::cancelled()
  OH_FAULT_POINT("endpoint.close");
  node_->remove_acceptor(id_);
  SharedHeap::instance().remove_listener(this);
  unsigned long thread = 0;
  {
    MutexLock lock(progress_mutex_);
    thread = std::exchange(progress_thread_, 0);
  }
  if (thread) {
    stop_progress_.store(true);
    doorbell().rings.fetch_add(1);
    os().futex_wake(reinterpret_cast<uint32_t*>(&doorbell().rings));
    join_thread(thread);
  }
  // Off the board first: no one-sided operation begins any more, and close() waits for the others.
  regions_->retire_all();
  // All of them together: the times of peers that answer no more would add up. What is for the
  // others leaves meanwhile.
  Deadline until = Deadline::after(Peer::kCloseTime);
  for_each_peer([until](Peer& peer) {
    Deadline least = Deadline::after(kLeastCloseTime);
    peer.close(until.at() > least.at() ? until : least);
  });
  {
    MutexLock lock(ucx_mutex_);
    if (ucx_watch_) ucx_watch_->stop();
  }
  close_device();
  requests_.close();
  {
    MutexLock lock(peers_mutex_);
    peers_ = std::make_shared<const Peers>();
    accepted_.clear();
  }
  {
    MutexLock lock(spares_mutex_);
    spares_.clear();
  }
  // What the peers held is let go of now.
  if (gpu_) GpuImports::instance().close_unused();
  doorbell().ring();
}

// ---- Links ------------------------------------------------------------------------------------

Bytes Endpoint::greeting() const {
  return encode_greeting({address_.process, id_, address_.label, -1});
}

Limits Endpoint::limits() const {
  Limits limits;
  limits.max_inline = asked_inline_;
  limits.eager_max = static_cast<uint64_t>(config_.eager_max);
  limits.eager_credit = static_cast<uint64_t>(config_.eager_credit);
  limits.ucx_eager_max = static_cast<uint64_t>(config_.ucx_eager_max);
  limits.ucx_eager_credit = static_cast<uint64_t>(config_.ucx_eager_credit);
  limits.max_pending = static_cast<uint32_t>(config_.max_pending);
  return limits;
}

Result<std::shared_ptr<Peer>> Endpoint::connect(ByteView address, const LinkPurpose& purpose,
                                                Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  OH_ASSIGN_OR_RETURN(Address to, Address::decode(address));
  if (to.process == address_.process) {
    // All acceptors of a process are endpoints.
    auto found = std::static_pointer_cast<Endpoint>(node_->find_acceptor(to.endpoint));
    if (!found) {
      return error(OH_ERR_REFUSED, "the endpoint %s of this process was closed",
                   id_text(to.endpoint).c_str());
    }
    if (to.key != found->key()) return error(OH_ERR_AUTH, "the key in the address is wrong");
    return pair_within(shared_from_this(), found, purpose);
  }
  // A communicator cancels by a word of its own.
  if (!purpose.for_communicator()) deadline = deadline.unless(&closing_);
  Result<std::shared_ptr<Peer>> peer = pair_with(*this, to, purpose, deadline);
  if (peer.ok() || !closed_.load()) return peer;
  return error(OH_ERR_CLOSED, "the endpoint was closed while it connected to %s", to.label.c_str());
}

Result<std::unique_ptr<IncomingLink>> Endpoint::on_offer(IncomingOffer offer) {
  OH_RETURN_IF_ERROR(usable());
  return pair_incoming(shared_from_this(), std::move(offer));
}

Status Endpoint::adopt(const std::shared_ptr<Peer>& peer) {
  {
    MutexLock lock(peers_mutex_);
    if (closed_.load()) return error(OH_ERR_CLOSED, "the endpoint is closed");
    auto more = std::make_shared<Peers>(*peers_);
    more->push_back(peer);
    peers_ = std::move(more);
  }
  serve_exports();
  OH_LOG(kDebug, "link to %s: %s", peer->link().name.c_str(),
         describe_choice(peer->facts_of_gpus()).c_str());
  OH_FAULT_POINT("endpoint.adopted");
  Status started = peer->start();
  if (!started.ok()) forget(peer);
  return started;
}

void Endpoint::forget(const std::shared_ptr<Peer>& peer) {
  MutexLock lock(peers_mutex_);
  auto fewer = std::make_shared<Peers>(*peers_);
  std::erase(*fewer, peer);
  peers_ = std::move(fewer);
  // Deregistering has to wait for this one, too.
  if (!peer->operations().one_sided().wait_until_outside(Deadline::after(0)))
    closed_inside_.push_back(peer);
}

std::shared_ptr<const Endpoint::Peers> Endpoint::peers() const {
  MutexLock lock(peers_mutex_);
  return peers_;
}

void Endpoint::set_gate(std::weak_ptr<LinkGate> gate) {
  MutexLock lock(peers_mutex_);
  gate_ = std::move(gate);
}

std::shared_ptr<LinkGate> Endpoint::gate() const {
  MutexLock lock(peers_mutex_);
  return gate_.lock();
}

Status Endpoint::admit(const LinkPurpose& purpose) {
  if (!purpose.for_communicator()) return {};
  std::shared_ptr<LinkGate> gate = this->gate();
  if (!gate) return error(OH_ERR_REFUSED, "the communicator was closed");
  return gate->admit(purpose);
}

void Endpoint::deliver(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) {
  if (purpose.for_communicator()) {
    if (std::shared_ptr<LinkGate> gate = this->gate()) gate->linked(purpose, std::move(peer));
  } else {
    MutexLock lock(peers_mutex_);
    accepted_.push_back(std::move(peer));
  }
  doorbell().rings.fetch_add(1);
  os().futex_wake(reinterpret_cast<uint32_t*>(&doorbell().rings));
}

void Endpoint::abandoned(const LinkPurpose& purpose) {
  if (!purpose.for_communicator()) return;
  if (std::shared_ptr<LinkGate> gate = this->gate()) gate->abandoned(purpose);
}

Result<std::shared_ptr<Peer>> Endpoint::accept(Deadline deadline) {
  OH_RETURN_IF_ERROR(usable());
  std::shared_ptr<Peer> peer;
  auto arrived = [&] {
    MutexLock lock(peers_mutex_);
    if (!accepted_.empty()) {
      peer = std::move(accepted_.front());
      accepted_.pop_front();
    }
    return peer != nullptr || closed_.load();
  };
  if (!requests_.wait_for(arrived, nullptr, WaitKind::kConnect, 0, deadline)) {
    return timed_out(deadline.length(),
                     "no peer connected to this endpoint; does the other side call connect() with "
                     "its address?");
  }
  if (!peer) return error(OH_ERR_CLOSED, "the endpoint was closed while it waited for a peer");
  return peer;
}

Result<bool> Endpoint::has_peer() {
  MutexLock lock(peers_mutex_);
  if (!accepted_.empty()) return true;
  if (closed_.load()) return error(OH_ERR_CLOSED, "the endpoint was closed");
  return false;
}

// ---- UCX --------------------------------------------------------------------------------------

// Links may be held for longer than their endpoint.
class Endpoint::UcxEvents final : public UcxListener,
                                  public std::enable_shared_from_this<UcxEvents> {
 public:
  UcxEvents(std::weak_ptr<Endpoint> endpoint, std::shared_ptr<Node> node)
      : endpoint_(std::move(endpoint)), node_(std::move(node)) {}
  void on_arrival() override {
    std::shared_ptr<Endpoint> endpoint = endpoint_.lock();
    if (!endpoint) return;
    endpoint->doorbell().ring();
    endpoint->schedule_progress();
  }
  // The thread that called UCX may poll no more, while the other side waits.
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
      if (std::shared_ptr<UcxEvents> self = weak.lock()) self->told_of_room_.store(false);
      std::shared_ptr<Endpoint> endpoint = of.lock();
      if (endpoint)
        endpoint->for_each_peer([](Peer& peer) { peer.operations().progress(nullptr); });
    });
  }
  void count_polled(int change) override {
    if (std::shared_ptr<Endpoint> endpoint = endpoint_.lock())
      endpoint->requests().completions().count_polled(change);
  }

 private:
  std::weak_ptr<Endpoint> endpoint_;
  std::shared_ptr<Node> node_;
  std::atomic<bool> told_of_room_{false};
};

namespace {
UcxPoolLimits pool_limits(const Config& config) {
  return {
      static_cast<size_t>(config.pipeline_buffer), static_cast<uint32_t>(config.pipeline_buffers),
      static_cast<uint32_t>(config.pipeline_window), static_cast<uint32_t>(config.pipeline_depth)};
}
}  // namespace

Result<std::shared_ptr<UcxWorker>> Endpoint::ucx_worker() {
  MutexLock lock(ucx_mutex_);
  if (!ucx_watch_) {
    if (closed_.load()) return error(OH_ERR_CLOSED, "the endpoint is closed");
    const bool rma = uses_rma(rma_use(config_.ucx_rma), ucx::has_rdma());
    OH_ASSIGN_OR_RETURN(const UcxContext* context, UcxContext::get(config_.ucx_library, rma));
    OH_ASSIGN_OR_RETURN(std::shared_ptr<UcxWorker> worker,
                        UcxWorker::create(*context, pool_limits(config_),
                                          std::make_shared<UcxEvents>(weak_from_this(), node_)));
    auto watch = std::make_shared<UcxWatch>(node_, std::move(worker), [weak = weak_from_this()] {
      std::shared_ptr<Endpoint> endpoint = weak.lock();
      return endpoint && endpoint->poll_peers();
    });
    OH_RETURN_IF_ERROR(watch->start());
    ucx_watch_ = std::move(watch);
    ucx_.store(ucx_watch_.get(), std::memory_order_release);
  }
  return ucx_watch_->shared_worker();
}

void Endpoint::schedule_progress() {
  if (UcxWatch* ucx = ucx_.load(std::memory_order_acquire)) ucx->look_soon();
}

PoolStats Endpoint::pipeline_stats() const {
  UcxWatch* ucx = ucx_.load(std::memory_order_acquire);
  return ucx ? ucx->worker().pool().stats() : PoolStats{};
}

// ---- Segments made ahead ----------------------------------------------------------------------

Status Endpoint::segment_allowed(const char* side) const {
  if (config_.segment == "off") {
    return error(OH_ERR_NOT_VIABLE, "ONEHOP_SEGMENT=off at %s", side);
  }
  if (config_.transport == "auto") return {};
  return error(OH_ERR_NOT_VIABLE, "ONEHOP_TRANSPORT=%s at %s", config_.transport.c_str(), side);
}

Result<std::unique_ptr<Segment>> Endpoint::take_segment() {
  OH_RETURN_IF_ERROR(segment_allowed("the initiator"));
  std::unique_ptr<Segment> segment;
  {
    MutexLock lock(spares_mutex_);
    if (!spares_.empty()) {
      segment = std::move(spares_.back());
      spares_.pop_back();
    }
  }
  if (!segment) return Segment::create(/*shared=*/true, numa_node());
  std::weak_ptr<Endpoint> weak = weak_from_this();
  // A while later: the connection that is being made comes first.
  node_->watcher().post_at(now_ns() + 10 * kMillisecond, [weak] {
    if (std::shared_ptr<Endpoint> endpoint = weak.lock()) endpoint->refill_spares();
  });
  return segment;
}

void Endpoint::refill_spares() {
  if (!segment_allowed("this endpoint").ok()) return;
  while (true) {
    {
      MutexLock lock(spares_mutex_);
      if (spares_.size() >= kSpares || closed_.load()) return;
    }
    Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/true, numa_node());
    if (!segment.ok()) return;  // connect() tries again and reports
    MutexLock lock(spares_mutex_);
    spares_.push_back(std::move(*segment));
  }
}

}  // namespace oh
