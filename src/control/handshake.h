// SPDX-License-Identifier: Apache-2.0
//
// The hello between two endpoints: versions, a mutual challenge-response with HMAC-SHA256 under the
// accepting endpoint's key, then one exchange of what the layers above need to set up the link.
//
//   initiator                                             acceptor
//     Hello   version, endpoint, nonce, greeting    ──▶
//                                                   ◀──   Proof    nonce, greeting, MAC
//     Offer   MAC, offer, descriptors               ──▶
//                                                   ◀──   Answer   answer, descriptors
//     Confirm verdict                               ──▶
//
// Either side may say Refuse(code, text) instead. After Confirm the socket belongs to the link, in
// plaintext.
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
// No message of the hello is larger, so that a stranger cannot make us hold much.
inline constexpr size_t kMaxHelloMessage = 24 * 1024;

// What both sides sign: who says it, the Hello message, and the Proof up to its MAC.
Result<Digest> hello_mac(const Crypto& crypto, const Key& key, char role, ByteView hello,
                         ByteView proof);

// What to do about different users; 65534 is what the kernel shows of one without a number here.
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

// The code of a refusal that asks the initiator to try again. An initiator that does not know it
// treats it as a hang-up.
inline constexpr oh_status kComeAgain = OH_ERR_PEER_LOST;
Bytes encode_refusal(const Status& why);
// The refusal as a status of ours.
Status decode_refusal(ByteView payload);

// Whether and when to try a hello again that the other side has cut short: it may have had to make
// room for others.
class HelloRetry {
 public:
  explicit HelloRetry(Deadline deadline) : deadline_(deadline) {}
  // Waits, longer each time; false when there is no use in another attempt, or no time. `told`: the
  // other side has asked for it. A peer that hangs up without a word may do so for ever.
  bool after(const Status& why, bool told);

 private:
  static constexpr int kMostHangUps = 10;
  Deadline deadline_;
  int64_t pause_ns_ = kMillisecond;
  int hang_ups_ = 0;
};

class Initiator {
 public:
  // Connects and authenticates; afterwards greeting() is the acceptor's. `local_only` keeps to Unix
  // sockets.
  Status start(const Address& address, const Crypto& crypto, ByteView greeting, Deadline deadline);
  ByteView greeting() const { return their_greeting_; }
  // Whether the link runs over a Unix socket, over which descriptors can pass.
  bool local() const { return local_; }
  const PeerCredentials& credentials() const { return credentials_; }
  // Why it does not.
  const std::string& why_not_local() const { return why_not_local_; }

  struct Answer {
    Bytes answer;
    std::vector<UniqueFd> fds;
    bool lost_fds = false;
  };
  Result<Answer> exchange(ByteView offer, std::vector<int> fds, Deadline deadline);
  Status confirm(ByteView verdict, Deadline deadline);
  MessageSocket take_socket() { return std::move(socket_); }
  // After a failure: the other side has asked to try again.
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
