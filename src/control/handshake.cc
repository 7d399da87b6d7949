// SPDX-License-Identifier: Apache-2.0
#include "control/handshake.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "base/text.h"
#include "platform/os/os.h"

namespace oh {
namespace {
constexpr size_t kMaxGreeting = 4096;
constexpr size_t kMaxRefusal = 1024;  // bytes of a refusal's text

std::string why_no_unix_socket(const std::string& path) {
  struct stat status{};
  // Only a socket at this path can be the peer's; any other file here, or none, proves nothing.
  const bool there = !path.empty() && stat(path.c_str(), &status) == 0 && S_ISSOCK(status.st_mode);
  if (there && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) < 0 && errno == EACCES) {
    return strf("user %u may not write to the Unix socket %s of the peer%s", geteuid(),
                path.c_str(), kOneUser);
  }
  const std::string folder = path.substr(0, path.rfind('/'));
  return strf(
      "no Unix socket of the peer is in reach, so it is on another host, or in a container that "
      "shares neither its network nor ONEHOP_SOCKET_DIR%s with this one",
      folder.empty() ? "" : ("=" + folder).c_str());
}
}  // namespace

Result<Digest> hello_mac(const Crypto& crypto, const Key& key, char role, ByteView hello,
                         ByteView proof) {
  Bytes signed_bytes;
  Writer writer(signed_bytes);
  writer.u8(static_cast<uint8_t>(role));
  writer.bytes(hello);
  writer.bytes(proof);
  return crypto.hmac(key, signed_bytes);
}

Bytes encode_hello(const Id& endpoint, ByteView nonce, ByteView greeting) {
  Bytes hello;
  Writer writer(hello);
  writer.u16(kWireMajor);
  writer.u16(kWireMinor);
  writer.raw(endpoint);
  writer.raw(nonce);
  writer.bytes(greeting);
  return hello;
}

Result<HelloMessage> decode_hello(ByteView payload) {
  Reader reader(payload);
  HelloMessage hello;
  hello.major = reader.u16();
  hello.minor = reader.u16();
  ByteView endpoint = reader.raw(hello.endpoint.size());
  reader.raw(kHelloNonce);
  hello.greeting = reader.bytes(kMaxGreeting);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a hello of %zu bytes", payload.size());
  std::copy(endpoint.begin(), endpoint.end(), hello.endpoint.begin());
  OH_RETURN_IF_ERROR(check_wire_version(hello.major, hello.minor));
  return hello;
}

Bytes encode_refusal(const Status& why) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(static_cast<uint32_t>(why.code()));
  writer.text(cut_text(why.text(), kMaxRefusal));
  return bytes;
}

Status decode_refusal(ByteView payload) {
  Reader reader(payload);
  oh_status code = status_from(reader.number<int32_t>(), OH_ERR_REFUSED);
  std::string text = printable(reader.text(kMaxRefusal), kMaxRefusal);
  if (!reader.at_end() || code == OH_OK) {
    return error(OH_ERR_PROTOCOL, "a refusal of %zu bytes", payload.size());
  }
  // An error of the peer's endpoint does not concern the local endpoint, and unknown codes have no
  // scope.
  bool ours_to_tell = status_scope(code) == OH_SCOPE_OPERATION ||
                      status_scope(code) == OH_SCOPE_LINK || code == OH_AGAIN;
  return Status(ours_to_tell ? code : OH_ERR_REFUSED, "the other side refused: " + text);
}

bool HelloRetry::after(const Status& why, bool told) {
  if (why.code() != OH_ERR_PEER_LOST || deadline_.passed()) return false;
  if (!told && ++hang_ups_ > kMostHangUps) return false;
  int64_t left = std::min(pause_ns_, deadline_.left());
  timespec pause{0, left};
  nanosleep(&pause, nullptr);
  pause_ns_ = std::min<int64_t>(2 * pause_ns_, 50 * kMillisecond);
  return !deadline_.passed();
}

Status Initiator::connect(const Address& address, Deadline deadline) {
  std::string tried;
  auto note = [&tried](const Status& why) { tried += (tried.empty() ? "" : "; ") + why.text(); };
  for (bool abstract : {true, false}) {
    const std::string& name = abstract ? address.unix_name : address.unix_path;
    if (name.empty()) continue;
    Result<UniqueFd> fd = connect_to(
        {abstract ? SocketAddress::unix_abstract(name) : SocketAddress::unix_path(name)}, deadline);
    if (fd.ok()) {
      OH_ASSIGN_OR_RETURN(credentials_, peer_credentials(fd->get()));
      if (credentials_.uid != geteuid()) {
        return error(OH_ERR_AUTH, "the socket of %s belongs to user %u, we are user %u%s",
                     address.label.c_str(), credentials_.uid, geteuid(), kOneUser);
      }
      socket_ = MessageSocket(std::move(*fd), kMaxHelloMessage);
      local_ = true;
      return {};
    }
    note(fd.status());
  }
  const std::string why = why_no_unix_socket(address.unix_path);
  why_not_local_ = tried.empty() ? why : why + " (" + tried + ")";
  Result<UniqueFd> fd = connect_to(address.hosts, deadline);
  if (!fd.ok()) {
    note(fd.status());
    // The peer has no network address: only the Unix socket can be fixed.
    if (address.hosts.empty()) tried += "; " + why;
    return error(fd.status().code(), "cannot reach endpoint %s: %s", address.label.c_str(),
                 tried.c_str());
  }
  socket_ = MessageSocket(std::move(*fd), kMaxHelloMessage);
  local_ = false;
  return {};
}

Result<MessageSocket::Message> Initiator::expect(Hello type, Deadline deadline, const char* what) {
  OH_ASSIGN_OR_RETURN(MessageSocket::Message message, socket_.receive_until(deadline, what));
  if (message.type == static_cast<uint8_t>(Hello::kRefuse)) return refused(message.payload);
  if (message.type != static_cast<uint8_t>(type)) {
    return error(OH_ERR_PROTOCOL, "while %s: a message of type %u", what, message.type);
  }
  return message;
}

Status Initiator::refused(ByteView payload) {
  Status why = decode_refusal(payload);
  told_to_retry_ = why.code() == kComeAgain;
  return why;
}

// If the acceptor has hung up, returns the reason of its refusal where it sent one.
Status Initiator::say(Hello type, ByteView head, ByteView tail, std::vector<int> fds) {
  Status sent = socket_.send(static_cast<uint8_t>(type), head, tail, std::move(fds));
  if (sent.code() != OH_ERR_PEER_LOST) return sent;
  Result<std::optional<MessageSocket::Message>> last = socket_.receive();
  const bool why = last.ok() && *last && (*last)->type == static_cast<uint8_t>(Hello::kRefuse);
  return why ? refused((*last)->payload) : sent;
}

Status Initiator::start(const Address& address, const Crypto& crypto, ByteView greeting,
                        Deadline deadline) {
  OH_RETURN_IF_ERROR(connect(address, deadline));
  uint8_t nonce[kHelloNonce];
  int result = os().getrandom(nonce, sizeof(nonce));
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  Bytes hello = encode_hello(address.endpoint, nonce, greeting);
  OH_RETURN_IF_ERROR(say(Hello::kHello, hello));

  OH_ASSIGN_OR_RETURN(MessageSocket::Message proof,
                      expect(Hello::kProof, deadline, "waiting for the other side's proof"));
  Reader reader(proof.payload);
  reader.raw(kHelloNonce);
  ByteView theirs = reader.bytes(kMaxGreeting);
  ByteView mac = reader.raw(sizeof(Digest));
  if (!reader.at_end()) {
    return error(OH_ERR_PROTOCOL, "a proof of %zu bytes", proof.payload.size());
  }
  ByteView unsigned_proof = proof.payload.first(proof.payload.size() - sizeof(Digest));
  OH_ASSIGN_OR_RETURN(Digest expected, hello_mac(crypto, address.key, 'A', hello, unsigned_proof));
  if (!equal_digests(expected, mac)) {
    return error(OH_ERR_AUTH,
                 "endpoint %s does not know its own key: the address is stale or was "
                 "altered",
                 address.label.c_str());
  }
  their_greeting_.assign(theirs.begin(), theirs.end());
  OH_ASSIGN_OR_RETURN(mac_, hello_mac(crypto, address.key, 'I', hello, unsigned_proof));
  return {};
}

Result<Initiator::Answer> Initiator::exchange(ByteView offer, std::vector<int> fds,
                                              Deadline deadline) {
  Bytes head(mac_.begin(), mac_.end());
  OH_RETURN_IF_ERROR(say(Hello::kOffer, head, offer, std::move(fds)));
  OH_ASSIGN_OR_RETURN(MessageSocket::Message message,
                      expect(Hello::kAnswer, deadline, "waiting for the other side to set up"));
  return Answer{Bytes(message.payload.begin(), message.payload.end()), std::move(message.fds),
                message.lost_fds};
}

Status Initiator::confirm(ByteView verdict, Deadline deadline) {
  OH_RETURN_IF_ERROR(say(Hello::kConfirm, verdict));
  return socket_.flush_until(deadline, "confirming the link");
}

}  // namespace oh
