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

// "10.0.0.1:29400", "[::1]:29400" or "host.name:29400" (resolved). At the deadline the look-up is
// left to a detached thread.
Result<std::vector<SocketAddress>> resolve(std::string_view host_and_port, Deadline deadline);

// The addresses at which others can reach a process that listens on `interfaces` (see
// ONEHOP_INTERFACE): without loopback, unless there is nothing else. Ports are zero.
Result<std::vector<SocketAddress>> reachable_addresses(const std::string& interfaces);

Result<UniqueFd> listen_on(const SocketAddress& address);
// Listens on the first port of [first, last] that is free on all addresses of `interfaces`: a
// socket for each, or one for both families for "any". Empty when no port is free.
Result<std::vector<UniqueFd>> listen_in_range(const std::string& interfaces, uint16_t first,
                                              uint16_t last, uint16_t* port);

// Connects to the first of the addresses that answers, all tried at once, or fails by the deadline.
Result<UniqueFd> connect_to(const std::vector<SocketAddress>& addresses, Deadline deadline);

bool is_unix_socket(int fd);
// Lets small messages of a TCP connection leave at once, not behind the answer to those before.
void send_at_once(int fd);
// Ends a TCP connection, with ETIMEDOUT, when the other host has answered nothing for so long,
// whether there is something to be sent or not. 0: never. To the second, and to 1 s at least.
void give_up_after(int fd, int64_t silence_ns);

struct PeerCredentials {
  int pid = 0;  // 0: not visible from here (another PID namespace)
  uint32_t uid = 0;
};
// Who is at the other end of a Unix socket.
Result<PeerCredentials> peer_credentials(int fd);

// Connections that are counted together: of one process over a Unix socket; over TCP of one IPv4
// address, or of one 64-bit prefix of IPv6 addresses.
struct ConnectionSource {
  uint64_t high = 0;
  uint64_t low = 0;
  auto operator<=>(const ConnectionSource&) const = default;
};

// Who has connected to a socket of ours.
struct Caller {
  bool local = false;           // over a Unix socket
  PeerCredentials credentials;  // then
  ConnectionSource source;
};
Result<Caller> identify_caller(int fd);
// The address of the other end of a connection.
Result<SocketAddress> other_end(int fd);

// Waits until the descriptor is ready for `events`; OH_ERR_TIMEOUT at the deadline.
Status wait_ready(int fd, short events, Deadline deadline, const char* what);

}  // namespace oh
