// SPDX-License-Identifier: Apache-2.0
#include "control/listener.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "control/accepting.h"
#include "control/handshake.h"
#include "platform/os/os.h"

namespace oh {

// One connection whose hello is under way. Waits for Hello, then Offer, then Confirm.
class Listener::Stranger : public Watcher::Handler {
 public:
  Stranger(Listener& owner, UniqueFd fd)
      : owner_(owner),
        socket_(std::move(fd), kMaxHelloMessage),
        until_(now_ns() + owner.hello_timeout_ns_) {
    socket_.take_fds(false);
  }
  int fd() const { return socket_.fd(); }
  int64_t until() const { return until_; }
  void set_until(int64_t until) { until_ = until; }

  // Whether he may talk to us at all; tells him if not.
  bool check_user() {
    Status status = find_user();
    if (!status.ok()) refuse(status);
    return status.ok();
  }

  void on_ready(uint32_t) override {
    Status status = step();
    if (status.ok()) return;
    if (status.code() != OH_ERR_PEER_LOST) refuse(status);
    owner_.drop(this);
  }

 private:
  void refuse(const Status& status) {
    OH_LOG(kInfo, "a link was not accepted: %s", status.text().c_str());
    (void)socket_.send(static_cast<uint8_t>(Hello::kRefuse), encode_refusal(status)).ok();
  }

  Status step() {
    while (!done_) {
      OH_ASSIGN_OR_RETURN(std::optional<MessageSocket::Message> message, socket_.receive());
      if (!message) return {};
      if (message->type != static_cast<uint8_t>(expected_)) {
        return error(OH_ERR_PROTOCOL, "a hello of type %u where %u was due", message->type,
                     static_cast<unsigned>(expected_));
      }
      switch (expected_) {
        case Hello::kHello:
          OH_RETURN_IF_ERROR(on_hello(message->payload));
          break;
        case Hello::kOffer:
          OH_RETURN_IF_ERROR(on_offer(message->payload, std::move(message->fds)));
          break;
        default:
          on_confirm(message->payload);
          break;
      }
    }
    return {};
  }

  Status on_hello(ByteView payload) {
    OH_ASSIGN_OR_RETURN(HelloMessage hello, decode_hello(payload));
    acceptor_ = owner_.find_(hello.endpoint);
    if (!acceptor_) {
      return error(OH_ERR_REFUSED, "this process has no endpoint %s: it was closed",
                   id_text(hello.endpoint).c_str());
    }
    uint8_t nonce[kHelloNonce];
    int result = os().getrandom(nonce, sizeof(nonce));
    if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
    Bytes proof;
    Writer writer(proof);
    writer.raw(nonce);
    writer.bytes(acceptor_->greeting());
    const Crypto& crypto = acceptor_->crypto();
    OH_ASSIGN_OR_RETURN(expected_mac_, hello_mac(crypto, acceptor_->key(), 'I', payload, proof));
    OH_ASSIGN_OR_RETURN(Digest mac, hello_mac(crypto, acceptor_->key(), 'A', payload, proof));
    writer.raw(mac);
    greeting_.assign(hello.greeting.begin(), hello.greeting.end());
    expected_ = Hello::kOffer;
    socket_.take_fds(local_);
    return socket_.send(static_cast<uint8_t>(Hello::kProof), proof);
  }

  Status find_user() {
    SocketAddress address;
    address.size = sizeof(address.storage);
    auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
    int result = os().getsockname(socket_.fd(), raw, &address.size);
    if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getsockname");
    local_ = address.family() == AF_UNIX;
    if (!local_) {
      send_at_once(socket_.fd());
      return {};
    }
    OH_ASSIGN_OR_RETURN(credentials_, peer_credentials(socket_.fd()));
    if (credentials_.uid == geteuid()) return {};
    return error(OH_ERR_AUTH, "user %u may not connect to an endpoint of user %u", credentials_.uid,
                 geteuid());
  }

  Status on_offer(ByteView payload, std::vector<UniqueFd> fds) {
    if (payload.size() < sizeof(Digest) ||
        !equal_digests(expected_mac_, payload.first(sizeof(Digest)))) {
      return error(OH_ERR_AUTH, "the key in the address is wrong");
    }
    IncomingOffer offer;
    offer.greeting = std::move(greeting_);
    ByteView rest = payload.subspan(sizeof(Digest));
    offer.offer.assign(rest.begin(), rest.end());
    offer.fds = std::move(fds);
    offer.credentials = credentials_;
    offer.local = local_;
    OH_ASSIGN_OR_RETURN(link_, acceptor_->on_offer(std::move(offer)));
    expected_ = Hello::kConfirm;
    // He is known by now, and what we have taken for our end is not his time.
    owner_.renew(this);
    return socket_.send(static_cast<uint8_t>(Hello::kAnswer), link_->answer(), {}, link_->fds());
  }

  void on_confirm(ByteView payload) {
    Bytes verdict(payload.begin(), payload.end());
    done_ = true;
    owner_.watcher_.remove(socket_.fd());
    std::unique_ptr<IncomingLink> link = std::move(link_);
    link->confirmed(verdict, std::move(socket_));
    owner_.drop(this);
  }

  Listener& owner_;
  MessageSocket socket_;
  int64_t until_;
  Hello expected_ = Hello::kHello;
  bool done_ = false;
  bool local_ = false;
  PeerCredentials credentials_;
  std::shared_ptr<Acceptor> acceptor_;
  Bytes greeting_;
  Digest expected_mac_{};
  std::unique_ptr<IncomingLink> link_;
};

Listener::Listener(Watcher& watcher, int64_t hello_timeout_ns, FindAcceptor find)
    : watcher_(watcher), hello_timeout_ns_(hello_timeout_ns), find_(std::move(find)) {}

Status Listener::add(UniqueFd listening) {
  return std::make_shared<Accepting>(watcher_, std::move(listening),
                                     [this](UniqueFd fd) { admit(std::move(fd)); })
      ->start();
}

void Listener::admit(UniqueFd fd) {
  auto stranger = std::make_shared<Stranger>(*this, std::move(fd));
  // Before anything of his is read.
  if (!stranger->check_user()) return;
  if (!watcher_.add(stranger->fd(), EPOLLIN, stranger).ok()) return;
  strangers_.push_back(stranger);
  if (strangers_.size() > kMaxStrangers) drop(strangers_.front().get());
  if (strangers_.size() == 1) drop_late();
}

// Gives him his time once more.
void Listener::renew(Stranger* stranger) {
  auto entry = std::find_if(strangers_.begin(), strangers_.end(),
                            [&](const auto& other) { return other.get() == stranger; });
  if (entry == strangers_.end()) return;
  stranger->set_until(now_ns() + hello_timeout_ns_);
  strangers_.splice(strangers_.end(), strangers_, entry);
}

// Drops whoever has had his time; one timer for all, who are sorted by it.
void Listener::drop_late() {
  int64_t now = now_ns();
  while (!strangers_.empty() && strangers_.front()->until() <= now) {
    drop(strangers_.front().get());
  }
  if (strangers_.empty() || timer_set_) return;
  timer_set_ = true;
  watcher_.post_at(strangers_.front()->until(), [this] {
    timer_set_ = false;
    drop_late();
  });
}

void Listener::drop(const Stranger* stranger) {
  for (auto entry = strangers_.begin(); entry != strangers_.end(); ++entry) {
    if (entry->get() != stranger) continue;
    std::shared_ptr<Stranger> last = *entry;
    strangers_.erase(entry);
    if (last->fd() >= 0) watcher_.remove(last->fd());
    return;
  }
}

}  // namespace oh
