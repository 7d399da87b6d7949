// SPDX-License-Identifier: Apache-2.0
#include "platform/os/net.h"

#include <errno.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <set>
#include <string>

#include "single_thread.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace net_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

Deadline soon() { return Deadline::after(20 * kSecond); }

SocketAddress numeric(const char* host, uint16_t port) {
  Result<SocketAddress> address = SocketAddress::numeric(host, port);
  EXPECT_TRUE(is_ok(address)) << host;
  return *address;
}

TEST(SocketAddressTest, TextsComeBack) {
  struct {
    const char* host;
    const char* text;
    int family;
    bool loopback;
  } table[] = {
      {"10.0.0.1", "10.0.0.1:29400", AF_INET, false},
      {"127.0.0.1", "127.0.0.1:29400", AF_INET, true},
      {"127.255.0.3", "127.255.0.3:29400", AF_INET, true},
      {"0.0.0.0", "0.0.0.0:29400", AF_INET, false},
      {"::1", "[::1]:29400", AF_INET6, true},
      {"fd00::2", "[fd00::2]:29400", AF_INET6, false},
      {"::ffff:127.0.0.1", "[::ffff:127.0.0.1]:29400", AF_INET6, true},
      {"::ffff:10.0.0.1", "[::ffff:10.0.0.1]:29400", AF_INET6, false},
  };
  for (const auto& row : table) {
    SocketAddress address = numeric(row.host, 29400);
    EXPECT_EQ(address.text(), row.text);
    EXPECT_EQ(address.family(), row.family) << row.host;
    EXPECT_EQ(address.is_loopback(), row.loopback) << row.host;
    EXPECT_EQ(address.port(), 29400);
    address.set_port(1);
    EXPECT_EQ(address.port(), 1);
    Result<std::vector<SocketAddress>> resolved = resolve(row.text, soon());
    ASSERT_TRUE(is_ok(resolved)) << row.text;
    EXPECT_EQ(resolved->front().text(), row.text);
  }
}

TEST(SocketAddressTest, RefusesWhatIsNoAddress) {
  for (const char* text : {"", "localhost", "1.2.3", "1.2.3.4.5", "::g", "[::1]", "1.2.3.4:5"}) {
    EXPECT_TRUE(fails_with(SocketAddress::numeric(text, 1), OH_ERR_INVALID, text));
  }
  for (const char* text : {"", ":", "host", "host:", ":29400", "host:0", "host:65536", "host:-1",
                           "host:1a", "host: 1", "[::1]"}) {
    EXPECT_TRUE(fails_with(resolve(text, soon()), OH_ERR_INVALID, "expected HOST:PORT")) << text;
  }
  EXPECT_TRUE(fails_with(resolve("no-such-host.invalid:1", soon()), OH_ERR_UNREACHABLE,
                         "cannot resolve the host 'no-such-host.invalid'"));
}

// Name servers that reply when the test lets them.
class SlowNames final : public Os {
 public:
  // Never destroyed: the resolving thread may still use it.
  static SlowNames& instance() {
    static auto* const only = new SlowNames;
    return *only;
  }
  int getaddrinfo(const char* host, const addrinfo* hints, addrinfo** found) override {
    asked.fetch_add(1);
    while (!answers.load()) usleep(1000);
    int failure = Os::getaddrinfo(host, hints, found);
    asked.fetch_sub(1);
    return failure;
  }
  std::atomic<bool> answers{false};
  std::atomic<int> asked{0};
};

TEST(SocketAddressTest, ANameServerThatDoesNotAnswerHoldsNobodyUp) {
  SlowNames& names = SlowNames::instance();
  Os* former = os_replace(&names);
  EXPECT_TRUE(fails_with(resolve("localhost:1", Deadline::after(20 * kMillisecond)), OH_ERR_TIMEOUT,
                         "'localhost'"));
  EXPECT_TRUE(unit::eventually([&] { return names.asked.load() == 1; }));
  // Numeric addresses need no name server.
  EXPECT_TRUE(is_ok(resolve("127.0.0.1:1", Deadline::after(0))));
  names.answers.store(true);
  Result<std::vector<SocketAddress>> found = resolve("localhost:1", soon());
  ASSERT_TRUE(is_ok(found));
  EXPECT_TRUE(found->front().is_loopback());
  EXPECT_EQ(found->front().port(), 1);
  EXPECT_TRUE(unit::eventually([&] { return names.asked.load() == 0; }));
  os_replace(former);
}

TEST(SocketAddressTest, UnixNames) {
  EXPECT_EQ(SocketAddress::unix_abstract("a name").text(), "unix:@a name");
  EXPECT_EQ(SocketAddress::unix_path("/tmp/a").text(), "unix:/tmp/a");
  EXPECT_TRUE(SocketAddress::unix_path("/tmp/a").is_loopback());
  EXPECT_EQ(SocketAddress::unix_path("/tmp/a").port(), 0);
  // Too long for the kernel: truncated, without a write beyond the end.
  std::string longest(1000, 'x');
  EXPECT_LE(SocketAddress::unix_abstract(longest).size, sizeof(sockaddr_un));
  EXPECT_LE(SocketAddress::unix_path(longest).size, sizeof(sockaddr_un));
}

TEST(NetTest, ConnectsOverEveryFamily) {
  unit::TempDir dir;
  for (const SocketAddress& wanted :
       {numeric("127.0.0.1", unit::free_port(AF_INET)), numeric("::1", unit::free_port(AF_INET6)),
        SocketAddress::unix_abstract("onehop-unit-" + std::to_string(getpid())),
        SocketAddress::unix_path(dir.path() + "/socket")}) {
    Result<UniqueFd> listening = listen_on(wanted);
    ASSERT_TRUE(is_ok(listening)) << wanted.text();
    Result<UniqueFd> client = connect_to({wanted}, soon());
    ASSERT_TRUE(is_ok(client)) << wanted.text();
    ASSERT_TRUE(is_ok(wait_ready(listening->get(), POLLIN, soon(), "accepting")));
    UniqueFd server(os().accept(listening->get()));
    EXPECT_TRUE(server.valid());
    if (wanted.family() == AF_UNIX) {
      Result<PeerCredentials> who = peer_credentials(client->get());
      ASSERT_TRUE(is_ok(who));
      EXPECT_EQ(who->pid, getpid());
      EXPECT_EQ(who->uid, geteuid());
    }
  }
}

TEST(NetTest, TakesTheFirstAddressThatAnswers) {
  uint16_t port = unit::free_port(AF_INET);
  Result<UniqueFd> listening = listen_on(numeric("127.0.0.1", port));
  ASSERT_TRUE(is_ok(listening));
  EXPECT_TRUE(is_ok(connect_to({numeric("127.0.0.1", unit::free_port(AF_INET)),
                                numeric("::1", port), numeric("127.0.0.1", port)},
                               soon())));
}

int tcp_option(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  EXPECT_EQ(getsockopt(fd, level, name, &value, &size), 0);
  return value;
}

TEST(NetTest, GivesUpASilentHostInTime) {
  SocketAddress there = numeric("127.0.0.1", unit::free_port(AF_INET));
  Result<UniqueFd> listening = listen_on(there);
  ASSERT_TRUE(is_ok(listening));
  struct {
    int64_t silence_ns;
    bool asks;
    int user_timeout_ms, idle_s, interval_s;
  } cases[] = {
      {0, false, 0, 0, 0},
      {kSecond / 2, true, 1000, 1, 1},
      {2 * kSecond, true, 2000, 1, 1},
      {30 * kSecond, true, 30'000, 10, 5},
      {86'400 * kSecond, true, 86'400'000, 28'800, 14'400},
  };
  for (const auto& expected : cases) {
    Result<UniqueFd> fd = connect_to({there}, soon());
    ASSERT_TRUE(is_ok(fd));
    give_up_after(fd->get(), expected.silence_ns);
    EXPECT_EQ(tcp_option(fd->get(), SOL_SOCKET, SO_KEEPALIVE), expected.asks);
    EXPECT_EQ(tcp_option(fd->get(), IPPROTO_TCP, TCP_USER_TIMEOUT), expected.user_timeout_ms);
    if (!expected.asks) continue;
    EXPECT_EQ(tcp_option(fd->get(), IPPROTO_TCP, TCP_KEEPIDLE), expected.idle_s);
    EXPECT_EQ(tcp_option(fd->get(), IPPROTO_TCP, TCP_KEEPINTVL), expected.interval_s);
  }
}

TEST(NetTest, SaysWhatWasTried) {
  uint16_t port = unit::free_port(AF_INET);
  Result<UniqueFd> fd = connect_to({numeric("127.0.0.1", port), numeric("::1", port)}, soon());
  EXPECT_TRUE(fails_with(fd, OH_ERR_UNREACHABLE, strf("127.0.0.1:%u (Connection refused)", port)));
  EXPECT_TRUE(fails_with(fd, OH_ERR_UNREACHABLE, strf("[::1]:%u", port)));
  EXPECT_TRUE(fails_with(connect_to({}, soon()), OH_ERR_UNREACHABLE, "no address at all"));
  EXPECT_TRUE(fails_with(connect_to({SocketAddress::unix_path("/no/such/socket")}, soon()),
                         OH_ERR_UNREACHABLE, "unix:/no/such/socket (No such file"));
}

TEST(NetTest, AnInterruptedOrBrokenWaitIsNotAConnection) {
  FaultyOs faulty;
  Result<UniqueFd> listening = listen_on(numeric("127.0.0.1", unit::free_port(AF_INET)));
  ASSERT_TRUE(is_ok(listening));
  SocketAddress there;
  there.size = sizeof(there.storage);
  getsockname(listening->get(), reinterpret_cast<sockaddr*>(&there.storage), &there.size);

  faulty.interrupt_all_but(7);
  EXPECT_TRUE(is_ok(connect_to({there}, soon())));
  faulty.interrupt_all_but(0);
  faulty.arm(Call::connect, 0, EINTR);
  EXPECT_TRUE(is_ok(connect_to({there}, soon())));
  // If the state of the connection is unknown, it counts as not connected.
  faulty.arm(Call::getsockopt, 0, ENOBUFS);
  EXPECT_TRUE(fails_with(connect_to({there}, soon()), OH_ERR_UNREACHABLE, "No buffer space"));
  // Ends at once, instead of spinning until the deadline or for ever.
  faulty.arm(Call::poll, 0, ENOMEM, /*forever=*/true);
  EXPECT_TRUE(fails_with(connect_to({there}, Deadline::never()), OH_ERR_SYSTEM, "ENOMEM"));
  EXPECT_TRUE(fails_with(wait_ready(listening->get(), POLLIN, Deadline::never(), "testing"),
                         OH_ERR_SYSTEM, "poll while testing: ENOMEM"));
}

TEST(NetTest, WaitingEndsAtTheDeadline) {
  auto [one, two] = unit::socket_pair();
  EXPECT_TRUE(fails_with(wait_ready(one.get(), POLLIN, Deadline::after(kMillisecond), "testing"),
                         OH_ERR_TIMEOUT, "while testing"));
  EXPECT_TRUE(is_ok(wait_ready(one.get(), POLLOUT, Deadline::after(0), "testing")));
}

TEST(NetTest, ListensInARangeUntilItIsExhausted) {
  uint16_t first = unit::free_port(AF_INET6);
  uint16_t port = 0;
  std::vector<UniqueFd> taken;
  for (int i = 0; i < 3; ++i) {
    Result<std::vector<UniqueFd>> fds =
        listen_in_range("127.0.0.1", first, static_cast<uint16_t>(first + 2), &port);
    ASSERT_TRUE(is_ok(fds));
    if (fds->empty()) break;  // another process uses one of them
    EXPECT_EQ(fds->size(), 1u);
    EXPECT_GE(port, first);
    EXPECT_LE(port, first + 2);
    taken.push_back(std::move(fds->front()));
  }
  Result<std::vector<UniqueFd>> none =
      listen_in_range("127.0.0.1", first, static_cast<uint16_t>(first + 2), &port);
  ASSERT_TRUE(is_ok(none));
  EXPECT_TRUE(none->empty());
  // The highest possible port can end the range.
  EXPECT_TRUE(is_ok(listen_in_range("127.0.0.1", 65535, 65535, &port)));
}

TEST(NetTest, ListensOnBothFamiliesAtOnce) {
  uint16_t port = 0;
  Result<std::vector<UniqueFd>> fds = listen_in_range("any", 40000, 44000, &port);
  ASSERT_TRUE(is_ok(fds));
  ASSERT_EQ(fds->size(), 1u);
  EXPECT_TRUE(is_ok(connect_to({numeric("127.0.0.1", port)}, soon())));
  EXPECT_TRUE(is_ok(connect_to({numeric("::1", port)}, soon())));
}

TEST(NetTest, ReachableAddresses) {
  Result<std::vector<SocketAddress>> any = reachable_addresses("any");
  ASSERT_TRUE(is_ok(any));
  ASSERT_FALSE(any->empty());
  Result<std::vector<SocketAddress>> loopback = reachable_addresses("lo");
  ASSERT_TRUE(is_ok(loopback));
  for (const SocketAddress& address : *loopback) EXPECT_TRUE(address.is_loopback());
  Result<std::vector<SocketAddress>> literal = reachable_addresses("192.0.2.7");
  ASSERT_TRUE(is_ok(literal));
  EXPECT_EQ(literal->front().text(), "192.0.2.7:0");
  EXPECT_TRUE(
      fails_with(reachable_addresses("nonsense0"), OH_ERR_CONFIG, "ONEHOP_INTERFACE=nonsense0"));
  uint16_t port = 0;
  EXPECT_TRUE(fails_with(listen_in_range("nonsense0", 40000, 40010, &port), OH_ERR_CONFIG));
}

std::string host_of(const UniqueFd& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST] = "";
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(getsockname(socket.get(), generic, &size), 0);
  EXPECT_EQ(getnameinfo(generic, size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST), 0);
  return host;
}

TEST(NetTest, ListensOnEveryAddressOfAList) {
  uint16_t port = 0;
  Result<std::vector<UniqueFd>> fds =
      listen_in_range("127.0.0.2,127.0.0.3,::1", 40000, 44000, &port);
  ASSERT_TRUE(is_ok(fds));
  // On those addresses only; another process may listen on 127.0.0.1.
  std::set<std::string> hosts;
  for (const UniqueFd& fd : *fds) hosts.insert(host_of(fd));
  EXPECT_EQ(fds->size(), 3u);
  EXPECT_EQ(hosts, (std::set<std::string>{"127.0.0.2", "127.0.0.3", "::1"}));
  for (const std::string& host : hosts) {
    EXPECT_TRUE(is_ok(connect_to({numeric(host.c_str(), port)}, soon()))) << host;
  }
  // All addresses of an interface, of both families; an address named twice gets one listener.
  fds = listen_in_range("lo,127.0.0.1,lo", 40000, 44000, &port);
  ASSERT_TRUE(is_ok(fds));
  EXPECT_TRUE(is_ok(connect_to({numeric("127.0.0.1", port)}, soon())));
  EXPECT_TRUE(is_ok(connect_to({numeric("::1", port)}, soon())));
  // A port that is taken on one of the addresses is skipped.
  uint16_t other = 0;
  Result<std::vector<UniqueFd>> more = listen_in_range("127.0.0.9,127.0.0.1", port, 44001, &other);
  ASSERT_TRUE(is_ok(more));
  ASSERT_EQ(more->size(), 2u);
  EXPECT_GT(other, port);
}

TEST(NetTest, AListNamesWhatItMeans) {
  Result<std::vector<SocketAddress>> both = reachable_addresses("192.0.2.7,lo,192.0.2.8");
  ASSERT_TRUE(is_ok(both));
  // Other hosts cannot reach this one by its loopback address.
  ASSERT_EQ(both->size(), 2u);
  EXPECT_EQ(both->front().text(), "192.0.2.7:0");
  EXPECT_EQ(both->back().text(), "192.0.2.8:0");
  for (const char* wrong : {"lo,nonsense0", "lo,", ",lo", "", "lo, lo", "any,lo"}) {
    Result<std::vector<SocketAddress>> none = reachable_addresses(wrong);
    EXPECT_TRUE(fails_with(none, OH_ERR_CONFIG, std::string("ONEHOP_INTERFACE=") + wrong + ":"));
    EXPECT_TRUE(fails_with(none, OH_ERR_CONFIG, "(there are: ")) << wrong;
  }
}

// The error used to be "no TCP port is free", which no other range of ports could fix.
TEST(NetTest, AnAddressOfAnotherHostIsNamed) {
  uint16_t port = 0;
  EXPECT_TRUE(fails_with(listen_in_range("192.0.2.7", 40000, 40010, &port), OH_ERR_CONFIG,
                         "ONEHOP_INTERFACE=192.0.2.7: this host has none of these addresses"));
}

TEST(NetTest, AFailedListenLeavesNoFileBehind) {
  unit::TempDir dir;
  FaultyOs faulty;
  size_t before = unit::open_fds();
  faulty.arm(Call::listen, 0, EADDRINUSE);
  EXPECT_TRUE(fails_with(listen_on(SocketAddress::unix_path(dir.path() + "/socket")), OH_ERR_SYSTEM,
                         "/socket: EADDRINUSE"));
  EXPECT_EQ(dir.entries(), 0u);
  EXPECT_EQ(unit::open_fds(), before);
  faulty.arm(Call::socket, 0, EMFILE);
  EXPECT_TRUE(fails_with(listen_on(numeric("127.0.0.1", 40001)), OH_ERR_SYSTEM, "EMFILE"));
}

// Enters a network namespace with only two ephemeral ports; false if that is not possible.
bool enter_small_network() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0) return false;
  std::ofstream("/proc/sys/net/ipv4/ip_local_port_range") << "50000 50001";
  ifreq loopback{};
  std::strcpy(loopback.ifr_name, "lo");
  loopback.ifr_flags = IFF_UP;
  UniqueFd fd(socket(AF_INET, SOCK_DGRAM, 0));
  return ioctl(fd.get(), SIOCSIFFLAGS, &loopback) == 0;
}

// A rank that retries a port until its server exists must not connect to itself.
TEST(ConnectTest, NobodyConnectsToHimself) {
  ASSERT_TRUE(wait_until_single_threaded());
  fflush(nullptr);
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(60);
    if (!enter_small_network()) _exit(77);
    const SocketAddress address = numeric("127.0.0.1", 50000);
    for (int i = 0; i < 50; ++i) {
      EXPECT_TRUE(fails_with(connect_to({address}, soon()), OH_ERR_UNREACHABLE));
      EXPECT_TRUE(is_ok(listen_on(address)));
    }
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << status;
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "there can be no other network namespace";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace net_test
