// SPDX-License-Identifier: Apache-2.0
#include "control/rendezvous.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <utility>

#include "base/text.h"
#include "control/handshake.h"
#include "unit/support.h"

namespace rendezvous_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr const char* kSecret = "a secret of more than 16 letters";

Deadline in_time() { return Deadline::after(20 * kSecond); }

Bytes address_of(uint32_t rank, const char* name = "rank") {
  Address address;
  address.endpoint[0] = static_cast<uint8_t>(rank);
  address.label = strf("%s-%u", name, rank);
  return address.encode();
}

// A server, and ranks that join it.
class RendezvousTest : public ::testing::Test {
 protected:
  void serve(const char* host, const std::map<std::string, std::string>& variables = {}) {
    config_ = unit::config_with(variables);
    node_ = *Node::get(config_);
    crypto_ = *Crypto::open("");
    Result<SocketAddress> address =
        SocketAddress::numeric(host, unit::free_port(strchr(host, ':') ? AF_INET6 : AF_INET));
    hosts_ = {*address};
    key_ = *rendezvous_key(*crypto_, kSecret, hosts_, "tcp://test");
    start();
  }
  void start() {
    Result<std::unique_ptr<RendezvousServer>> made =
        rendezvous_serve(node_, *crypto_, key_, hosts_.front(), config_, in_time());
    ASSERT_TRUE(is_ok(made));
    server_ = std::move(*made);
  }
  RendezvousJoin join_of(uint32_t rank, uint32_t size) const {
    return {hosts_, key_, rank, size, address_of(rank)};
  }
  std::future<Result<RendezvousTable>> join(uint32_t rank, uint32_t size,
                                            Deadline deadline = in_time()) {
    return join(join_of(rank, size), deadline);
  }
  std::future<Result<RendezvousTable>> join(const RendezvousJoin& wish, Deadline deadline) {
    return std::async(std::launch::async,
                      [=, this] { return rendezvous_join(*crypto_, wish, deadline); });
  }
  MessageSocket guest() {
    Result<UniqueFd> fd = connect_to(hosts_, in_time());
    EXPECT_TRUE(is_ok(fd));
    return MessageSocket(std::move(*fd), 1 << 20);
  }
  // All ranks from `first` on join, and get the same table.
  void meet(uint32_t size, uint32_t first = 0) {
    std::vector<std::future<Result<RendezvousTable>>> all;
    for (uint32_t rank = size; rank-- > first;) all.push_back(join(rank, size));
    for (auto& each : all) check(each.get(), size);
  }
  void check(const Result<RendezvousTable>& table, uint32_t size) {
    ASSERT_TRUE(is_ok(table));
    const RendezvousTable& seen = table.value();
    ASSERT_EQ(seen.addresses.size(), size);
    for (uint32_t rank = 0; rank < size; ++rank) {
      EXPECT_EQ(seen.addresses[rank], address_of(rank));
    }
    EXPECT_NE(seen.communicator, Id{});
    if (communicator_ == Id{}) communicator_ = seen.communicator;
    EXPECT_EQ(seen.communicator, communicator_);
  }

  Config config_;
  std::shared_ptr<Node> node_;
  const Crypto* crypto_ = nullptr;
  Key key_{};
  std::vector<SocketAddress> hosts_;
  std::unique_ptr<RendezvousServer> server_;
  Id communicator_{};
};

TEST_F(RendezvousTest, AllRanksMeetAndTheServerLetsGo) {
  size_t before = unit::open_fds();
  serve("127.0.0.1");
  meet(8);
  // The port is free again as soon as all ranks have their table.
  EXPECT_TRUE(unit::eventually([&] { return listen_on(hosts_.front()).ok(); }));
  server_.reset();
  node_.reset();
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

TEST_F(RendezvousTest, MeetsOverIpv6) {
  serve("::1");
  meet(3);
}

TEST_F(RendezvousTest, ARankIsTakenOnce) {
  serve("127.0.0.1");
  auto zero = join(0, 3);
  auto first = join(1, 3);
  // The second of the two is rejected; both errors name the other.
  RendezvousJoin again = join_of(1, 3);
  again.address = address_of(1, "impostor");
  auto second = join(again, in_time());
  auto refused_first = [&] {
    return first.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  auto refused_second = [&] {
    return second.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  ASSERT_TRUE(unit::eventually([&] { return refused_first() || refused_second(); }));
  Status refused = refused_first() ? first.get().status() : second.get().status();
  EXPECT_TRUE(fails_with(refused, OH_ERR_REFUSED, "rank 1 is taken by process "));
  auto two = join(2, 3);
  EXPECT_TRUE(is_ok(zero.get()));
  EXPECT_TRUE(is_ok(two.get()));
}

TEST_F(RendezvousTest, AllMustAgreeOnTheirNumber) {
  serve("127.0.0.1");
  auto zero = join(0, 2);
  auto one = join(1, 3);
  auto ready = [](auto& each) {
    return each.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  };
  ASSERT_TRUE(unit::eventually([&] { return ready(zero) || ready(one); }));
  // The second one is rejected; the others use the size of the first.
  if (ready(one)) {
    EXPECT_TRUE(fails_with(one.get(), OH_ERR_INVALID, "there are 3 ranks, others said 2"));
    check(join(1, 2).get(), 2);
    check(zero.get(), 2);
  } else {
    EXPECT_TRUE(fails_with(zero.get(), OH_ERR_INVALID, "there are 2 ranks, others said 3"));
    auto two = join(2, 3);
    check(join(0, 3).get(), 3);
    check(one.get(), 3);
    check(two.get(), 3);
  }
}

TEST_F(RendezvousTest, WhoLeftHasNoSayInTheirNumber) {
  serve("127.0.0.1");
  EXPECT_TRUE(fails_with(join(1, 3, Deadline::after(50 * kMillisecond)).get(), OH_ERR_TIMEOUT));
  meet(2);
}

TEST_F(RendezvousTest, RanksThatMakeNoSenseAreRefused) {
  serve("127.0.0.1");
  EXPECT_TRUE(fails_with(join(2, 2).get(), OH_ERR_INVALID, "rank 2 of 2 makes no sense"));
  EXPECT_TRUE(fails_with(join(0, 0).get(), OH_ERR_INVALID));
  RendezvousJoin nonsense = join_of(0, 2);
  nonsense.address = {1, 2, 3};
  EXPECT_TRUE(fails_with(join(nonsense, in_time()).get(), OH_ERR_INVALID, "no onehop address"));
  meet(2);
}

TEST_F(RendezvousTest, TheWrongSecretIsRefusedOnBothSides) {
  serve("127.0.0.1");
  RendezvousJoin wrong = join_of(1, 2);
  wrong.key = *rendezvous_key(*crypto_, "another secret of 16", hosts_, "tcp://test");
  EXPECT_TRUE(fails_with(join(wrong, in_time()).get(), OH_ERR_AUTH,
                         "the rendezvous does not know our secret"));
  // A client that ignores the refusal continues, and so does the server.
  MessageSocket client = guest();
  ASSERT_TRUE(
      is_ok(client.send(static_cast<uint8_t>(Meeting::kJoin), encode_join(Bytes(kHelloNonce)))));
  ASSERT_TRUE(is_ok(client.receive_until(in_time(), "the challenge")));
  ASSERT_TRUE(is_ok(client.send(static_cast<uint8_t>(Meeting::kRegister),
                                encode_registration(Digest{}, 1, 2, address_of(1)))));
  Result<MessageSocket::Message> answer = client.receive_until(in_time(), "the refusal");
  ASSERT_TRUE(is_ok(answer));
  EXPECT_EQ(answer->type, static_cast<uint8_t>(Meeting::kRefuse));
  EXPECT_TRUE(fails_with(decode_refusal(answer->payload), OH_ERR_AUTH, "the secret is wrong"));
  meet(2);
}

TEST_F(RendezvousTest, MissingRanksAreNamedAtTheDeadline) {
  serve("127.0.0.1");
  auto zero = join(0, 5, Deadline::after(300 * kMillisecond));
  auto three = join(3, 5, Deadline::after(300 * kMillisecond));
  Status status = zero.get().status();
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "rank 0 waited at the rendezvous for"));
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "of 5 ranks: "));
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, " 1 2"));
  EXPECT_TRUE(fails_with(three.get(), OH_ERR_TIMEOUT, "rank 3 waited"));
}

TEST_F(RendezvousTest, ARankThatLeftMayComeAgain) {
  serve("127.0.0.1");
  EXPECT_TRUE(fails_with(join(1, 3, Deadline::after(50 * kMillisecond)).get(), OH_ERR_TIMEOUT));
  meet(3);
}

TEST_F(RendezvousTest, RanksMayComeBeforeTheServer) {
  serve("127.0.0.1");
  server_.reset();
  auto one = join(1, 2);
  start();
  auto zero = join(0, 2);
  check(one.get(), 2);
  check(zero.get(), 2);
}

TEST_F(RendezvousTest, WithoutAServerTheErrorSaysWhereItWasLookedFor) {
  serve("127.0.0.1");
  server_.reset();
  Status status = join(1, 2, Deadline::after(20 * kMillisecond)).get().status();
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "rank 1 of 2 found no rendezvous"));
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, hosts_.front().text()));
}

// A listener at the port of a rendezvous that sends bytes to one caller.
class Stranger {
 public:
  explicit Stranger(const SocketAddress& address) : listening_(std::move(*listen_on(address))) {}
  MessageSocket called() {
    pollfd calls{listening_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&calls, 1, 20000), 1);
    return MessageSocket(UniqueFd(accept(listening_.get(), nullptr, nullptr)), kMaxHelloMessage);
  }
  void answer(const Bytes& bytes) { answer(called(), bytes); }
  // Polls briefly.
  void answer_if_called(const Bytes& bytes) {
    pollfd calls{listening_.get(), POLLIN, 0};
    if (poll(&calls, 1, 10) > 0) answer(called(), bytes);
  }

 private:
  static void answer(MessageSocket caller, const Bytes& bytes) {
    EXPECT_EQ(::send(caller.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    // Otherwise the unread bytes would reset the connection and discard the answer.
    (void)caller.receive_until(in_time(), "the join").ok();
  }

  UniqueFd listening_;
};

Bytes framed(uint8_t type, ByteView payload) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(static_cast<uint32_t>(2 + payload.size()));
  writer.u8(type);
  writer.u8(0);
  writer.raw(payload);
  return bytes;
}

Bytes text_bytes(std::string_view text) { return Bytes(text.begin(), text.end()); }

std::string shown(const Bytes& bytes) {
  return printable({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, 40);
}

// For example an endpoint that got the port of a finished rendezvous, or a program with another
// protocol.
std::vector<Bytes> what_strangers_say() {
  const Bytes refusal = encode_refusal(error(OH_ERR_REFUSED, "who?"));
  return {framed(static_cast<uint8_t>(Hello::kRefuse), refusal),
          text_bytes("SSH-2.0-OpenSSH_9.6\r\n"),
          text_bytes("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
          framed(200, text_bytes("?")),
          framed(static_cast<uint8_t>(Meeting::kTable), text_bytes("?")),
          framed(static_cast<uint8_t>(Meeting::kRefuse), {}),
          framed(static_cast<uint8_t>(Meeting::kChallenge), Bytes(7)),
          {}};
}

TEST_F(RendezvousTest, WhoElseListensAtThePortIsTakenForNoRendezvous) {
  for (const Bytes& words : what_strangers_say()) {
    SCOPED_TRACE(shown(words));
    serve("127.0.0.1");
    server_.reset();
    communicator_ = {};
    std::optional<Stranger> stranger(hosts_.front());
    auto waiting = join(0, 2);
    stranger->answer(words);
    stranger.reset();
    start();
    check(join(1, 2).get(), 2);
    check(waiting.get(), 2);
    server_.reset();
  }
}

TEST_F(RendezvousTest, AtTheDeadlineTheErrorSaysWhatListensThere) {
  for (const Bytes& words : what_strangers_say()) {
    SCOPED_TRACE(shown(words));
    serve("127.0.0.1");
    server_.reset();
    Stranger stranger(hosts_.front());
    int over = 0;
    auto waiting = join(join_of(1, 2), Deadline::after(300 * kMillisecond));
    unit::Threads threads;
    threads.start([&] {
      while (!__atomic_load_n(&over, __ATOMIC_ACQUIRE)) stranger.answer_if_called(words);
    });
    Status status = waiting.get().status();
    __atomic_store_n(&over, 1, __ATOMIC_RELEASE);
    EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "rank 1 of 2 found no rendezvous"));
    const std::string where = "what listens at " + hosts_.front().text();
    EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT,
                           where + (words.empty() ? " has not answered: " : " is none: ")));
  }
}

// It accepts the connection, but sends nothing.
TEST_F(RendezvousTest, WhoKeepsSilentIsNamedAtTheDeadline) {
  serve("127.0.0.1");
  server_.reset();
  Result<UniqueFd> listening = listen_on(hosts_.front());
  ASSERT_TRUE(is_ok(listening));
  Status status = join(1, 2, Deadline::after(50 * kMillisecond)).get().status();
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "rank 1 of 2 found no rendezvous"));
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT,
                         "what listens at " + hosts_.front().text() + " has not answered"));
}

// A server that knows the key is a rendezvous: its protocol errors are reported at once.
TEST_F(RendezvousTest, ARendezvousThatBreaksTheProtocolIsNotTriedAgain) {
  for (const Bytes& words : {text_bytes("SSH-2.0-OpenSSH_9.6\r\n"), framed(200, text_bytes("?")),
                             framed(static_cast<uint8_t>(Meeting::kTable), text_bytes("?"))}) {
    serve("127.0.0.1");
    server_.reset();
    Stranger stranger(hosts_.front());
    auto waiting = join(1, 2);
    MessageSocket caller = stranger.called();
    Result<MessageSocket::Message> said = caller.receive_until(in_time(), "the join");
    ASSERT_TRUE(is_ok(said));
    const Bytes nonce(kHelloNonce, 9);
    Bytes challenge = nonce;
    Writer(challenge).raw(*meeting_mac(*crypto_, key_, 'S', said->payload, nonce));
    ASSERT_TRUE(is_ok(caller.send(static_cast<uint8_t>(Meeting::kChallenge), challenge)));
    ASSERT_TRUE(is_ok(caller.receive_until(in_time(), "the registration")));
    ASSERT_EQ(::send(caller.fd(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
    EXPECT_TRUE(fails_with(waiting.get(), OH_ERR_PROTOCOL));
  }
}

// Returns this process's descriptor of the other end of a TCP connection, or -1 if there is none
// yet.
int other_end(int fd) {
  sockaddr_storage near{};
  socklen_t near_size = sizeof(near);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&near), &near_size), 0);
  for (int other = 0; other < 1024; ++other) {
    sockaddr_storage far{};
    socklen_t far_size = sizeof(far);
    if (getpeername(other, reinterpret_cast<sockaddr*>(&far), &far_size) < 0) continue;
    if (far_size == near_size && std::memcmp(&far, &near, near_size) == 0) return other;
  }
  return -1;
}

TEST_F(RendezvousTest, ItsAnswersLeaveAtOnceAndItHearsOfDeadHosts) {
  serve("127.0.0.1", {{"ONEHOP_PEER_TIMEOUT", "7"}});
  MessageSocket one = guest();
  for (auto [option, expected] : {std::pair{TCP_NODELAY, 1}, std::pair{TCP_USER_TIMEOUT, 7000}}) {
    EXPECT_TRUE(unit::eventually([&, name = option, wanted = expected] {
      int value = -1;
      socklen_t size = sizeof(value);
      int fd = other_end(one.fd());
      return fd >= 0 && getsockopt(fd, IPPROTO_TCP, name, &value, &size) == 0 && value == wanted;
    }));
  }
}

TEST_F(RendezvousTest, TwoServersOnOneAddressAreNoticed) {
  serve("127.0.0.1");
  EXPECT_TRUE(fails_with(rendezvous_serve(node_, *crypto_, key_, hosts_.front(), config_,
                                          Deadline::after(100 * kMillisecond)),
                         OH_ERR_SYSTEM, "is another rank 0 running"));
}

TEST_F(RendezvousTest, AServerWaitsForAFormerOneToLetGo) {
  serve("127.0.0.1");
  std::unique_ptr<RendezvousServer> former = std::move(server_);
  auto next = std::async(std::launch::async, [this] { start(); });
  EXPECT_EQ(next.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  former.reset();
  next.get();
  meet(2);
}

TEST_F(RendezvousTest, ThePortIsFreeWhenTheServerIsGone) {
  serve("127.0.0.1");
  for (int round = 0; round < 300; ++round) {
    // A rank waits there, or is about to.
    auto one = join(1, 2, Deadline::after(kMillisecond));
    server_.reset();
    ASSERT_TRUE(is_ok(listen_on(hosts_.front())));
    ASSERT_TRUE(fails_with(one.get(), OH_ERR_TIMEOUT));
    start();
  }
}

TEST_F(RendezvousTest, WhoMeetsAServerOnItsWayOutTriesAgain) {
  serve("127.0.0.1");
  for (int round = 0; round < 100; ++round) {
    std::future<Result<RendezvousTable>> one = join(1, 2);
    for (int i = 0; i < 3; ++i) {
      server_.reset();
      start();
    }
    check(join(0, 2).get(), 2);
    check(one.get(), 2);
    communicator_ = {};
    server_.reset();
    start();
  }
}

// The next communicator's ranks may arrive while some of this one's have not read their table.
TEST_F(RendezvousTest, WhoComesAfterAllHaveMetIsOfTheNextOne) {
  serve("127.0.0.1");
  MessageSocket slow = guest();
  Bytes hello = encode_join(Bytes(kHelloNonce));
  ASSERT_TRUE(is_ok(slow.send(static_cast<uint8_t>(Meeting::kJoin), hello)));
  Result<MessageSocket::Message> challenge = slow.receive_until(in_time(), "the challenge");
  ASSERT_TRUE(is_ok(challenge));
  Digest mac =
      *meeting_mac(*crypto_, key_, 'R', hello, ByteView(challenge->payload).first(kHelloNonce));
  ASSERT_TRUE(is_ok(slow.send(static_cast<uint8_t>(Meeting::kRegister),
                              encode_registration(mac, 0, 2, address_of(0)))));
  // Connects in time, but sends nothing before all ranks have met.
  MessageSocket silent = guest();
  check(join(1, 2).get(), 2);
  auto next = join(1, 2);
  EXPECT_TRUE(fails_with(silent.receive_until(in_time(), "the hang-up"), OH_ERR_PEER_LOST));
  server_.reset();
  start();
  communicator_ = {};
  check(join(0, 2).get(), 2);
  check(next.get(), 2);
  // The table of the first one has arrived all the same.
  Result<MessageSocket::Message> table = slow.receive_until(in_time(), "the table");
  ASSERT_TRUE(is_ok(table));
  EXPECT_TRUE(is_ok(decode_table(table->payload, 2)));
}

TEST_F(RendezvousTest, ACancelledRankLeavesNothing) {
  serve("127.0.0.1");
  for (int round = 0; round < 20; ++round) {
    int cancelled = 0;
    auto one = join(join_of(1, 2), Deadline::never().unless(&cancelled));
    if (round % 2) usleep(2000);
    __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
    EXPECT_TRUE(fails_with(one.get(), OH_ERR_CANCELLED, "rank 1 of 2"));
    // Its number is free at once.
    meet(2);
    communicator_ = {};
    server_.reset();
    start();
  }
  server_.reset();
  int cancelled = 0;
  auto in_vain = join(join_of(1, 2), Deadline::never().unless(&cancelled));
  __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
  EXPECT_TRUE(fails_with(in_vain.get(), OH_ERR_CANCELLED));
}

TEST_F(RendezvousTest, RubbishAtThePortDisturbsNobody) {
  size_t before = unit::open_fds();
  serve("127.0.0.1", {{"ONEHOP_HELLO_TIMEOUT", "0.3"}});
  auto zero = join(0, 2);
  unit::Random random(31);
  std::vector<MessageSocket> guests;
  for (int i = 0; i < 60; ++i) {
    guests.push_back(guest());
    Bytes bytes = random.bytes(random.below(3000));
    if (i % 4 == 0) {
      [[maybe_unused]] ssize_t sent =
          ::send(guests.back().fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    } else if (i % 4 == 1) {
      (void)guests.back().send(static_cast<uint8_t>(32 + i % 7), bytes).ok();
    } else if (i % 4 == 2) {
      (void)guests.back()
          .send(static_cast<uint8_t>(Meeting::kJoin), encode_join(Bytes(kHelloNonce)))
          .ok();
      (void)guests.back().send(static_cast<uint8_t>(Meeting::kQuery), {}).ok();
    }
  }
  check(join(1, 2).get(), 2);
  check(zero.get(), 2);
  // Silent connections are closed at the deadline.
  for (MessageSocket& each : guests) {
    Status status;
    while (status.ok()) status = each.receive_until(in_time(), "the hang-up").status();
    EXPECT_TRUE(fails_with(status, OH_ERR_PEER_LOST));
  }
  server_.reset();
  node_.reset();
  guests.clear();
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

// Answers that it does not read would be kept for it.
TEST_F(RendezvousTest, ARankMayNotAskForEver) {
  serve("127.0.0.1");
  MessageSocket rank = guest();
  const Bytes nonce(kHelloNonce, 1);
  const Bytes hello = encode_join(nonce);
  ASSERT_TRUE(is_ok(rank.send(static_cast<uint8_t>(Meeting::kJoin), hello)));
  auto challenge = rank.receive_until(in_time(), "the challenge");
  ASSERT_TRUE(is_ok(challenge));
  const ByteView theirs = challenge->payload.first(kHelloNonce);
  const Digest mac = *meeting_mac(*crypto_, key_, 'R', hello, theirs);
  ASSERT_TRUE(is_ok(rank.send(static_cast<uint8_t>(Meeting::kRegister),
                              encode_registration(mac, 0, 2, address_of(0)))));
  constexpr int kMany = 1000;
  int answers = 0;
  while (answers < kMany) {
    (void)rank.send(static_cast<uint8_t>(Meeting::kQuery), {}).ok();
    auto answer = rank.receive_until(in_time(), "an answer");
    if (!answer.ok() || answer->type != static_cast<uint8_t>(Meeting::kMissing)) break;
    ++answers;
  }
  EXPECT_GE(answers, 1);
  EXPECT_LT(answers, kMany);
  meet(2);  // its number is free again
}

TEST_F(RendezvousTest, AUniqueIdIsAllThatIsNeeded) {
  size_t before = unit::open_fds();
  config_ = unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}});
  node_ = *Node::get(config_);
  crypto_ = *Crypto::open("");
  Result<Bytes> bytes = rendezvous_unique_id(node_, *crypto_, config_);
  ASSERT_TRUE(is_ok(bytes));
  EXPECT_LE(bytes->size(), Address::kMaxBytes);
  Result<Address> id = Address::decode(*bytes);
  ASSERT_TRUE(is_ok(id));
  hosts_ = id->hosts;
  key_ = id->key;
  meet(4);
  node_.reset();
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

TEST_F(RendezvousTest, AUniqueIdThatNobodyUsesEndsAtItsDeadline) {
  config_ = unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}, {"ONEHOP_TIMEOUT", "0.1"}});
  node_ = *Node::get(config_);
  Result<Bytes> bytes = rendezvous_unique_id(node_, **Crypto::open(""), config_);
  ASSERT_TRUE(is_ok(bytes));
  hosts_ = Address::decode(*bytes)->hosts;
  EXPECT_TRUE(unit::eventually([&] { return !connect_to(hosts_, in_time()).ok(); }));
}

}  // namespace
}  // namespace rendezvous_test
