// SPDX-License-Identifier: Apache-2.0
#include "platform/os/crypto.h"

#include <errno.h>

#include "unit/faulty_os.h"
#include "unit/support.h"

namespace crypto_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

Bytes from_hex(std::string_view text) {
  Bytes bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16)));
  }
  return bytes;
}

struct Vector {
  Bytes key;
  Bytes data;
  const char* digest;  // only the first bytes in case 5
};

// RFC 4231, section 4.
std::vector<Vector> vectors() {
  auto text = [](std::string_view view) { return Bytes(view.begin(), view.end()); };
  return {
      {Bytes(20, 0x0b), text("Hi There"),
       "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
      {text("Jefe"), text("what do ya want for nothing?"),
       "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
      {Bytes(20, 0xaa), Bytes(50, 0xdd),
       "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"},
      {from_hex("0102030405060708090a0b0c0d0e0f10111213141516171819"), Bytes(50, 0xcd),
       "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b"},
      {Bytes(20, 0x0c), text("Test With Truncation"), "a3b6167473100ee06e0c796c2955552b"},
      {Bytes(131, 0xaa), text("Test Using Larger Than Block-Size Key - Hash Key First"),
       "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
      {Bytes(131, 0xaa),
       text("This is a test using a larger than block-size key and a larger than block-size data. "
            "The key needs to be hashed before being used by the HMAC algorithm."),
       "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2"},
  };
}

TEST(CryptoTest, ComputesTheVectorsOfRfc4231) {
  Result<const Crypto*> crypto = Crypto::open("");
  ASSERT_TRUE(is_ok(crypto));
  for (const Vector& vector : vectors()) {
    Result<Digest> digest = (*crypto)->hmac(vector.key, vector.data);
    ASSERT_TRUE(is_ok(digest));
    Bytes expected = from_hex(vector.digest);
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), digest->begin())) << vector.digest;
  }
}

TEST(CryptoTest, TakesEmptyKeysAndData) {
  Result<const Crypto*> crypto = Crypto::open("");
  ASSERT_TRUE(is_ok(crypto));
  Result<Digest> digest = (*crypto)->hmac({}, {});
  ASSERT_TRUE(is_ok(digest));
  EXPECT_TRUE(equal_digests(
      *digest, from_hex("b613679a0814d9ec772f95d778c35fc5ff1697c493715653c6c712144292c5ad")));
}

TEST(CryptoTest, IsOpenedOncePerName) {
  Result<const Crypto*> first = Crypto::open("");
  ASSERT_TRUE(is_ok(first));
  EXPECT_EQ(*Crypto::open(""), *first);
  Result<const Crypto*> named = Crypto::open((*first)->library());
  ASSERT_TRUE(is_ok(named));
  EXPECT_EQ((*named)->library(), (*first)->library());
}

TEST(CryptoTest, WithoutALibraryItSaysWhatToDo) {
  EXPECT_TRUE(fails_with(Crypto::open("/no/such/libcrypto.so"), OH_ERR_NO_CRYPTO,
                         "name it in ONEHOP_LIBCRYPTO"));
  EXPECT_TRUE(fails_with(Crypto::open("/no/such/libcrypto.so"), OH_ERR_NO_CRYPTO, "No such file"));
  // A library without the functions.
  EXPECT_TRUE(fails_with(Crypto::open("libm.so.6"), OH_ERR_NO_CRYPTO,
                         "libm.so.6 lacks HMAC or EVP_sha256"));
}

TEST(CryptoTest, DigestsAreEqualOrNot) {
  Digest digest{};
  digest[31] = 1;
  Bytes same(digest.begin(), digest.end());
  EXPECT_TRUE(equal_digests(digest, same));
  for (size_t byte = 0; byte < 32; ++byte) {
    Bytes other = same;
    other[byte] ^= 0x80;
    EXPECT_FALSE(equal_digests(digest, other)) << byte;
  }
  EXPECT_FALSE(equal_digests(digest, ByteView(same).first(31)));
  EXPECT_FALSE(equal_digests(digest, {}));
  same.push_back(0);
  EXPECT_FALSE(equal_digests(digest, same));
}

TEST(CryptoTest, KeysAreRandom) {
  Result<Key> one = random_key();
  Result<Key> two = random_key();
  ASSERT_TRUE(is_ok(one));
  EXPECT_NE(*one, *two);
  unit::FaultyOs faulty;
  faulty.arm(unit::Call::getrandom, 0, EIO);
  EXPECT_TRUE(fails_with(random_key(), OH_ERR_SYSTEM, "getrandom: EIO"));
}

}  // namespace
}  // namespace crypto_test
