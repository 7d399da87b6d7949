// SPDX-License-Identifier: Apache-2.0
//
// The handshake (hello) between two endpoints: versions, a mutual challenge-response with
// HMAC-SHA256 under the accepting endpoint's key, then one exchange of opaque data with which the
// layers above set up the link.
//
//   initiator                                             acceptor
//     Hello   version, endpoint, nonce, greeting    ──▶
//                                                   ◀──   Proof    nonce, greeting, MAC
//     Offer   MAC, offer, descriptors               ──▶
//                                                   ◀──   Answer   answer, descriptors
//     Confirm verdict                               ──▶
//
// The acceptor may send Refuse(code, text) instead. After Confirm the socket belongs to the link;
// its traffic is plaintext.
//
// Threading: an Initiator belongs to one thread; see listener.h for the accepting side.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "control/address.h"
#include "platform/os/message_socket.h"
#include "platform/os/net.h"

namespace oh {

enum class Hello : uint8_t {
  kHello = 1,
  kProof = 2,
  kRefuse = 3,
  kOffer = 4,
  kAnswer = 5,
  kConfirm = 6,
};

inline constexpr size_t kHelloNonce = 32;
// Upper bound of a handshake message: limits the memory that an unauthenticated peer can occupy.
inline constexpr size_t kMaxHelloMessage = 24 * 1024;

// The MAC over the role ('I' initiator, 'A' acceptor), the Hello message, and the Proof up to its
// MAC.
Result<Digest> hello_mac(const Crypto& crypto, const Key& key, char role, ByteView hello,
                         ByteView proof);

// Remedy for different users, for error texts. The kernel reports a user that this user namespace
// does not map as 65534.
inline constexpr const char* kOneUser =
    ": run both as one user, in one user namespace or with the same mapping";

struct HelloMessage {
  uint16_t major = 0;
  uint16_t minor = 0;
  Id endpoint{};
  ByteView greeting;
};
Bytes encode_hello(const Id& endpoint, ByteView nonce, ByteView greeting);
Result<HelloMessage> decode_hello(ByteView payload);

// The code of a refusal that asks the initiator to retry. An initiator that does not know this
// meaning treats it as a hang-up.
inline constexpr oh_status kComeAgain = OH_ERR_PEER_LOST;
Bytes encode_refusal(const Status& why);
// Converts a refusal to a local status. Codes that do not concern the operation or the link become
// OH_ERR_REFUSED.
Status decode_refusal(ByteView payload);

// Decides whether and when to retry a handshake that the acceptor cut short, possibly to make room
// for other connections.
class HelloRetry {
 public:
  explicit HelloRetry(Deadline deadline) : deadline_(deadline) {}
  // Sleeps with exponential back-off. Returns false when a retry is useless or the deadline has
  // passed. `told`: the acceptor asked for a retry. Hang-ups without a reason are retried only
  // kMostHangUps times: such a peer may hang up for ever.
  bool after(const Status& why, bool told);

 private:
  static constexpr int kMostHangUps = 10;
  Deadline deadline_;
  int64_t pause_ns_ = kMillisecond;
  int hang_ups_ = 0;
};

class Initiator {
 public:
  // Connects, over a Unix socket if one is reachable, and authenticates. Afterwards greeting() is
  // the acceptor's.
  Status start(const Address& address, const Crypto& crypto, ByteView greeting, Deadline deadline);
  ByteView greeting() const { return their_greeting_; }
  // Whether the connection is a Unix socket, which can pass descriptors.
  bool local() const { return local_; }
  const PeerCredentials& credentials() const { return credentials_; }
  // Why the connection is not a Unix socket.
  const std::string& why_not_local() const { return why_not_local_; }

  struct Answer {
    Bytes answer;
    std::vector<UniqueFd> fds;
    bool lost_fds = false;
  };
  Result<Answer> exchange(ByteView offer, std::vector<int> fds, Deadline deadline);
  Status confirm(ByteView verdict, Deadline deadline);
  MessageSocket take_socket() { return std::move(socket_); }
  // After a failure: whether the acceptor asked for a retry.
  bool is_told_to_retry() const { return told_to_retry_; }

 private:
  Status say(Hello type, ByteView head, ByteView tail = {}, std::vector<int> fds = {});
  Status refused(ByteView payload);
  Status connect(const Address& address, Deadline deadline);
  Result<MessageSocket::Message> expect(Hello type, Deadline deadline, const char* what);

  MessageSocket socket_;
  bool local_ = false;
  std::string why_not_local_;
  bool told_to_retry_ = false;
  PeerCredentials credentials_;
  Bytes their_greeting_;
  Digest mac_{};
};

}  // namespace oh
