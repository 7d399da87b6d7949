// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>

#include "control/handshake.h"
#include "control/rendezvous.h"
#include "platform/os/os.h"

namespace oh {
namespace {

constexpr int64_t kQueryTime = 200 * kMillisecond;

// Exponential back-off between two attempts.
class Pauses {
 public:
  void wait() {
    timespec pause{0, next_};
    nanosleep(&pause, nullptr);
    next_ = std::min<int64_t>(2 * next_, 20 * kMillisecond);
  }

 private:
  int64_t next_ = kMillisecond;
};

Status refused_or_odd(const MessageSocket::Message& message) {
  if (message.type == static_cast<uint8_t>(Meeting::kRefuse)) {
    return decode_refusal(message.payload);
  }
  return error(OH_ERR_PROTOCOL, "the rendezvous sent a message of type %u", message.type);
}

Result<MessageSocket::Message> receive_challenge(MessageSocket& socket, Deadline deadline) {
  OH_ASSIGN_OR_RETURN(MessageSocket::Message message,
                      socket.receive_until(deadline, "waiting for the rendezvous"));
  if (message.type == static_cast<uint8_t>(Meeting::kRefuse)) {
    return decode_refusal(message.payload);
  }
  const size_t size = message.payload.size();
  if (message.type == static_cast<uint8_t>(Meeting::kChallenge) &&
      size == kHelloNonce + sizeof(Digest)) {
    return message;
  }
  return error(OH_ERR_PROTOCOL, "a message of type %u with %zu bytes came", message.type, size);
}

// The error when `where` sent no challenge. The port may belong to another program now, before the
// rendezvous has opened it or after it was closed; then the caller retries.
Status without_challenge(const Status& why, const std::string& where) {
  switch (why.code()) {
    case OH_ERR_PROTOCOL:
      return error(OH_ERR_UNREACHABLE,
                   "what listens at %s is none: it does not speak the protocol (%s)", where.c_str(),
                   why.text().c_str());
    case OH_ERR_TIMEOUT:
      return error(OH_ERR_UNREACHABLE, "what listens at %s has not answered", where.c_str());
    case OH_ERR_PEER_LOST:
      return error(OH_ERR_PEER_LOST, "what listens at %s has not answered: %s", where.c_str(),
                   why.text().c_str());
    default:
      return why;
  }
}

Status authenticate(const Crypto& crypto, const RendezvousJoin& join, MessageSocket& socket,
                    Deadline deadline) {
  // Query it now: a broken connection has no peer address.
  Result<SocketAddress> where = other_end(socket.fd());
  uint8_t nonce[kHelloNonce];
  int result = os().getrandom(nonce, sizeof(nonce));
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  Bytes hello = encode_join(nonce);
  OH_RETURN_IF_ERROR(socket.send(static_cast<uint8_t>(Meeting::kJoin), hello));
  Result<MessageSocket::Message> challenge = receive_challenge(socket, deadline);
  if (!challenge.ok()) {
    return without_challenge(challenge.status(), (where.ok() ? *where : join.hosts.front()).text());
  }
  Reader reader(challenge->payload);
  ByteView theirs = reader.raw(kHelloNonce);
  ByteView mac = reader.raw(sizeof(Digest));
  OH_ASSIGN_OR_RETURN(Digest expected, meeting_mac(crypto, join.key, 'S', hello, theirs));
  if (!equal_digests(expected, mac)) {
    return error(OH_ERR_AUTH,
                 "the rendezvous does not know our secret: ONEHOP_SECRET, or the unique "
                 "id, must be the same for all ranks");
  }
  OH_ASSIGN_OR_RETURN(Digest ours, meeting_mac(crypto, join.key, 'R', hello, theirs));
  return socket.send(static_cast<uint8_t>(Meeting::kRegister),
                     encode_registration(ours, join.rank, join.size, join.address));
}

// The timeout error, which names the ranks that have not registered.
Status name_the_missing(const RendezvousJoin& join, MessageSocket& socket, Deadline deadline) {
  Deadline soon = Deadline::after(kQueryTime);
  std::string who = "an unknown number of ranks";
  if (socket.send(static_cast<uint8_t>(Meeting::kQuery), {}).ok()) {
    Result<MessageSocket::Message> answer = socket.receive_until(soon, "asking who is missing");
    if (answer.ok() && answer->type == static_cast<uint8_t>(Meeting::kMissing)) {
      Reader reader(answer->payload);
      who = strf("%u of %u ranks:", reader.u32(), join.size);
      while (reader.remaining() >= 4) who += strf(" %u", reader.u32());
    }
  }
  return timed_out(deadline.length(),
                   "rank %u waited at the rendezvous for %s; start them, or give a longer "
                   "timeout",
                   join.rank, who.c_str());
}

// One attempt. OH_ERR_UNREACHABLE: no server; OH_ERR_PEER_LOST: the server closed the connection.
Result<RendezvousTable> join_once(const Crypto& crypto, const RendezvousJoin& join,
                                  Deadline deadline) {
  Result<UniqueFd> fd = connect_to(join.hosts, deadline);
  if (!fd.ok()) return Status(OH_ERR_UNREACHABLE, fd.status().text());
  MessageSocket socket(std::move(*fd), kMaxHelloMessage);
  OH_RETURN_IF_ERROR(authenticate(crypto, join, socket, deadline));
  socket.set_max_message(size_t{join.size} * (Address::kMaxBytes + 4) + 64);
  Result<MessageSocket::Message> message =
      socket.receive_until(deadline, "waiting for the other ranks");
  if (!message.ok()) {
    if (message.status().code() == OH_ERR_TIMEOUT && !deadline.cancelled()) {
      return name_the_missing(join, socket, deadline);
    }
    return message.status();
  }
  if (message->type == static_cast<uint8_t>(Meeting::kReturn)) {
    return decode_return(message->payload, join.size);
  }
  if (message->type != static_cast<uint8_t>(Meeting::kTable)) return refused_or_odd(*message);
  return decode_table(message->payload, join.size);
}

}  // namespace

Result<RendezvousTable> rendezvous_join(const Crypto& crypto, const RendezvousJoin& join,
                                        Deadline deadline) {
  Pauses pauses;
  std::string before;  // why the previous attempt failed: the deadline may cut the last one short
  while (true) {
    Result<RendezvousTable> table = join_once(crypto, join, deadline);
    if (table.ok()) return table;
    std::string why = table.status().text();
    oh_status code = table.status().code();
    // The server may start later than this rank. A server that closes the connection belongs to a
    // previous communicator, or to a rank 0 that gave up and may restart.
    bool may_come = code == OH_ERR_UNREACHABLE || code == OH_ERR_PEER_LOST;
    if (may_come && !deadline.passed()) {
      before = std::move(why);
      pauses.wait();
      continue;
    }
    if (deadline.cancelled()) {
      return error(OH_ERR_CANCELLED, "rank %u of %u was cancelled at the rendezvous", join.rank,
                   join.size);
    }
    if (!may_come) return table;
    if (!before.empty() && before != why) why += "; the attempt before: " + before;
    return timed_out(deadline.length(),
                     "rank %u of %u found no rendezvous: %s. Is rank 0, or the process that made "
                     "the unique id, running?",
                     join.rank, join.size, why.c_str());
  }
}

}  // namespace oh
