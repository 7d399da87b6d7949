// SPDX-License-Identifier: Apache-2.0
#include "base/wire.h"

#include <limits>
#include <memory>

#include "unit/support.h"

namespace wire_test {
namespace {

using namespace oh;

TEST(WireTest, NumbersAreLittleEndianAndComeBack) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u8(0x01);
  writer.u16(0x0302);
  writer.u32(0x07060504);
  writer.u64(0x0f0e0d0c0b0a0908);
  writer.number<int64_t>(-2);
  for (size_t i = 0; i < 15; ++i) EXPECT_EQ(bytes[i], i + 1);
  Reader reader(bytes);
  EXPECT_EQ(reader.u8(), 0x01);
  EXPECT_EQ(reader.u16(), 0x0302);
  EXPECT_EQ(reader.u32(), 0x07060504u);
  EXPECT_EQ(reader.u64(), 0x0f0e0d0c0b0a0908u);
  EXPECT_EQ(reader.number<int64_t>(), -2);
  EXPECT_TRUE(reader.at_end());
}

TEST(WireTest, TextsAndArraysComeBack) {
  Bytes bytes;
  Writer writer(bytes);
  writer.text("a host");
  writer.text("");
  uint8_t array[4] = {9, 8, 7, 6};
  writer.raw(array);
  Reader reader(bytes);
  EXPECT_EQ(reader.text(6), "a host");
  EXPECT_EQ(reader.text(0), "");
  uint8_t back[4] = {};
  reader.array(back);
  EXPECT_EQ(std::memcmp(array, back, 4), 0);
  EXPECT_TRUE(reader.at_end());
}

// One value of each kind, so that every truncation cuts one.
Bytes sample() {
  Bytes bytes;
  Writer writer(bytes);
  writer.u8(1);
  writer.u16(2);
  writer.u32(3);
  writer.u64(4);
  writer.text("some text");
  writer.raw(as_bytes("four"));
  return bytes;
}

bool parse(ByteView view) {
  Reader reader(view);
  bool right = reader.u8() == 1 && reader.u16() == 2 && reader.u32() == 3 && reader.u64() == 4;
  right = reader.text(64) == "some text" && right;
  uint8_t four[4] = {};
  reader.array(four);
  right = std::memcmp(four, "four", 4) == 0 && right;
  EXPECT_EQ(reader.at_end(), right);
  return right;
}

TEST(WireTest, CutOffAtAnyByteIsNotAtTheEnd) {
  Bytes bytes = sample();
  EXPECT_TRUE(parse(bytes));
  for (size_t size = 0; size < bytes.size(); ++size) {
    // Exactly as large as what may be read: the sanitizer detects a read beyond it.
    std::unique_ptr<uint8_t[]> exact(new uint8_t[size]);
    std::copy_n(bytes.begin(), size, exact.get());
    EXPECT_FALSE(parse({exact.get(), size})) << size;
  }
}

TEST(WireTest, ATrailingByteIsNotTheEndEither) {
  Bytes bytes = sample();
  bytes.push_back(0);
  Reader reader(bytes);
  reader.raw(bytes.size() - 1);
  EXPECT_TRUE(reader.ok());
  EXPECT_FALSE(reader.at_end());
}

TEST(WireTest, AfterAFailureEverythingIsZero) {
  Bytes bytes = {1, 2, 3, 4, 5, 6, 7, 8};
  Reader reader(bytes);
  EXPECT_EQ(reader.raw(9).size(), 0u);
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.u8(), 0);
  EXPECT_EQ(reader.u64(), 0u);
  EXPECT_EQ(reader.text(8), "");
  uint8_t untouched[2] = {7, 7};
  reader.array(untouched);
  EXPECT_EQ(untouched[0], 7);
  EXPECT_FALSE(reader.at_end());
}

TEST(WireTest, ALengthBeyondTheLimitOrTheBytesIsRefused) {
  Bytes bytes;
  Writer(bytes).text("twelve bytes");
  EXPECT_EQ(Reader(bytes).text(12), "twelve bytes");
  Reader limited(bytes);
  EXPECT_EQ(limited.text(11), "");
  EXPECT_FALSE(limited.ok());

  for (uint32_t length : {13u, 1u << 31, std::numeric_limits<uint32_t>::max()}) {
    Bytes lying;
    Writer(lying).u32(length);
    lying.insert(lying.end(), 12, 'x');
    Reader reader(lying);
    EXPECT_TRUE(reader.bytes(std::numeric_limits<size_t>::max()).empty());
    EXPECT_FALSE(reader.ok());
  }
}

TEST(WireTest, NothingIsReadOfNothing) {
  Reader reader{ByteView()};
  EXPECT_TRUE(reader.at_end());
  EXPECT_TRUE(reader.raw(0).empty());
  EXPECT_TRUE(reader.at_end());
  EXPECT_EQ(reader.u8(), 0);
  EXPECT_FALSE(reader.ok());
}

}  // namespace
}  // namespace wire_test
