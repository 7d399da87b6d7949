// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_packing.h"

#include "unit/support.h"

namespace unit::ucx_packing_test {
namespace {

using oh::Frame;
using oh::FrameType;
using oh::PackedFrames;

// Frames of all types with payloads of these sizes.
oh::Bytes packed(const std::vector<size_t>& sizes) {
  oh::Bytes bytes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    oh::Bytes payload(sizes[i], static_cast<uint8_t>(i + 1));
    Frame frame;
    frame.type = static_cast<FrameType>(1 + i % static_cast<size_t>(FrameType::kLast));
    frame.flags = static_cast<uint8_t>(i);
    frame.tag = 1000 + i;
    frame.length = 3 * i;
    frame.op = i << 32;
    frame.address = 7 * i;
    frame.region = static_cast<uint32_t>(i);
    frame.payload = payload.data();
    frame.payload_size = payload.size();
    const size_t before = bytes.size();
    bytes.resize(before + oh::kPackedHead + payload.size());
    EXPECT_EQ(oh::pack_frame(bytes.data() + before, frame), bytes.size() - before);
  }
  return bytes;
}

TEST(UcxPacking, FramesGoRound) {
  const std::vector<size_t> sizes = {0, 1, 4096, 0, 63, 64, 65, 17, 512, 3,
                                     2, 1, 0,    5, 6,  7,  8,  9,  10,  11};
  const oh::Bytes bytes = packed(sizes);
  EXPECT_TRUE(PackedFrames::are_whole(bytes));
  PackedFrames frames(bytes);
  for (size_t i = 0; i < sizes.size(); ++i) {
    uint64_t word = 0;
    oh::FrameBody body;
    oh::ByteView payload;
    ASSERT_TRUE(frames.next(&word, &body, &payload));
    Frame frame;
    ASSERT_TRUE(oh::frame_from(word, body, &frame));
    EXPECT_EQ(static_cast<size_t>(frame.type), 1 + i % static_cast<size_t>(FrameType::kLast));
    EXPECT_EQ(frame.flags, i);
    EXPECT_EQ(frame.tag, 1000 + i);
    EXPECT_EQ(frame.length, 3 * i);
    EXPECT_EQ(frame.op, i << 32);
    EXPECT_EQ(frame.address, 7 * i);
    EXPECT_EQ(frame.region, i);
    ASSERT_EQ(payload.size(), sizes[i]);
    EXPECT_EQ(static_cast<size_t>(std::ranges::count(payload, i + 1)), sizes[i]);
  }
  EXPECT_TRUE(frames.at_end());
}

// A message that was not cut between frames, or that contradicts its size.
TEST(UcxPacking, WhatMakesNoSenseIsRefused) {
  const oh::Bytes bytes = packed({5, 0, 70});
  std::vector<size_t> ends = {oh::kPackedHead + 5, 2 * oh::kPackedHead + 5, bytes.size()};
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const oh::Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_EQ(PackedFrames::are_whole(cut), std::ranges::count(ends, size) == 1) << size;
  }
  // The payload's size is the head's last field, the type its fifth byte.
  for (uint32_t size : {6u, 0u, 69u, 71u, UINT32_MAX, UINT32_MAX - 63}) {
    oh::Bytes wrong = packed({70});
    std::memcpy(wrong.data() + oh::kPackedHead - sizeof(size), &size, sizeof(size));
    EXPECT_FALSE(PackedFrames::are_whole(wrong)) << size;
  }
  for (int type : {0, static_cast<int>(FrameType::kLast) + 1, 0xf0, 0xf2, 0xff}) {
    oh::Bytes wrong = packed({1});
    wrong[4] = static_cast<uint8_t>(type);
    EXPECT_FALSE(PackedFrames::are_whole(wrong)) << type;
  }
}

}  // namespace
}  // namespace unit::ucx_packing_test
