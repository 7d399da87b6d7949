// SPDX-License-Identifier: Apache-2.0
//
// Fails each operating system call once at each of its uses, during the whole life of a link:
// endpoints are created, connect, exchange, and close. Every life must end, with success over
// another path or with a status that names the cause; nothing hangs or leaks.
#include <errno.h>
#include <unistd.h>

#include <set>

#include "sanitizers.h"
#include "unit/faulty_os.h"
#include "unit/traffic.h"

namespace faults_test {
namespace {

using namespace oh;
using unit::Call;
using unit::call_name;
using unit::FaultyOs;
using unit::is_ok;

enum class Way { kUnix, kTcp, kUcx, kWithin };

Deadline soon() { return Deadline::after(3 * kSecond); }

// Progresses both ends until both requests have ended; at the deadline it ends them.
Status finish_both(Endpoint& a, Request* first, Endpoint& b, Request* second) {
  Deadline deadline = soon();
  while (!(first->ended() && second->ended()) && !deadline.passed()) {
    a.progress();
    b.progress();
  }
  Status one = a.requests().wait(first, Deadline::after(0));
  Status two = b.requests().wait(second, Deadline::after(0));
  return one.ok() ? two : one;
}

Status exchange(Endpoint& a, Peer& to_b, Endpoint& b, Peer& to_a, size_t size) {
  Bytes out = unit::Random(size).bytes(size);
  Bytes in(size);
  Request send;
  Request receive;
  unit::prepare(&send, OpKind::kSend, a, out.data(), size, 7);
  unit::prepare(&receive, OpKind::kRecv, b, in.data(), size, 7);
  OH_RETURN_IF_ERROR(to_a.operations().messages().post_recv(&receive));
  Status posted = to_b.operations().messages().post_send(&send);
  if (!posted.ok()) {
    (void)b.requests().wait(&receive, Deadline::after(0)).ok();
    return posted;
  }
  OH_RETURN_IF_ERROR(finish_both(a, &send, b, &receive));
  EXPECT_EQ(in, out) << size;
  return {};
}

// A put into shared memory, whose descriptor is passed over the socket.
Status put_shared(Endpoint& a, Peer& to_b, Endpoint& b) {
  struct Owned {
    explicit Owned(void* memory) : data(memory) {}
    ~Owned() { (void)SharedHeap::instance().free(data).ok(); }
    void* data;
  };
  OH_ASSIGN_OR_RETURN(std::shared_ptr<SharedBlock> block, SharedHeap::instance().allocate(8192));
  Owned owned(block->mapping.data());
  OH_ASSIGN_OR_RETURN(std::shared_ptr<RegionRecord> region,
                      b.memory().register_region(block->mapping.data(), 8192));
  OH_ASSIGN_OR_RETURN(RemoteTarget target,
                      a.memory().attach(to_b, b.memory().export_region(*region), soon()));
  Bytes bytes(100, 9);
  Block piece{bytes.data(), 50, bytes.size()};
  Request put;
  put.endpoint = &a;
  put.kind = OpKind::kPut;
  put.size = piece.size;
  const MovePart part{target, bytes.data(), bytes.size(), {&piece, 1}, 1, piece.size};
  OH_RETURN_IF_ERROR(to_b.operations().one_sided().move(
      &put, {.put = true, .parts = {&part, 1}, .deadline = soon()}));
  OH_RETURN_IF_ERROR(a.requests().wait(&put, soon(), &to_b));
  EXPECT_EQ(block->mapping.data()[149], 9);
  return b.memory().deregister(*region, soon());
}

// The whole life of a link.
Status live(Way way) {
  Config config = unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"},
                                     {"ONEHOP_HELLO_TIMEOUT", "1"},
                                     {"ONEHOP_LOG", "off"},
                                     {"ONEHOP_TRANSPORT", way == Way::kTcp ? "socket" : "auto"}});
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Endpoint> a, Endpoint::create(config, {}));
  OH_ASSIGN_OR_RETURN(std::shared_ptr<Endpoint> b, Endpoint::create(config, {}));
  Address address = b->own_address();
  // Marks the address as another process's, to connect over the sockets.
  if (way != Way::kWithin) address.process[0] ^= 1;
  if (way == Way::kTcp || way == Way::kUcx) {
    address.unix_name.clear();
    address.unix_path.clear();
    if (address.hosts.empty()) return error(OH_ERR_UNREACHABLE, "no TCP port was free");
  }
  Status status;
  Result<std::shared_ptr<Peer>> to_b = a->connect(address.encode(), {}, soon());
  if (!to_b.ok()) return to_b.status();
  Result<std::shared_ptr<Peer>> to_a = b->incoming().accept(Deadline::after(2 * kSecond));
  if (!to_a.ok()) return to_a.status();
  for (size_t size : {size_t{0}, size_t{100}, size_t{5000}, size_t{300000}}) {
    if (status.ok()) status = exchange(*a, **to_b, *b, **to_a, size);
  }
  if (status.ok()) status = put_shared(*a, **to_b, *b);
  (*to_b)->close();
  (*to_a)->close();
  a->close();
  b->close();
  return status;
}

struct Kind {
  Call call;
  int error_number;
};
constexpr Kind kKinds[] = {
    {Call::memfd_create, EMFILE},
    {Call::ftruncate, ENOMEM},
    {Call::fstat_size, EIO},
    {Call::fstat_identity, EIO},
    {Call::seal, EPERM},
    {Call::is_sealed, EBADF},
    {Call::mmap, ENOMEM},
    {Call::socket, EMFILE},
    {Call::bind, EACCES},
    {Call::listen, EADDRINUSE},
    {Call::connect, ECONNREFUSED},
    {Call::accept, EMFILE},
    {Call::sendmsg, ECONNRESET},
    {Call::recvmsg, ECONNRESET},
    {Call::getsockopt, ENOBUFS},
    {Call::setsockopt, ENOPROTOOPT},
    {Call::getpeername, ENOBUFS},
    {Call::shutdown, ENOTCONN},
    {Call::poll, EINTR},
    {Call::epoll_create, EMFILE},
    {Call::epoll_ctl, ENOSPC},
    {Call::epoll_wait, EINTR},
    {Call::eventfd, EMFILE},
    {Call::futex_wait, EINTR},
    {Call::pidfd_open, EMFILE},
    {Call::process_vm_readv, EPERM},
    {Call::process_vm_writev, EPERM},
    {Call::getrandom, EIO},
};

// Whether the status may follow from a failed call: never a protocol error by the peer.
bool is_clear(const Status& status) {
  static const std::set<oh_status> clear = {
      OH_ERR_SYSTEM,      OH_ERR_PEER_LOST,  OH_ERR_LINK,    OH_ERR_UNREACHABLE, OH_ERR_REFUSED,
      OH_ERR_NO_RESOURCE, OH_ERR_NOT_VIABLE, OH_ERR_TIMEOUT, OH_ERR_FAULT,       OH_ERR_CANCELLED};
  return status.ok() || (clear.count(status.code()) && status.text().size() > 10);
}

class FaultsTest : public ::testing::TestWithParam<Way> {};

TEST_P(FaultsTest, EveryCallMayFailAtEachOfItsUses) {
  ASSERT_TRUE(is_ok(live(GetParam())));
  size_t before = unit::open_fds();
  size_t lives = 0;
  size_t failed = 0;
  // A life over UCX takes ten times as long, and more under a sanitizer.
  const uint64_t uses = GetParam() != Way::kUcx ? 40 : kSanitized ? 4 : 20;
  for (const Kind& kind : kKinds) {
    for (uint64_t n = 0;; ++n) {
      FaultyOs faulty;
      faulty.arm(kind.call, n, kind.error_number);
      Status status = live(GetParam());
      ASSERT_TRUE(unit::fds_come_back_to(before)) << call_name(kind.call) << " " << n;
      if (!faulty.fired()) {
        EXPECT_TRUE(is_ok(status)) << call_name(kind.call) << " " << n;
        break;
      }
      ++lives;
      failed += !status.ok();
      EXPECT_TRUE(is_clear(status)) << call_name(kind.call) << " " << n << ": "
                                    << status_name(status.code()) << ": " << status.text();
      // Calls that waiting threads make are unbounded: some of their uses suffice.
      if (n >= uses) break;
    }
  }
  RecordProperty("lives", static_cast<int>(lives));
  RecordProperty("failed", static_cast<int>(failed));
  EXPECT_GT(lives, 20u);
  EXPECT_GT(failed, 3u);
}

std::string name_of(const ::testing::TestParamInfo<Way>& way) {
  static const char* const names[] = {"unix", "tcp", "ucx", "within"};
  return names[static_cast<int>(way.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, FaultsTest,
                         ::testing::Values(Way::kUnix, Way::kTcp, Way::kUcx, Way::kWithin),
                         name_of);

// The same life with sockets that move only a few bytes at a time, and continual interrupts.
TEST_P(FaultsTest, ShortReadsAndWritesAndInterruptsChangeNothing) {
  FaultyOs faulty;
  faulty.limit_io(1021);
  faulty.interrupt_all_but(4);
  EXPECT_TRUE(is_ok(live(GetParam())));
}

// A kind of call always fails: the error is that of the first caller that needs it.
TEST(BrokenOsTest, WhatNeverWorksIsSaid) {
  size_t before = unit::open_fds();
  for (Call call :
       {Call::socket, Call::epoll_create, Call::getrandom, Call::eventfd, Call::epoll_ctl}) {
    FaultyOs faulty;
    faulty.arm(call, 0, EPERM, /*forever=*/true);
    Status status = live(Way::kUnix);
    EXPECT_TRUE(unit::fails_with(status, OH_ERR_SYSTEM, "EPERM")) << call_name(call);
    EXPECT_TRUE(unit::fds_come_back_to(before)) << call_name(call);
  }
}

// Alternatives are used where they exist: the socket without shared memory, two copies without
// process_vm_readv, a Unix socket without TCP on one host.
TEST(BrokenOsTest, WhatCanBeDoneWithoutIs) {
  const size_t before = unit::open_fds();
  for (Call call : {Call::memfd_create, Call::process_vm_readv, Call::pidfd_open, Call::setsockopt,
                    Call::shutdown}) {
    FaultyOs faulty;
    faulty.arm(call, 0, EPERM, /*forever=*/true);
    EXPECT_TRUE(is_ok(live(Way::kUnix))) << call_name(call);
    EXPECT_TRUE(faulty.fired()) << call_name(call);
    // Including the process's sockets: the next endpoint creates its own.
    EXPECT_TRUE(unit::fds_come_back_to(before)) << call_name(call);
  }
}

// The last endpoint removes the socket's file, also if its own creation fails half-way.
TEST(BrokenOsTest, NoFileIsLeftInTheSocketFolder) {
  for (Call call : {Call::bind, Call::listen, Call::epoll_ctl, Call::socket, Call::mmap}) {
    for (uint64_t n = 0; n < 8; ++n) {
      unit::TempDir dir;
      {
        FaultyOs faulty;
        faulty.arm(call, n, EPERM);
        auto endpoint = Endpoint::create(
            unit::config_with({{"ONEHOP_SOCKET_DIR", dir.path()}, {"ONEHOP_LOG", "off"}}), {});
        (void)endpoint.ok();
      }
      EXPECT_TRUE(unit::eventually([&] { return dir.entries() == 0; })) << call_name(call) << n;
    }
  }
}

}  // namespace
}  // namespace faults_test
