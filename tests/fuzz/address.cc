// SPDX-License-Identifier: Apache-2.0
#include "control/address.h"

#include <cstring>

#include "fuzz/fuzz.h"

namespace fuzz {

using namespace oh;

std::vector<Bytes> seeds() {
  Address address;
  std::vector<Bytes> all = {address.encode()};
  address.label = "host:1";
  address.unix_name = "name";
  address.unix_path = "/tmp/name";
  for (const char* host : {"10.0.0.1", "fd00::2"}) {
    address.hosts.push_back(*SocketAddress::numeric(host, 56800));
  }
  all.push_back(address.encode());
  return all;
}

namespace {

void decode(ByteView bytes) {
  Result<Address> address = Address::decode(bytes);
  if (!address.ok()) return;
  // Whatever is taken for an address is one: it goes round.
  Bytes again = address->encode();
  Result<Address> back = Address::decode(again);
  require(back.ok(), "an address that was decoded can be encoded");
  require(back->encode() == again, "an address goes round");
}

// The check as the encoder computes it, so that more than the check is tried.
void repair(Bytes* bytes) {
  if (bytes->size() < 17) return;
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (size_t i = 0; i + 8 < bytes->size(); ++i) hash = (hash ^ (*bytes)[i]) * 0x100000001b3ULL;
  std::memcpy(bytes->data() + bytes->size() - 8, &hash, 8);
}

}  // namespace

void check(ByteView input) {
  decode(Exact(input).view());
  Bytes repaired(input.begin(), input.end());
  repair(&repaired);
  decode(Exact(repaired).view());
}

}  // namespace fuzz
