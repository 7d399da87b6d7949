// SPDX-License-Identifier: Apache-2.0
#include "communicator/communicator.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string_view>

#include "base/fault.h"
#include "link/tags.h"
#include "single_thread.h"
#include "unit/faulty_os.h"
#include "unit/traffic.h"

namespace communicator_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

Deadline in_time() { return Deadline::after(30 * kSecond); }

using Comm = std::shared_ptr<Communicator>;
using Body = std::function<void(Communicator&)>;

Result<Comm> enter(uint32_t rank, uint32_t size, uint16_t port) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.rendezvous = strf("tcp://127.0.0.1:%u", port);
  return Communicator::create(unit::config_with(), {}, options, in_time());
}

void take_part(uint32_t rank, uint32_t size, uint16_t port, const Body& body) {
  Result<Comm> comm = enter(rank, size, port);
  ASSERT_TRUE(is_ok(comm));
  EXPECT_EQ((*comm)->rank(), rank);
  EXPECT_EQ((*comm)->size(), size);
  body(**comm);
  (*comm)->close();
}

// Runs each rank in a thread of this process.
void in_threads(uint32_t size, const Body& body) {
  uint16_t port = unit::free_port(AF_INET);
  unit::Threads threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.start([=, &body] { take_part(rank, size, port, body); });
  }
}

// The number of communicators that are created on one port, one after the other.
int in_turn() {
  const char* wish = getenv("ONEHOP_TEST_IN_TURN");
  return wish ? atoi(wish) : 100;
}
// Extends the watchdog.
void allow_time() { alarm(60 + static_cast<unsigned>(in_turn())); }

void fork_ranks(uint32_t size, const std::function<void(uint32_t)>& body) {
  std::vector<pid_t> children;
  ASSERT_TRUE(wait_until_single_threaded());
  fflush(nullptr);
  for (uint32_t rank = 0; rank < size; ++rank) {
    pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      allow_time();
      body(rank);
      fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }
}

// Runs each rank in a process.
void in_processes(uint32_t size, const Body& body) {
  uint16_t port = unit::free_port(AF_INET);
  fork_ranks(size, [&](uint32_t rank) { take_part(rank, size, port, body); });
}

// The bytes that one rank sends to another.
Bytes words(uint32_t from, uint32_t to, size_t size) {
  return unit::Random(from * 1000 + to).bytes(size);
}

// All ranks connect to all others at once, from both sides, and exchange bytes over the resulting
// links.
void talk_to_all(Communicator& comm) {
  Endpoint& endpoint = *comm.endpoint();
  for (uint32_t step = 0; step < comm.size(); ++step) {
    uint32_t other = (comm.rank() + step) % comm.size();
    Result<std::shared_ptr<Peer>> peer = comm.peer(other, in_time());
    ASSERT_TRUE(is_ok(peer));
    EXPECT_EQ((*peer)->identity().rank, static_cast<int64_t>(other));
    ASSERT_TRUE(is_ok(unit::send(endpoint, **peer, words(comm.rank(), other, 100), 5, in_time())));
    EXPECT_EQ(*comm.peer(other, in_time()), *peer);
  }
  for (uint32_t other = 0; other < comm.size(); ++other) {
    Result<std::shared_ptr<Peer>> peer = comm.peer(other, in_time());
    ASSERT_TRUE(is_ok(peer));
    EXPECT_TRUE(
        is_ok(unit::expect(endpoint, **peer, words(other, comm.rank(), 100), 5, in_time())));
  }
  EXPECT_TRUE(is_ok(comm.barrier(in_time())));
}

TEST(CommunicatorTest, ThreadsConnectFromBothSidesAtOnce) { in_threads(4, talk_to_all); }
TEST(CommunicatorTest, ProcessesConnectFromBothSidesAtOnce) {
  for (int round = 0; round < 5; ++round) in_processes(3, talk_to_all);
}

// A rank that finishes with one communicator begins the next, possibly under another rank, while
// others still use the previous one.
void meet_in_turn(uint32_t number, uint32_t size, uint16_t port) {
  for (int i = 0; i < in_turn(); ++i) {
    uint32_t rank = i % 3 == 2 ? (number + static_cast<uint32_t>(i)) % size : number;
    Result<Comm> comm = enter(rank, size, port);
    ASSERT_TRUE(is_ok(comm)) << "communicator " << i << ", rank " << rank;
    if (i % 2) {
      ASSERT_TRUE(is_ok((*comm)->barrier(in_time()))) << i;
    }
    (*comm)->close();
  }
}

TEST(CommunicatorTest, ManyInTurnOnOnePortInThreads) {
  allow_time();
  uint16_t port = unit::free_port(AF_INET);
  unit::Threads threads;
  for (uint32_t number = 0; number < 2; ++number) {
    threads.start([=] { meet_in_turn(number, 2, port); });
  }
}

TEST(CommunicatorTest, ManyInTurnOnOnePortInProcesses) {
  allow_time();
  uint16_t port = unit::free_port(AF_INET);
  fork_ranks(3, [=](uint32_t number) { meet_in_turn(number, 3, port); });
}

TEST(CommunicatorTest, ManyOfOneRankInTurnOnOnePort) {
  allow_time();
  uint16_t port = unit::free_port(AF_INET);
  for (int i = 0; i < in_turn(); ++i) {
    Result<Comm> comm = enter(0, 1, port);
    ASSERT_TRUE(is_ok(comm));
    (*comm)->close();
    // A communicator that no other rank joins.
    CommunicatorOptions options;
    options.size = 2;
    options.rendezvous = strf("tcp://127.0.0.1:%u", port);
    ASSERT_TRUE(fails_with(
        Communicator::create(unit::config_with(), {}, options, Deadline::after(kMillisecond)),
        OH_ERR_TIMEOUT));
    ASSERT_TRUE(is_ok(listen_on(*SocketAddress::numeric("127.0.0.1", port))));
  }
}

TEST(CommunicatorTest, ACancelledAttemptLeavesNothing) {
  uint16_t port = unit::free_port(AF_INET);
  size_t before = unit::open_fds();
  for (uint32_t rank : {0u, 1u, 0u}) {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = 2;
    options.rendezvous = strf("tcp://127.0.0.1:%u", port);
    int cancelled = 0;
    unit::Threads threads;
    threads.start([&] {
      SocketAddress address = *SocketAddress::numeric("127.0.0.1", port);
      EXPECT_TRUE(rank || unit::eventually([&] { return connect_to({address}, in_time()).ok(); }));
      __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
    });
    EXPECT_TRUE(fails_with(Communicator::create(unit::config_with(), {}, options,
                                                Deadline::never().unless(&cancelled)),
                           OH_ERR_CANCELLED, strf("rank %u of 2 was cancelled", rank)));
    EXPECT_TRUE(is_ok(listen_on(*SocketAddress::numeric("127.0.0.1", port))));
  }
  EXPECT_TRUE(unit::fds_come_back_to(before));
  unit::Threads threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.start([=] { take_part(rank, 2, port, talk_to_all); });
  }
}

TEST(CommunicatorTest, LeavesNothingBehind) {
  size_t before = unit::open_fds();
  in_threads(3, talk_to_all);
  EXPECT_TRUE(unit::fds_come_back_to(before));
}

TEST(CommunicatorTest, NobodyLeavesABarrierBeforeAllHaveEntered) {
  constexpr uint32_t kSize = 5;
  std::atomic<uint32_t> entered{0};
  in_threads(kSize, [&](Communicator& comm) {
    for (uint32_t round = 1; round <= 20; ++round) {
      if (comm.rank() == round % kSize) {
        for (int i = 0; i < 200; ++i) std::this_thread::yield();
      }
      entered.fetch_add(1);
      ASSERT_TRUE(is_ok(comm.barrier(in_time())));
      EXPECT_GE(entered.load(), round * kSize);
    }
  });
}

TEST(CommunicatorTest, ABarrierEndsAtItsDeadline) {
  std::atomic<bool> over{false};
  in_threads(2, [&](Communicator& comm) {
    if (comm.rank() == 0) {
      EXPECT_TRUE(fails_with(comm.barrier(Deadline::after(50 * kMillisecond)), OH_ERR_TIMEOUT,
                             "the barrier of rank 0 failed"));
      over = true;
    } else {
      EXPECT_TRUE(unit::eventually([&] {
        comm.endpoint()->progress();
        return over.load();
      }));
    }
  });
}

// Runs `work`, and returns whether it leaves the part of the stack alone that calls before used.
[[gnu::noinline]] bool leaves_the_stack_alone(const std::function<void()>& work) {
  std::array<volatile uint8_t, 1 << 16> area;
  for (volatile uint8_t& byte : area) byte = 0xee;
  work();
  return std::ranges::all_of(area, [](uint8_t byte) { return byte == 0xee; });
}

// Rank 1 is stopped before it writes a failure's text into the receive that rank 0 has claimed.
TEST(CommunicatorTest, ARankThatGoesOnWritesIntoNoBarrierThatHasEnded) {
  const uint16_t port = unit::free_port(AF_INET);
  ASSERT_TRUE(wait_until_single_threaded());
  static pid_t child;
  child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Comm comm = *enter(1, 2, port);
    Endpoint& endpoint = *comm->endpoint();
    const std::shared_ptr<Peer> peer = *comm->peer(0, in_time());
    // Without credit the text is announced, and copied by either side.
    Request small;
    Bytes bytes(300);
    while (peer->link().stats.out_of_credit == 0) {
      small.clear();
      unit::prepare(&small, OpKind::kSend, endpoint, bytes.data(), bytes.size(), 1);
      ASSERT_TRUE(is_ok(peer->operations().messages().post_send(&small)));
      while (!small.ended() && peer->link().stats.out_of_credit == 0) endpoint.progress();
    }
    g_fault_hook.store([](const char* point) {
      if (std::string_view(point) == "transfer.copy") raise(SIGSTOP);
    });
    (void)unit::send(endpoint, *peer, Bytes(400, 1), kBarrierTags, in_time()).ok();
    _exit(0);
  }
  Comm comm = *enter(0, 2, port);
  const std::shared_ptr<Peer> peer = *comm->peer(1, in_time());
  while (!peer->operations().messages().probe(kBarrierTags)) comm->endpoint()->progress();
  g_fault_hook.store([](const char* point) {
    if (std::string_view(point) != "transfer.claimed") return;
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, WUNTRACED), child);
  });
  const Status ended = comm->barrier(Deadline::after(2 * kSecond));
  g_fault_hook.store(nullptr);
  EXPECT_TRUE(fails_with(ended, OH_ERR_IN_DOUBT));
  EXPECT_TRUE(leaves_the_stack_alone([] {
    kill(child, SIGCONT);
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  }));
  comm->close();
}

TEST(CommunicatorTest, OneRankIsItsOwnPeer) {
  CommunicatorOptions options;
  Result<Comm> comm = Communicator::create(unit::config_with(), {}, options, in_time());
  ASSERT_TRUE(is_ok(comm));
  talk_to_all(**comm);
}

TEST(CommunicatorTest, WrongOptionsAreRefused) {
  auto refused = [](uint32_t rank, uint32_t size, const char* rendezvous, Bytes id, oh_status code,
                    const char* text) {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = size;
    options.rendezvous = rendezvous;
    options.unique_id = std::move(id);
    return fails_with(Communicator::create(unit::config_with(), {}, options, in_time()), code,
                      text);
  };
  EXPECT_TRUE(refused(0, 0, "", {}, OH_ERR_INVALID, "rank 0 of 0"));
  EXPECT_TRUE(refused(2, 2, "", {}, OH_ERR_INVALID, "rank 2 of 2"));
  EXPECT_TRUE(refused(0, kMaxRanks + 1, "tcp://a:1", {}, OH_ERR_INVALID, "at most 1048576"));
  EXPECT_TRUE(refused(0, 2, "", {}, OH_ERR_INVALID, "needs a rendezvous"));
  EXPECT_TRUE(refused(0, 2, "tcp://127.0.0.1:1", {1}, OH_ERR_INVALID, "and not both"));
  EXPECT_TRUE(refused(0, 2, "127.0.0.1:1", {}, OH_ERR_INVALID, "expected tcp://HOST:PORT"));
  EXPECT_TRUE(refused(0, 2, "tcp://127.0.0.1", {}, OH_ERR_INVALID, "expected HOST:PORT"));
  EXPECT_TRUE(refused(1, 2, "", {1, 2, 3}, OH_ERR_INVALID, "no onehop address"));
  EXPECT_TRUE(refused(1, 2, "tcp://192.0.2.99:1", {}, OH_ERR_AUTH, "set ONEHOP_SECRET"));
}

TEST(CommunicatorTest, RanksThatDoNotExistAreRefused) {
  CommunicatorOptions options;
  Result<Comm> comm = Communicator::create(unit::config_with(), {}, options, in_time());
  ASSERT_TRUE(is_ok(comm));
  EXPECT_TRUE(fails_with((*comm)->peer(-1, in_time()), OH_ERR_INVALID, "rank -1"));
  EXPECT_TRUE(fails_with((*comm)->peer(1, in_time()), OH_ERR_INVALID, "has ranks 0 to 0"));
}

TEST(CommunicatorTest, AClosedOneAnswersClosed) {
  CommunicatorOptions options;
  Result<Comm> comm = Communicator::create(unit::config_with(), {}, options, in_time());
  ASSERT_TRUE(is_ok(comm));
  (*comm)->close();
  (*comm)->close();
  EXPECT_TRUE(fails_with((*comm)->peer(0, in_time()), OH_ERR_CLOSED));
}

// The peer of the lost rank sees the loss in its next call, and gets no new link to a dead rank.
void lose_rank_one(Communicator& comm) {
  Endpoint& endpoint = *comm.endpoint();
  Result<std::shared_ptr<Peer>> peer = comm.peer(1 - comm.rank(), in_time());
  ASSERT_TRUE(is_ok(peer));
  ASSERT_TRUE(is_ok(comm.barrier(in_time())));
  if (comm.rank() == 1) return;
  EXPECT_TRUE(fails_with(unit::expect(endpoint, **peer, Bytes(1), 5, in_time()), OH_ERR_PEER_LOST));
  EXPECT_TRUE(fails_with(unit::send(endpoint, **peer, Bytes(1), 5, in_time()), OH_ERR_PEER_LOST));
  EXPECT_TRUE(fails_with(comm.barrier(in_time()), OH_ERR_PEER_LOST));
}

TEST(CommunicatorTest, AClosedPeerIsLostInThreads) { in_threads(2, lose_rank_one); }
TEST(CommunicatorTest, AClosedPeerIsLostInProcesses) { in_processes(2, lose_rank_one); }

// ---- Reconnects -------------------------------------------------------------------------------

// Whether the link to the rank is lost, with an error text that states the remedy.
::testing::AssertionResult is_lost(Communicator& comm, uint32_t rank) {
  Result<std::shared_ptr<Peer>> peer = comm.peer(rank, in_time());
  if (!peer.ok()) return is_ok(peer);
  Status status = unit::expect(*comm.endpoint(), **peer, Bytes(1), 77, in_time());
  if (status_scope(status.code()) != OH_SCOPE_LINK) return is_ok(status);
  return fails_with(status, status.code(), strf("comm.reconnect(%u)", rank));
}

// Reconnects to the rank, and checks the new link.
void come_back_to(Communicator& comm, uint32_t rank) {
  ASSERT_TRUE(is_lost(comm, rank));
  std::shared_ptr<Peer> lost = *comm.peer(rank, in_time());
  Result<std::shared_ptr<Peer>> peer = comm.reconnect(rank, in_time());
  ASSERT_TRUE(is_ok(peer));
  EXPECT_NE(*peer, lost);
  EXPECT_EQ(*comm.peer(rank, in_time()), *peer);
  EXPECT_EQ(*comm.reconnect(rank, in_time()), *peer);  // the link is no longer lost
  EXPECT_TRUE(fails_with(unit::send(*comm.endpoint(), *lost, Bytes(1), 5, in_time()), OH_ERR_LINK));
}

void lose_and_come_back(Communicator& comm) {
  for (int round = 0; round < 5; ++round) {
    talk_to_all(comm);
    if (::testing::Test::HasFatalFailure()) return;
    // One rank closes the link, and the other sees the loss.
    if (static_cast<int>(comm.rank()) == round % 2) {
      std::shared_ptr<Peer> peer = *comm.peer(1 - comm.rank(), in_time());
      peer->close();
      comm.endpoint()->forget(peer);
    }
    come_back_to(comm, 1 - comm.rank());
    if (::testing::Test::HasFatalFailure()) return;
  }
  talk_to_all(comm);
}

TEST(CommunicatorTest, ALostLinkComesBackInThreads) { in_threads(2, lose_and_come_back); }
TEST(CommunicatorTest, ALostLinkComesBackInProcesses) { in_processes(2, lose_and_come_back); }

// Processes that kill themselves and are restarted under their rank.
class Restarts {
 public:
  explicit Restarts(uint32_t size) : size_(size), port_(unit::free_port(AF_INET)) {
    for (uint32_t rank = 0; rank < size_; ++rank) children_.push_back(start(rank, false));
  }
  ~Restarts() {
    for (pid_t child : children_) {
      if (child > 0) kill(child, SIGKILL);
      if (child > 0) waitpid(child, nullptr, 0);
    }
  }
  Restarts(const Restarts&) = delete;
  Restarts& operator=(const Restarts&) = delete;
  // Restarts a rank whose process has killed itself.
  void restart(uint32_t rank) {
    int status = 0;
    ASSERT_EQ(waitpid(children_[rank], &status, 0), children_[rank]);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << rank << ": " << status;
    children_[rank] = start(rank, true);
  }
  void join() {
    for (pid_t& child : children_) {
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      child = 0;
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
  }

 private:
  pid_t start(uint32_t rank, bool again) const {
    EXPECT_TRUE(wait_until_single_threaded());
    fflush(nullptr);
    pid_t child = fork();
    if (child != 0) return child;
    alarm(60);
    take_part(rank, size_, port_, [=, this](Communicator& comm) { live(comm, again); });
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }

  // Rank 1 dies twice, then the last rank.
  void live(Communicator& comm, bool again) const {
    const uint32_t last = size_ - 1;
    const std::vector<uint32_t> deaths = {1, 1, last};
    // A restarted rank derives its round from the number of barriers, one for each exchange.
    size_t round = again ? comm.barriers() : 0;
    EXPECT_EQ(again, round > 0);
    for (; round <= deaths.size(); ++round) {
      talk_to_all(comm);
      if (::testing::Test::HasFatalFailure() || round == deaths.size()) return;
      if (deaths[round] == comm.rank()) raise(SIGKILL);
      come_back_to(comm, deaths[round]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  const uint32_t size_;
  const uint16_t port_;
  std::vector<pid_t> children_;
};

// Rank 0 serves the rendezvous by the watcher's thread, which a child of fork() does not have.
TEST(CommunicatorTest, AChildOfForkClosesNothingOfItsParents) {
  in_threads(2, [](Communicator& comm) {
    if (comm.rank() == 0) {
      const pid_t child = fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        // They have the numbers of the parent's descriptors.
        std::array<int, 256> events;
        for (int& event : events) event = eventfd(0, EFD_NONBLOCK);
        comm.close();
        const auto was_written = [](int event) {
          uint64_t count = 0;
          return read(event, &count, sizeof(count)) == sizeof(count);
        };
        _exit(std::ranges::any_of(events, was_written) ? 1 : 0);
      }
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    talk_to_all(comm);
  });
}

TEST(CommunicatorTest, AKilledRankComesBackInAnotherProcess) {
  Restarts ranks(3);
  ranks.restart(1);
  ranks.restart(1);
  ranks.restart(2);
  ranks.join();
}

TEST(CommunicatorTest, ARankComesBackByItsUniqueId) {
  Config config = unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}});
  std::shared_ptr<Node> node = *Node::get(config);
  Result<Bytes> id = rendezvous_unique_id(node, **Crypto::open(""), config);
  ASSERT_TRUE(is_ok(id));
  auto meet = [&](uint32_t rank) {
    CommunicatorOptions options;
    options.rank = rank;
    options.size = 2;
    options.unique_id = *id;
    return Communicator::create(config, {}, options, in_time());
  };
  unit::Threads threads;
  threads.start([&] {
    Result<Comm> comm = meet(0);
    ASSERT_TRUE(is_ok(comm));
    talk_to_all(**comm);
    // The rank may reconnect before this one is ready.
    usleep(50'000);
    come_back_to(**comm, 1);
    talk_to_all(**comm);
  });
  threads.start([&] {
    {
      Result<Comm> comm = meet(1);
      ASSERT_TRUE(is_ok(comm));
      talk_to_all(**comm);
    }
    Result<Comm> comm = meet(1);
    ASSERT_TRUE(is_ok(comm));
    EXPECT_EQ((*comm)->barriers(), 1u);
    talk_to_all(**comm);
  });
}

TEST(CommunicatorTest, WhoDoesNotComeBackIsNamedAtTheDeadline) {
  uint16_t port = unit::free_port(AF_INET);
  unit::Threads threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.start([=] {
      Result<Comm> comm = enter(rank, 2, port);
      ASSERT_TRUE(is_ok(comm));
      ASSERT_TRUE(is_ok((*comm)->barrier(in_time())));
      if (rank == 1) {
        (*comm)->close();
        EXPECT_TRUE(fails_with((*comm)->reconnect(0, in_time()), OH_ERR_CLOSED));
        return;
      }
      ASSERT_TRUE(is_lost(**comm, 1));
      EXPECT_TRUE(fails_with((*comm)->reconnect(1, Deadline::after(50 * kMillisecond)),
                             OH_ERR_TIMEOUT, "rank 1 has not come back"));
      int cancelled = 0;
      unit::Threads other;
      other.start([&] {
        usleep(30'000);
        __atomic_store_n(&cancelled, 1, __ATOMIC_RELEASE);
      });
      EXPECT_TRUE(fails_with((*comm)->reconnect(1, Deadline::never().unless(&cancelled)),
                             OH_ERR_CANCELLED, "reconnect(1) was cancelled"));
      EXPECT_TRUE(is_ok(listen_on(*SocketAddress::numeric("127.0.0.1", port))));
      EXPECT_TRUE(fails_with((*comm)->reconnect(2, in_time()), OH_ERR_INVALID, "ranks 0 to 1"));
    });
  }
}

// Another program has taken the port on which rank 0 must serve again.
TEST(CommunicatorTest, AReconnectThatWaitsForItsPortEndsWhenItIsClosed) {
  unit::FaultyOs system;
  uint16_t port = unit::free_port(AF_INET);
  std::atomic<bool> gone{false};
  unit::Threads threads;
  threads.start([&] {
    Result<Comm> comm = enter(1, 2, port);
    ASSERT_TRUE(is_ok(comm));
    ASSERT_TRUE(is_ok((*comm)->barrier(in_time())));
    (*comm)->close();
    gone.store(true);
  });
  Result<Comm> comm = enter(0, 2, port);
  ASSERT_TRUE(is_ok(comm));
  ASSERT_TRUE(is_ok((*comm)->barrier(in_time())));
  EXPECT_TRUE(unit::eventually([&] { return gone.load(); }));
  ASSERT_TRUE(is_lost(**comm, 1));
  system.arm(unit::Call::bind, 0, EADDRINUSE, /*forever=*/true);
  threads.start([&] { EXPECT_TRUE(fails_with((*comm)->reconnect(1, in_time()), OH_ERR_CLOSED)); });
  EXPECT_TRUE(unit::eventually([&] { return system.fired(); }));
  (*comm)->close();
  threads.join();
}

}  // namespace
}  // namespace communicator_test
