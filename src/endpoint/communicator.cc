// SPDX-License-Identifier: Apache-2.0
#include "endpoint/communicator.h"

#include <chrono>

namespace oh {
namespace {

// Tags of the library's own messages; wildcards do not see them.
constexpr uint64_t kBarrierTag = OH_TAG_MAX + 1 + (uint64_t{1} << 62);  // above those of batches
constexpr int64_t kPatience = 100 * kMillisecond;

Status check_rank(const CommunicatorOptions& options) {
  if (options.size == 0 || options.size > kMaxRanks || options.rank >= options.size) {
    return error(OH_ERR_INVALID, "rank %u of %u: ranks are 0 to size - 1, at most %u", options.rank,
                 options.size, kMaxRanks);
  }
  if (options.rendezvous.empty() == options.unique_id.empty() && options.size > 1) {
    return error(OH_ERR_INVALID,
                 "a communicator of %u ranks needs a rendezvous (tcp://host:port) or a unique id, "
                 "and not both",
                 options.size);
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<Communicator>> Communicator::create(const Config& config,
                                                           const EndpointOptions& endpoint_options,
                                                           const CommunicatorOptions& options,
                                                           Deadline deadline) {
  OH_RETURN_IF_ERROR(check_rank(options));
  std::shared_ptr<Communicator> comm(new Communicator);
  comm->rank_ = options.rank;
  {
    MutexLock lock(comm->mutex_);
    comm->links_.resize(options.size);
  }
  OH_ASSIGN_OR_RETURN(comm->endpoint_, Endpoint::create(config, endpoint_options));
  comm->endpoint_->set_gate(comm);
  Status joined = comm->join(config, options, deadline);
  if (joined.ok()) return comm;
  if (!deadline.cancelled()) return joined;
  return error(OH_ERR_CANCELLED, "rank %u of %u was cancelled while it waited for the other ranks",
               options.rank, options.size);
}

Status Communicator::join(const Config& config, const CommunicatorOptions& options,
                          Deadline deadline) {
  if (options.size == 1) {
    addresses_.push_back(endpoint_->address());
    OH_ASSIGN_OR_RETURN(Id id, random_id());
    MutexLock lock(mutex_);
    id_ = id;
    return {};
  }
  RendezvousJoin join;
  join.rank = options.rank;
  join.size = options.size;
  join.address = endpoint_->address();
  const Crypto& crypto = endpoint_->crypto();
  if (!options.unique_id.empty()) {
    OH_ASSIGN_OR_RETURN(Address id, Address::decode(options.unique_id));
    join.hosts = id.hosts;
    join.key = id.key;
  } else {
    constexpr std::string_view kScheme = "tcp://";
    std::string_view url = options.rendezvous;
    if (!url.starts_with(kScheme)) {
      return error(OH_ERR_INVALID, "rendezvous '%s': expected tcp://HOST:PORT",
                   options.rendezvous.c_str());
    }
    OH_ASSIGN_OR_RETURN(join.hosts, resolve(url.substr(kScheme.size()), deadline));
    OH_ASSIGN_OR_RETURN(join.key,
                        rendezvous_key(crypto, config.secret, join.hosts, options.rendezvous));
    if (options.rank == 0) {
      OH_ASSIGN_OR_RETURN(server_, rendezvous_serve(endpoint_->shared_node(), crypto, join.key,
                                                    join.hosts.front(), config, deadline));
    }
  }
  OH_ASSIGN_OR_RETURN(RendezvousTable table, rendezvous_join(crypto, join, deadline));
  addresses_ = std::move(table.addresses);
  MutexLock lock(mutex_);
  id_ = table.communicator;
  return {};
}

Communicator::~Communicator() { close(); }

void Communicator::close() {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    closed_ = true;
    for (Link& link : links_) link.peer.reset();
  }
  changed_.notify_all();
  server_.reset();
  if (endpoint_) endpoint_->close();
}

Result<std::shared_ptr<Peer>> Communicator::peer(int64_t rank, Deadline deadline) {
  if (rank < 0 || rank >= static_cast<int64_t>(size())) {
    return error(OH_ERR_INVALID, "rank %lld: this communicator has ranks 0 to %u",
                 static_cast<long long>(rank), size() - 1);
  }
  OH_RETURN_IF_ERROR(endpoint_->usable());
  auto index = static_cast<uint32_t>(rank);
  MutexLock lock(mutex_);
  while (true) {
    Link& link = links_[index];
    if (closed_) return error(OH_ERR_CLOSED, "the communicator is closed");
    if (link.state == LinkState::kLinked) return link.peer;
    if (link.state == LinkState::kNone) {
      link.state = LinkState::kConnecting;
      mutex_.unlock();
      Result<std::shared_ptr<Peer>> made = connect(index, deadline);
      mutex_.lock();
      if (made.ok()) {
        link.state = LinkState::kLinked;
        link.peer = *made;
      } else if (made.status().code() != OH_AGAIN) {
        if (link.state == LinkState::kConnecting) link.state = LinkState::kNone;
        changed_.notify_all();
        return made.status();
      } else if (link.state == LinkState::kConnecting) {
        link.state = LinkState::kAwaited;
      }
      changed_.notify_all();
      continue;
    }
    int64_t left = deadline.left();
    if (left == 0) {
      return timed_out(deadline.length(),
                       "rank %u did not finish its link to rank %u; is it alive, and has it made "
                       "its communicator?",
                       index, rank_);
    }
    // The link that won may die before we hear of it: ours is offered again then.
    int64_t longest = link.state == LinkState::kAwaited ? kPatience : 3600 * kSecond;
    changed_.wait_for(mutex_, std::chrono::nanoseconds(std::min(left, longest)));
    if (link.state == LinkState::kAwaited) link.state = LinkState::kNone;
  }
}

Result<std::shared_ptr<Peer>> Communicator::connect(uint32_t rank, Deadline deadline) {
  LinkPurpose purpose{{}, rank_, rank};
  {
    MutexLock lock(mutex_);
    purpose.communicator = id_;
  }
  Result<std::shared_ptr<Peer>> peer = endpoint_->connect(addresses_[rank], purpose, deadline);
  if (peer.ok() || peer.status().code() == OH_AGAIN) return peer;
  return error(peer.status().code(), "cannot connect to rank %u: %s", rank,
               peer.status().text().c_str());
}

Status Communicator::admit(const LinkPurpose& purpose) {
  MutexLock lock(mutex_);
  // Before our own table has come, the id is not known yet; a link can come as soon as theirs has.
  bool known = id_ == Id{} || purpose.communicator == id_;
  if (closed_ || !known || purpose.to_rank != rank_ || purpose.from_rank >= links_.size()) {
    return error(OH_ERR_REFUSED, "rank %u has no use for a link from rank %u", rank_,
                 purpose.from_rank);
  }
  Link& link = links_[purpose.from_rank];
  if (link.state == LinkState::kLinked) {
    if (link.peer->usable().ok()) return error(OH_AGAIN, "this link exists already");
    return error(OH_ERR_REFUSED, "rank %u has lost its link to rank %u", rank_, purpose.from_rank);
  }
  if (link.state == LinkState::kAccepting ||
      (link.state == LinkState::kConnecting && rank_ < purpose.from_rank)) {
    return error(OH_AGAIN, "a link from the other side is under way");
  }
  link.state = LinkState::kAccepting;
  return {};
}

void Communicator::linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    links_[purpose.from_rank].state = LinkState::kLinked;
    links_[purpose.from_rank].peer = std::move(peer);
  }
  changed_.notify_all();
}

void Communicator::abandoned(const LinkPurpose& purpose) {
  {
    MutexLock lock(mutex_);
    Link& link = links_[purpose.from_rank];
    if (link.state == LinkState::kAccepting) link.state = LinkState::kNone;
  }
  changed_.notify_all();
}

// Dissemination: in round r everybody tells the rank 2^r further on, log2(size) rounds in all.
Status Communicator::barrier(Deadline deadline) {
  uint64_t tag = kBarrierTag + (barriers_.fetch_add(1) & 0xffff);
  for (uint32_t distance = 1; distance < size(); distance *= 2) {
    OH_ASSIGN_OR_RETURN(std::shared_ptr<Peer> to, peer((rank_ + distance) % size(), deadline));
    OH_ASSIGN_OR_RETURN(std::shared_ptr<Peer> from,
                        peer((rank_ + size() - distance) % size(), deadline));
    Request send;
    Request receive;
    send.kind = OpKind::kSend;
    receive.kind = OpKind::kRecv;
    send.endpoint = receive.endpoint = endpoint_.get();
    send.tag = receive.tag = tag;
    OH_RETURN_IF_ERROR(from->post_recv(&receive));
    Status status = endpoint_->send(*to, &send, deadline);
    Status received =
        endpoint_->wait(&receive, status.ok() ? deadline : Deadline::after(0), from.get());
    if (status.ok()) status = received;
    if (!status.ok()) {
      return error(status.code(), "the barrier of rank %u failed: %s", rank_,
                   status.text().c_str());
    }
  }
  return {};
}

}  // namespace oh
