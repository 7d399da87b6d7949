// SPDX-License-Identifier: Apache-2.0
#include "endpoint/endpoint.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"
#include "base/log.h"
#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {
namespace {
// Minimum time for each peer's close, even if earlier peers used up the shared deadline.
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
  OH_ASSIGN_OR_RETURN(address_.endpoint, random_id());
  OH_ASSIGN_OR_RETURN(address_.key, random_key());
  int result = os().getrandom(nonce_, sizeof(nonce_));
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  OH_ASSIGN_OR_RETURN(ControlPage page, ControlPage::create());
  page_ = std::make_shared<ControlPage>(std::move(page));
  memory_ = std::make_unique<EndpointMemory>(*this, *page_);
  {
    MutexLock lock(peers_mutex_);
    peers_ = std::make_shared<const Peers>();
  }
  OH_ASSIGN_OR_RETURN(node_, Node::get(config_));
  node_->describe(&address_);
  streams_ = std::make_unique<StreamDomain>(StreamDomain::Options{
      .watcher = node_->watcher(),
      .doorbell = doorbell(),
      .slab_bytes = static_cast<uint64_t>(config_.stream_slab),
      .small_max = static_cast<uint64_t>(config_.stream_small),
      .make_proxy = options.make_proxy,
      .endpoint = this,
      .start_progress = [](Endpoint& endpoint) { return endpoint.progress_thread().start(); }});
  OH_RETURN_IF_ERROR(device_.open(config_, node_, options.device, weak_from_this()));
  OH_ASSIGN_OR_RETURN(trace_, Trace::open(config_));
  fast_path_ = !device_.gpu() && !trace_;
  segments_.open(config_, page_->why_private(), node_, device_.numa_node(), weak_from_this());
  SharedHeap::instance().add_listener(this, [weak = weak_from_this()](uint32_t number) {
    std::shared_ptr<Endpoint> endpoint = weak.lock();
    if (!endpoint) return;
    endpoint->for_each_peer([number](Peer& peer) { peer.retire_block(number); });
  });
  node_->add_acceptor(address_.endpoint, weak_from_this());
  if (config_.top == "on") OH_RETURN_IF_ERROR(stats_page_.start());
  if (options.progress_thread || config_.progress_thread == "on") return progress_thread_.start();
  return {};
}

Endpoint::~Endpoint() {
  close();
  if (memory_) memory_->forget_closed();
}

Status Endpoint::why_unusable() const {
  if (generation_ != fork_generation()) {
    return error(OH_ERR_FORKED,
                 "this endpoint belongs to the process before fork(): create one in this process");
  }
  return error(OH_ERR_CLOSED, "the endpoint is closed: create another one");
}

void Endpoint::close() {
  if (!is_of_this_process()) return;
  // A concurrent second call waits here and returns when the endpoint is closed.
  MutexLock lock(close_mutex_);
  if (closed_.exchange(true) || !node_) return;
  __atomic_store_n(&closing_, 1, __ATOMIC_RELEASE);  // pairs with Deadline::cancelled()
  OH_FAULT_POINT("endpoint.close");
  node_->remove_acceptor(address_.endpoint, *this);
  SharedHeap::instance().remove_listener(this);
  progress_thread_.stop();
  stats_page_.stop();
  // Take the regions off the control page first: no new one-sided operation begins, and close()
  // waits for the current ones.
  memory_->regions().retire_all();
  // One deadline for all peers: the timeouts of unresponsive peers would add up otherwise. Data for
  // the other peers is flushed meanwhile.
  Deadline until = Deadline::after(Peer::kCloseTime);
  for_each_peer([until](Peer& peer) {
    Deadline least = Deadline::after(kLeastCloseTime);
    peer.close(until.at() > least.at() ? until : least);
  });
  ucx_.close();
  if (device_.gpu()) streams_->release();
  device_.close();
  requests_.close();
  // deregister() must still find peers that are inside a one-sided operation.
  for (auto all = peers(); const std::shared_ptr<Peer>& peer : *all) memory_->link_closed(peer);
  // Without the lock: the end of a link may wait for its kernels.
  auto gone = std::make_shared<const Peers>();
  {
    MutexLock list(peers_mutex_);
    peers_.swap(gone);
  }
  gone.reset();
  incoming_.clear();
  segments_.close();
  // Release the imports and gates that the peers held.
  if (device_.gpu()) {
    GpuImports::instance().close_unused();
    StreamGates::instance().reap();
  }
  doorbell().ring();
  if (trace_) {
    if (Status status = trace_->write(); !status.ok()) {
      OH_LOG(kError, "%s", status.text().c_str());
    }
  }
  // A callback may be in a call of UCX, whose destructors run when the process exits.
  node_->watcher().await_callbacks();
}

// ---- Links ------------------------------------------------------------------------------------

Bytes Endpoint::greeting() const {
  return encode_greeting({address_.process, address_.endpoint, address_.label, -1});
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
  forget_ended();
  OH_ASSIGN_OR_RETURN(Address to, Address::decode(address));
  if (to.process == address_.process) {
    // All acceptors of a process are endpoints.
    auto found = std::static_pointer_cast<Endpoint>(node_->find_acceptor(to.endpoint));
    if (!found) {
      return error(OH_ERR_REFUSED, "the endpoint %s of this process was closed",
                   id_text(to.endpoint).c_str());
    }
    if (to.key != found->own_address().key) {
      return error(OH_ERR_AUTH,
                   "the key in the address is wrong: pass the endpoint's current address, whole");
    }
    return pair_within(shared_from_this(), found, purpose);
  }
  Result<std::shared_ptr<Peer>> peer = pair_with(*this, to, purpose, until_closed(deadline));
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
    if (closed_.load()) return why_unusable();
    auto more = std::make_shared<Peers>(*peers_);
    more->push_back(peer);
    peers_ = std::move(more);
  }
  memory_->serve_exports();
  OH_LOG(kDebug, "link to %s: %s", peer->link().name.c_str(),
         describe_choice(peer->facts_of_gpus()).c_str());
  OH_FAULT_POINT("endpoint.adopted");
  Status started = peer->start();
  if (!started.ok()) forget(peer);
  return started;
}

void Endpoint::forget(const std::shared_ptr<Peer>& peer) {
  // Before the removal below, so that deregister() always finds the peer in one of the two lists.
  memory_->link_closed(peer);
  MutexLock lock(peers_mutex_);
  auto fewer = std::make_shared<Peers>(*peers_);
  std::erase(*fewer, peer);
  peers_ = std::move(fewer);
}

void Endpoint::forget_ended() {
  Peers ended;
  for_each_peer([&ended](Peer& peer) {
    if (peer.usable().ok() || !peer.operations().has_nothing_left()) return;
    if (std::shared_ptr<Peer> held = peer.link().keep_alive()) ended.push_back(std::move(held));
  });
  for (const std::shared_ptr<Peer>& peer : ended) {
    // Two references: the list and `ended`. A reference that another thread holds briefly only
    // postpones the close.
    if (peer.use_count() > 2) continue;
    peer->close();
    forget(peer);
  }
}

std::shared_ptr<const Endpoint::Peers> Endpoint::peers() const {
  MutexLock lock(peers_mutex_);
  return peers_;
}

void Endpoint::on_memory_gone(uint32_t number) {
  for_each_peer([number](Peer& peer) { peer.retire_block(number); });
}

// ---- Progress ---------------------------------------------------------------------------------

bool Endpoint::progress() {
  bool any = ucx_.progress();
  std::shared_ptr<const Peers> all = peers();
  for (const auto& peer : *all) any = peer->operations().poll(nullptr) || any;
  if (requests_.any_source().take_look_again()) {
    for (const auto& peer : *all) peer->operations().messages().offer_unexpected();
    any = true;
  }
  any = requests_.end_ready() || any;
  return any;
}

bool Endpoint::progress_thoroughly() {
  bool any = progress();
  for_each_peer([&any](Peer& peer) { any = peer.operations().progress(nullptr) || any; });
  return ucx_.look_before_sleep() || any;
}

}  // namespace oh
