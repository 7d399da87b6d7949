// SPDX-License-Identifier: Apache-2.0
#include "message/batch/batch_offer.h"

#include "unit/support.h"

namespace batch_offer_test {
namespace {

using namespace oh;
using unit::fails_with;

const std::vector<uint64_t> kOffsets = {100, 0, 50};
const std::vector<uint64_t> kLengths = {10, 20, 0};

BlockLayout listed() {
  BlockLayout blocks;
  blocks.count = kOffsets.size();
  blocks.offsets = kOffsets.data();
  blocks.lengths = kLengths.data();
  return blocks;
}

BlockLayout strided(uint64_t count, uint64_t base, uint64_t stride, uint64_t length) {
  BlockLayout blocks;
  blocks.count = count;
  blocks.base = base;
  blocks.stride = stride;
  blocks.length = length;
  return blocks;
}

TEST(BatchOfferTest, SaysWhereTheBlocksAre) {
  Bytes bytes = BatchOffer::encode(as_bytes("descriptor"), listed());
  BatchOffer::set_op(bytes, 4711);
  Result<BatchOffer> offer = BatchOffer::decode(bytes);
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->op, 4711u);
  EXPECT_EQ(offer->descriptor.size(), 10u);
  ASSERT_EQ(offer->blocks.count, 3u);
  for (uint64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(offer->blocks.offset(i), kOffsets[i]);
    EXPECT_EQ(offer->blocks.size(i), kLengths[i]);
  }
  offer = BatchOffer::decode(BatchOffer::encode({}, strided(7, 1, 100, 3)));
  ASSERT_TRUE(offer.ok());
  EXPECT_EQ(offer->blocks.offset(6), 601u);
  EXPECT_EQ(offer->blocks.size(6), 3u);
}

TEST(BatchOfferTest, WhatIsCutOffOrAlteredIsRefused) {
  for (const BlockLayout& blocks : {listed(), strided(7, 1, 100, 3)}) {
    Bytes bytes = BatchOffer::encode(as_bytes("descriptor"), blocks);
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_TRUE(
          fails_with(BatchOffer::decode(ByteView(bytes).first(size)).status(), OH_ERR_PROTOCOL))
          << size;
    }
    bytes.push_back(0);
    EXPECT_TRUE(fails_with(BatchOffer::decode(bytes).status(), OH_ERR_PROTOCOL));
  }
  // More blocks than the limit, encoded in few bytes.
  for (uint64_t count : {BlockLayout::kMost + 1, uint64_t{1} << 61, UINT64_MAX}) {
    Bytes bytes = BatchOffer::encode({}, strided(count, 0, 0, 1));
    EXPECT_TRUE(fails_with(BatchOffer::decode(bytes).status(), OH_ERR_PROTOCOL)) << count;
    bytes[8 + 4 + 8] = 1;  // also encoded as a list
    EXPECT_TRUE(fails_with(BatchOffer::decode(bytes).status(), OH_ERR_PROTOCOL)) << count;
  }
}

TEST(BatchOfferTest, BlocksOutsideAreNamed) {
  EXPECT_EQ(*listed().measure(110, "memory"), 30u);
  EXPECT_NE(listed().measure(109, "memory").status().text().find("block 0"), std::string::npos);
  EXPECT_EQ(*strided(4, 10, 5, 5).measure(30, "memory"), 20u);
  EXPECT_TRUE(fails_with(strided(4, 10, 5, 6).measure(30, "memory").status(), OH_ERR_RANGE));
  EXPECT_TRUE(
      fails_with(strided(3, 1, UINT64_MAX, 0).measure(30, "memory").status(), OH_ERR_RANGE));
  // The sum overflows.
  EXPECT_TRUE(fails_with(strided(3, 0, 0, UINT64_MAX).measure(UINT64_MAX, "memory").status(),
                         OH_ERR_RANGE));
}

TEST(BatchOfferTest, PiecesEndWhereABlockOfEitherSideEnds) {
  uint8_t memory[200];
  LocalBlocks ours{memory, sizeof(memory), listed(), 30};
  std::vector<Block> pieces = cut(ours, strided(10, 1000, 100, 8));
  ASSERT_EQ(pieces.size(), 5u);
  const uint64_t locals[] = {100, 108, 0, 6, 14};
  const uint64_t remotes[] = {1000, 1100, 1102, 1200, 1300};
  const uint64_t sizes[] = {8, 2, 6, 8, 6};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(pieces[i].local, memory + locals[i]) << i;
    EXPECT_EQ(pieces[i].remote_offset, remotes[i]) << i;
    EXPECT_EQ(pieces[i].size, sizes[i]) << i;
  }
  // Blocks that are adjacent on both sides are merged, and empty ones are dropped.
  ours.blocks = strided(20, 0, 10, 10);
  EXPECT_EQ(cut(ours, strided(50, 0, 4, 4)).size(), 1u);
  ours.blocks = strided(20, 0, 10, 0);
  EXPECT_TRUE(cut(ours, strided(50, 0, 4, 4)).empty());
}

}  // namespace
}  // namespace batch_offer_test
