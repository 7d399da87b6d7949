// SPDX-License-Identifier: Apache-2.0
#include "control/rendezvous.h"

#include "control/handshake.h"
#include "fuzz/fuzz.h"

namespace fuzz {

using namespace oh;

std::vector<Bytes> seeds() {
  return {encode_join(Bytes(kHelloNonce)), encode_registration(Digest{}, 1, 2, Address().encode()),
          encode_table(Id{}, {Address().encode(), {}, {1}}), encode_table(Id{}, {})};
}

void check(ByteView input) {
  Exact exact(input);
  (void)check_join(exact.view()).ok();

  // With its own MAC the registration gets past the authentication.
  Digest mac{};
  for (size_t i = 0; i < mac.size() && i < input.size(); ++i) mac[i] = input[i];
  Result<Registration> registration = decode_registration(exact.view(), mac);
  if (registration.ok()) {
    require(registration->rank < registration->size && registration->size <= kMaxRanks,
            "a rank makes sense");
    require(registration->address.size() <= Address::kMaxBytes, "an address has a bound");
    Bytes again =
        encode_registration(mac, registration->rank, registration->size, registration->address);
    require(again == Bytes(input.begin(), input.end()), "a registration goes round");
  }
  uint32_t size = input.size() > 16 ? input[16] : 0;
  Result<RendezvousTable> table = decode_table(exact.view(), size);
  if (table.ok()) {
    require(table->addresses.size() == size, "a table has as many ranks as were expected");
    Bytes again = encode_table(table->communicator, table->addresses);
    require(again == Bytes(input.begin(), input.end()), "a table goes round");
  }
}

}  // namespace fuzz
