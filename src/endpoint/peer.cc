// SPDX-License-Identifier: Apache-2.0
#include "endpoint/peer.h"

#include "base/log.h"
#include "base/text.h"
#include "endpoint/endpoint.h"

namespace oh {
namespace {
constexpr size_t kMaxGoodbye = 1024;
// How long close() waits until the peer has left its current one-sided operation.
constexpr int64_t kLeaveTime = kSecond;
}  // namespace

std::shared_ptr<Peer> Peer::create(const std::shared_ptr<Endpoint>& endpoint, LinkParts parts) {
  std::shared_ptr<Peer> peer(new Peer(endpoint, std::move(parts)));
  peer->link().bind(peer);
  peer->stream_->bind(peer, endpoint);
  return peer;
}

Peer::Peer(const std::shared_ptr<Endpoint>& endpoint, LinkParts parts)
    : endpoint_(*endpoint),
      living_endpoint_(endpoint),
      identity_(std::move(parts.identity)),
      why_no_segment_(std::move(parts.why_no_segment)),
      why_no_ucx_(std::move(parts.why_no_ucx)),
      why_no_mover_(std::move(parts.why_no_mover)),
      nvml_library_(std::move(parts.nvml_library)),
      connection_(std::move(parts.connection)),
      operations_(*this, *endpoint, connection_.get(), identity_.endpoint),
      memory_(link(), connection_.get(), identity_.process,
              {.mapped = [this](const auto& block) { stream_->memory().add_import(block); },
               .retired = [this](uint32_t number) { stream_->memory().forget_import(number); }}),
      liveness_(link(), connection_.get()) {
  Link& link = this->link();
  static std::atomic<uint64_t> last_id{0};
  link.id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  link.rank = identity_.rank;
  link.name = identity_.rank >= 0 ? strf("rank %lld (%s)", static_cast<long long>(identity_.rank),
                                         identity_.label.c_str())
                                  : identity_.label;
  link.memory = &memory_;
  link.trace = endpoint->trace();
  if (endpoint->config().top == "on") link.posted_times = std::make_unique<PostedTimes>();
  if (parts.gpu) our_gpu_ = cuda::uuid_text(parts.gpu->facts().uuid);
  link.gpu = parts.gpu;
  link.same_gpu = parts.gpu && our_gpu_ == identity_.gpu;
  link.staging = std::move(parts.staging);
  link.staging_depth = parts.staging_depth;
  link.segment = std::move(parts.segment);
  if (link.same_gpu && connection_ && link.segment) {
    // Any total order of the processes works, as long as all links use the same one.
    copy_side_ = endpoint->node()->process() < identity_.process ? CopySide::kUs : CopySide::kThem;
  }
  link.mover = std::move(parts.mover);
  link.they_reach_us = parts.they_reach_us;
  link.mine = parts.mine;
  link.theirs = parts.theirs;
  link.imports.set_limit(parts.import_cache);
  link.any_source = &endpoint->requests().any_source();
  link.my_bell = &endpoint->doorbell();
  if (parts.their_page) link.their_bell = &parts.their_page->doorbell();
  open_channel(parts);
  if (link.segment) {
    open_device(parts);
    link.maps_devices = parts.why_no_mapping.empty();
    // Within the process no mapping is needed.
    if (!link.maps_devices && connection_) why_no_peer_access_ = parts.why_no_mapping;
  }
  operations_.open_paths(parts.rma_use);
  operations_.open(facts(), std::move(parts.their_page));
  open_stream(parts);
  count_fallbacks(parts.same_host);
  Totals::instance().enter(*this);
}

void Peer::introduce(Peer& one, Peer& other) {
  StreamLink::introduce(*one.stream_, *other.stream_);
  if (&one == &other) return;
  one.partner_ = other.link().keep_alive();
  other.partner_ = one.link().keep_alive();
}

void Peer::count_fallbacks(bool same_host) const {
  const Link& link = this->link();
  if (!link.segment && same_host) g_metrics.count(Fallback::kNoSegment);
  if (!link.segment && !same_host && !link.ucx) g_metrics.count(Fallback::kNoUcx);
  if (link.segment && !link.mover) g_metrics.count(Fallback::kNoSingleCopy);
  if (!why_no_peer_access_.empty()) g_metrics.count(Fallback::kNoPeerAccess);
}

// Chooses the channel: a segment, UCX or the socket.
void Peer::open_channel(LinkParts& parts) {
  Link& link = this->link();
  if (link.segment) {
    auto ring = std::make_unique<RingChannel>(*link.segment);
    link.ring = ring.get();
    if (!link.trace) link.short_ring = link.ring;
    link.channel = std::move(ring);
    link.path = connection_ ? OH_PATH_SHM : OH_PATH_LOCAL;
  } else {
    std::unique_ptr<CountedCredit> counted = std::move(parts.ucx);
    link.ucx = static_cast<UcxChannel*>(counted.get());
    link.path = link.ucx ? OH_PATH_UCX : OH_PATH_SOCKET;
    if (link.ucx) {
      link.mine.eager_max = link.mine.ucx_eager_max;
      link.mine.eager_credit = link.mine.ucx_eager_credit;
      link.theirs.eager_credit = link.theirs.ucx_eager_credit;
    }
    if (!counted) {
      counted = std::make_unique<SocketChannel>(*connection_, parts.mine.eager_credit);
    }
    link.counted = counted.get();
    link.channel = std::move(counted);
  }
  link.granted_inline = std::min<uint64_t>(parts.asked_inline, link.channel->max_inline());
  link.outbox.attach(link.channel.get());
}

void Peer::open_stream(const LinkParts& parts) {
  Link& link = this->link();
  StreamLink::WhyNot why_not;
  if (our_gpu_.empty()) {
    why_not.at_all = "the endpoint is for host memory: create it with a device";
  } else if (identity_.gpu.empty()) {
    why_not.at_all = "the peer's endpoint is for host memory";
  } else if (link.segment && !link.device) {
    why_not.at_all = link.why_no_device.text();
  }
  why_not.by_kernels = !link.segment ? "the link has no shared memory: " + why_no_segment_
                       : parts.why_no_mapping.empty() ? why_no_peer_access_
                                                      : parts.why_no_mapping;
  if (why_not.by_kernels.empty() && parts.gpu) {
    const cuda::Gpu& gpu = *parts.gpu;
    if (std::optional<cuda::Device> theirs = cuda::find_device(gpu.driver(), identity_.gpu)) {
      why_not.by_kernels = cuda::why_no_native_atomics(gpu.driver(), gpu.facts().ordinal, *theirs);
    } else {
      why_not.ask_by_kernels = [library = nvml_library_, ours = our_gpu_, theirs = identity_.gpu] {
        return cuda::why_not_nvlink(library, ours, theirs);
      };
    }
  }
  stream_ = std::make_unique<StreamLink>(
      link, StreamLink::Parts{endpoint_.streams(), connection_, parts.gpu}, std::move(why_not));
  operations_.bind(stream_.get());
}

// Opens the device link; without it this link cannot transfer device memory through a segment.
void Peer::open_device(const LinkParts& parts) {
  Link& link = this->link();
  const std::shared_ptr<cuda::Gpu>& gpu = parts.gpu;
  if (!gpu) return;
  if (std::optional<cuda::Device> theirs = cuda::find_device(gpu->driver(), identity_.gpu)) {
    why_no_peer_access_ = cuda::why_no_peer_access(gpu->driver(), gpu->facts().ordinal, *theirs);
    // Needed only within the process, where both contexts exist. Between processes the driver
    // enables access when it maps the memory.
    if (within_process()) (void)gpu->reach(*theirs);
  }
  if (!why_no_peer_access_.empty()) {
    if (std::string why = why_slower(facts_of_gpus()); !why.empty()) {
      OH_LOG_ONCE(kWarn, "device memory takes a long way to %s: %s", link.name.c_str(),
                  why.c_str());
    }
  }
  Result<std::unique_ptr<DeviceLink>> device = DeviceLink::create(gpu, *link.segment);
  if (device.ok()) {
    link.device = std::move(*device);
    // Two processes time-slice one GPU: a kernel that waits would take the other process's time.
    if (within_process() || our_gpu_ != identity_.gpu) link.device->use(parts.worker);
  } else {
    link.why_no_device = device.status();
    OH_LOG(kWarn, "no device memory on the link to %s: %s", link.name.c_str(),
           link.why_no_device.text().c_str());
  }
}

LinkFacts Peer::facts() const {
  const Link& link = this->link();
  LinkFacts facts;
  facts.same_process = within_process();
  facts.segment = link.segment != nullptr;
  facts.ucx = link.ucx != nullptr;
  facts.rma = operations_.one_sided().uses_rma();
  facts.why_no_ucx = why_no_ucx_;
  facts.we_reach_them = link.mover != nullptr;
  facts.they_reach_us = link.they_reach_us;
  facts.granted_inline = link.granted_inline;
  facts.single_frame = link.ring  ? RingChannel::kMaxShort
                       : link.ucx ? link.granted_inline
                                  : link.channel->max_payload();
  facts.eager_max = link.mine.eager_max;
  facts.their_eager_max = link.theirs.eager_max;
  facts.eager_credit = link.theirs.eager_credit;
  facts.why_no_segment = why_no_segment_;
  facts.why_not_reached = why_no_mover_;
  facts.our_gpu = !our_gpu_.empty();
  facts.their_gpu = !identity_.gpu.empty();
  facts.same_gpu = link.same_gpu;
  facts.copy_side = copy_side_;
  facts.maps_devices = link.maps_devices;
  if (link.device && link.device->worker()) facts.worker_max = Worker::kLongest;
  if (!link.why_no_device.ok()) facts.why_no_device = link.why_no_device.text();
  facts.why_no_peer_access = why_no_peer_access_;
  return facts;
}

LinkFacts Peer::facts_of_gpus() const {
  LinkFacts known = facts();
  if (known.segment && known.our_gpu && known.their_gpu) {
    known.gpu_link = cuda::links_among(nvml_library_, {our_gpu_, identity_.gpu})[1];
  }
  if (stream_) {
    const Status why_not = stream_->why_not();
    const std::string why_no_kernels = stream_->why_no_kernels();
    known.stream_path = !why_not.ok()            ? OH_PATH_NONE
                        : why_no_kernels.empty() ? OH_PATH_NVLINK
                                                 : OH_PATH_PROXY;
    known.why_stream = why_not.ok() ? why_no_kernels : why_not.text();
  }
  return known;
}

Status Peer::start() {
  if (link().trace) link().trace->connected(link().id, link().name);
  if (!connection_) return {};
  return connection_->start(weak_from_this());
}

Peer::~Peer() {
  close();
  Totals::instance().leave(*this);
  // The endpoint may already have closed unused imports, and the watcher thread may hold the last
  // reference to this peer. Lanes hold the peer's slab and wait for their kernels before they
  // release it.
  operations_.bind(nullptr);
  stream_.reset();
  {
    Imports imports = memory_.close();
  }
  if (link().device) GpuImports::instance().close_unused();
}

void Peer::close(Deadline until) {
  // A concurrent second call waits here and returns when the peer is closed.
  MutexLock lock(close_mutex_);
  if (!operations_.close(until)) return;
  OH_LOG(kDebug, "link to %s: closed from here", link().name.c_str());
  stream_->close();
  if (connection_) {
    Bytes bye;
    Writer writer(bye);
    writer.text("closed");
    if (link().ucx) writer.u64(link().ucx->sent());
    connection_->close(bye, until);
    if (link().ucx) link().ucx->disconnect();
  } else if (std::shared_ptr<Peer> partner = partner_.lock()) {
    partner->link().said_goodbye.store(true, std::memory_order_relaxed);
    partner->on_lost(error(OH_ERR_PEER_LOST, "it said goodbye: closed"));
  }
  if (!operations_.one_sided().wait_until_outside(Deadline::after(kLeaveTime))) {
    OH_LOG(kWarn,
           "%s is still inside a one-sided operation (stopped?): deregister the regions it knows "
           "before their memory is given away",
           link().name.c_str());
  }
  operations_.let_go();
  // Holders of this peer no longer use the remote memory. A transfer holds what its unfinished copy
  // needs.
  Imports imports = memory_.close();
}

void Peer::retire_block(uint32_t number) {
  connection_ ? memory_.retire_block(number) : stream_->memory().forget_within(number);
}

// ---- The control connection ---------------------------------------------------------------------

Status Peer::on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) {
  std::shared_ptr<Endpoint> endpoint = living_endpoint_.lock();
  if (!endpoint) return error(OH_ERR_CLOSED, "the endpoint is closed");
  if (type == kFrameMessage) return operations_.on_frame_message(payload);
  return on_control(static_cast<Control>(type), payload, std::move(fds));
}

Status Peer::on_control(Control type, ByteView payload, std::vector<UniqueFd> fds) {
  switch (type) {
    case Control::kPing:
      return liveness_.on_ping(payload);
    case Control::kPong:
      return liveness_.on_pong(payload);
    case Control::kBye: {
      Reader reader(payload);
      std::string why = printable(reader.text(kMaxGoodbye), kMaxGoodbye);
      if (link().ucx) frames_before_bye_ = reader.u64();
      link().said_goodbye.store(true, std::memory_order_relaxed);
      return error(OH_ERR_PEER_LOST, "it said goodbye: %s", why.c_str());
    }
    case Control::kBlock:
      return memory_.on_block(payload, std::move(fds));
    case Control::kBlockRetired:
      return memory_.on_block_retired(payload);
    case Control::kBlockWanted:
      return memory_.on_block_wanted(payload);
    case Control::kBlockReached:
      return memory_.on_block_reached(payload);
    case Control::kServe:
      endpoint_.progress_thread().serve();
      return {};
    case Control::kLanes:
      return stream_->on_lanes(payload);
    case Control::kLaneReady:
      return stream_->on_ready(payload);
    case Control::kStreamWay:
      return stream_->on_way(payload);
    case Control::kExport:
    case Control::kExportMore:
      return memory_.on_export(payload, std::move(fds), type == Control::kExport);
  }
  return error(OH_ERR_PROTOCOL, "a control message of type %u", static_cast<unsigned>(type));
}

void Peer::on_idle() {
  // Without a segment the watcher thread makes the progress.
  if (link().segment) return;
  std::shared_ptr<Endpoint> endpoint = living_endpoint_.lock();
  // One round does a bounded amount of work, and there may be no event left to trigger the next.
  if (endpoint && operations_.progress(nullptr)) connection_->look_again();
}

void Peer::on_lost(const Status& status) {
  std::shared_ptr<Endpoint> endpoint = living_endpoint_.lock();
  if (endpoint) operations_.lose(status, /*dead=*/status.code() == OH_ERR_PEER_LOST);
}

// ---- Reports ------------------------------------------------------------------------------------

Stats Peer::stats() {
  Stats found;
  {
    LinkGuard guard(link());
    found = link().stats;
    if (link().ucx) {
      found.packed += link().ucx->packer().counts().packed;
      found.deferred += link().ucx->packer().counts().deferred;
    }
  }
  stream_->add_to(&found);
  return found;
}

void Peer::add_to(Stats* stats) const {
  stats->add(link().stats);
  stream_->add_to(stats);
}

Status Peer::take_async_error() {
  Status status = operations_.take_async_error();
  if (!status.ok()) return status;
  status = stream_->take_error();
  // The end of the link cancelled the stream's waits: return its reason instead.
  return status.code() == OH_ERR_CANCELLED && !usable().ok() ? usable() : status;
}

std::string Peer::describe(const Request* request) {
  return operations_.describe(request) + "; " + liveness_.text();
}

std::string Peer::mismatch(const Wait& ours) {
  struct Never {
    WaitKind ours, theirs;
    const char* text;
  };
  static constexpr Never kNever[] = {
      {WaitKind::kSend, WaitKind::kRecvBatch,
       "The other side receives a batch with this tag, which takes no message: use send_batch "
       "here, or recv there"},
      {WaitKind::kSendBatch, WaitKind::kRecv,
       "The other side receives a message with this tag, which takes no batch: use send here, or "
       "recv_batch there"},
      {WaitKind::kRecv, WaitKind::kSendBatch,
       "The other side sends a batch with this tag, which no recv takes: use recv_batch here, or "
       "send there"},
      {WaitKind::kRecvBatch, WaitKind::kSend,
       "The other side sends a message with this tag, which no recv_batch takes: use recv here, "
       "or send_batch there"},
  };
  const Wait theirs = liveness_.theirs();
  const bool met = theirs.tag == ours.tag || ours.tag == OH_ANY_TAG || theirs.tag == OH_ANY_TAG;
  for (const Never& never : kNever) {
    if (ours.kind != never.ours) continue;
    if (theirs.kind == never.theirs && met) return never.text;
    if (has_come(never.theirs, ours.tag)) return never.text;
  }
  return {};
}

// Whether the first frame of the peer's `kind` call with this tag has arrived and is unmatched.
bool Peer::has_come(WaitKind kind, uint64_t tag) {
  if (tag == OH_ANY_TAG) return false;
  if (kind == WaitKind::kSend) return operations_.messages().probe(tag).has_value();
  if (kind != WaitKind::kRecvBatch) return false;
  return operations_.messages().probe(MessageBatches::offer_tag(tag)).has_value();
}

}  // namespace oh
