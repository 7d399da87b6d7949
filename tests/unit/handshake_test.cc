// SPDX-License-Identifier: Apache-2.0
//
// Which clients are accepted and which rejected. strangers_test.cc tests connections without a
// hello.
#include "control/handshake.h"

#include <errno.h>

#include "unit/faulty_os.h"
#include "unit/hello_server.h"

namespace handshake_test {
namespace {

using namespace oh;
using unit::Arrived;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::HelloServer;
using unit::in_time;
using unit::is_ok;
using unit::say_hello;

std::string text_of(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

void expect_arrival(HelloServer& server, bool local) {
  Arrived arrived = server.acceptor->confirmed.get_future().get();
  EXPECT_EQ(text_of(arrived.greeting), "the initiator");
  EXPECT_EQ(text_of(arrived.offer), "the offer");
  EXPECT_EQ(text_of(arrived.verdict), "the verdict");
  EXPECT_EQ(arrived.local, local);
  EXPECT_EQ(arrived.credentials.pid, local ? getpid() : 0);
}

TEST(HandshakeTest, TheRightKeyConnectsOverTheUnixSocket) {
  HelloServer server;
  Initiator initiator;
  ASSERT_TRUE(is_ok(say_hello(server.address, &initiator)));
  EXPECT_EQ(text_of(initiator.greeting()), "the acceptor");
  EXPECT_TRUE(initiator.local());
  EXPECT_EQ(initiator.credentials().pid, getpid());
  expect_arrival(server, true);
}

TEST(HandshakeTest, TheRightKeyConnectsOverTcp) {
  HelloServer server;
  Initiator initiator;
  ASSERT_TRUE(is_ok(say_hello(server.tcp_only(), &initiator)));
  EXPECT_FALSE(initiator.local());
  expect_arrival(server, false);
}

TEST(HandshakeTest, TakesTheNextWayWhenOneIsClosed) {
  HelloServer server;
  Address address = server.address;
  address.unix_name += "-gone";
  address.unix_path = "/no/such/socket";
  Initiator initiator;
  ASSERT_TRUE(is_ok(say_hello(address, &initiator)));
  EXPECT_FALSE(initiator.local());
  address.hosts.clear();
  Initiator nobody;
  Status status = say_hello(address, &nobody);
  EXPECT_TRUE(fails_with(status, OH_ERR_UNREACHABLE, "cannot reach endpoint test"));
  EXPECT_TRUE(fails_with(status, OH_ERR_UNREACHABLE, "/no/such/socket"));
}

TEST(HandshakeTest, TheInitiatorRefusesAnAcceptorWithAnotherKey) {
  HelloServer server;
  Address address = server.address;
  address.key[31] ^= 1;
  Initiator initiator;
  EXPECT_TRUE(fails_with(say_hello(address, &initiator), OH_ERR_AUTH,
                         "endpoint test does not know its own key"));
  EXPECT_EQ(server.acceptor->offers.load(), 0);
}

// A client that follows the protocol, step by step.
struct Client {
  explicit Client(const HelloServer& server) : socket(server.stranger()) {}
  Status send_hello(const Bytes& bytes) {
    hello = bytes;
    return socket.send(static_cast<uint8_t>(Hello::kHello), hello);
  }
  // Returns the acceptor's reply to our hello, up to its MAC.
  Bytes receive_proof() {
    Result<MessageSocket::Message> proof = socket.receive_until(in_time(), "the proof");
    EXPECT_TRUE(is_ok(proof));
    EXPECT_EQ(proof->type, static_cast<uint8_t>(Hello::kProof));
    ByteView view = proof->payload.first(proof->payload.size() - sizeof(Digest));
    return {view.begin(), view.end()};
  }
  Bytes offer(const Key& key, const Bytes& proof) {
    Digest mac = *hello_mac(**Crypto::open(""), key, 'I', hello, proof);
    Bytes bytes;
    Writer writer(bytes);
    writer.raw(mac);
    writer.raw(as_bytes("hi"));
    return bytes;
  }
  Status send_offer(const Bytes& bytes) {
    return socket.send(static_cast<uint8_t>(Hello::kOffer), bytes);
  }
  // Returns the acceptor's next message: a refusal, or success.
  Status verdict() {
    OH_ASSIGN_OR_RETURN(MessageSocket::Message message,
                        socket.receive_until(in_time(), "an answer"));
    if (message.type == static_cast<uint8_t>(Hello::kRefuse))
      return decode_refusal(message.payload);
    EXPECT_EQ(message.type, static_cast<uint8_t>(Hello::kAnswer));
    return {};
  }
  MessageSocket socket;
  Bytes hello;
};

Bytes good_hello(const HelloServer& server, uint8_t nonce = 1) {
  return encode_hello(server.address.endpoint, Bytes(kHelloNonce, nonce), as_bytes("hello"));
}

TEST(HandshakeTest, TheAcceptorRefusesAnInitiatorWithAnotherKey) {
  HelloServer server;
  for (size_t byte : {0, 16, 31}) {
    Client client(server);
    ASSERT_TRUE(is_ok(client.send_hello(good_hello(server))));
    Key key = server.address.key;
    key[byte] ^= 1;
    ASSERT_TRUE(is_ok(client.send_offer(client.offer(key, client.receive_proof()))));
    EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_AUTH, "the key in the address is wrong"));
    EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_PEER_LOST));
  }
  Client shorter(server);
  ASSERT_TRUE(is_ok(shorter.send_hello(good_hello(server))));
  shorter.receive_proof();
  ASSERT_TRUE(is_ok(shorter.send_offer(Bytes(31))));
  EXPECT_TRUE(fails_with(shorter.verdict(), OH_ERR_AUTH));
  EXPECT_EQ(server.acceptor->offers.load(), 0);
}

// A proof that was valid once is invalid the next time, since the acceptor's nonce differs.
TEST(HandshakeTest, AReplayedProofIsRefused) {
  HelloServer server;
  Client first(server);
  ASSERT_TRUE(is_ok(first.send_hello(good_hello(server))));
  Bytes recorded = first.offer(server.address.key, first.receive_proof());
  ASSERT_TRUE(is_ok(first.send_offer(recorded)));
  EXPECT_TRUE(is_ok(first.verdict()));
  Client second(server);
  ASSERT_TRUE(is_ok(second.send_hello(good_hello(server))));
  second.receive_proof();
  ASSERT_TRUE(is_ok(second.send_offer(recorded)));
  EXPECT_TRUE(fails_with(second.verdict(), OH_ERR_AUTH));
}

// The acceptor's own MAC, reflected, does not authenticate a client.
TEST(HandshakeTest, AReflectedProofIsRefused) {
  HelloServer server;
  Client client(server);
  ASSERT_TRUE(is_ok(client.send_hello(good_hello(server))));
  Result<MessageSocket::Message> proof = client.socket.receive_until(in_time(), "the proof");
  ASSERT_TRUE(is_ok(proof));
  ByteView mac = proof->payload.last(sizeof(Digest));
  ASSERT_TRUE(is_ok(client.send_offer(Bytes(mac.begin(), mac.end()))));
  EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_AUTH));
}

TEST(HandshakeTest, UnknownEndpointsAndOtherVersionsAreRefusedWithTheReason) {
  HelloServer server;
  Client unknown(server);
  ASSERT_TRUE(is_ok(unknown.send_hello(encode_hello(Id{}, Bytes(kHelloNonce), {}))));
  EXPECT_TRUE(fails_with(unknown.verdict(), OH_ERR_REFUSED, "has no endpoint 0000"));
  Client other(server);
  Bytes hello = good_hello(server);
  hello[0] = 9;
  ASSERT_TRUE(is_ok(other.send_hello(hello)));
  EXPECT_TRUE(fails_with(other.verdict(), OH_ERR_VERSION, "wire version 9.0"));
}

TEST(HandshakeTest, MalformedMessagesAreRefused) {
  HelloServer server;
  Bytes whole = good_hello(server);
  for (size_t size = 0; size < whole.size(); ++size) {
    Client client(server);
    ASSERT_TRUE(is_ok(
        client.send_hello(Bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)))));
    EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_PROTOCOL, strf("a hello of %zu bytes", size)));
  }
  for (uint8_t type = 2; type < 8; ++type) {
    Client client(server);
    ASSERT_TRUE(is_ok(client.socket.send(type, whole)));
    EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_PROTOCOL, strf("a hello of type %u", type)));
  }
  Client twice(server);
  ASSERT_TRUE(is_ok(twice.send_hello(whole)));
  twice.receive_proof();
  ASSERT_TRUE(is_ok(twice.send_hello(whole)));
  EXPECT_TRUE(fails_with(twice.verdict(), OH_ERR_PROTOCOL, "type 1 where 4 was due"));
}

TEST(HandshakeTest, TheAcceptorsReasonArrives) {
  HelloServer server;
  server.acceptor->refusal = error(OH_ERR_NO_RESOURCE, "all seats are taken");
  Initiator initiator;
  EXPECT_TRUE(fails_with(say_hello(server.address, &initiator), OH_ERR_NO_RESOURCE,
                         "the other side refused: all seats are taken"));
}

TEST(HandshakeTest, AnInitiatorThatLeavesBeforeItConfirmsLeavesNothing) {
  HelloServer server;
  {
    Client client(server);
    ASSERT_TRUE(is_ok(client.send_hello(good_hello(server))));
    ASSERT_TRUE(is_ok(client.send_offer(client.offer(server.address.key, client.receive_proof()))));
    EXPECT_TRUE(is_ok(client.verdict()));
    EXPECT_EQ(server.acceptor->links_alive.load(), 1);
  }
  EXPECT_TRUE(unit::eventually([&] { return server.acceptor->links_alive.load() == 0; }));
}

// Without the address or the credentials the user at the other end is unknown, and is rejected.
TEST(HandshakeTest, WhoeverCannotBeIdentifiedIsNotLetIn) {
  for (Call call : {Call::getpeername, Call::getsockopt}) {
    HelloServer server;
    FaultyOs faulty;
    faulty.arm(call, 0, ENOBUFS);  // the server may query as soon as it accepts
    Client client(server);
    // The refusal may arrive, and the connection close, before the hello is sent.
    (void)client.send_hello(good_hello(server)).ok();
    EXPECT_TRUE(fails_with(client.verdict(), OH_ERR_REFUSED, "ENOBUFS")) << call_name(call);
    EXPECT_TRUE(faulty.fired());
  }
}

TEST(RefusalTest, GoesRoundAndKeepsItsCode) {
  Status status = decode_refusal(encode_refusal(error(OH_ERR_AUTH, "who are you")));
  EXPECT_TRUE(fails_with(status, OH_ERR_AUTH, "the other side refused: who are you"));
  EXPECT_TRUE(fails_with(decode_refusal(encode_refusal(error(OH_AGAIN, "later"))), OH_AGAIN));
  std::string large(100000, 'x');
  EXPECT_TRUE(fails_with(decode_refusal(encode_refusal(error(OH_ERR_REFUSED, "%s", large.c_str()))),
                         OH_ERR_REFUSED, large.substr(0, 1024)));
}

// Any process that listens at an address may refuse; its text goes to logs, terminals and Python.
TEST(RefusalTest, TheTextIsMadePrintable) {
  Status status = decode_refusal(encode_refusal(error(OH_ERR_AUTH, "\xff\x1b[2J\n\u20ac")));
  EXPECT_TRUE(fails_with(status, OH_ERR_AUTH, "the other side refused: \\xff\\x1b[2J\\x0a\u20ac"));
  // It is cut between characters.
  std::string large(1023, 'x');
  large += "\u20ac";
  status = decode_refusal(encode_refusal(Status(OH_ERR_AUTH, large)));
  EXPECT_EQ(status.text(), "the other side refused: " + std::string(1023, 'x'));
}

// A fault of the other endpoint must not look like a local one, and unknown codes must not reach
// the caller.
TEST(RefusalTest, OnlyCodesThatAreOursToTellComeThrough) {
  for (int code : {-41, -40, -42, -43, -44, 1, 99, -200, -100000}) {
    Bytes refusal;
    Writer writer(refusal);
    writer.number<int32_t>(code);
    writer.text("something");
    EXPECT_TRUE(fails_with(decode_refusal(refusal), OH_ERR_REFUSED, "something")) << code;
  }
}

TEST(RefusalTest, MalformedRefusalsAreProtocolErrors) {
  Bytes bytes = encode_refusal(error(OH_ERR_AUTH, "who are you"));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(fails_with(decode_refusal(ByteView(bytes).first(size)), OH_ERR_PROTOCOL));
  }
  Bytes success(8);
  EXPECT_TRUE(fails_with(decode_refusal(success), OH_ERR_PROTOCOL));
}

}  // namespace
}  // namespace handshake_test
