// SPDX-License-Identifier: Apache-2.0
//
// connect() to an acceptor that stalls: its backlog is full, or it stops at some step of the hello.
// At every stage connect() ends at its deadline, and when its endpoint is closed.
#include <sched.h>
#include <sys/socket.h>

#include "control/handshake.h"
#include "endpoint/endpoint.h"
#include "endpoint/pairing.h"
#include "platform/os/os.h"
#include "ucx_listener.h"
#include "unit/support.h"

namespace connect_stalls_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr int64_t kPatience = 200 * kMillisecond;

Deadline in_time() { return Deadline::after(60 * kSecond); }

// An acceptor on an abstract Unix socket that proceeds to a stage of the hello and then stalls.
class Staller {
 public:
  enum class Stage { kConnected, kHalfAProof, kProof, kHalfAnAnswer, kUcx };

  Staller() {
    address_.process = *random_id();
    address_.endpoint = *random_id();
    address_.key = *random_key();
    address_.label = "the staller";
    address_.unix_name = "onehop-unit-" + id_text(*random_id());
    listening_ = std::move(*listen_on(SocketAddress::unix_abstract(address_.unix_name)));
  }
  ~Staller() {
    leave_.store(true);
    if (thread_.joinable()) thread_.join();
  }
  const Address& address() const { return address_; }
  // Returns when the acceptor has reached its stage.
  void await_stage() const {
    while (!arrived_.load()) sched_yield();
  }

  // `report`: the acceptor's description of its end of a link over UCX.
  void play(Stage stage, SideReport report = {}) {
    thread_ = std::thread([this, stage, report] {
      Status status = go_on_to(stage, report);
      EXPECT_TRUE(is_ok(status));
      arrived_.store(true);
      while (!leave_.load() &&
             wait_ready(socket_->fd(), 0, Deadline::after(kMillisecond), "").code() ==
                 OH_ERR_TIMEOUT) {
      }
    });
  }

 private:
  Status go_on_to(Stage stage, const SideReport& report) {
    OH_RETURN_IF_ERROR(wait_ready(listening_.get(), POLLIN, in_time(), "accepting"));
    socket_.emplace(UniqueFd(os().accept(listening_.get())), kMaxHelloMessage);
    OH_ASSIGN_OR_RETURN(MessageSocket::Message hello, socket_->receive_until(in_time(), "hello"));
    const Bytes said(hello.payload.begin(), hello.payload.end());
    if (stage == Stage::kConnected) return {};

    Bytes proof;
    Writer writer(proof);
    writer.raw(Bytes(kHelloNonce, 7));
    writer.bytes(encode_greeting({address_.process, address_.endpoint, address_.label, -1, {}}));
    OH_ASSIGN_OR_RETURN(const Crypto* crypto, Crypto::open(""));
    OH_ASSIGN_OR_RETURN(Digest mac, hello_mac(*crypto, address_.key, 'A', said, proof));
    writer.raw(mac);
    if (stage == Stage::kHalfAProof) return say_half(Hello::kProof, proof);
    OH_RETURN_IF_ERROR(socket_->send(static_cast<uint8_t>(Hello::kProof), proof));
    OH_ASSIGN_OR_RETURN(MessageSocket::Message offer, socket_->receive_until(in_time(), "offer"));
    if (stage == Stage::kProof) return {};

    const Bytes answer = encode_report(report);
    if (stage == Stage::kHalfAnAnswer) return say_half(Hello::kAnswer, answer);
    return socket_->send(static_cast<uint8_t>(Hello::kAnswer), answer);
  }

  Status say_half(Hello type, const Bytes& payload) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(static_cast<uint32_t>(2 + payload.size()));
    writer.u8(static_cast<uint8_t>(type));
    writer.u8(0);
    writer.raw(ByteView(payload).first(payload.size() / 2));
    const ssize_t sent = send(socket_->fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    return sent == static_cast<ssize_t>(bytes.size()) ? Status() : error(OH_ERR_SYSTEM, "send");
  }

  Address address_;
  UniqueFd listening_;
  std::optional<MessageSocket> socket_;
  std::atomic<bool> arrived_{false};
  std::atomic<bool> leave_{false};
  std::thread thread_;
};

std::shared_ptr<Endpoint> make_endpoint(std::map<std::string, std::string> variables = {}) {
  variables.insert({{"ONEHOP_LOG", "off"}, {"ONEHOP_INTERFACE", "127.0.0.1"}});
  return *Endpoint::create(unit::config_with(variables), {});
}

class ConnectStalls : public ::testing::TestWithParam<Staller::Stage> {};

TEST_P(ConnectStalls, ConnectEndsAtItsDeadline) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Staller staller;
  staller.play(GetParam());
  EXPECT_TRUE(
      fails_with(endpoint->connect(staller.address().encode(), {}, Deadline::after(kPatience)),
                 OH_ERR_TIMEOUT, "the deadline passed"));
}

TEST_P(ConnectStalls, ConnectEndsWhenItsEndpointIsClosed) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Staller staller;
  staller.play(GetParam());
  std::thread closer([&] {
    staller.await_stage();
    endpoint->close();
  });
  EXPECT_TRUE(fails_with(endpoint->connect(staller.address().encode(), {}, Deadline::never()),
                         OH_ERR_CLOSED,
                         "the endpoint was closed while it connected to the staller"));
  closer.join();
}

// A communicator cancels its attempts through its own flag.
TEST_P(ConnectStalls, ACommunicatorsConnectEndsWhenItsEndpointIsClosed) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Staller staller;
  staller.play(GetParam());
  std::thread closer([&] {
    staller.await_stage();
    endpoint->close();
  });
  const LinkPurpose purpose{*random_id(), 0, 1};
  const int cancelled = 0;
  EXPECT_TRUE(fails_with(
      endpoint->connect(staller.address().encode(), purpose, Deadline::never().unless(&cancelled)),
      OH_ERR_CLOSED, "the endpoint was closed while it connected to the staller"));
  closer.join();
}

TEST_P(ConnectStalls, ACommunicatorsConnectEndsWhenItIsCancelled) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Staller staller;
  staller.play(GetParam());
  int cancelled = 0;
  std::thread canceller([&] {
    staller.await_stage();
    __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
  });
  const LinkPurpose purpose{*random_id(), 0, 1};
  EXPECT_TRUE(fails_with(
      endpoint->connect(staller.address().encode(), purpose, Deadline::never().unless(&cancelled)),
      OH_ERR_TIMEOUT));
  canceller.join();
}

std::string name_of(const ::testing::TestParamInfo<Staller::Stage>& stage) {
  constexpr const char* kNames[] = {"connected", "half_a_proof", "proof", "half_an_answer"};
  return kNames[static_cast<int>(stage.param)];
}

INSTANTIATE_TEST_SUITE_P(Stages, ConnectStalls,
                         ::testing::Values(Staller::Stage::kConnected, Staller::Stage::kHalfAProof,
                                           Staller::Stage::kProof, Staller::Stage::kHalfAnAnswer),
                         name_of);

// The kernel accepts no further connection.
TEST(ConnectStallsEarly, ConnectEndsWhereTheBacklogStaysFull) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Address address;
  address.label = "full";
  address.unix_name = "onehop-unit-" + id_text(*random_id());
  const SocketAddress name = SocketAddress::unix_abstract(address.unix_name);
  UniqueFd listening(os().socket(AF_UNIX, SOCK_STREAM));
  ASSERT_GE(os().bind(listening.get(), name.get(), name.size), 0);
  ASSERT_GE(os().listen(listening.get(), 1), 0);
  std::vector<UniqueFd> waiting;
  int result = 0;
  while (result >= 0) {
    waiting.emplace_back(os().socket(AF_UNIX, SOCK_STREAM));
    result = os().connect(waiting.back().get(), name.get(), name.size);
  }
  ASSERT_EQ(result, -EAGAIN);
  EXPECT_FALSE(endpoint->connect(address.encode(), {}, Deadline::after(kPatience)).status().ok());
}

// Its UCX worker exists, but is never progressed.
TEST(ConnectStallsLate, ConnectEndsWhereUcxGetsNoAnswer) {
  const UcxPoolLimits limits;
  Result<const UcxContext*> context = UcxContext::get("", /*rma=*/false);
  if (!context.ok()) GTEST_SKIP() << "no UCX here: " << context.status().text();
  Result<std::shared_ptr<UcxWorker>> worker =
      UcxWorker::create(**context, limits, std::make_shared<NoListener>());
  ASSERT_TRUE(is_ok(worker));
  UcxChannel channel(*worker, /*peer_credit=*/1 << 20, /*key=*/1, 0);
  SideReport report;
  report.ucx_allowed = report.ucx = true;
  report.way = *channel.own(/*network=*/true);

  std::shared_ptr<Endpoint> endpoint = make_endpoint({{"ONEHOP_TRANSPORT", "ucx"}});
  Staller staller;
  staller.play(Staller::Stage::kUcx, report);
  EXPECT_TRUE(
      fails_with(endpoint->connect(staller.address().encode(), {}, Deadline::after(kPatience)),
                 OH_ERR_NOT_VIABLE, "no answer comes back"));
}

}  // namespace
}  // namespace connect_stalls_test
