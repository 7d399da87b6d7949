// SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: N ranks exchange their addresses over one server. Each proves that it knows the key
// (from ONEHOP_SECRET, or from the unique id), registers its rank and address, and gets the table
// of all when the last has come.
//
//   rank                                            server (in the process of rank 0, or of the id)
//     Join      version, nonce                 ──▶
//                                              ◀──  Challenge  nonce, MAC
//     Register  MAC, rank, size, address       ──▶
//                                              ◀──  Table      communicator, addresses by rank
//     Query     (when its deadline is near)    ──▶
//                                              ◀──  Missing    ranks that have not come
//
// A rank that was restarted says the same, while rank 0 is in reconnect() for it, and gets Return:
// the table of the communicator that had met, with its new address, and the number of barriers.
//
// Threading: a server runs on the watcher's thread; join() blocks its caller.
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
  // We came back to a communicator that had met; its barriers so far.
  bool returned = false;
  uint64_t barriers = 0;
};

// The key of a tcp:// rendezvous: from the secret, or a public one where the address is loopback.
Result<Key> rendezvous_key(const Crypto& crypto, const std::string& secret,
                           const std::vector<SocketAddress>& hosts, const std::string& url);

// Keeps a server running; destroying it stops the server, from any thread: its port is free then,
// and ranks that have not read their table yet still may.
class RendezvousServer {
 public:
  virtual ~RendezvousServer() = default;
};

struct Registration {
  uint32_t rank = 0;
  uint32_t size = 0;
  Bytes address;
};

// A communicator that has met, as ranks come back to it that were restarted.
class ReturnGate {
 public:
  virtual ~ReturnGate() = default;
  // What the rank has to know: encode_return(). OH_AGAIN: it is not awaited now, and tries again.
  // On the watcher's thread.
  virtual Result<Bytes> on_return(const Registration& registration) = 0;
};
// Serves one communicator on exactly this address, which a former server may still have for a
// moment. With a gate: serves ranks that come back to a communicator that has met.
Result<std::unique_ptr<RendezvousServer>> rendezvous_serve(
    std::shared_ptr<Node> node, const Crypto& crypto, const Key& key, const SocketAddress& address,
    const Config& config, Deadline deadline, const std::weak_ptr<ReturnGate>* gate = nullptr);
// Serves one communicator on a free port of the range, until all of its ranks have their table or
// the timeout has passed; returns the unique id that all ranks join with.
Result<Bytes> rendezvous_unique_id(std::shared_ptr<Node> node, const Crypto& crypto,
                                   const Config& config);

struct RendezvousJoin {
  std::vector<SocketAddress> hosts;
  Key key{};
  uint32_t rank = 0;
  uint32_t size = 0;
  Bytes address;
};

// Joins and waits for the table; where the server goes away, or does not serve yet, again until the
// deadline. Its error then names the ranks that did not come. OH_ERR_CANCELLED: by the deadline's
// other end.
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
