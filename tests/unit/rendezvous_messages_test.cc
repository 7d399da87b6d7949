// SPDX-License-Identifier: Apache-2.0
//
// What the ranks and the server of a rendezvous say to each other, and the key that it takes.
#include <string>
#include <vector>

#include "control/handshake.h"
#include "control/rendezvous.h"
#include "unit/support.h"

namespace rendezvous_messages_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr const char* kSecret = "a secret of more than 16 letters";

TEST(RendezvousKeyTest, ASecretIsNeededBeyondLoopback) {
  const Crypto& crypto = **Crypto::open("");
  auto key = [&](const std::string& secret, std::initializer_list<const char*> hosts) {
    std::vector<SocketAddress> all;
    for (const char* host : hosts) all.push_back(*SocketAddress::numeric(host, 1));
    return rendezvous_key(crypto, secret, all, "tcp://there:1");
  };
  EXPECT_TRUE(is_ok(key("", {"127.0.0.1"})));
  EXPECT_TRUE(is_ok(key("", {"::1", "127.0.0.1"})));
  for (const char* host : {"10.0.0.1", "fd00::2", "0.0.0.0", "::"}) {
    EXPECT_TRUE(fails_with(key("", {host}), OH_ERR_AUTH, "set ONEHOP_SECRET")) << host;
    EXPECT_TRUE(fails_with(key("", {"127.0.0.1", host}), OH_ERR_AUTH, "tcp://there:1")) << host;
    EXPECT_TRUE(is_ok(key(kSecret, {host})));
  }
  EXPECT_EQ(*key(kSecret, {"10.0.0.1"}), *key(kSecret, {"127.0.0.1"}));
  EXPECT_NE(*key(kSecret, {"10.0.0.1"}), *key("", {"127.0.0.1"}));
}

TEST(MeetingMessagesTest, AreRefusedWhenTheyAreCutOff) {
  Bytes join = encode_join(Bytes(kHelloNonce, 5));
  EXPECT_TRUE(is_ok(check_join(join)));
  Digest mac{};
  mac[0] = 1;
  Bytes registration = encode_registration(mac, 1, 2, as_bytes("address"));
  EXPECT_TRUE(is_ok(decode_registration(registration, mac)));
  Bytes table = encode_table(Id{}, {{1, 2, 3}, {}, {4}});
  EXPECT_TRUE(is_ok(decode_table(table, 3)));
  EXPECT_TRUE(fails_with(decode_table(table, 2), OH_ERR_PROTOCOL, "3 ranks instead of 2"));
  for (size_t size = 0; size < join.size(); ++size) {
    EXPECT_FALSE(check_join(ByteView(join).first(size)).ok());
  }
  for (size_t size = 0; size < registration.size(); ++size) {
    EXPECT_TRUE(
        fails_with(decode_registration(ByteView(registration).first(size), mac), OH_ERR_PROTOCOL));
  }
  for (size_t size = 0; size < table.size(); ++size) {
    EXPECT_TRUE(fails_with(decode_table(ByteView(table).first(size), 3), OH_ERR_PROTOCOL));
  }
  join[0] = 9;
  EXPECT_TRUE(fails_with(check_join(join), OH_ERR_VERSION, "9.0"));
}

}  // namespace
}  // namespace rendezvous_messages_test
