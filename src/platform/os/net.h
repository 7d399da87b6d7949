// SPDX-License-Identifier: Apache-2.0
//
// Socket addresses, listening and connecting, with deadlines.
//
// Threading: any thread; values.
#pragma once

#include <sys/socket.h>

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "platform/os/handles.h"

namespace oh {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  bool is_loopback() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  // "10.0.0.1:29400", "[::1]:29400", "unix:@name" (abstract) or "unix:/path".
  std::string text() const;

  static SocketAddress unix_abstract(std::string_view name);
  static SocketAddress unix_path(std::string_view path);
  // A numeric IPv4 or IPv6 address.
  static Result<SocketAddress> numeric(const std::string& host, uint16_t port);
};

// Resolves "10.0.0.1:29400", "[::1]:29400" or "host.name:29400". At the deadline a detached thread
// keeps the look-up.
Result<std::vector<SocketAddress>> resolve(std::string_view host_and_port, Deadline deadline);

// The addresses at which other processes can reach a listener on `interfaces` (see
// ONEHOP_INTERFACE). Excludes loopback, unless there is nothing else. Ports are zero.
Result<std::vector<SocketAddress>> reachable_addresses(const std::string& interfaces);

Result<UniqueFd> listen_on(const SocketAddress& address);
// Listens on the first port of [first, last] that is free on all addresses of `interfaces`. Returns
// one socket per address, or one for both families for "any"; none if no port is free.
Result<std::vector<UniqueFd>> listen_in_range(const std::string& interfaces, uint16_t first,
                                              uint16_t last, uint16_t* port);

// Tries all addresses at once and returns the first connection.
Result<UniqueFd> connect_to(const std::vector<SocketAddress>& addresses, Deadline deadline);

bool is_unix_socket(int fd);
// Sets TCP_NODELAY: small messages do not wait for the acknowledgement of earlier ones.
void send_at_once(int fd);
// Makes a TCP connection fail with ETIMEDOUT when the remote host has not answered for
// `silence_ns`, also while idle. 0: never. Resolution 1 s, minimum 1 s.
void give_up_after(int fd, int64_t silence_ns);

struct PeerCredentials {
  int pid = 0;  // 0: not visible (another PID namespace)
  uint32_t uid = 0;
};
// Credentials of the process at the other end of a Unix socket.
Result<PeerCredentials> peer_credentials(int fd);

// The source by which connections are counted: the process for a Unix socket; for TCP the IPv4
// address or the 64-bit IPv6 prefix.
struct ConnectionSource {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const ConnectionSource&) const = default;
};

// The process that has connected to a local socket.
struct Caller {
  bool local = false;           // over a Unix socket
  PeerCredentials credentials;  // if local
  ConnectionSource source;
};
Result<Caller> identify_caller(int fd);
// The address of the other end of a connection.
Result<SocketAddress> other_end(int fd);

// Waits until the descriptor is ready for `events`; OH_ERR_TIMEOUT at the deadline.
Status wait_ready(int fd, short events, Deadline deadline, const char* what);

}  // namespace oh
