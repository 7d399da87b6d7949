// SPDX-License-Identifier: Apache-2.0
//
// A listener with one acceptor, for tests of the hello and of unexpected clients.
#pragma once

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>

#include "control/handshake.h"
#include "control/listener.h"
#include "unit/support.h"

namespace unit {

// The outcome of one offer.
struct Arrived {
  oh::Bytes greeting;
  oh::Bytes offer;
  oh::Bytes verdict;
  size_t fds = 0;
  bool local = false;
  oh::PeerCredentials credentials;
  oh::MessageSocket socket;
};

class TestAcceptor : public oh::Acceptor {
 public:
  TestAcceptor() : crypto_(*oh::Crypto::open("")), key_(*oh::random_key()) {}

  const oh::Key& key() const override { return key_; }
  const oh::Crypto& crypto() const override { return *crypto_; }
  oh::Bytes greeting() const override {
    oh::ByteView text = oh::as_bytes("the acceptor");
    return {text.begin(), text.end()};
  }
  oh::Result<std::unique_ptr<oh::IncomingLink>> on_offer(oh::IncomingOffer offer) override {
    ++offers;
    if (!refusal.ok()) return refusal;
    auto link = std::make_unique<Link>(*this);
    link->arrived.greeting = std::move(offer.greeting);
    link->arrived.offer = std::move(offer.offer);
    link->arrived.fds = offer.fds.size();
    link->arrived.local = offer.local;
    link->arrived.credentials = offer.credentials;
    return std::unique_ptr<oh::IncomingLink>(std::move(link));
  }

  oh::Status refusal;  // set before any client connects
  std::promise<Arrived> confirmed;
  std::atomic<int> offers{0};
  std::atomic<int> links_alive{0};

 private:
  struct Link : oh::IncomingLink {
    explicit Link(TestAcceptor& acceptor) : owner(acceptor) { ++owner.links_alive; }
    ~Link() override { --owner.links_alive; }
    oh::ByteView answer() const override { return oh::as_bytes("the answer"); }
    std::vector<int> fds() const override { return {}; }
    void confirmed(oh::ByteView verdict, oh::MessageSocket socket) override {
      arrived.verdict.assign(verdict.begin(), verdict.end());
      arrived.socket = std::move(socket);
      owner.confirmed.set_value(std::move(arrived));
    }
    TestAcceptor& owner;
    Arrived arrived;
  };
  const oh::Crypto* crypto_;
  oh::Key key_;
};

struct HelloServer {
  explicit HelloServer(int64_t hello_timeout_ns = 20 * oh::kSecond)
      : watcher(std::move(*oh::Watcher::start())),
        listener(*watcher, hello_timeout_ns,
                 [this](const oh::Id& id) { return id == address.endpoint ? acceptor : nullptr; }) {
    address.endpoint = *oh::random_id();
    address.key = acceptor->key();
    address.label = "test";
    address.unix_name = "onehop-unit-" + oh::id_text(*oh::random_id());
    EXPECT_TRUE(is_ok(listener.add(
        std::move(*oh::listen_on(oh::SocketAddress::unix_abstract(address.unix_name))))));
    uint16_t port = 0;
    EXPECT_TRUE(is_ok(
        listener.add(std::move(oh::listen_in_range("127.0.0.1", 40000, 44000, &port)->front()))));
    address.hosts.push_back(*oh::SocketAddress::numeric("127.0.0.1", port));
  }
  ~HelloServer() { watcher->stop(); }

  oh::Address tcp_only() const {
    oh::Address other = address;
    other.unix_name.clear();
    return other;
  }
  // A connection that has sent nothing yet. It bypasses the fault-injecting OS layer, so that only
  // the server's calls hit a fault that is already armed: the server may read from the connection
  // at once.
  oh::MessageSocket stranger() const {
    oh::SocketAddress to = oh::SocketAddress::unix_abstract(address.unix_name);
    oh::UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to.storage), to.size), 0);
    EXPECT_EQ(fcntl(fd.get(), F_SETFL, O_NONBLOCK), 0);
    return oh::MessageSocket(std::move(fd), oh::kMaxHelloMessage);
  }

  std::shared_ptr<TestAcceptor> acceptor = std::make_shared<TestAcceptor>();
  oh::Address address;
  std::unique_ptr<oh::Watcher> watcher;
  oh::Listener listener;
};

inline oh::Deadline in_time() { return oh::Deadline::after(20 * oh::kSecond); }

// Runs the whole hello of a client with this address.
inline oh::Status say_hello(const oh::Address& address, oh::Initiator* initiator) {
  const oh::Crypto& crypto = **oh::Crypto::open("");
  OH_RETURN_IF_ERROR(initiator->start(address, crypto, oh::as_bytes("the initiator"), in_time()));
  OH_ASSIGN_OR_RETURN(oh::Initiator::Answer answer,
                      initiator->exchange(oh::as_bytes("the offer"), {}, in_time()));
  oh::ByteView expected = oh::as_bytes("the answer");
  EXPECT_TRUE(
      std::equal(answer.answer.begin(), answer.answer.end(), expected.begin(), expected.end()));
  return initiator->confirm(oh::as_bytes("the verdict"), in_time());
}

}  // namespace unit
