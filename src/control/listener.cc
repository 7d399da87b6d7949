// SPDX-License-Identifier: Apache-2.0
#include "control/listener.h"

#include <errno.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "control/accepting.h"
#include "control/handshake.h"
#include "platform/os/os.h"

namespace oh {

// One connection in its handshake: waits for Hello, then Offer, then Confirm.
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
  const ConnectionSource& source() const { return caller_.source; }
  Stage stage() const { return stage_; }
  const Acceptor* acceptor() const { return acceptor_.get(); }

  // Identifies the stranger and handles the messages that have already arrived. False: drop it.
  bool begin() {
    Status status = identify();
    return stays(status.ok() ? step() : status);
  }

  void on_ready(uint32_t) override {
    const Stage before = stage_;
    if (!stays(step())) {
      owner_.drop(this);
    } else if (stage_ != before) {
      owner_.advance(this, before, stage_);
    }
  }

  void refuse(const Status& status) {
    (void)socket_.send(static_cast<uint8_t>(Hello::kRefuse), encode_refusal(status)).ok();
  }

 private:
  bool stays(const Status& status) {
    if (status.ok()) return !done_;
    if (status.code() != OH_ERR_PEER_LOST) {
      OH_LOG(kInfo, "a link was not accepted: %s", status.text().c_str());
      refuse(status);
    }
    return false;
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
          OH_RETURN_IF_ERROR(on_offer(*message));
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
    stage_ = kNamed;
    socket_.take_fds(caller_.local);
    return socket_.send(static_cast<uint8_t>(Hello::kProof), proof);
  }

  Status identify() {
    OH_ASSIGN_OR_RETURN(caller_, identify_caller(socket_.fd()));
    if (!caller_.local) {
      send_at_once(socket_.fd());
      return {};
    }
    if (caller_.credentials.uid == geteuid()) return {};
    return error(OH_ERR_AUTH, "user %u may not connect to an endpoint of user %u%s",
                 caller_.credentials.uid, geteuid(), kOneUser);
  }

  Status on_offer(MessageSocket::Message& message) {
    const ByteView payload = message.payload;
    if (payload.size() < sizeof(Digest) ||
        !equal_digests(expected_mac_, payload.first(sizeof(Digest)))) {
      return error(OH_ERR_AUTH,
                   "the key in the address is wrong: pass the endpoint's current address, whole");
    }
    IncomingOffer offer;
    offer.greeting = std::move(greeting_);
    ByteView rest = payload.subspan(sizeof(Digest));
    offer.offer.assign(rest.begin(), rest.end());
    offer.fds = std::move(message.fds);
    offer.lost_fds = message.lost_fds;
    offer.credentials = caller_.credentials;
    offer.local = caller_.local;
    OH_ASSIGN_OR_RETURN(link_, acceptor_->on_offer(std::move(offer)));
    expected_ = Hello::kConfirm;
    stage_ = kProven;
    // Restart the deadline: the time that on_offer() took does not count against the initiator.
    until_ = now_ns() + owner_.hello_timeout_ns_;
    return socket_.send(static_cast<uint8_t>(Hello::kAnswer), link_->answer(), {}, link_->fds());
  }

  void on_confirm(ByteView payload) {
    Bytes verdict(payload.begin(), payload.end());
    done_ = true;
    owner_.watcher_.remove(socket_.fd());
    std::unique_ptr<IncomingLink> link = std::move(link_);
    link->confirmed(verdict, std::move(socket_));
  }

  Listener& owner_;
  MessageSocket socket_;
  int64_t until_;
  Hello expected_ = Hello::kHello;
  Stage stage_ = kSilent;
  bool done_ = false;
  Caller caller_;
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
  // Serve at once, before other strangers can displace it: an honest initiator's Hello has usually
  // arrived.
  if (!stranger->begin()) return;
  auto who = Watcher::Who::kStranger;
  if (!watcher_.add(stranger->fd(), EPOLLIN, stranger, who).ok()) return;
  enter(stranger, stranger->stage());
  set_timer();
}

void Listener::enter(std::shared_ptr<Stranger> stranger, Stage stage) {
  const ConnectionSource& source = stranger->source();
  const int64_t until = stranger->until();
  if (auto other = rooms_[stage].enter(std::move(stranger), source, until)) displace(*other);
}

// Drops a stranger to make room, and asks it to retry.
void Listener::displace(Stranger& stranger) {
  stranger.refuse(error(kComeAgain, "too many connections here have not authenticated yet"));
  watcher_.remove(stranger.fd());
  ++displaced_;
  int64_t now = now_ns();
  if (now < next_warning_at_) return;
  next_warning_at_ = now + kSecond;
  OH_LOG(kWarn, "%zu connections that had not authenticated were dropped to make room for others",
         std::exchange(displaced_, 0));
}

void Listener::advance(Stranger* stranger, Stage from, Stage to) {
  if (std::shared_ptr<Stranger> held = rooms_[from].leave(stranger)) enter(std::move(held), to);
  set_timer();
}

void Listener::drop(const Stranger* stranger) {
  for (WaitingRoom<Stranger>& room : rooms_) {
    std::shared_ptr<Stranger> last = room.leave(stranger);
    if (last && last->fd() >= 0) watcher_.remove(last->fd());
  }
}

void Listener::drop_those_of(const Acceptor& acceptor) {
  for (WaitingRoom<Stranger>& room : rooms_) {
    for (const std::shared_ptr<Stranger>& each :
         room.take_if([&](const Stranger& stranger) { return stranger.acceptor() == &acceptor; })) {
      // After its Answer an initiator may have sent Confirm, and expects messages of the link.
      if (each->stage() != kProven) {
        each->refuse(error(OH_ERR_REFUSED, "the endpoint was closed during the handshake"));
      }
      watcher_.remove(each->fd());
    }
  }
}

// Drops strangers that are past their deadline.
void Listener::drop_late() {
  int64_t now = now_ns();
  for (WaitingRoom<Stranger>& room : rooms_) {
    while (std::shared_ptr<Stranger> late = room.take_late(now)) watcher_.remove(late->fd());
  }
  set_timer();
}

// One timer serves all strangers: later ones have later deadlines.
void Listener::set_timer() {
  if (timer_set_) return;
  int64_t next = INT64_MAX;
  for (const WaitingRoom<Stranger>& room : rooms_) {
    if (!room.empty()) next = std::min(next, room.next_deadline());
  }
  if (next == INT64_MAX) return;
  timer_set_ = true;
  watcher_.post_at(next, [this] {
    timer_set_ = false;
    drop_late();
  });
}

}  // namespace oh
