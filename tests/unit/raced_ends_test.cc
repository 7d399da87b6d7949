// SPDX-License-Identifier: Apache-2.0
//
// The end of an endpoint, a peer or a message, while another thread is in a call about a receive
// from any source.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "base/fault.h"
#include "fuzz/victim.h"
#include "unit/race.h"
#include "unit/support.h"
#include "unit/traffic.h"

namespace raced_ends_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint64_t kName = uint64_t{1} << 32;
constexpr uint64_t kTag = 3;

class RacedEnds : public ::testing::Test, public unit::Race {};

// One any-source receive.
struct Receive {
  explicit Receive(Endpoint& endpoint) {
    request.kind = OpKind::kRecv;
    request.endpoint = &endpoint;
    request.data = bytes.data();
    request.size = bytes.size();
    request.tag = kTag;
  }
  Bytes bytes = Bytes(100000, 0xee);
  Request request;
};

std::shared_ptr<Endpoint> make_endpoint() {
  Result<Config> config = Config::from([](const char* name) -> const char* {
    std::string_view wanted = name;
    if (wanted == "ONEHOP_LOG") return "off";
    return wanted == "ONEHOP_INTERFACE" ? "127.0.0.1" : nullptr;
  });
  return *Endpoint::create(*config, {});
}

// ---- The endpoint is closed

TEST_F(RacedEnds, AnEndpointIsClosedWhileAReceiveIsCancelled) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Receive receive(*endpoint);
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive.request)));
  at("request.try_end", [&] { endpoint->close(); });
  EXPECT_TRUE(is_ok(endpoint->requests().cancel(&receive.request)));
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(fails_with(receive.request.status, OH_ERR_CANCELLED));
  EXPECT_TRUE(endpoint->requests().any_source().empty());
}

// Otherwise another thread that waits for it would notice only when its sleep ends.
TEST_F(RacedEnds, AReceiveThatIsCancelledWakesTheThreadThatWaitsForIt) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Receive receive(*endpoint);
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive.request)));
  endpoint->doorbell().sleepers = 1;
  const uint32_t rings = endpoint->doorbell().rings;
  EXPECT_TRUE(is_ok(endpoint->requests().cancel(&receive.request)));
  EXPECT_GT(endpoint->doorbell().rings, rings);
  endpoint->doorbell().sleepers = 0;
}

// A progress thread may process pending work before close() ends it.
TEST_F(RacedEnds, AnEndpointIsClosedWhileAProgressThreadLooksForPeers) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Request request;
  request.endpoint = endpoint.get();
  Endpoint& owner = *endpoint;
  ASSERT_TRUE(is_ok(endpoint->requests().post_ready(&request, "nobody",
                                                    [&] { return owner.incoming().has_peer(); })));
  at("endpoint.close", [&] { endpoint->progress(); });
  endpoint->close();
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(request.ended());
  EXPECT_TRUE(fails_with(request.status, OH_ERR_CANCELLED));
}

// The thread that ends the request has seen that the event descriptor is unused; then another
// thread arms it.
TEST_F(RacedEnds, ARequestIsArmedWhileItEnds) {
  std::shared_ptr<Endpoint> one = make_endpoint();
  std::shared_ptr<Endpoint> other = make_endpoint();
  const Deadline soon = Deadline::after(10 * kSecond);
  Result<std::shared_ptr<Peer>> there = one->connect(other->own_address().encode(), {}, soon);
  ASSERT_TRUE(is_ok(there.status()));
  Result<std::shared_ptr<Peer>> here = other->incoming().accept(soon);
  ASSERT_TRUE(is_ok(here.status()));
  Result<int> descriptor = other->requests().completions().armed().fd();
  ASSERT_TRUE(is_ok(descriptor.status()));
  Bytes bytes(100);
  Request receive;
  unit::prepare(&receive, OpKind::kRecv, *other, bytes.data(), bytes.size(), kTag);
  ASSERT_TRUE(is_ok((*here)->operations().messages().post_recv(&receive)));
  std::atomic<bool> armed{false};
  std::thread waiter;
  at("request.ends", [&] {
    waiter = std::thread([&] {
      EXPECT_TRUE(is_ok(other->requests().arm(&receive)));
      armed.store(true);
    });
    // arm() returns before the request has ended, or waits until it has.
    const Deadline chance = Deadline::after(100 * kMillisecond);
    while (!armed.load() && !chance.passed()) sched_yield();
  });
  Bytes sent(100, 7);
  Request send;
  unit::prepare(&send, OpKind::kSend, *one, sent.data(), sent.size(), kTag);
  ASSERT_TRUE(is_ok((*there)->operations().messages().post_send(&send)));
  while (!receive.ended()) {
    one->progress();
    other->progress();
  }
  ASSERT_TRUE(came_by());
  waiter.join();
  pollfd event{*descriptor, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 10'000), 1) << "the request has ended, and no event says so";
  one->close();
  other->close();
}

// An event loop may take and release it before arm() returns.
TEST_F(RacedEnds, ARequestThatIsArmedOnceIsListedOnce) {
  for (bool release : {false, true}) {
    std::shared_ptr<Endpoint> one = make_endpoint();
    std::shared_ptr<Endpoint> other = make_endpoint();
    Result<std::shared_ptr<Peer>> there =
        one->connect(other->own_address().encode(), {}, Deadline::after(10 * kSecond));
    ASSERT_TRUE(is_ok(there));
    Result<std::shared_ptr<Peer>> here = other->incoming().accept(Deadline::after(10 * kSecond));
    ASSERT_TRUE(is_ok(here));
    ASSERT_TRUE(is_ok(other->requests().completions().listed().fd().status()));
    Bytes bytes(100);
    Request* receive = other->requests().acquire(*other);
    unit::prepare(receive, OpKind::kRecv, *other, bytes.data(), bytes.size(), kTag);
    ASSERT_TRUE(is_ok((*here)->operations().messages().post_recv(receive)));
    RequestPool& pool = other->requests().completions().pool();
    std::array<Request*, 4> taken{};
    std::thread waiter;
    {
      LinkGuard guard((*here)->link());  // which arm() waits for
      Bytes sent(100, 7);
      Request send;
      unit::prepare(&send, OpKind::kSend, *one, sent.data(), sent.size(), kTag);
      ASSERT_TRUE(is_ok((*there)->operations().messages().post_send(&send)));
      waiter =
          std::thread([&] { EXPECT_TRUE(is_ok(other->requests().arm(receive, Request::kList))); });
      while (!(receive->armed.load() & Request::kList)) sched_yield();
      (void)(*here)->link().progress_locked(nullptr);
      ASSERT_TRUE(receive->ended());
      EXPECT_EQ(pool.take_ended(taken), 1u);
      if (release) other->requests().release(receive);
    }
    waiter.join();
    EXPECT_EQ(pool.take_ended(taken), 0u);
    if (!release) other->requests().release(receive);
    one->close();
    other->close();
  }
}

// No lock orders the end of a request without a peer after arm().
TEST_F(RacedEnds, ARequestWithoutAPeerIsArmedWhileItEnds) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Result<int> descriptor = endpoint->requests().completions().listed().fd();
  ASSERT_TRUE(is_ok(descriptor.status()));
  Receive receive(*endpoint);
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive.request)));
  std::thread waiter;
  at("request.finishes", [&] {
    waiter = std::thread(
        [&] { EXPECT_TRUE(is_ok(endpoint->requests().arm(&receive.request, Request::kList))); });
    while (!(receive.request.armed.load() & Request::kList)) sched_yield();
  });
  EXPECT_TRUE(is_ok(endpoint->requests().cancel(&receive.request)));
  ASSERT_TRUE(came_by());
  waiter.join();
  pollfd event{*descriptor, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 10'000), 1);
  Request* ended[2];
  ASSERT_EQ(endpoint->requests().completions().pool().take_ended(ended), 1u);
  EXPECT_EQ(ended[0], &receive.request);
  endpoint->close();
}

TEST_F(RacedEnds, AnEndpointIsClosedWhileTheDeadlineOfAReceivePasses) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Receive receive(*endpoint);
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive.request)));
  at("request.try_end", [&] { endpoint->close(); });
  EXPECT_TRUE(fails_with(endpoint->requests().wait(&receive.request, Deadline::after(0)),
                         OH_ERR_CANCELLED));
  EXPECT_TRUE(came_by());
}

TEST_F(RacedEnds, AnEndpointIsClosedWhileAReceiveIsReleased) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Bytes bytes(100);
  Request* request = endpoint->requests().acquire(*endpoint);
  request->kind = OpKind::kRecv;
  request->data = bytes.data();
  request->size = bytes.size();
  request->tag = kTag;
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(request)));
  at("request.release", [&] { endpoint->close(); });
  endpoint->requests().release(request);
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(endpoint->requests().any_source().empty());
}

// It must not be posted after close(), which would not end it.
TEST_F(RacedEnds, AnEndpointIsClosedWhileAReceiveIsPosted) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  Receive receive(*endpoint);
  at("any_source.post", [&] { endpoint->close(); });
  EXPECT_TRUE(fails_with(endpoint->requests().post_any_source(&receive.request), OH_ERR_CLOSED));
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(endpoint->requests().any_source().empty());
}

// The watcher must not keep a link that will never be closed.
TEST_F(RacedEnds, AnEndpointIsClosedWhileALinkComesAbout) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd theirs(ends[0]);
  LinkParts parts;
  parts.identity.label = "the other side";
  parts.mine = parts.theirs = endpoint->limits();
  parts.connection =
      std::make_shared<Connection>(endpoint->node(), MessageSocket(UniqueFd(ends[1]), 1 << 20), 0);
  std::weak_ptr<Connection> connection = parts.connection;
  auto peer = Peer::create(endpoint, std::move(parts));
  at("endpoint.adopted", [&] { endpoint->close(); });
  EXPECT_TRUE(fails_with(endpoint->adopt(peer), OH_ERR_CLOSED));
  EXPECT_TRUE(came_by());
  peer.reset();
  EXPECT_TRUE(connection.expired());
}

// ---- The message is withdrawn

class Withdrawn : public RacedEnds {
 protected:
  Withdrawn() : ring_(*victim_.segment()) {}
  Endpoint& endpoint() { return victim_.endpoint(); }

  void say(FrameType type, uint64_t length) {
    Frame frame;
    frame.type = type;
    frame.tag = kTag;
    frame.length = length;
    frame.op = kName;
    ASSERT_TRUE(ring_.push(frame));
    victim_.progress();
  }
  // A message is announced without a slot; the receive has requested its bytes.
  void post_and_announce(Request* request) {
    ASSERT_TRUE(is_ok(endpoint().requests().post_any_source(request)));
    say(FrameType::kRts, 1000);
    ASSERT_TRUE(endpoint().requests().any_source().empty());
  }
  void withdraw() { say(FrameType::kAbort, 0); }

  fuzz::Victim victim_{/*segment=*/true, /*reach=*/0};
  RingChannel ring_;
};

TEST_F(Withdrawn, WhileItsReceiveIsCancelled) {
  Receive receive(endpoint());
  post_and_announce(&receive.request);
  at("request.try_end", [&] { withdraw(); });
  EXPECT_TRUE(is_ok(endpoint().requests().cancel(&receive.request)));
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(fails_with(receive.request.status, OH_ERR_CANCELLED));
  EXPECT_TRUE(endpoint().requests().any_source().empty());
}

TEST_F(Withdrawn, WhileItsReceiveIsReleased) {
  Bytes bytes(1000);
  Request* request = endpoint().requests().acquire(endpoint());
  request->kind = OpKind::kRecv;
  request->data = bytes.data();
  request->size = bytes.size();
  request->tag = kTag;
  post_and_announce(request);
  at("request.release", [&] { withdraw(); });
  endpoint().requests().release(request);
  EXPECT_TRUE(came_by());
  EXPECT_TRUE(endpoint().requests().any_source().empty());
}

// ---- The peer is destroyed

// It connected after the wait had begun: nothing else references it.
TEST_F(RacedEnds, APeerIsDestroyedWhileAThreadWaitsForItsMessage) {
  std::shared_ptr<Endpoint> endpoint = fuzz::Victim::shared_endpoint();
  Receive receive(*endpoint);
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive.request)));
  static std::atomic<bool> ended{false};
  static std::atomic<bool> go_on{false};
  g_fault_hook.store([](const char* passed) {
    if (std::string_view(passed) != "wait.ended") return;
    ended.store(true);
    while (!go_on.load()) sched_yield();
  });
  Status status;
  std::thread waiter(
      [&] { status = endpoint->requests().wait(&receive.request, Deadline::after(60 * kSecond)); });
  while (endpoint->doorbell().sleepers.load() == 0) sched_yield();
  std::weak_ptr<Peer> peer;
  {
    fuzz::Victim victim(/*segment=*/true, /*reach=*/0);
    RingChannel ring(*victim.segment());
    peer = victim.peer().link().keep_alive();
    Frame frame;
    frame.type = FrameType::kRts;
    frame.tag = kTag;
    frame.length = 1000;
    frame.op = kName;
    ASSERT_TRUE(ring.push(frame));
    // Until the waiter has published to the peer that it waits.
    while (victim.segment()->theirs().waiting.load() == 0) {
      victim.progress();
      endpoint->doorbell().ring();
    }
  }
  while (!ended.load()) sched_yield();
  EXPECT_FALSE(peer.expired());
  go_on.store(true);
  waiter.join();
  EXPECT_TRUE(peer.expired());
  EXPECT_FALSE(status.ok());
}

}  // namespace
}  // namespace raced_ends_test
