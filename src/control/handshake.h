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

struct HelloMessage {
  uint16_t major = 0;
  uint16_t minor = 0;
  Id endpoint{};
  ByteView greeting;
};
Bytes encode_hello(const Id& endpoint, ByteView nonce, ByteView greeting);
Result<HelloMessage> decode_hello(ByteView payload);

Bytes encode_refusal(const Status& why);
// The refusal as a status of ours.
Status decode_refusal(ByteView payload);

class Initiator {
 public:
  // Connects and authenticates; afterwards greeting() is the acceptor's. `local_only` keeps to Unix
  // sockets.
  Status start(const Address& address, const Crypto& crypto, ByteView greeting, Deadline deadline);
  ByteView greeting() const { return their_greeting_; }
  // Whether the link runs over a Unix socket, over which descriptors can pass.
  bool local() const { return local_; }
  const PeerCredentials& credentials() const { return credentials_; }

  struct Answer {
    Bytes answer;
    std::vector<UniqueFd> fds;
  };
  Result<Answer> exchange(ByteView offer, std::vector<int> fds, Deadline deadline);
  Status confirm(ByteView verdict, Deadline deadline);
  MessageSocket take_socket() { return std::move(socket_); }

 private:
  Status connect(const Address& address, Deadline deadline);
  Result<MessageSocket::Message> expect(Hello type, Deadline deadline, const char* what);

  MessageSocket socket_;
  bool local_ = false;
  PeerCredentials credentials_;
  Bytes their_greeting_;
  Digest mac_{};
};

}  // namespace oh
