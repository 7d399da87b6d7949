// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <sys/epoll.h>
#include <time.h>

#include <chrono>
#include <future>
#include <map>
#include <set>
#include <utility>

#include "base/log.h"
#include "control/accepting.h"
#include "control/handshake.h"
#include "control/rendezvous.h"
#include "control/waiting_room.h"
#include "platform/os/os.h"

namespace oh {
namespace {

class Server;

// One connection to the server. Threading: the watcher's thread.
class Guest : public Watcher::Handler, public std::enable_shared_from_this<Guest> {
 public:
  Guest(const std::shared_ptr<Server>& server, UniqueFd fd)
      : server_(server), socket_(std::move(fd), kMaxHelloMessage) {}
  int fd() const { return socket_.fd(); }
  bool registered() const { return registered_; }
  bool served() const { return served_; }
  const Registration& registration() const { return registration_; }

  void on_ready(uint32_t) override;
  Status send_table(Meeting type, ByteView table) {
    served_ = true;
    return socket_.send(static_cast<uint8_t>(type), table);
  }
  void leave();
  void refuse(const Status& why) {
    (void)socket_.send(static_cast<uint8_t>(Meeting::kRefuse), encode_refusal(why)).ok();
  }

 private:
  Status step(Server& server);
  Status on_join(Server& server, ByteView payload);
  Status on_register(Server& server, ByteView payload);

  static constexpr int kMessagesAtOnce = 16;
  // A rank sends one query, at its deadline. Answers that it does not read stay queued here.
  static constexpr int kMostQueries = 16;
  std::weak_ptr<Server> server_;
  MessageSocket socket_;
  bool joined_ = false;
  bool registered_ = false;
  bool served_ = false;
  bool left_ = false;
  int queries_ = 0;
  Digest expected_mac_{};
  Registration registration_;
};

class Server final : public std::enable_shared_from_this<Server> {
 public:
  Server(std::shared_ptr<Node> node, const Crypto& crypto, const Key& key, const Id& communicator,
         const Config& config)
      : node_(std::move(node)),
        crypto_(crypto),
        key_(key),
        communicator_(communicator),
        hello_timeout_ns_(config.hello_timeout_ns()),
        peer_timeout_ns_(config.peer_timeout_ns()) {}

  // Makes this a server for restarted ranks. Call it before start().
  void set_gate(const std::weak_ptr<ReturnGate>& gate) {
    gate_ = gate;
    returning_ = true;
  }

  Status start(std::vector<UniqueFd> listening) {
    for (UniqueFd& socket : listening) {
      // It holds the server, and the watcher holds it, until stop().
      accepting_.push_back(std::make_shared<Accepting>(
          watcher(), std::move(socket),
          [self = shared_from_this()](UniqueFd fd) { self->receive(std::move(fd)); }));
    }
    for (const auto& accepting : accepting_) OH_RETURN_IF_ERROR(accepting->start());
    return {};
  }

  // Closes the port and drops all guests that have not been sent a table. On the watcher's thread.
  void stop() {
    std::shared_ptr<Server> self = shared_from_this();
    stop_listening();
    std::set<std::shared_ptr<Guest>> guests = guests_;
    for (const auto& guest : guests) {
      if (!guest->served()) forget(guest);
    }
    if (guests_.empty()) return;
    watcher().post_at(now_ns() + kFarewell, [self] { self->drop_all(); });
  }

  void receive(UniqueFd fd) {
    send_at_once(fd.get());
    // If the host of a waiting rank dies, its connection fails and its rank is free again.
    give_up_after(fd.get(), peer_timeout_ns_);
    Result<Caller> caller = identify_caller(fd.get());
    if (!caller.ok()) return;
    auto guest = std::make_shared<Guest>(shared_from_this(), std::move(fd));
    auto who = Watcher::Who::kStranger;
    if (!watcher().add(guest->fd(), EPOLLIN, guest, who).ok()) return;
    guests_.insert(guest);
    // A new guest may displace one that has not registered.
    std::shared_ptr<Guest> displaced =
        newcomers_.enter(guest, caller->source, now_ns() + hello_timeout_ns_);
    if (displaced) {
      displaced->refuse(error(kComeAgain, "too many have not registered with the rendezvous yet"));
      displaced->leave();
    }
    set_timer();
  }

  Status register_guest(const std::shared_ptr<Guest>& guest, const Registration& registration) {
    OH_RETURN_IF_ERROR(Address::decode(registration.address).status());
    return returning_ ? take_back(guest, registration) : admit(guest, registration);
  }

  Status take_back(const std::shared_ptr<Guest>& guest, const Registration& registration) {
    std::shared_ptr<ReturnGate> gate = gate_.lock();
    if (!gate) return error(OH_ERR_PEER_LOST, "the communicator was closed");
    Result<Bytes> known = gate->on_return(registration);
    // Hang up without a refusal: the rank retries.
    if (known.status().code() == OH_AGAIN) return Status(OH_ERR_PEER_LOST, known.status().text());
    OH_RETURN_IF_ERROR(known.status());
    served_ = shared_from_this();
    return guest->send_table(Meeting::kReturn, *known);
  }

  Status admit(const std::shared_ptr<Guest>& guest, const Registration& registration) {
    if (size_ == 0) size_ = registration.size;
    if (registration.size != size_) {
      return error(OH_ERR_INVALID, "rank %u says that there are %u ranks, others said %u",
                   registration.rank, registration.size, size_);
    }
    auto [entry, fresh] = ranks_.try_emplace(registration.rank, guest);
    if (fresh) return {};
    Result<Address> holder = Address::decode(entry->second->registration().address);
    return error(OH_ERR_REFUSED, "rank %u is taken by process %s: every rank needs its own number",
                 registration.rank, holder.ok() ? holder->label.c_str() : "?");
  }

  void serve_if_complete() {
    if (returning_ || ranks_.size() != size_) return;
    std::vector<Bytes> addresses;
    addresses.reserve(size_);
    for (auto& [rank, guest] : ranks_) addresses.push_back(guest->registration().address);
    Bytes table = encode_table(communicator_, addresses);
    // A rank that joins from now on belongs to the next communicator: it finds no server yet and
    // retries.
    stop_listening();
    while (std::shared_ptr<Guest> guest = newcomers_.take_late(INT64_MAX)) guest->leave();
    for (auto& [rank, guest] : ranks_) {
      // The guest's own handler notices a lost connection.
      (void)guest->send_table(Meeting::kTable, table).ok();
      (void)watcher().modify(guest->fd(), EPOLLIN | EPOLLOUT).ok();
    }
    // The server holds itself until the last guest has disconnected.
    served_ = shared_from_this();
  }

  Bytes missing() const {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(size_ - static_cast<uint32_t>(ranks_.size()));
    for (uint32_t rank = 0, named = 0; rank < size_ && named < 16; ++rank) {
      if (ranks_.count(rank)) continue;
      writer.u32(rank);
      ++named;
    }
    return bytes;
  }

  // Registers an authenticated guest as known: its events are served before those of strangers.
  Status recognize(Guest& guest) {
    std::shared_ptr<Guest> held = newcomers_.leave(&guest);
    watcher().remove(guest.fd());
    return watcher().add(guest.fd(), EPOLLIN, std::move(held));
  }

  void forget(const std::shared_ptr<Guest>& guest) {
    watcher().remove(guest->fd());
    guests_.erase(guest);
    newcomers_.leave(guest.get());
    auto entry = ranks_.find(guest->registration().rank);
    if (guest->registered() && entry != ranks_.end() && entry->second == guest) {
      ranks_.erase(entry);  // the rank may register again
      if (ranks_.empty()) size_ = 0;
    }
    if (guests_.empty()) served_.reset();
  }

  Watcher& watcher() { return node_->watcher(); }
  const Crypto& crypto() const { return crypto_; }
  const Key& key() const { return key_; }

 private:
  void stop_listening() {
    for (const auto& accepting : accepting_) accepting->stop();
    accepting_.clear();
  }

  void drop_late() {
    while (std::shared_ptr<Guest> late = newcomers_.take_late(now_ns())) late->leave();
    set_timer();
  }

  // One timer serves all guests: later ones have later deadlines.
  void set_timer() {
    if (timer_set_ || newcomers_.empty()) return;
    timer_set_ = true;
    watcher().post_at(newcomers_.next_deadline(), [weak = weak_from_this()] {
      std::shared_ptr<Server> self = weak.lock();
      if (!self) return;
      self->timer_set_ = false;
      self->drop_late();
    });
  }

  void drop_all() {
    std::set<std::shared_ptr<Guest>> guests = guests_;
    for (const auto& guest : guests) forget(guest);
  }

  std::shared_ptr<Node> node_;
  const Crypto& crypto_;
  const Key key_;
  const Id communicator_;
  const int64_t hello_timeout_ns_;
  const int64_t peer_timeout_ns_;
  static constexpr size_t kMaxNewcomers = 256;
  // How long ranks may still read their table after the server was stopped.
  static constexpr int64_t kFarewell = 5 * kSecond;
  std::vector<std::shared_ptr<Accepting>> accepting_;
  std::shared_ptr<Server> served_;  // itself, while guests with a table are connected
  std::weak_ptr<ReturnGate> gate_;
  bool returning_ = false;
  uint32_t size_ = 0;  // of the communicator, from the first registration; 0: none yet
  std::set<std::shared_ptr<Guest>> guests_;
  WaitingRoom<Guest> newcomers_{kMaxNewcomers};  // guests that have not registered
  bool timer_set_ = false;
  std::map<uint32_t, std::shared_ptr<Guest>> ranks_;
};

void Guest::on_ready(uint32_t) {
  std::shared_ptr<Server> server = server_.lock();
  if (!server || left_) return;
  Status status = step(*server);
  if (status.ok()) status = socket_.flush();
  if (!status.ok()) {
    if (status.code() != OH_ERR_PEER_LOST) {
      OH_LOG(kInfo, "rendezvous: %s", status.text().c_str());
      refuse(status);
    }
    leave();
    return;
  }
  uint32_t wanted = EPOLLIN | (socket_.backlog() ? static_cast<uint32_t>(EPOLLOUT) : 0);
  (void)server->watcher().modify(fd(), wanted).ok();
}

void Guest::leave() {
  if (std::exchange(left_, true)) return;
  if (std::shared_ptr<Server> server = server_.lock()) server->forget(shared_from_this());
}

Status Guest::step(Server& server) {
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    OH_ASSIGN_OR_RETURN(std::optional<MessageSocket::Message> message, socket_.receive());
    if (!message) return {};
    auto type = static_cast<Meeting>(message->type);
    if (type == Meeting::kJoin && !joined_) {
      OH_RETURN_IF_ERROR(on_join(server, message->payload));
    } else if (type == Meeting::kRegister && joined_ && !registered_) {
      OH_RETURN_IF_ERROR(on_register(server, message->payload));
    } else if (type == Meeting::kQuery && registered_ && queries_++ < kMostQueries) {
      OH_RETURN_IF_ERROR(socket_.send(static_cast<uint8_t>(Meeting::kMissing), server.missing()));
    } else {
      return error(OH_ERR_PROTOCOL, "a rendezvous message of type %u out of turn", message->type);
    }
  }
  // epoll does not report messages that have already been read from the socket.
  if (socket_.has_message()) {
    server.watcher().post([self = shared_from_this()] { self->on_ready(EPOLLIN); });
  }
  return {};
}

Status Guest::on_join(Server& server, ByteView payload) {
  OH_RETURN_IF_ERROR(check_join(payload));
  uint8_t nonce[kHelloNonce];
  int result = os().getrandom(nonce, sizeof(nonce));
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  OH_ASSIGN_OR_RETURN(expected_mac_,
                      meeting_mac(server.crypto(), server.key(), 'R', payload, nonce));
  OH_ASSIGN_OR_RETURN(Digest mac, meeting_mac(server.crypto(), server.key(), 'S', payload, nonce));
  joined_ = true;
  return socket_.send(static_cast<uint8_t>(Meeting::kChallenge), nonce, mac);
}

Status Guest::on_register(Server& server, ByteView payload) {
  OH_ASSIGN_OR_RETURN(registration_, decode_registration(payload, expected_mac_));
  OH_RETURN_IF_ERROR(server.register_guest(shared_from_this(), registration_));
  registered_ = true;
  OH_RETURN_IF_ERROR(server.recognize(*this));
  server.serve_if_complete();
  return {};
}

// Its destructor stops the server and returns when the port is free.
class Running final : public RendezvousServer {
 public:
  Running(std::shared_ptr<Node> node, std::shared_ptr<Server> server)
      : node_(std::move(node)), server_(std::move(server)) {}
  ~Running() override {
    Watcher& watcher = node_->watcher();
    if (watcher.on_thread()) {
      server_->stop();
      return;
    }
    auto stopped = std::make_shared<std::promise<void>>();
    std::future<void> port_is_free = stopped->get_future();
    watcher.post([stopped, server = std::move(server_)]() mutable {
      server->stop();
      server.reset();
      stopped->set_value();
    });
    // A bounded wait: a watcher that has failed runs no task.
    port_is_free.wait_for(std::chrono::seconds(10));
  }

 private:
  std::shared_ptr<Node> node_;
  std::shared_ptr<Server> server_;
};

Result<std::shared_ptr<Server>> start_server(const std::shared_ptr<Node>& node,
                                             const Crypto& crypto, const Key& key,
                                             std::vector<UniqueFd> listening, const Config& config,
                                             const std::weak_ptr<ReturnGate>* gate = nullptr) {
  OH_ASSIGN_OR_RETURN(Id communicator, random_id());
  auto server = std::make_shared<Server>(node, crypto, key, communicator, config);
  if (gate) server->set_gate(*gate);
  Status started = server->start(std::move(listening));
  if (started.ok()) return server;
  node->watcher().post([server] { server->stop(); });
  return started;
}

// Retries while the port is in use: a previous server, in another process, may be about to stop.
Result<UniqueFd> listen_patiently(const SocketAddress& address, Deadline deadline) {
  constexpr int64_t kPatience = 5 * kSecond;
  constexpr int64_t kPause = 5 * kMillisecond;
  Deadline patience = deadline.within(kPatience);
  while (true) {
    Result<UniqueFd> listening = listen_on(address);
    bool taken =
        !listening.ok() && listening.status().text().find("EADDRINUSE") != std::string::npos;
    if (!taken || patience.passed()) return listening;
    timespec pause{0, kPause};
    nanosleep(&pause, nullptr);
  }
}

}  // namespace

Result<std::unique_ptr<RendezvousServer>> rendezvous_serve(std::shared_ptr<Node> node,
                                                           const Crypto& crypto, const Key& key,
                                                           const SocketAddress& address,
                                                           const Config& config, Deadline deadline,
                                                           const std::weak_ptr<ReturnGate>* gate) {
  Result<UniqueFd> listening = listen_patiently(address, deadline);
  if (!listening.ok()) {
    return error(listening.status().code(),
                 "rank 0 cannot serve the rendezvous: %s (is another "
                 "rank 0 running, or is the address not this host's?)",
                 listening.status().text().c_str());
  }
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(*listening));
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Server> server,
                      start_server(node, crypto, key, std::move(sockets), config, gate));
  return std::unique_ptr<RendezvousServer>(new Running(std::move(node), std::move(server)));
}

Result<Bytes> rendezvous_unique_id(std::shared_ptr<Node> node, const Crypto& crypto,
                                   const Config& config) {
  Address id;
  OH_ASSIGN_OR_RETURN(id.key, random_key());
  OH_ASSIGN_OR_RETURN(id.endpoint, random_id());
  OH_ASSIGN_OR_RETURN(id.hosts, reachable_addresses(config.interface_name));
  uint16_t port = 0;
  OH_ASSIGN_OR_RETURN(
      std::vector<UniqueFd> listening,
      listen_in_range(config.interface_name, config.port_first, config.port_last, &port));
  if (listening.empty()) {
    return error(OH_ERR_SYSTEM,
                 "no TCP port of %s is free for the rendezvous: raise "
                 "ONEHOP_PORT_RANGE",
                 config.port_range.c_str());
  }
  for (SocketAddress& host : id.hosts) host.set_port(port);
  id.label = "rendezvous";
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Server> server,
                      start_server(node, crypto, id.key, std::move(listening), config));
  // The watcher's handlers hold the server until it stops.
  std::weak_ptr<Server> weak = server;
  node->watcher().post_at(now_ns() + config.timeout_ns(), [weak] {
    if (std::shared_ptr<Server> late = weak.lock()) late->stop();
  });
  return id.encode();
}

}  // namespace oh
