// SPDX-License-Identifier: Apache-2.0
//
// Unauthenticated connections cost only a descriptor, and only for a short time.
#include <errno.h>
#include <poll.h>
#include <sys/resource.h>

#include "unit/faulty_os.h"
#include "unit/hello_server.h"

namespace strangers_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::HelloServer;
using unit::in_time;
using unit::is_ok;
using unit::say_hello;

// Waits until the peer has hung up.
::testing::AssertionResult is_dropped(MessageSocket& socket) {
  while (true) {
    Result<MessageSocket::Message> message = socket.receive_until(in_time(), "the hang-up");
    if (!message.ok()) return fails_with(message.status(), OH_ERR_PEER_LOST);
    EXPECT_EQ(message->type, static_cast<uint8_t>(Hello::kRefuse));
  }
}

TEST(StrangersTest, WhoSaysNothingOrHalfAHelloIsDroppedAtTheDeadline) {
  size_t before = unit::open_fds();
  {
    HelloServer server(200 * kMillisecond);
    int64_t start = now_ns();
    MessageSocket silent = server.stranger();
    MessageSocket half = server.stranger();
    Bytes hello = encode_hello(server.address.endpoint, Bytes(kHelloNonce), as_bytes("hello"));
    ASSERT_EQ(write(half.fd(), hello.data(), hello.size() / 2),
              static_cast<ssize_t>(hello.size() / 2));
    EXPECT_TRUE(is_dropped(silent));
    EXPECT_TRUE(is_dropped(half));
    EXPECT_GE(now_ns() - start, 190 * kMillisecond);
  }
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

TEST(StrangersTest, WhoAuthenticatedButNeverConfirmsIsDroppedToo) {
  HelloServer server(200 * kMillisecond);
  Initiator initiator;
  ASSERT_TRUE(is_ok(initiator.start(server.address, **Crypto::open(""), {}, in_time())));
  ASSERT_TRUE(is_ok(initiator.exchange({}, {}, in_time())));
  EXPECT_EQ(server.acceptor->links_alive.load(), 1);
  MessageSocket socket = initiator.take_socket();
  EXPECT_TRUE(is_dropped(socket));
  EXPECT_TRUE(unit::eventually([&] { return server.acceptor->links_alive.load() == 0; }));
}

TEST(StrangersTest, WhoNamedAnAcceptorIsDroppedWithIt) {
  HelloServer server;
  Initiator named;
  Initiator proven;
  for (Initiator* each : {&named, &proven}) {
    ASSERT_TRUE(is_ok(each->start(server.address, **Crypto::open(""), {}, in_time())));
  }
  ASSERT_TRUE(is_ok(proven.exchange({}, {}, in_time())));
  EXPECT_EQ(server.acceptor->links_alive.load(), 1);
  server.watcher->run([&] { server.listener.drop_those_of(*server.acceptor); });
  EXPECT_EQ(server.acceptor->links_alive.load(), 0);
  EXPECT_EQ(server.acceptor.use_count(), 1);
  for (Initiator* each : {&named, &proven}) {
    MessageSocket socket = each->take_socket();
    EXPECT_TRUE(is_dropped(socket));
  }
  Initiator next;
  EXPECT_TRUE(is_ok(next.start(server.address, **Crypto::open(""), {}, in_time())));
}

TEST(StrangersTest, WhoSendsRubbishIsDroppedAtOnce) {
  size_t before = unit::open_fds();
  {
    // The deadline is far away, so it does not cause the drop.
    HelloServer server(3600 * kSecond);
    unit::Random random(21);
    for (int i = 0; i < 100; ++i) {
      MessageSocket stranger = server.stranger();
      Bytes rubbish = random.bytes(6 + random.below(20000));
      rubbish[3] |= 1;  // invalid as a length: too large
      [[maybe_unused]] ssize_t sent =
          send(stranger.fd(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
      EXPECT_TRUE(is_dropped(stranger)) << i;
    }
    MessageSocket web = server.stranger();
    constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
    ASSERT_TRUE(write(web.fd(), kRequest.data(), kRequest.size()) > 0);
    EXPECT_TRUE(is_dropped(web));
    Initiator initiator;
    EXPECT_TRUE(is_ok(say_hello(server.address, &initiator)));
  }
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

// Unauthenticated connections pass unexpected descriptors.
TEST(StrangersTest, DescriptorsOfAStrangerAreClosed) {
  size_t before = unit::open_fds();
  HelloServer server(3600 * kSecond);
  size_t with_server = unit::open_fds();
  {
    MessageSocket stranger = server.stranger();
    std::vector<int> fds(8, STDERR_FILENO);
    Bytes hello = encode_hello(server.address.endpoint, Bytes(kHelloNonce), {});
    ASSERT_TRUE(is_ok(stranger.send(static_cast<uint8_t>(Hello::kHello), hello, {}, fds)));
    Result<MessageSocket::Message> proof = stranger.receive_until(in_time(), "the proof");
    EXPECT_TRUE(is_ok(proof));
  }
  EXPECT_TRUE(unit::fds_come_back_to(with_server));
  EXPECT_GT(with_server, before);
}

TEST(StrangersTest, ARealClientConnectsAmongThreeHundredStrangers) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  ASSERT_GE(limit.rlim_cur, 1000u);
  size_t before = unit::open_fds();
  {
    HelloServer server(400 * kMillisecond);
    std::vector<MessageSocket> strangers;
    for (int i = 0; i < 300; ++i) strangers.push_back(server.stranger());
    Initiator initiator;
    ASSERT_TRUE(is_ok(say_hello(server.address, &initiator)));
    EXPECT_EQ(server.acceptor->confirmed.get_future().get().verdict.size(), 11u);
    // All are dropped: the oldest when there were too many, the others at the deadline.
    for (MessageSocket& stranger : strangers) EXPECT_TRUE(is_dropped(stranger));
  }
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

// They come from the same process as the client, and exceed the number of places.
TEST(StrangersTest, WhoHasNamedAnEndpointIsNotDisplacedByWhoHasNot) {
  HelloServer server(3600 * kSecond);
  Initiator initiator;
  ASSERT_TRUE(is_ok(initiator.start(server.address, **Crypto::open(""), {}, in_time())));
  std::vector<MessageSocket> strangers;
  for (size_t i = 0; i < 3 * Listener::kPlaces; ++i) strangers.push_back(server.stranger());
  EXPECT_TRUE(is_dropped(strangers[2 * Listener::kPlaces - 1]));
  EXPECT_TRUE(is_ok(initiator.exchange(as_bytes("the offer"), {}, in_time())));
}

TEST(StrangersTest, WhoIsDisplacedIsToldToComeAgain) {
  HelloServer server(3600 * kSecond);
  std::vector<MessageSocket> strangers;
  for (size_t i = 0; i < Listener::kPlaces + 1; ++i) strangers.push_back(server.stranger());
  Result<MessageSocket::Message> message = strangers[0].receive_until(in_time(), "the refusal");
  ASSERT_TRUE(is_ok(message));
  ASSERT_EQ(message->type, static_cast<uint8_t>(Hello::kRefuse));
  EXPECT_TRUE(fails_with(decode_refusal(message->payload), kComeAgain, "not authenticated"));
}

// One of the clients that have named an endpoint is dropped, and its next message fails.
TEST(StrangersTest, AnInitiatorHearsTheRefusalThoughItCannotSend) {
  HelloServer server(3600 * kSecond);
  const Crypto& crypto = **Crypto::open("");
  // The last client's proof is sent after the first one was dropped.
  std::vector<Initiator> callers(Listener::kPlaces + 2);
  for (Initiator& caller : callers) {
    ASSERT_TRUE(is_ok(caller.start(server.address, crypto, {}, in_time())));
  }
  EXPECT_TRUE(fails_with(callers[0].exchange({}, {}, in_time()), kComeAgain, "not authenticated"));
  EXPECT_TRUE(callers[0].is_told_to_retry());
}

TEST(StrangersTest, OutOfDescriptorsTheListenerTriesAgain) {
  HelloServer server;
  FaultyOs faulty;
  faulty.arm(Call::accept, 0, EMFILE);
  Initiator initiator;
  EXPECT_TRUE(is_ok(say_hello(server.address, &initiator)));
  EXPECT_TRUE(faulty.fired());
  // It did not spin meanwhile.
  EXPECT_LT(faulty.uses(Call::accept), 10u);
}

TEST(StrangersTest, AnInitiatorDoesNotWaitForEverForASilentAcceptor) {
  std::string name = "onehop-unit-" + id_text(*random_id());
  Result<UniqueFd> silent = listen_on(SocketAddress::unix_abstract(name));
  ASSERT_TRUE(is_ok(silent));
  Address address;
  address.unix_name = name;
  address.label = "silent";
  Initiator initiator;
  EXPECT_TRUE(fails_with(
      initiator.start(address, **Crypto::open(""), {}, Deadline::after(50 * kMillisecond)),
      OH_ERR_TIMEOUT, "waiting for the other side's proof"));
}

// An acceptor that sends arbitrary replies.
TEST(StrangersTest, AnInitiatorSurvivesAHostileAcceptor) {
  unit::Random random(22);
  for (int i = 0; i < 60; ++i) {
    std::string name = "onehop-unit-" + id_text(*random_id());
    Result<UniqueFd> listening = listen_on(SocketAddress::unix_abstract(name));
    ASSERT_TRUE(is_ok(listening));
    unit::Threads threads;
    threads.start([&] {
      if (!wait_ready(listening->get(), POLLIN, in_time(), "accepting").ok()) return;
      MessageSocket socket(UniqueFd(os().accept(listening->get())), 1 << 20);
      (void)socket.receive_until(in_time(), "the hello").ok();
      Bytes bytes = random.bytes(random.below(300));
      if (i % 3 == 0) {
        [[maybe_unused]] ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      } else {
        (void)socket.send(static_cast<uint8_t>(1 + i % 8), bytes).ok();
      }
    });
    Address address;
    address.unix_name = name;
    Initiator initiator;
    Status status = initiator.start(address, **Crypto::open(""), {}, in_time());
    EXPECT_TRUE(status.code() == OH_ERR_PROTOCOL || status.code() == OH_ERR_PEER_LOST ||
                status.code() == OH_ERR_AUTH)
        << status_name(status.code()) << ": " << status.text();
  }
}

}  // namespace
}  // namespace strangers_test
