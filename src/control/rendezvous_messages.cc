// SPDX-License-Identifier: Apache-2.0
#include "control/handshake.h"
#include "control/rendezvous.h"

namespace oh {

Bytes encode_join(ByteView nonce) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u16(kWireMajor);
  writer.u16(kWireMinor);
  writer.raw(nonce);
  return bytes;
}

Status check_join(ByteView payload) {
  Reader reader(payload);
  uint16_t major = reader.u16();
  uint16_t minor = reader.u16();
  reader.raw(kHelloNonce);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a join of %zu bytes", payload.size());
  return check_wire_version(major, minor);
}

Result<Digest> meeting_mac(const Crypto& crypto, const Key& key, char role, ByteView join,
                           ByteView nonce) {
  Bytes signed_bytes;
  Writer writer(signed_bytes);
  writer.u8(static_cast<uint8_t>(role));
  writer.bytes(join);
  writer.bytes(nonce);
  return crypto.hmac(key, signed_bytes);
}

Bytes encode_registration(const Digest& mac, uint32_t rank, uint32_t size, ByteView address) {
  Bytes bytes;
  Writer writer(bytes);
  writer.raw(mac);
  writer.u32(rank);
  writer.u32(size);
  writer.bytes(address);
  return bytes;
}

Result<Registration> decode_registration(ByteView payload, const Digest& expected) {
  Reader reader(payload);
  ByteView mac = reader.raw(sizeof(Digest));
  Registration registration;
  registration.rank = reader.u32();
  registration.size = reader.u32();
  ByteView address = reader.bytes(Address::kMaxBytes);
  if (!reader.at_end()) {
    return error(OH_ERR_PROTOCOL, "a registration of %zu bytes", payload.size());
  }
  if (!equal_digests(expected, mac)) {
    return error(OH_ERR_AUTH,
                 "the secret is wrong: ONEHOP_SECRET, or the unique id, must be the "
                 "same for all ranks");
  }
  if (registration.size == 0 || registration.size > kMaxRanks ||
      registration.rank >= registration.size) {
    return error(OH_ERR_INVALID, "rank %u of %u makes no sense", registration.rank,
                 registration.size);
  }
  registration.address.assign(address.begin(), address.end());
  return registration;
}

Bytes encode_table(const Id& communicator, const std::vector<Bytes>& addresses) {
  Bytes bytes;
  Writer writer(bytes);
  writer.raw(communicator);
  writer.u32(static_cast<uint32_t>(addresses.size()));
  for (const Bytes& address : addresses) writer.bytes(address);
  return bytes;
}

Result<RendezvousTable> decode_table(ByteView payload, uint32_t size) {
  Reader reader(payload);
  RendezvousTable table;
  ByteView id = reader.raw(table.communicator.size());
  std::copy(id.begin(), id.end(), table.communicator.begin());
  uint32_t count = reader.u32();
  for (uint32_t i = 0; reader.ok() && i < count; ++i) {
    ByteView address = reader.bytes(Address::kMaxBytes);
    table.addresses.emplace_back(address.begin(), address.end());
  }
  if (!reader.at_end() || count != size) {
    return error(OH_ERR_PROTOCOL, "the rendezvous sent a table of %u ranks instead of %u", count,
                 size);
  }
  return table;
}

Bytes encode_return(uint64_t barriers, const Id& communicator,
                    const std::vector<Bytes>& addresses) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u64(barriers);
  writer.raw(encode_table(communicator, addresses));
  return bytes;
}

Result<RendezvousTable> decode_return(ByteView payload, uint32_t size) {
  Reader reader(payload);
  uint64_t barriers = reader.u64();
  if (!reader.ok()) return error(OH_ERR_PROTOCOL, "a return of %zu bytes", payload.size());
  OH_ASSIGN_OR_RETURN(RendezvousTable table, decode_table(payload.subspan(sizeof(barriers)), size));
  table.returned = true;
  table.barriers = barriers;
  return table;
}

Result<Key> rendezvous_key(const Crypto& crypto, const std::string& secret,
                           const std::vector<SocketAddress>& hosts, const std::string& url) {
  bool loopback = true;
  for (const SocketAddress& host : hosts) loopback = loopback && host.is_loopback();
  if (secret.empty() && !loopback) {
    return error(
        OH_ERR_AUTH,
        "the rendezvous %s is not loopback and there is no secret: set ONEHOP_SECRET to the "
        "same 16 or more characters for all ranks, or use a unique id",
        url.c_str());
  }
  return crypto.hmac(as_bytes(secret), as_bytes("onehop rendezvous"));
}

}  // namespace oh
