// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: N ranks exchange their addresses over one server. Each rank proves that it knows the
// key (from ONEHOP_SECRET or the unique id), registers its rank and address, and receives the table
// of all addresses once all ranks have registered.
//
//   rank                                            server (in rank 0, or where the id was made)
//     Join      version, nonce                 ──▶
//                                              ◀──  Challenge  nonce, MAC
//     Register  MAC, rank, size, address       ──▶
//                                              ◀──  Table      communicator, addresses by rank
//     Query     (when its deadline is near)    ──▶
//                                              ◀──  Missing    ranks that have not registered
//
// A restarted rank sends the same messages while rank 0 is in reconnect() for it. It receives
// Return: the table of the existing communicator with the rank's new address, and the number of
// barriers.
//
// Threading: a server runs on the watcher's thread; rendezvous_join() blocks its caller.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "control/address.h"
#include "control/node.h"

namespace oh {

struct RendezvousTable {
  Id communicator{};
  std::vector<Bytes> addresses;  // by rank
  // This rank was restarted and rejoins an existing communicator, which has passed `barriers`
  // barriers.
  bool returned = false;
  uint64_t barriers = 0;
};

// The key of a tcp:// rendezvous, derived from the secret. Without a secret it is a public
// constant, which only loopback addresses may use; OH_ERR_AUTH otherwise.
Result<Key> rendezvous_key(const Crypto& crypto, const std::string& secret,
                           const std::vector<SocketAddress>& hosts, const std::string& url);

// Handle of a running server. Its destructor stops the server, from any thread: the port is free
// when it returns. Ranks may still read a table that was sent to them.
class RendezvousServer {
 public:
  virtual ~RendezvousServer() = default;
};

struct Registration {
  uint32_t rank = 0;
  uint32_t size = 0;
  Bytes address;
};

// An existing communicator that restarted ranks rejoin.
class ReturnGate {
 public:
  virtual ~ReturnGate() = default;
  // Returns the rank's Return message (encode_return()). OH_AGAIN: the communicator does not expect
  // this rank now; the rank retries. On the watcher's thread.
  virtual Result<Bytes> on_return(const Registration& registration) = 0;
};
// Serves one communicator on exactly this address; retries for a few seconds while a previous
// server still holds the port. With a gate: serves restarted ranks that rejoin a communicator.
Result<std::unique_ptr<RendezvousServer>> rendezvous_serve(
    std::shared_ptr<Node> node, const Crypto& crypto, const Key& key, const SocketAddress& address,
    const Config& config, Deadline deadline, const std::weak_ptr<ReturnGate>* gate = nullptr);
// Serves one communicator on a free port of the configured range until all of its ranks have read
// their table or the timeout has passed. Returns the unique id with which all ranks join.
Result<Bytes> rendezvous_unique_id(std::shared_ptr<Node> node, const Crypto& crypto,
                                   const Config& config);

struct RendezvousJoin {
  std::vector<SocketAddress> hosts;
  Key key{};
  uint32_t rank = 0;
  uint32_t size = 0;
  Bytes address;
};

// Joins and waits for the table. Retries until the deadline while there is no server yet or the
// server closes the connection. OH_ERR_TIMEOUT: its text names the ranks that have not registered,
// or says why no server was reached. OH_ERR_CANCELLED: the deadline was cancelled.
Result<RendezvousTable> rendezvous_join(const Crypto& crypto, const RendezvousJoin& join,
                                        Deadline deadline);

inline constexpr uint32_t kMaxRanks = 1 << 20;

// The messages of the rendezvous.
enum class Meeting : uint8_t {
  kJoin = 32,
  kChallenge = 33,
  kRegister = 34,
  kTable = 35,
  kRefuse = 36,
  kQuery = 37,
  kMissing = 38,
  kReturn = 39,
};
Bytes encode_join(ByteView nonce);
Status check_join(ByteView payload);
Bytes encode_registration(const Digest& mac, uint32_t rank, uint32_t size, ByteView address);
Result<Registration> decode_registration(ByteView payload, const Digest& expected);
Bytes encode_table(const Id& communicator, const std::vector<Bytes>& addresses);
Result<RendezvousTable> decode_table(ByteView payload, uint32_t size);
Bytes encode_return(uint64_t barriers, const Id& communicator, const std::vector<Bytes>& addresses);
Result<RendezvousTable> decode_return(ByteView payload, uint32_t size);
Result<Digest> meeting_mac(const Crypto& crypto, const Key& key, char role, ByteView join,
                           ByteView nonce);

}  // namespace oh
