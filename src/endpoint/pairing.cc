// SPDX-License-Identifier: Apache-2.0
#include "endpoint/pairing.h"

#include <atomic>
#include <cstring>

#include "base/log.h"
#include "control/handshake.h"
#include "endpoint/endpoint.h"
#include "platform/os/net.h"
#include "platform/os/os.h"
#include "transport/local/local_mover.h"
#include "transport/shm/cma_mover.h"

namespace oh {
namespace {

std::string gpu_of(const Endpoint& endpoint) {
  return endpoint.device().gpu() ? cuda::uuid_text(endpoint.device().gpu()->facts().uuid)
                                 : std::string();
}

SideReport report_of(const Endpoint& endpoint) {
  SideReport report;
  report.limits = endpoint.limits();
  report.asked_inline = endpoint.limits().max_inline;
  report.nonce_address = reinterpret_cast<uint64_t>(endpoint.nonce());
  report.cma_allowed = endpoint.config().cma == "auto";
  report.cuda_ipc_allowed = endpoint.config().cuda_ipc == "auto";
  report.ucx_allowed = endpoint.config().transport != "socket";
  report.gpu = gpu_of(endpoint);
  return report;
}

// Whether UCX is the only path to other processes that the configuration allows.
bool forces_ucx(const Endpoint& endpoint) { return endpoint.config().transport == "ucx"; }

// Opens the local end of a link over UCX; connected after the peer has reported its own. `network`:
// the peer is on another host.
Status open_ucx(Endpoint& endpoint, bool network, LinkParts* parts, SideReport* report) {
  OH_ASSIGN_OR_RETURN(std::shared_ptr<UcxWorker> worker, endpoint.ucx().worker());
  uint32_t key = 0;
  if (int result = os().getrandom(&key, sizeof(key)); result < 0) {
    return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  }
  auto channel =
      std::make_unique<UcxChannel>(std::move(worker), endpoint.limits().ucx_eager_credit, key,
                                   static_cast<uint64_t>(endpoint.config().ucx_chunk));
  OH_ASSIGN_OR_RETURN(report->way, channel->own(network));
  parts->ucx = std::move(channel);
  return {};
}

LinkParts parts_for(const Endpoint& endpoint, PeerIdentity identity, const SideReport& theirs) {
  LinkParts parts;
  parts.identity = std::move(identity);
  parts.identity.gpu = theirs.gpu;
  parts.ucx_allowed = theirs.ucx_allowed && endpoint.config().transport != "socket";
  parts.mine = endpoint.limits();
  parts.theirs = theirs.limits;
  parts.asked_inline = endpoint.limits().max_inline;
  parts.gpu = endpoint.device().gpu();
  parts.worker = endpoint.device().worker();
  parts.staging = endpoint.device().staging();
  parts.rma_use = rma_use(endpoint.config().ucx_rma);
  parts.staging_depth = static_cast<uint32_t>(endpoint.config().staging_depth);
  parts.nvml_library = endpoint.config().nvml_library;
  parts.import_cache = static_cast<size_t>(endpoint.config().import_cache);
  if (endpoint.config().cuda_ipc != "auto") {
    parts.why_no_mapping = "ONEHOP_CUDA_IPC=off here";
  } else if (!theirs.cuda_ipc_allowed) {
    parts.why_no_mapping = "ONEHOP_CUDA_IPC=off at the peer";
  }
  return parts;
}

void show_nonce(Segment& segment, const Endpoint& endpoint) {
  std::memcpy(segment.mine().nonce, endpoint.nonce(), kNonceSize);
}

// Fails if the configuration forces UCX but the link does not use it.
Status check_forced(const Endpoint& endpoint, const LinkParts& parts) {
  if (!forces_ucx(endpoint) || parts.ucx) return {};
  return error(
      OH_ERR_NOT_VIABLE, "ONEHOP_TRANSPORT=ucx at %s, and there is no link to %s over UCX: %s",
      endpoint.own_address().label.c_str(), parts.identity.label.c_str(), parts.why_no_ucx.c_str());
}

// Probes whether this side can access the peer's memory. Requires the peer's nonce in the segment.
void probe_reach(const Endpoint& endpoint, const SideReport& theirs, int pid, LinkParts* parts) {
  if (endpoint.config().cma != "auto") {
    parts->why_no_mover = "ONEHOP_CMA=off here";
  } else if (!theirs.cma_allowed) {
    parts->why_no_mover = "ONEHOP_CMA=off at the peer";
  } else {
    Status status = CmaMover::probe(pid, theirs.nonce_address, parts->segment->theirs().nonce);
    if (status.ok()) {
      parts->mover = std::make_unique<CmaMover>(pid);
    } else {
      parts->why_no_mover = status.text();
    }
  }
}

// Drops the segment: frames travel over UCX or the socket.
void drop_segment(LinkParts* parts, std::string why) {
  if (parts->segment) parts->segment->advance(SideState::kFailed);
  parts->segment.reset();
  parts->mover.reset();
  parts->their_page.reset();
  parts->they_reach_us = false;
  parts->why_no_segment = std::move(why);
}

// Warns once per process that a link uses the control socket; only logs it if the configuration
// asks for the socket.
void tell_of_socket(const Endpoint& endpoint, const LinkParts& parts) {
  static std::atomic<bool> warned{false};
  const std::string text = strf("the link to %s goes over the control socket: %s",
                                parts.identity.label.c_str(), parts.why_no_ucx.c_str());
  bool chosen = !parts.ucx_allowed || endpoint.config().ucx_library == "off";
  if (chosen || warned.exchange(true, std::memory_order_relaxed)) {
    OH_LOG(kInfo, "%s", text.c_str());
    return;
  }
  OH_LOG(kWarn,
         "%s. It is slower than UCX, and without RDMA: install UCX 1.13 or newer on both hosts "
         "(the wheel libucx-cu13, or for RDMA the system's libucx), or set "
         "ONEHOP_TRANSPORT=socket to do without. Further links do not repeat this warning",
         text.c_str());
}

Result<std::shared_ptr<Peer>> finish_link(Endpoint& endpoint, LinkParts parts, MessageSocket socket,
                                          int pid, const LinkPurpose& purpose, bool initiator) {
  if (purpose.for_communicator()) {
    parts.identity.rank = initiator ? purpose.to_rank : purpose.from_rank;
  }
  if (!parts.same_host) {
    // Over TCP, a failed host or network closes nothing: set a timeout. A Unix socket is closed
    // when the process dies.
    give_up_after(socket.fd(), endpoint.config().peer_timeout_ns());
    if (!parts.ucx) tell_of_socket(endpoint, parts);
  } else if (!parts.why_no_segment.empty() && !parts.ucx) {
    OH_LOG(kWarn, "the link to %s has no shared memory: %s", parts.identity.label.c_str(),
           parts.why_no_segment.c_str());
  }
  parts.connection = std::make_shared<Connection>(endpoint.node(), std::move(socket), pid);
  auto peer = Peer::create(endpoint.shared_from_this(), std::move(parts));
  OH_RETURN_IF_ERROR(endpoint.adopt(peer));
  return peer;
}

// The acceptor's state between Offer and Confirm.
class Incoming final : public IncomingLink {
 public:
  Incoming(std::shared_ptr<Endpoint> endpoint, LinkPurpose purpose, LinkParts parts,
           SideReport report, int pid)
      : endpoint_(std::move(endpoint)),
        purpose_(purpose),
        parts_(std::move(parts)),
        answer_(encode_report(report)),
        pid_(pid) {}
  ~Incoming() override {
    if (!confirmed_) endpoint_->incoming().abandoned(purpose_);
  }

  Status check() const { return check_forced(*endpoint_, parts_); }
  ByteView answer() const override { return answer_; }
  std::vector<int> fds() const override {
    return parts_.segment ? std::vector<int>{endpoint_->control_page()->fd()} : std::vector<int>{};
  }

  void confirmed(ByteView verdict, MessageSocket socket) override {
    Result<SideReport> report = decode_report(verdict);
    if (!report.ok()) return;
    // Drop the segment only because of the verdict, not its state: the initiator may already have
    // sent data and closed.
    if (parts_.segment && !report->segment) {
      drop_segment(&parts_, "the initiator could not use it: " + report->why_no_segment);
    }
    parts_.they_reach_us = parts_.segment && report->reaches;
    if (parts_.ucx && !report->ucx) {
      parts_.ucx.reset();
      parts_.why_no_ucx = "the initiator could not use it: " + report->why_no_ucx;
    }
    Result<std::shared_ptr<Peer>> peer = finish(std::move(socket));
    if (!peer.ok()) {
      OH_LOG(kWarn, "an incoming link failed: %s", peer.status().text().c_str());
      return;
    }
    confirmed_ = true;
    endpoint_->incoming().deliver(purpose_, std::move(*peer));
  }

 private:
  Result<std::shared_ptr<Peer>> finish(MessageSocket socket) {
    OH_RETURN_IF_ERROR(check());
    return finish_link(*endpoint_, std::move(parts_), std::move(socket), pid_, purpose_, false);
  }

  std::shared_ptr<Endpoint> endpoint_;
  LinkPurpose purpose_;
  LinkParts parts_;
  Bytes answer_;
  int pid_;
  bool confirmed_ = false;
};

// Connects the initiator's UCX channel after the acceptor's answer, and probes it.
Status reach_by_ucx(Endpoint& endpoint, const SideReport& theirs, LinkParts* parts,
                    Deadline deadline) {
  if (!theirs.ucx) {
    return error(OH_ERR_NOT_VIABLE, "the acceptor cannot: %s", theirs.why_no_ucx.c_str());
  }
  OH_RETURN_IF_ERROR(parts->ucx->connect(theirs.way, endpoint.limits().max_inline));
  // The acceptor waits for the verdict twice as long, from its answer on.
  return parts->ucx->probe(deadline.within(endpoint.config().hello_timeout_ns() / 2));
}

// Maps the segment and the control page that the initiator offered.
Status take_segment(Endpoint& endpoint, IncomingOffer& offer, LinkParts* parts) {
  OH_RETURN_IF_ERROR(endpoint.segments().allowed("the acceptor"));
  OH_ASSIGN_OR_RETURN(parts->segment, Segment::open(std::move(offer.fds[0])));
  OH_ASSIGN_OR_RETURN(ControlPage page, ControlPage::open(std::move(offer.fds[1])));
  parts->their_page = std::make_shared<ControlPage>(std::move(page));
  parts->segment->take_side(1, /*loopback=*/false);
  parts->segment->advance(SideState::kMapped);
  show_nonce(*parts->segment, endpoint);
  return {};
}

// The segment that the initiator offers, or why it offers none.
Result<std::unique_ptr<Segment>> offer_segment(const Initiator& initiator, Endpoint& endpoint) {
  if (!initiator.local()) {
    return error(OH_ERR_NOT_VIABLE, "%s", initiator.why_not_local().c_str());
  }
  OH_ASSIGN_OR_RETURN(std::unique_ptr<Segment> segment, endpoint.segments().take());
  segment->take_side(0, /*loopback=*/false);
  segment->advance(SideState::kMapped);
  show_nonce(*segment, endpoint);
  return segment;
}

// Completes the link through the segment of the offer, or returns why it cannot be used.
Status reach_by_segment(Endpoint& endpoint, const Initiator& initiator, const SideReport& theirs,
                        Initiator::Answer& answer, LinkParts* parts) {
  if (answer.lost_fds) return error(OH_ERR_NOT_VIABLE, "%s", MessageSocket::kWhyLost);
  if (!theirs.segment || answer.fds.size() != 1) {
    return error(OH_ERR_NOT_VIABLE, "the acceptor could not use it: %s",
                 theirs.why_no_segment.c_str());
  }
  OH_ASSIGN_OR_RETURN(ControlPage page, ControlPage::open(std::move(answer.fds[0])));
  parts->their_page = std::make_shared<ControlPage>(std::move(page));
  probe_reach(endpoint, theirs, initiator.credentials().pid, parts);
  parts->they_reach_us = theirs.reaches;
  parts->segment->advance(SideState::kReady);
  return {};
}

// Makes one attempt to connect.
Result<std::shared_ptr<Peer>> pair_by(Initiator& initiator, Endpoint& endpoint,
                                      const Address& address, const LinkPurpose& purpose,
                                      Deadline deadline) {
  OH_RETURN_IF_ERROR(initiator.start(address, endpoint.crypto(), endpoint.greeting(), deadline));
  OH_ASSIGN_OR_RETURN(PeerIdentity identity, decode_greeting(initiator.greeting()));

  SideReport offer = report_of(endpoint);
  offer.purpose = purpose;
  if (!offer.ucx_allowed) offer.why_no_ucx = "ONEHOP_TRANSPORT=socket at the initiator";
  Result<std::unique_ptr<Segment>> segment = offer_segment(initiator, endpoint);
  std::vector<int> fds;
  if (segment.ok()) fds = {(*segment)->fd(), endpoint.control_page()->fd()};
  offer.segment = segment.ok();
  if (!segment.ok()) offer.why_no_segment = segment.status().text();
  LinkParts ours;
  const bool network = !initiator.local() || forces_ucx(endpoint);
  if (network && offer.ucx_allowed) {
    offer.why_no_ucx = open_ucx(endpoint, !initiator.local(), &ours, &offer).text();
  }
  OH_ASSIGN_OR_RETURN(Initiator::Answer answer,
                      initiator.exchange(encode_report(offer), fds, deadline));
  OH_ASSIGN_OR_RETURN(SideReport theirs, decode_report(answer.answer));

  LinkParts parts = parts_for(endpoint, std::move(identity), theirs);
  parts.same_host = initiator.local();
  parts.ucx = std::move(ours.ucx);
  SideReport verdict;
  if (segment.ok()) {
    parts.segment = std::move(*segment);
    const Status reached = reach_by_segment(endpoint, initiator, theirs, answer, &parts);
    if (!reached.ok()) drop_segment(&parts, reached.text());
  } else {
    drop_segment(&parts, offer.why_no_segment);
  }
  verdict.segment = parts.segment != nullptr;
  verdict.reaches = parts.mover != nullptr;
  verdict.why_no_segment = parts.why_no_segment;
  if (parts.segment) parts.ucx.reset();
  if (parts.ucx) {
    const Status reached = reach_by_ucx(endpoint, theirs, &parts, deadline);
    verdict.ucx = reached.ok();
    if (!reached.ok()) {
      parts.ucx.reset();
      verdict.why_no_ucx = parts.why_no_ucx = reached.text();
    }
  } else {
    parts.why_no_ucx = offer.why_no_ucx;
  }
  OH_RETURN_IF_ERROR(check_forced(endpoint, parts));
  OH_RETURN_IF_ERROR(initiator.confirm(encode_report(verdict), deadline));
  const int pid = initiator.local() ? initiator.credentials().pid : 0;
  return finish_link(endpoint, std::move(parts), initiator.take_socket(), pid, purpose, true);
}

}  // namespace

Result<std::shared_ptr<Peer>> pair_with(Endpoint& endpoint, const Address& address,
                                        const LinkPurpose& purpose, Deadline deadline) {
  HelloRetry retry(deadline);
  std::string why_not;  // from the last acceptor that asked for a retry
  while (true) {
    Initiator initiator;
    Result<std::shared_ptr<Peer>> peer = pair_by(initiator, endpoint, address, purpose, deadline);
    if (peer.ok()) return peer;
    const bool told = initiator.is_told_to_retry();
    if (told) why_not = peer.status().text();
    if (retry.after(peer.status(), told)) continue;
    // The deadline may have passed between two retries.
    const bool late = peer.status().code() == OH_ERR_TIMEOUT && !why_not.empty();
    if (!told && !late) return peer;
    return timed_out(deadline.length(), "while connecting to %s: %s", address.label.c_str(),
                     why_not.c_str());
  }
}

Result<std::unique_ptr<IncomingLink>> pair_incoming(std::shared_ptr<Endpoint> endpoint,
                                                    IncomingOffer offer) {
  OH_ASSIGN_OR_RETURN(PeerIdentity identity, decode_greeting(offer.greeting));
  OH_ASSIGN_OR_RETURN(SideReport theirs, decode_report(offer.offer));
  OH_RETURN_IF_ERROR(endpoint->incoming().admit(theirs.purpose));
  LinkParts parts = parts_for(*endpoint, std::move(identity), theirs);
  parts.same_host = offer.local;
  SideReport report = report_of(*endpoint);
  if (theirs.segment && offer.local && offer.fds.size() == 2) {
    Status status = take_segment(*endpoint, offer, &parts);
    if (status.ok()) {
      probe_reach(*endpoint, theirs, offer.credentials.pid, &parts);
      report.reaches = parts.mover != nullptr;
      report.segment = true;
      parts.segment->advance(SideState::kReady);
    } else {
      drop_segment(&parts, status.text());
    }
  } else {
    drop_segment(&parts, offer.lost_fds ? MessageSocket::kWhyLost : theirs.why_no_segment);
  }
  report.why_no_segment = parts.why_no_segment;
  if (!parts.segment && !theirs.way.address.empty() && report.ucx_allowed) {
    Status opened = open_ucx(*endpoint, !offer.local, &parts, &report);
    if (opened.ok()) opened = parts.ucx->connect(theirs.way, endpoint->limits().max_inline);
    report.ucx = opened.ok();
    if (!opened.ok()) {
      parts.ucx.reset();
      report.why_no_ucx = parts.why_no_ucx = opened.text();
    }
  } else if (!report.ucx_allowed) {
    report.why_no_ucx = parts.why_no_ucx = "ONEHOP_TRANSPORT=socket at the acceptor";
  } else if (!theirs.why_no_ucx.empty()) {
    report.why_no_ucx = parts.why_no_ucx = "the initiator cannot: " + theirs.why_no_ucx;
  }
  // Abandons what was admitted, also when the link is refused here.
  const int pid = offer.local ? offer.credentials.pid : 0;
  std::unique_ptr<Incoming> incoming(
      new Incoming(std::move(endpoint), theirs.purpose, std::move(parts), report, pid));
  OH_RETURN_IF_ERROR(incoming->check());
  return std::unique_ptr<IncomingLink>(std::move(incoming));
}

namespace {

// Creates both ends of a link within the process.
Status link_within(const std::shared_ptr<Endpoint>& from, const std::shared_ptr<Endpoint>& to,
                   const LinkPurpose& purpose, std::shared_ptr<Peer>* near,
                   std::shared_ptr<Peer>* far) {
  bool loopback = from == to;
  int node =
      from->device().numa_node() >= 0 ? from->device().numa_node() : to->device().numa_node();
  OH_ASSIGN_OR_RETURN(std::unique_ptr<Segment> first, Segment::create(/*shared=*/false, node));
  std::unique_ptr<Segment> second = Segment::alias(*first);
  auto side = [&](const std::shared_ptr<Endpoint>& endpoint, Endpoint& other,
                  std::unique_ptr<Segment> segment, int number, uint32_t rank) {
    LinkParts parts;
    parts.identity = {other.own_address().process, other.own_address().endpoint,
                      other.own_address().label,
                      purpose.for_communicator() ? static_cast<int64_t>(rank) : -1, gpu_of(other)};
    segment->take_side(number, loopback);
    segment->advance(SideState::kReady);
    parts.segment = std::move(segment);
    parts.mover = std::make_unique<LocalMover>();
    parts.they_reach_us = true;
    parts.their_page = other.control_page();
    parts.mine = endpoint->limits();
    parts.theirs = other.limits();
    parts.asked_inline = endpoint->limits().max_inline;
    parts.gpu = endpoint->device().gpu();
    parts.worker = endpoint->device().worker();
    parts.nvml_library = endpoint->config().nvml_library;
    return Peer::create(endpoint, std::move(parts));
  };
  *near = side(from, *to, std::move(first), 0, purpose.to_rank);
  if (!loopback) *far = side(to, *from, std::move(second), 1, purpose.from_rank);
  // Before other threads can find them.
  Peer::introduce(**near, loopback ? **near : **far);
  OH_RETURN_IF_ERROR(from->adopt(*near));
  return loopback ? Status() : to->adopt(*far);
}

}  // namespace

Result<std::shared_ptr<Peer>> pair_within(const std::shared_ptr<Endpoint>& from,
                                          const std::shared_ptr<Endpoint>& to,
                                          const LinkPurpose& purpose) {
  if (from != to) OH_RETURN_IF_ERROR(to->incoming().admit(purpose));
  std::shared_ptr<Peer> near;
  std::shared_ptr<Peer> far;
  Status status = link_within(from, to, purpose, &near, &far);
  if (!status.ok()) {
    if (near) from->forget(near);
    if (from != to) to->incoming().abandoned(purpose);
    return status;
  }
  if (far) to->incoming().deliver(purpose, std::move(far));
  return near;
}

}  // namespace oh
