// SPDX-License-Identifier: Apache-2.0
#include "control/address.h"

#include <memory>

#include "unit/support.h"

namespace address_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

Address sample() {
  Address address;
  for (size_t i = 0; i < 16; ++i) {
    address.process[i] = static_cast<uint8_t>(i);
    address.endpoint[i] = static_cast<uint8_t>(100 + i);
  }
  for (size_t i = 0; i < 32; ++i) address.key[i] = static_cast<uint8_t>(200 + i);
  address.label = "some-host:4711";
  address.unix_name = "onehop-name";
  address.unix_path = "/tmp/onehop-name";
  for (const char* host : {"10.0.0.1", "fd00::2", "192.0.2.3"}) {
    address.hosts.push_back(*SocketAddress::numeric(host, 56801));
  }
  return address;
}

TEST(AddressTest, GoesRound) {
  Bytes bytes = sample().encode();
  EXPECT_LE(bytes.size(), Address::kMaxBytes);
  Result<Address> address = Address::decode(bytes);
  ASSERT_TRUE(is_ok(address));
  EXPECT_EQ(address->process, sample().process);
  EXPECT_EQ(address->endpoint, sample().endpoint);
  EXPECT_EQ(address->key, sample().key);
  EXPECT_EQ(address->label, "some-host:4711");
  EXPECT_EQ(address->unix_name, "onehop-name");
  EXPECT_EQ(address->unix_path, "/tmp/onehop-name");
  ASSERT_EQ(address->hosts.size(), 3u);
  EXPECT_EQ(address->hosts[0].text(), "10.0.0.1:56801");
  EXPECT_EQ(address->hosts[1].text(), "[fd00::2]:56801");
  EXPECT_EQ(address->hosts[2].text(), "192.0.2.3:56801");
  EXPECT_EQ(address->encode(), bytes);
}

TEST(AddressTest, TheLabelIsMadePrintableAndNamesStayAsTheyAre) {
  Address raw = sample();
  raw.label = "host\xff\n";
  raw.unix_name = "name\xff\n";
  raw.unix_path = "/tmp/\xff";
  Result<Address> address = Address::decode(raw.encode());
  ASSERT_TRUE(is_ok(address));
  EXPECT_EQ(address->label, "host\\xff\\x0a");
  EXPECT_EQ(address->unix_name, raw.unix_name);
  EXPECT_EQ(address->unix_path, raw.unix_path);
  EXPECT_EQ(SocketAddress::unix_abstract(address->unix_name).text(), "unix:@name\\xff\\x0a");
  EXPECT_EQ(SocketAddress::unix_path(address->unix_path).text(), "unix:/tmp/\\xff");
}

TEST(AddressTest, GoesRoundWithNothingInIt) {
  Result<Address> address = Address::decode(Address().encode());
  ASSERT_TRUE(is_ok(address));
  EXPECT_TRUE(address->hosts.empty());
  EXPECT_TRUE(address->label.empty());
}

TEST(AddressTest, CutOffAtAnyByteIsRefused) {
  Bytes bytes = sample().encode();
  for (size_t size = 0; size < bytes.size(); ++size) {
    std::unique_ptr<uint8_t[]> exact(new uint8_t[size]);
    std::copy_n(bytes.begin(), size, exact.get());
    Result<Address> address = Address::decode({exact.get(), size});
    EXPECT_TRUE(fails_with(address, OH_ERR_INVALID, strf("%zu bytes", size))) << size;
  }
  bytes.push_back(0);
  EXPECT_TRUE(fails_with(Address::decode(bytes), OH_ERR_INVALID));
}

// No single changed byte makes another valid address.
TEST(AddressTest, AnyAlteredByteIsRefused) {
  Bytes bytes = sample().encode();
  for (size_t at = 0; at < bytes.size(); ++at) {
    for (uint8_t change : {0x01, 0x80, 0xff}) {
      Bytes altered = bytes;
      altered[at] ^= change;
      Status status = Address::decode(altered).status();
      EXPECT_FALSE(status.ok()) << at;
      bool version = at >= 4 && at < 8;
      EXPECT_TRUE(status.code() == OH_ERR_INVALID || (version && status.code() == OH_ERR_VERSION))
          << at << ": " << status.text();
    }
  }
}

TEST(AddressTest, SaysWhatIsNoAddressAtAll) {
  EXPECT_TRUE(fails_with(Address::decode({}), OH_ERR_INVALID, "0 bytes are no onehop address"));
  EXPECT_TRUE(fails_with(Address::decode(as_bytes("tcp://10.0.0.1:29400")), OH_ERR_INVALID,
                         "are no onehop address"));
  EXPECT_TRUE(fails_with(Address::decode(Bytes(100000, 1)), OH_ERR_INVALID));
  Bytes large = sample().encode();
  large.resize(100000);
  EXPECT_TRUE(fails_with(Address::decode(large), OH_ERR_INVALID));
}

TEST(AddressTest, AnotherVersionIsNamed) {
  Bytes bytes = sample().encode();
  bytes[4] = 7;
  bytes[6] = 3;
  Result<Address> address = Address::decode(bytes);
  EXPECT_TRUE(fails_with(address, OH_ERR_VERSION,
                         "the endpoint of this address, unless its bytes were altered, speaks wire "
                         "version 7.3, this build 1.0: use releases"));
  EXPECT_TRUE(
      fails_with(address, OH_ERR_VERSION, strf("this build %u.%u", kWireMajor, kWireMinor)));
}

TEST(AddressTest, OneMinorVersionApartIsSpoken) {
  EXPECT_TRUE(is_ok(check_wire_version(kWireMajor, kWireMinor)));
  EXPECT_TRUE(is_ok(check_wire_version(kWireMajor, kWireMinor + 1)));
  EXPECT_TRUE(fails_with(check_wire_version(kWireMajor, kWireMinor + 2), OH_ERR_VERSION));
  EXPECT_TRUE(fails_with(check_wire_version(kWireMajor, 65535), OH_ERR_VERSION));
  EXPECT_TRUE(fails_with(check_wire_version(kWireMajor + 1, kWireMinor), OH_ERR_VERSION));
  EXPECT_TRUE(fails_with(check_wire_version(kWireMajor - 1, kWireMinor), OH_ERR_VERSION));
}

// A host with very many interfaces (for example, one per container) also gets an address.
TEST(AddressTest, AsManyHostsAsThereAre) {
  Address address = sample();
  address.label = std::string(80, 'l');
  for (int i = 0; i < 300; ++i) {
    std::string host = i % 2 ? strf("10.1.%d.%d", i / 250, i % 250)
                             : strf("fd00:1111:2222:3333:4444:5555:6666:%x", 0x1000 + i);
    address.hosts.push_back(*SocketAddress::numeric(host, 56801));
  }
  Bytes bytes = address.encode();
  EXPECT_LE(bytes.size(), Address::kMaxBytes);
  Result<Address> back = Address::decode(bytes);
  ASSERT_TRUE(is_ok(back));
  EXPECT_EQ(back->hosts.size(), 64u);
  EXPECT_EQ(back->hosts[0].text(), "10.0.0.1:56801");
}

}  // namespace
}  // namespace address_test
