// SPDX-License-Identifier: Apache-2.0
#include "platform/os/net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/text.h"
#include "platform/os/os.h"
#include "platform/os/process.h"

namespace oh {
namespace {

constexpr int kBacklog = 1024;
constexpr size_t kMaxText = 4 * sizeof(sockaddr_un::sun_path);  // of an address

const sockaddr_in* v4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in*>(&address.storage);
}
const sockaddr_in6* v6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6*>(&address.storage);
}

SocketAddress from_raw(const sockaddr* raw, socklen_t size) {
  SocketAddress address;
  std::memcpy(&address.storage, raw, size);
  address.size = size;
  return address;
}

socklen_t size_of_family(int family) {
  return family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
}

SocketAddress any_address(int family) {
  SocketAddress address;
  address.storage.ss_family = static_cast<sa_family_t>(family);
  address.size = size_of_family(family);
  return address;
}

bool is_loopback(const SocketAddress& address) { return address.is_loopback(); }

std::vector<std::string> split_at_commas(const std::string& text) {
  std::vector<std::string> items;
  for (size_t begin = 0; begin <= text.size();) {
    size_t comma = std::min(text.find(',', begin), text.size());
    items.push_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return items;
}

// An address of a network interface that is up.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};

Result<std::vector<InterfaceAddress>> interface_addresses() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) < 0) return Status::from_errno(OH_ERR_SYSTEM, errno, "getifaddrs");
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = all; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || !(entry->ifa_flags & IFF_UP)) continue;
    int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address = from_raw(entry->ifa_addr, size_of_family(family));
    // A link-local address is useless to another host without its scope.
    if (family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(address)->sin6_addr)) continue;
    found.push_back({entry->ifa_name, address});
  }
  freeifaddrs(all);
  return found;
}

Status no_such_interface(const std::string& interfaces, const std::string& item,
                         const std::vector<InterfaceAddress>& present) {
  std::set<std::string> distinct;
  for (const InterfaceAddress& entry : present) distinct.insert(entry.interface);
  std::string names;
  for (const std::string& name : distinct) names += (names.empty() ? "" : ", ") + name;
  return error(OH_ERR_CONFIG,
               "ONEHOP_INTERFACE=%s: no interface '%s' is up with an IPv4 or IPv6 address; give "
               "any, or addresses and interfaces of this host, separated by commas (there are: %s)",
               interfaces.c_str(), item.c_str(), names.empty() ? "none" : names.c_str());
}

// All addresses that ONEHOP_INTERFACE (other than "any") names, without duplicates.
Result<std::vector<SocketAddress>> named_addresses(const std::string& interfaces) {
  OH_ASSIGN_OR_RETURN(std::vector<InterfaceAddress> present, interface_addresses());
  std::vector<SocketAddress> addresses;
  std::set<std::string> known;
  auto add = [&](const SocketAddress& address) {
    if (known.insert(address.text()).second) addresses.push_back(address);
  };
  for (const std::string& item : split_at_commas(interfaces)) {
    Result<SocketAddress> literal = SocketAddress::numeric(item, 0);
    bool found = literal.ok();
    if (found) add(*literal);
    for (const InterfaceAddress& entry : present) {
      if (entry.interface != item) continue;
      add(entry.address);
      found = true;
    }
    if (!found) return no_such_interface(interfaces, item, present);
  }
  return addresses;
}

}  // namespace

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return (ntohl(v4(*this)->sin_addr.s_addr) >> 24) == 127;
  if (family() == AF_INET6) {
    const in6_addr& ip = v6(*this)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&ip) || (IN6_IS_ADDR_V4MAPPED(&ip) && ip.s6_addr[12] == 127);
  }
  return family() == AF_UNIX;
}

uint16_t SocketAddress::port() const {
  if (family() == AF_INET) return ntohs(v4(*this)->sin_port);
  if (family() == AF_INET6) return ntohs(v6(*this)->sin6_port);
  return 0;
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET) reinterpret_cast<sockaddr_in*>(&storage)->sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port = htons(port);
}

std::string SocketAddress::text() const {
  if (family() == AF_UNIX) {
    const auto* address = reinterpret_cast<const sockaddr_un*>(&storage);
    size_t length = size - offsetof(sockaddr_un, sun_path);
    if (length > 0 && address->sun_path[0] == '\0') {
      return "unix:@" + printable({address->sun_path + 1, length - 1}, kMaxText);
    }
    return "unix:" + printable(address->sun_path, kMaxText);
  }
  char host[NI_MAXHOST] = "?";
  getnameinfo(get(), size, host, sizeof(host), nullptr, 0, NI_NUMERICHOST);
  return family() == AF_INET6 ? strf("[%s]:%u", host, port()) : strf("%s:%u", host, port());
}

SocketAddress SocketAddress::unix_abstract(std::string_view name) {
  SocketAddress address;
  auto* raw = reinterpret_cast<sockaddr_un*>(&address.storage);
  raw->sun_family = AF_UNIX;
  size_t length = std::min(name.size(), sizeof(raw->sun_path) - 1);
  std::memcpy(raw->sun_path + 1, name.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
  return address;
}

SocketAddress SocketAddress::unix_path(std::string_view path) {
  SocketAddress address;
  auto* raw = reinterpret_cast<sockaddr_un*>(&address.storage);
  raw->sun_family = AF_UNIX;
  size_t length = std::min(path.size(), sizeof(raw->sun_path) - 1);
  std::memcpy(raw->sun_path, path.data(), length);
  address.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length + 1);
  return address;
}

Result<SocketAddress> SocketAddress::numeric(const std::string& host, uint16_t port) {
  SocketAddress address = any_address(AF_INET);
  if (inet_pton(AF_INET, host.c_str(),
                &reinterpret_cast<sockaddr_in*>(&address.storage)->sin_addr) != 1) {
    address = any_address(AF_INET6);
    if (inet_pton(AF_INET6, host.c_str(),
                  &reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_addr) != 1) {
      return error(OH_ERR_INVALID, "'%s' is neither an IPv4 nor an IPv6 address", host.c_str());
    }
  }
  address.set_port(port);
  return address;
}

namespace {

// A look-up on its own thread, which may outlive the caller.
struct Lookup {
  explicit Lookup(std::string name) : host(std::move(name)) {}
  void run() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* entries = nullptr;
    failure = os().getaddrinfo(host.c_str(), &hints, &entries);
    for (const addrinfo* entry = failure ? nullptr : entries; entry; entry = entry->ai_next) {
      found.push_back(from_raw(entry->ai_addr, entry->ai_addrlen));
    }
    if (entries) freeaddrinfo(entries);
    // release: pairs with done_by().
    done.store(1, std::memory_order_release);
    os().futex_wake(reinterpret_cast<uint32_t*>(&done));
  }
  bool done_by(Deadline deadline) {
    while (!done.load(std::memory_order_acquire)) {
      if (deadline.passed()) return false;
      os().futex_wait(reinterpret_cast<uint32_t*>(&done), 0, deadline.left());
    }
    return true;
  }

  const std::string host;
  int failure = 0;
  std::vector<SocketAddress> found;
  std::atomic<uint32_t> done{0};
};

Result<std::vector<SocketAddress>> look_up(const std::string& host, Deadline deadline) {
  auto lookup = std::make_shared<Lookup>(host);
  auto theirs = std::make_unique<std::shared_ptr<Lookup>>(lookup);
  unsigned long thread = 0;
  ThreadBody body = [](void* context) {
    std::unique_ptr<std::shared_ptr<Lookup>> own(static_cast<std::shared_ptr<Lookup>*>(context));
    (*own)->run();
  };
  OH_RETURN_IF_ERROR(start_thread("onehop-resolve", body, theirs.get(), &thread));
  static_cast<void>(theirs.release());  // owned by the thread
  detach_thread(thread);
  if (!lookup->done_by(deadline)) {
    return timed_out(deadline.length(),
                     "the host '%s' was looked up, and no name server answered; give the numeric "
                     "address, or a longer timeout",
                     host.c_str());
  }
  if (lookup->failure != 0) {
    return error(OH_ERR_UNREACHABLE, "cannot resolve the host '%s': %s", host.c_str(),
                 gai_strerror(lookup->failure));
  }
  return std::move(lookup->found);
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(std::string_view host_and_port, Deadline deadline) {
  size_t colon = host_and_port.rfind(':');
  Result<int64_t> port = parse_integer(
      colon == std::string_view::npos ? "" : host_and_port.substr(colon + 1), 1, 65535);
  std::string host(host_and_port.substr(0, colon));
  if (!port.ok() || host.empty()) {
    return error(OH_ERR_INVALID, "'%.*s' is no address: expected HOST:PORT or [IPv6]:PORT",
                 static_cast<int>(host_and_port.size()), host_and_port.data());
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  Result<SocketAddress> literal = SocketAddress::numeric(host, static_cast<uint16_t>(*port));
  if (literal.ok()) return std::vector<SocketAddress>{*literal};
  OH_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, look_up(host, deadline));
  for (SocketAddress& address : addresses) address.set_port(static_cast<uint16_t>(*port));
  return addresses;
}

Result<std::vector<SocketAddress>> reachable_addresses(const std::string& interfaces) {
  std::vector<SocketAddress> addresses;
  if (interfaces == "any") {
    OH_ASSIGN_OR_RETURN(std::vector<InterfaceAddress> present, interface_addresses());
    for (const InterfaceAddress& entry : present) addresses.push_back(entry.address);
    if (addresses.empty()) return no_such_interface(interfaces, interfaces, present);
  } else {
    OH_ASSIGN_OR_RETURN(addresses, named_addresses(interfaces));
  }
  if (!std::all_of(addresses.begin(), addresses.end(), is_loopback)) {
    std::erase_if(addresses, is_loopback);
  }
  return addresses;
}

namespace {

// Returns 0, or -errno.
int try_listen(const SocketAddress& address, UniqueFd* listening) {
  int result = os().socket(address.family(), SOCK_STREAM);
  if (result < 0) return result;
  UniqueFd fd(result);
  int on = 1;
  int off = 0;
  if (address.family() != AF_UNIX) {
    os().setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  }
  if (address.family() == AF_INET6) {
    os().setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  result = os().bind(fd.get(), address.get(), address.size);
  if (result < 0) return result;
  result = os().listen(fd.get(), kBacklog);
  if (result >= 0) {
    *listening = std::move(fd);
    return 0;
  }
  const auto* path = reinterpret_cast<const sockaddr_un*>(&address.storage)->sun_path;
  if (address.family() == AF_UNIX && path[0]) unlink(path);
  return result;
}

// Listens on every address of the list at one port. Drops addresses that the host does not have
// (yet: IPv6 checks new ones for duplicates). Returns nothing if the port is taken on one of them.
std::vector<UniqueFd> listen_on_all(std::vector<SocketAddress>& addresses, uint16_t port) {
  std::vector<UniqueFd> listening;
  for (auto address = addresses.begin(); address != addresses.end();) {
    address->set_port(port);
    UniqueFd fd;
    int result = try_listen(*address, &fd);
    if (result == -EADDRNOTAVAIL) {
      OH_LOG(kWarn, "cannot listen on %s: this host has no such address", address->text().c_str());
      address = addresses.erase(address);
      continue;
    }
    if (result < 0) return {};
    listening.push_back(std::move(fd));
    ++address;
  }
  return listening;
}

// Listens on all addresses of the host: on one IPv6 socket for both families, or else on IPv4.
std::vector<UniqueFd> listen_on_any(uint16_t port) {
  std::vector<UniqueFd> listening(1);
  for (int family : {AF_INET6, AF_INET}) {
    SocketAddress address = any_address(family);
    address.set_port(port);
    if (try_listen(address, &listening.front()) == 0) return listening;
  }
  return {};
}

}  // namespace

Result<UniqueFd> listen_on(const SocketAddress& address) {
  UniqueFd fd;
  int result = try_listen(address, &fd);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "listen on " + address.text());
  return fd;
}

Result<std::vector<UniqueFd>> listen_in_range(const std::string& interfaces, uint16_t first,
                                              uint16_t last, uint16_t* port) {
  const bool any = interfaces == "any";
  std::vector<SocketAddress> addresses;
  if (!any) {
    OH_ASSIGN_OR_RETURN(addresses, named_addresses(interfaces));
  }
  for (uint32_t number = first; number <= last; ++number) {
    auto candidate = static_cast<uint16_t>(number);
    std::vector<UniqueFd> listening;
    if (any) {
      listening = listen_on_any(candidate);
    } else {
      listening = listen_on_all(addresses, candidate);
      if (addresses.empty()) {
        return error(OH_ERR_CONFIG,
                     "ONEHOP_INTERFACE=%s: this host has none of these addresses; name its "
                     "interfaces or its own addresses, or any",
                     interfaces.c_str());
      }
    }
    if (listening.empty()) continue;
    *port = candidate;
    return listening;
  }
  return std::vector<UniqueFd>();
}

Status wait_ready(int fd, short events, Deadline deadline, const char* what) {
  while (true) {
    pollfd entry{fd, events, 0};
    int result = os().poll(&entry, 1, deadline.left());
    if (result > 0) return {};
    if (result < 0 && result != -EINTR) {
      return Status::from_errno(OH_ERR_SYSTEM, -result, strf("poll while %s", what));
    }
    if (deadline.passed()) return timed_out(deadline.length(), "while %s", what);
  }
}

namespace {

// A connection attempt in progress.
struct Attempt {
  UniqueFd fd;
  const SocketAddress* address;
  int failure = 0;  // errno, once it has failed
};

// For a Unix socket with a full backlog. The kernel admits threads that block in connect() in
// order; a thread that keeps retrying may never be admitted.
int connect_in_turn(int fd, const SocketAddress& address, Deadline deadline) {
  constexpr int64_t kAtOnce = 100 * kMillisecond;
  int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0) return -errno;
  int result = -EAGAIN;
  while ((result == -EAGAIN || result == -EINTR) && !deadline.passed()) {
    // At least 1 us: 0 would mean no limit.
    int64_t us = std::clamp<int64_t>(deadline.left(), kMicrosecond, kAtOnce) / kMicrosecond;
    timeval most{0, us};
    int limited = os().setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof(most));
    if (limited < 0) return limited;
    result = os().connect(fd, address.get(), address.size);
  }
  if (fcntl(fd, F_SETFL, flags) < 0) return -errno;
  return result;
}

Attempt begin_connect(const SocketAddress& address, Deadline deadline) {
  Attempt attempt{UniqueFd(), &address};
  int result = os().socket(address.family(), SOCK_STREAM);
  if (result >= 0) {
    attempt.fd = UniqueFd(result);
    do {
      result = os().connect(attempt.fd.get(), address.get(), address.size);
    } while (result == -EINTR && !deadline.passed());
  }
  if (result == -EAGAIN && address.family() == AF_UNIX && attempt.fd.valid()) {
    result = connect_in_turn(attempt.fd.get(), address, deadline);
  }
  if (result < 0 && result != -EINPROGRESS) attempt.failure = -result;
  return attempt;
}

// While no process listens on a port of the ephemeral range, a connection to it may get the same
// local port. Then it is connected to itself, and blocks the port for listeners.
bool is_to_itself(int fd) {
  sockaddr_storage ends[2];
  socklen_t sizes[2] = {sizeof(ends[0]), sizeof(ends[1])};
  return getsockname(fd, reinterpret_cast<sockaddr*>(&ends[0]), &sizes[0]) == 0 &&
         getpeername(fd, reinterpret_cast<sockaddr*>(&ends[1]), &sizes[1]) == 0 &&
         sizes[0] == sizes[1] && std::memcmp(&ends[0], &ends[1], sizes[0]) == 0;
}

}  // namespace

Result<UniqueFd> connect_to(const std::vector<SocketAddress>& addresses, Deadline deadline) {
  std::vector<Attempt> attempts;
  attempts.reserve(addresses.size());
  for (const SocketAddress& address : addresses) {
    attempts.push_back(begin_connect(address, deadline));
  }
  while (true) {
    std::vector<pollfd> waiting;
    waiting.reserve(attempts.size());
    for (Attempt& attempt : attempts) {
      waiting.push_back({attempt.failure ? -1 : attempt.fd.get(), POLLOUT, 0});
    }
    bool any = std::any_of(waiting.begin(), waiting.end(), [](auto& w) { return w.fd >= 0; });
    int ready = any ? os().poll(waiting.data(), waiting.size(), deadline.left()) : 0;
    if (ready < 0 && ready != -EINTR) {
      return Status::from_errno(OH_ERR_SYSTEM, -ready, "poll while connecting");
    }
    for (size_t i = 0; ready > 0 && i < attempts.size(); ++i) {
      if (waiting[i].fd < 0 || !waiting[i].revents) continue;
      socklen_t size = sizeof(attempts[i].failure);
      int asked = os().getsockopt(waiting[i].fd, SOL_SOCKET, SO_ERROR, &attempts[i].failure, &size);
      if (asked < 0) attempts[i].failure = -asked;
      if (attempts[i].failure) continue;
      if (attempts[i].address->family() == AF_UNIX) return std::move(attempts[i].fd);
      if (is_to_itself(waiting[i].fd)) {
        // Close with a reset, so that the port is free at once.
        linger at_once{1, 0};
        os().setsockopt(waiting[i].fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        attempts[i].fd.reset();
        attempts[i].failure = ECONNREFUSED;
        continue;
      }
      send_at_once(waiting[i].fd);
      return std::move(attempts[i].fd);
    }
    if (any && !deadline.passed()) continue;
    std::string tried;
    for (Attempt& attempt : attempts) {
      std::string why = attempt.failure ? errno_text(attempt.failure) : "no answer in time";
      tried += strf("%s%s (%s)", tried.empty() ? "" : ", ", attempt.address->text().c_str(),
                    why.c_str());
    }
    if (any) return timed_out(deadline.length(), "cannot connect: tried %s", tried.c_str());
    return error(OH_ERR_UNREACHABLE, "cannot connect: tried %s",
                 tried.empty() ? "no address at all" : tried.c_str());
  }
}

bool is_unix_socket(int fd) {
  int family = AF_UNSPEC;
  socklen_t size = sizeof(family);
  return os().getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size) >= 0 && family == AF_UNIX;
}

void send_at_once(int fd) {
  int on = 1;
  os().setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void give_up_after(int fd, int64_t silence_ns) {
  if (silence_ns <= 0) return;
  auto set = [fd](int option, int64_t value) {
    int raw = static_cast<int>(value);
    os().setsockopt(fd, IPPROTO_TCP, option, &raw, sizeof(raw));
  };
  // Limits unacknowledged data. It also ends keepalive probes to an idle host.
  set(TCP_USER_TIMEOUT, std::max(silence_ns, kSecond) / kMillisecond);
  // Several probes may be lost.
  int64_t seconds = std::max<int64_t>(silence_ns / kSecond, 1);
  set(TCP_KEEPIDLE, std::max<int64_t>(seconds / 3, 1));
  set(TCP_KEEPINTVL, std::max<int64_t>(seconds / 6, 1));
  int on = 1;
  os().setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

Result<SocketAddress> other_end(int fd) {
  SocketAddress address;
  address.size = sizeof(address.storage);
  auto* raw = reinterpret_cast<sockaddr*>(&address.storage);
  int result = os().getpeername(fd, raw, &address.size);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getpeername");
  return address;
}

Result<Caller> identify_caller(int fd) {
  OH_ASSIGN_OR_RETURN(SocketAddress address, other_end(fd));
  Caller caller;
  if (address.family() == AF_UNIX) {
    caller.local = true;
    OH_ASSIGN_OR_RETURN(caller.credentials, peer_credentials(fd));
    // No IP address starts with these bits.
    caller.source = {UINT64_MAX, static_cast<uint64_t>(caller.credentials.pid)};
  } else if (address.family() == AF_INET) {
    caller.source.low = v4(address)->sin_addr.s_addr;
  } else {
    const in6_addr& ip = v6(address)->sin6_addr;
    std::memcpy(&caller.source.high, ip.s6_addr, sizeof(uint64_t));
    if (IN6_IS_ADDR_V4MAPPED(&ip)) std::memcpy(&caller.source.low, ip.s6_addr + 12, 4);
  }
  return caller;
}

Result<PeerCredentials> peer_credentials(int fd) {
  ucred raw{};
  socklen_t size = sizeof(raw);
  int result = os().getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &raw, &size);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "SO_PEERCRED");
  return PeerCredentials{raw.pid, raw.uid};
}

}  // namespace oh
