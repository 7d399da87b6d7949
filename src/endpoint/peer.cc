// SPDX-License-Identifier: Apache-2.0
#include "endpoint/peer.h"

#include "base/log.h"
#include "base/text.h"

namespace oh {
namespace {
constexpr size_t kMaxText = 1024;  // of a goodbye
// How long a peer may take to leave our memory.
constexpr int64_t kLeaveTime = kSecond;
}  // namespace

Peer::Peer(const std::shared_ptr<PeerOwner>& owner, LinkParts parts)
    : owner_(*owner),
      living_owner_(owner),
      identity_(std::move(parts.identity)),
      why_no_segment_(std::move(parts.why_no_segment)),
      why_no_ucx_(std::move(parts.why_no_ucx)),
      why_no_mover_(std::move(parts.why_no_mover)),
      nvml_library_(std::move(parts.nvml_library)),
      connection_(std::move(parts.connection)),
      operations_(*this, *owner, connection_.get(), identity_.endpoint),
      memory_(pair(), connection_.get(), identity_.process,
              {.mapped = [this](const auto& block) { stream_->add_import(block); },
               .retired = [this](uint32_t number) { stream_->forget_import(number); }}),
      liveness_(pair(), connection_.get()) {
  Pair& pair = this->pair();
  static std::atomic<uint64_t> last_id{0};
  pair.id = last_id.fetch_add(1, std::memory_order_relaxed) + 1;
  pair.rank = identity_.rank;
  pair.name = identity_.rank >= 0 ? strf("rank %lld (%s)", static_cast<long long>(identity_.rank),
                                         identity_.label.c_str())
                                  : identity_.label;
  pair.memory = &memory_;
  if (parts.gpu) our_gpu_ = cuda::uuid_text(parts.gpu->facts().uuid);
  pair.gpu = parts.gpu;
  pair.their_gpu = !identity_.gpu.empty();
  pair.same_gpu = parts.gpu && our_gpu_ == identity_.gpu;
  pair.staging = std::move(parts.staging);
  pair.staging_depth = parts.staging_depth;
  pair.segment = std::move(parts.segment);
  pair.mover = std::move(parts.mover);
  pair.they_reach_us = parts.they_reach_us;
  pair.mine = parts.mine;
  pair.theirs = parts.theirs;
  pair.imports.set_limit(parts.import_cache);
  pair.any_source = &owner->any_source();
  pair.my_bell = &owner->doorbell();
  if (parts.their_board) pair.their_bell = &parts.their_board->doorbell();
  open_channel(parts);
  if (pair.segment) {
    open_device(parts);
    pair.maps_devices = parts.why_no_mapping.empty();
    // Within the process nothing is mapped.
    if (!pair.maps_devices && connection_) why_no_peer_access_ = parts.why_no_mapping;
  }
  operations_.open_paths(parts.rma_use);
  operations_.open(facts(), std::move(parts.their_board));
  open_stream(parts);
}

// By a segment, UCX or the socket.
void Peer::open_channel(LinkParts& parts) {
  Pair& pair = this->pair();
  if (pair.segment) {
    auto ring = std::make_unique<RingChannel>(*pair.segment);
    pair.ring = ring.get();
    pair.channel = std::move(ring);
    pair.path = connection_ ? OH_PATH_SHM : OH_PATH_LOCAL;
    pair.stream_when_attended = connection_ != nullptr;
  } else {
    std::unique_ptr<CountedCredit> counted = std::move(parts.ucx);
    pair.ucx = static_cast<UcxChannel*>(counted.get());
    pair.path = pair.ucx ? OH_PATH_UCX : OH_PATH_SOCKET;
    if (pair.ucx) {
      pair.mine.eager_max = pair.mine.ucx_eager_max;
      pair.mine.eager_credit = pair.mine.ucx_eager_credit;
      pair.theirs.eager_credit = pair.theirs.ucx_eager_credit;
    }
    if (!counted) {
      counted = std::make_unique<SocketChannel>(*connection_, parts.mine.eager_credit);
    }
    pair.counted = counted.get();
    pair.channel = std::move(counted);
  }
  pair.granted_inline = std::min<uint64_t>(parts.asked_inline, pair.channel->max_inline());
  pair.single_frame = pair.ring  ? RingChannel::kMaxShort
                      : pair.ucx ? pair.granted_inline
                                 : pair.channel->max_payload();
  pair.outbox.attach(pair.channel.get());
}

void Peer::open_stream(const LinkParts& parts) {
  Pair& pair = this->pair();
  StreamLink::WhyNot why_not;
  if (our_gpu_.empty()) {
    why_not.at_all = "the endpoint is for host memory: create it with a device";
  } else if (identity_.gpu.empty()) {
    why_not.at_all = "the peer's endpoint is for host memory";
  } else if (pair.segment && !pair.device) {
    why_not.at_all = pair.why_no_device.text();
  }
  why_not.by_kernels = !pair.segment ? "the link has no shared memory: " + why_no_segment_
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
  stream_ = std::make_unique<StreamLink>(pair, owner_, connection_, parts.gpu, std::move(why_not));
  operations_.bind(stream_.get());
}

// Without it device memory has no way over this link.
void Peer::open_device(const LinkParts& parts) {
  Pair& pair = this->pair();
  const std::shared_ptr<cuda::Gpu>& gpu = parts.gpu;
  if (!gpu) return;
  if (std::optional<cuda::Device> theirs = cuda::find_device(gpu->driver(), identity_.gpu)) {
    why_no_peer_access_ = cuda::why_no_peer_access(gpu->driver(), gpu->facts().ordinal, *theirs);
    // Both contexts live. Between processes the driver gives access with the mapping.
    if (within_process()) (void)gpu->reach(*theirs);
  }
  if (!why_no_peer_access_.empty()) {
    if (std::string why = why_slower(facts_of_gpus()); !why.empty()) {
      OH_LOG_ONCE(kWarn, "device memory takes a long way to %s: %s", pair.name.c_str(),
                  why.c_str());
    }
  }
  Result<std::unique_ptr<DeviceLink>> device = DeviceLink::create(gpu, *pair.segment);
  if (device.ok()) {
    pair.device = std::move(*device);
    // Two processes on one GPU take turns: a kernel that waits takes the other one's.
    if (within_process() || our_gpu_ != identity_.gpu) pair.device->use(parts.worker);
  } else {
    pair.why_no_device = device.status();
    OH_LOG(kWarn, "no device memory on the link to %s: %s", pair.name.c_str(),
           pair.why_no_device.text().c_str());
  }
}

LinkFacts Peer::facts() const {
  const Pair& pair = this->pair();
  LinkFacts facts;
  facts.same_process = within_process();
  facts.segment = pair.segment != nullptr;
  facts.ucx = pair.ucx != nullptr;
  facts.rma = operations_.one_sided().uses_rma();
  facts.why_no_ucx = why_no_ucx_;
  facts.we_reach_them = pair.mover != nullptr;
  facts.they_reach_us = pair.they_reach_us;
  facts.granted_inline = pair.granted_inline;
  facts.eager_max = pair.mine.eager_max;
  facts.eager_credit = pair.theirs.eager_credit;
  facts.why_no_segment = why_no_segment_;
  facts.why_not_reached = why_no_mover_;
  facts.our_gpu = !our_gpu_.empty();
  facts.their_gpu = pair.their_gpu;
  facts.same_gpu = pair.same_gpu;
  if (pair.device && pair.device->worker()) facts.worker_max = Worker::kLongest;
  if (!pair.why_no_device.ok()) facts.why_no_device = pair.why_no_device.text();
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
  if (!connection_) return {};
  bind_stream();
  return connection_->start(weak_from_this());
}

Peer::~Peer() {
  close();
  // The endpoint may have closed unused imports before: on the watcher's thread we may be last.
  // Lanes hold the other side's slab, and wait for their kernels before they let go of it.
  operations_.bind(nullptr);
  stream_.reset();
  {
    Imports imports = memory_.close();
  }
  if (pair().device) GpuImports::instance().close_unused();
}

void Peer::close(Deadline until) {
  if (!operations_.close(until)) return;
  OH_LOG(kDebug, "link to %s: closed from here", pair().name.c_str());
  stream_->close();
  if (connection_) {
    Bytes bye;
    Writer writer(bye);
    writer.text("closed");
    if (pair().ucx) writer.u64(pair().ucx->sent());
    connection_->close(bye, until);
    if (pair().ucx) pair().ucx->disconnect();
  }
  if (!operations_.one_sided().wait_until_outside(Deadline::after(kLeaveTime))) {
    OH_LOG(kWarn,
           "%s is still inside a one-sided operation (stopped?): deregister the regions it knows "
           "before their memory is given away",
           pair().name.c_str());
  }
  operations_.let_go();
  // Holders of this peer use none of the other side's memory any more; what a copy that has not
  // ended needs is held by its transfer.
  Imports imports = memory_.close();
}

void Peer::retire_block(uint32_t number) {
  connection_ ? memory_.retire_block(number) : stream_->forget_within(number);
}

// ---- The control connection ---------------------------------------------------------------------

Status Peer::on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) {
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  if (!owner) return error(OH_ERR_CLOSED, "the endpoint is closed");
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
      std::string why = printable(reader.text(kMaxText), kMaxText);
      if (pair().ucx) frames_before_bye_ = reader.u64();
      return error(OH_ERR_PEER_LOST, "it said goodbye: %s", why.c_str());
    }
    case Control::kBlock:
      return memory_.on_block(payload, std::move(fds));
    case Control::kBlockRetired:
      memory_.on_block_retired(payload);
      return {};
    case Control::kBlockWanted:
      return memory_.on_block_wanted(payload);
    case Control::kServe:
      owner_.serve();
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
  // Where there is no segment, the watcher's thread is what moves things on.
  if (pair().segment) return;
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  // One round does a bounded amount of work; no event may be left to bring the next one.
  if (owner && operations_.progress(nullptr)) connection_->look_again();
}

void Peer::on_lost(const Status& status) {
  std::shared_ptr<PeerOwner> owner = living_owner_.lock();
  if (owner) operations_.lose(status, /*dead=*/status.code() == OH_ERR_PEER_LOST);
}

// ---- For texts ----------------------------------------------------------------------------------

Stats Peer::stats() {
  Stats found = operations_.stats();
  stream_->add_to(&found);
  return found;
}

Status Peer::take_async_error() {
  Status status = operations_.take_async_error();
  if (!status.ok()) return status;
  status = stream_->take_error();
  // Its waits were ended by that.
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

// Whether what such a call of theirs begins with is here, and waits.
bool Peer::has_come(WaitKind kind, uint64_t tag) {
  if (tag == OH_ANY_TAG) return false;
  if (kind == WaitKind::kSend) return operations_.probe(tag).has_value();
  if (kind != WaitKind::kRecvBatch) return false;
  return operations_.probe(MessageBatches::offer_tag(tag)).has_value();
}

}  // namespace oh
