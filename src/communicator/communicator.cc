// SPDX-License-Identifier: Apache-2.0
#include "communicator/communicator.h"

#include <algorithm>
#include <chrono>

#include "base/log.h"
#include "base/text.h"
#include "link/tags.h"

namespace oh {
namespace {

constexpr size_t kFailureText = 400;  // limit in bytes of the text of a barrier's failure
constexpr int64_t kPatience = 100 * kMillisecond;
// For reconnect(): the limit of one attempt, whose address may be that of a dead host, and the
// pause between two attempts, in which the peer's attempts are accepted.
constexpr int64_t kAttemptTime = 2 * kSecond;
constexpr int64_t kShortestPause = 20 * kMillisecond;
constexpr int64_t kLongestPause = 500 * kMillisecond;
// Limit of a restarted process's attempt to connect to one rank.
constexpr int64_t kGreetingTime = 5 * kSecond;

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
  comm->size_ = options.size;
  {
    MutexLock lock(comm->mutex_);
    comm->links_.resize(options.size);
  }
  OH_ASSIGN_OR_RETURN(comm->endpoint_, Endpoint::create(config, endpoint_options));
  comm->endpoint_->incoming().set_gate(comm);
  Status joined = comm->join(config, options, deadline);
  if (joined.ok()) return comm;
  if (!deadline.cancelled()) return joined;
  return error(OH_ERR_CANCELLED, "rank %u of %u was cancelled while it waited for the other ranks",
               options.rank, options.size);
}

Status Communicator::join(const Config& config, const CommunicatorOptions& options,
                          Deadline deadline) {
  RendezvousTable table;
  if (options.size == 1) {
    table.addresses.push_back(endpoint_->own_address().encode());
    OH_ASSIGN_OR_RETURN(table.communicator, random_id());
  } else {
    OH_RETURN_IF_ERROR(find_rendezvous(config, options, deadline));
    OH_ASSIGN_OR_RETURN(table, rendezvous_join(endpoint_->crypto(), rendezvous_, deadline));
  }
  barriers_.store(table.barriers);
  {
    MutexLock lock(mutex_);
    addresses_ = std::move(table.addresses);
    id_ = table.communicator;
  }
  if (table.returned) greet_all(deadline);
  return {};
}

// Determines the address and the key of the rendezvous. Rank 0 also serves it if it is given by
// URL.
Status Communicator::find_rendezvous(const Config& config, const CommunicatorOptions& options,
                                     Deadline deadline) {
  const Crypto& crypto = endpoint_->crypto();
  rendezvous_.rank = options.rank;
  rendezvous_.size = options.size;
  rendezvous_.address = endpoint_->own_address().encode();
  if (!options.unique_id.empty()) {
    OH_ASSIGN_OR_RETURN(Address id, Address::decode(options.unique_id));
    rendezvous_.hosts = id.hosts;
    rendezvous_.key = id.key;
    return {};
  }
  constexpr std::string_view kScheme = "tcp://";
  std::string_view url = options.rendezvous;
  if (!url.starts_with(kScheme)) {
    return error(OH_ERR_INVALID, "rendezvous '%s': expected tcp://HOST:PORT",
                 options.rendezvous.c_str());
  }
  OH_ASSIGN_OR_RETURN(rendezvous_.hosts, resolve(url.substr(kScheme.size()), deadline));
  OH_ASSIGN_OR_RETURN(rendezvous_.key,
                      rendezvous_key(crypto, config.secret, rendezvous_.hosts, options.rendezvous));
  served_by_url_ = true;
  if (options.rank != 0) return {};
  MutexLock lock(server_mutex_);
  OH_ASSIGN_OR_RETURN(server_, rendezvous_serve(endpoint_->node(), crypto, rendezvous_.key,
                                                rendezvous_.hosts.front(), config, deadline));
  return {};
}

// Connects a restarted process to all ranks, which only know its previous address.
void Communicator::greet_all(Deadline deadline) {
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    MutexLock lock(mutex_);
    Result<std::shared_ptr<Peer>> peer = link_to(rank, deadline.within(kGreetingTime));
    if (peer.ok()) continue;
    OH_LOG(kWarn, "rank %u came back, but does not reach rank %u: %s", rank_, rank,
           peer.status().text().c_str());
  }
}

Communicator::~Communicator() { close(); }

void Communicator::close() {
  // A child of fork() has no watcher that would stop the server, and perhaps a lock that no thread
  // releases.
  if (endpoint_ && !endpoint_->is_of_this_process()) return;
  __atomic_store_n(&closing_, 1, __ATOMIC_RELEASE);  // pairs with Deadline::cancelled()
  {
    MutexLock lock(mutex_);
    closed_ = true;
    for (RankLink& link : links_) {
      link.peer.reset();
      link.lost.clear();
    }
  }
  changed_.notify_all();
  {
    MutexLock lock(server_mutex_);
    server_.reset();
  }
  if (endpoint_) endpoint_->close();
}

Status Communicator::check_rank_of_peer(int64_t rank) const {
  if (rank < 0 || rank >= static_cast<int64_t>(size_)) {
    return error(OH_ERR_INVALID, "rank %lld: this communicator has ranks 0 to %u",
                 static_cast<long long>(rank), size_ - 1);
  }
  return endpoint_->usable();
}

Result<std::shared_ptr<Peer>> Communicator::peer(int64_t rank, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_rank_of_peer(rank));
  auto index = static_cast<uint32_t>(rank);
  MutexLock lock(mutex_);
  RankLink& link = links_[index];
  note_loss(link);
  if (!link.lost.empty()) return link.lost.back();
  return link_to(index, deadline);
}

Result<std::shared_ptr<Peer>> Communicator::link_to(uint32_t rank, Deadline deadline) {
  RankLink& link = links_[rank];
  while (true) {
    if (closed_) return error(OH_ERR_CLOSED, "the communicator is closed");
    if (link.state == LinkState::kLinked) return link.peer;
    if (link.state == LinkState::kNone) {
      link.state = LinkState::kConnecting;
      mutex_.unlock();
      Result<std::shared_ptr<Peer>> made = connect(rank, deadline);
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
    if (deadline.passed()) {
      return timed_out(deadline.length(),
                       "rank %u did not finish its link to rank %u; is it alive, and has it made "
                       "its communicator?",
                       rank, rank_);
    }
    // The winning link may fail before it is established here: then offer this side's link again.
    int64_t longest = link.state == LinkState::kAwaited ? kPatience : 3600 * kSecond;
    changed_.wait_for(mutex_, std::chrono::nanoseconds(std::min(deadline.left(), longest)));
    if (link.state == LinkState::kAwaited) link.state = LinkState::kNone;
  }
}

// ---- Lost links -------------------------------------------------------------------------------

void Communicator::note_loss(RankLink& link) {
  // `peer` is null after close().
  if (link.state != LinkState::kLinked || !link.peer || link.peer->usable().ok()) return;
  link.lost.push_back(std::move(link.peer));
  link.state = LinkState::kNone;
}

Result<std::shared_ptr<Peer>> Communicator::reconnect(int64_t rank, Deadline deadline) {
  OH_RETURN_IF_ERROR(check_rank_of_peer(rank));
  auto index = static_cast<uint32_t>(rank);
  bool serves = false;
  {
    MutexLock lock(mutex_);
    RankLink& link = links_[index];
    note_loss(link);
    ++link.awaited;
    // The rank's process may have been restarted.
    serves = rank_ == 0 && index != 0 && link.state != LinkState::kLinked;
  }
  auto attempt = [&]() -> Result<std::shared_ptr<Peer>> {
    if (serves) OH_RETURN_IF_ERROR(serve_return(deadline));
    MutexLock lock(mutex_);
    return keep_linking_to(index, deadline);
  };
  Result<std::shared_ptr<Peer>> peer = attempt();
  std::vector<std::shared_ptr<Peer>> lost;
  {
    MutexLock lock(mutex_);
    RankLink& link = links_[index];
    if (peer.ok()) lost.swap(link.lost);
    --link.awaited;
  }
  if (serves) stop_serving_return();
  for (const std::shared_ptr<Peer>& each : lost) {
    each->close(Deadline::after(Peer::kCloseTime));
    endpoint_->forget(each);
  }
  return peer;
}

Result<std::shared_ptr<Peer>> Communicator::keep_linking_to(uint32_t rank, Deadline deadline) {
  RankLink& link = links_[rank];
  int64_t pause = kShortestPause;
  while (true) {
    Result<std::shared_ptr<Peer>> peer = link_to(rank, deadline.within(kAttemptTime));
    if (closed_) return error(OH_ERR_CLOSED, "the communicator is closed");
    note_loss(link);
    if (link.state == LinkState::kLinked) return link.peer;
    if (deadline.cancelled()) {
      return error(OH_ERR_CANCELLED, "reconnect(%u) was cancelled", rank);
    }
    if (deadline.passed()) {
      const char* advice =
          rank == 0
              ? "rank 0 has to call reconnect() for our rank. If its process has ended no rank "
                "serves the rendezvous: create the communicator anew on all ranks"
              : "it has to call reconnect() for our rank; if its process has ended, create "
                "its Communicator again in a new one while rank 0 is in reconnect() for it";
      return timed_out(deadline.length(), "rank %u has not come back (%s): %s", rank,
                       peer.status().text().c_str(), advice);
    }
    changed_.wait_for(mutex_, std::chrono::nanoseconds(std::min(deadline.left(), pause)));
    pause = std::min(2 * pause, kLongestPause);
  }
}

Status Communicator::serve_return(Deadline deadline) {
  MutexLock lock(server_mutex_);
  const bool first = ++serving_ == 1;
  {
    MutexLock state(mutex_);
    if (closed_) return error(OH_ERR_CLOSED, "the communicator is closed");
  }
  if (server_ && !first) return {};
  server_.reset();
  // The unique id may have been served by another process: listen on all local addresses.
  std::vector<SocketAddress> addresses = {rendezvous_.hosts.front()};
  if (!served_by_url_) {
    addresses = {*SocketAddress::numeric("::", addresses[0].port()),
                 *SocketAddress::numeric("0.0.0.0", addresses[0].port())};
  }
  const std::weak_ptr<ReturnGate> gate = weak_from_this();
  Status status;
  for (const SocketAddress& address : addresses) {
    Result<std::unique_ptr<RendezvousServer>> server =
        rendezvous_serve(endpoint_->node(), endpoint_->crypto(), rendezvous_.key, address,
                         endpoint_->config(), deadline.unless(&closing_), &gate);
    status = server.status();
    if (!status.ok()) continue;
    server_ = std::move(*server);
    return {};
  }
  MutexLock state(mutex_);
  return closed_ ? error(OH_ERR_CLOSED, "the communicator is closed") : status;
}

void Communicator::stop_serving_return() {
  MutexLock lock(server_mutex_);
  if (--serving_ == 0) server_.reset();
}

// A restarted process registers for its rank: reply with the state it missed, and store its new
// address.
Result<Bytes> Communicator::on_return(const Registration& registration) {
  MutexLock lock(mutex_);
  if (closed_ || registration.size != size_) {
    return error(OH_AGAIN, "rank %u of %u is not awaited", registration.rank, registration.size);
  }
  RankLink& link = links_[registration.rank];
  if (link.awaited == 0) return error(OH_AGAIN, "rank %u is not awaited", registration.rank);
  addresses_[registration.rank] = registration.address;
  changed_.notify_all();
  return encode_return(barriers_.load(), id_, addresses_);
}

Result<std::shared_ptr<Peer>> Communicator::connect(uint32_t rank, Deadline deadline) {
  LinkPurpose purpose{{}, rank_, rank};
  Bytes address;
  {
    MutexLock lock(mutex_);
    purpose.communicator = id_;
    address = addresses_[rank];
  }
  Result<std::shared_ptr<Peer>> peer = endpoint_->connect(address, purpose, deadline);
  if (peer.ok() || peer.status().code() == OH_AGAIN) return peer;
  return error(peer.status().code(), "cannot connect to rank %u: %s", rank,
               peer.status().text().c_str());
}

Status Communicator::admit(const LinkPurpose& purpose) {
  MutexLock lock(mutex_);
  // The id is unknown until this rank has received its table. A peer may connect as soon as it has
  // received its own.
  bool known = id_ == Id{} || purpose.communicator == id_;
  if (closed_ || !known || purpose.to_rank != rank_ || purpose.from_rank >= links_.size()) {
    return error(OH_ERR_REFUSED, "rank %u expects no link from rank %u", rank_, purpose.from_rank);
  }
  RankLink& link = links_[purpose.from_rank];
  note_loss(link);
  if (link.state == LinkState::kLinked) return error(OH_AGAIN, "this link exists already");
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
    RankLink& link = links_[purpose.from_rank];
    if (link.state == LinkState::kAccepting) link.state = LinkState::kNone;
  }
  changed_.notify_all();
}

// Dissemination barrier: in round r each rank sends to the rank 2^r further on, for log2(size)
// rounds. A rank on which the barrier fails sends the error text in place of its remaining
// messages, without waiting, so that the ranks that depend on it learn the reason.
Status Communicator::barrier(Deadline deadline) {
  const uint64_t tag = kBarrierTags + (barriers_.fetch_add(1) & 0xffff);
  Status status;
  for (uint32_t distance = 1; distance < size(); distance *= 2) {
    const uint32_t to = (rank_ + distance) % size();
    const uint32_t from = (rank_ + size() - distance) % size();
    bool sent = false;
    if (status.ok()) status = barrier_round(to, from, tag, deadline, &sent);
    if (!sent && status_scope(status.code()) == OH_SCOPE_LINK)
      send_failure(to, tag, status.text(), deadline);
  }
  if (status.ok()) return {};
  // After a lost rank the barriers continue once it has reconnected: no advice is needed.
  const char* remedy = status.code() == OH_ERR_TIMEOUT
                           ? "; the next barrier() of this rank is another one: all ranks need "
                             "a new communicator"
                           : "";
  return error(status.code(), "the barrier of rank %u failed: %s%s", rank_, status.text().c_str(),
               remedy);
}

Status Communicator::barrier_round(uint32_t to, uint32_t from, uint64_t tag, Deadline deadline,
                                   bool* sent) {
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Peer> last, peer(from, deadline));
  Bytes failure(kFailureText);
  Request receive;
  receive.kind = OpKind::kRecv;
  receive.endpoint = endpoint_.get();
  receive.tag = tag;
  receive.data = failure.data();
  receive.size = failure.size();
  OH_RETURN_IF_ERROR(last->operations().messages().post_recv(&receive));
  const Status status = send_in_barrier(to, tag, {}, deadline);
  *sent = status.ok();
  const Status received =
      endpoint_->requests().wait(&receive, status.ok() ? deadline : Deadline::after(0), last.get());
  // Check the text first: its sender may have closed its links since.
  if (received.ok() && receive.nbytes > 0) {
    const std::string_view told(reinterpret_cast<const char*>(failure.data()), receive.nbytes);
    return error(OH_ERR_PEER_LOST, "rank %u says: %s", from, printable(told, kFailureText).c_str());
  }
  // A stopped rank may still write into the buffer once it goes on.
  if (!receive.doubts.empty()) {
    last->operations().batches().keep({std::move(failure), std::move(receive.doubts)});
  }
  return status.ok() ? received : status;
}

Status Communicator::send_in_barrier(uint32_t to, uint64_t tag, std::string_view text,
                                     Deadline deadline) {
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Peer> next, peer(to, deadline));
  Request send;
  send.kind = OpKind::kSend;
  send.endpoint = endpoint_.get();
  send.tag = tag;
  send.data = reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
  send.size = text.size();
  return endpoint_->requests().send(*next, &send, deadline);
}

void Communicator::send_failure(uint32_t to, uint64_t tag, const std::string& text,
                                Deadline deadline) {
  // That rank may be lost, too: ignore the error.
  (void)send_in_barrier(to, tag, std::string_view(text).substr(0, kFailureText),
                        deadline.within(kSecond))
      .ok();
}

}  // namespace oh
