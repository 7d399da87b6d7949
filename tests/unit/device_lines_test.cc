// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/line.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <tuple>

#include "unit/device_protocol.h"

namespace {

using namespace unit;

// A ring, and the word that says what its receiver is through with.
struct Lane {
  Lane(uint32_t shift, uint8_t epoch)
      : lines(size_t{1} << shift), ring{lines.data(), shift, epoch} {}

  std::vector<Pair> lines;
  LineRing ring;
  alignas(64) uint64_t through = 0;
};

constexpr uint8_t kUntouched = 0xa5;

// Sends and receives one message on this thread; the buffers are `skew` off their alignment.
void expect_message(const LineRing& ring, uint64_t position, const oh::Bytes& bytes, size_t skew) {
  size_t size = bytes.size();
  std::vector<uint8_t> source(skew + size + 8, kUntouched);
  std::vector<uint8_t> target(skew + size + 8, kUntouched);
  if (size > 0) memcpy(source.data() + skew, bytes.data(), size);
  uint64_t length = 0;
  ASSERT_FALSE(read_length<HostAtomics>(ring, position, &length));
  Part part{position, size};
  write_message<HostAtomics>(ring, part, source.data() + skew);
  ASSERT_TRUE(read_length<HostAtomics>(ring, position, &length));
  ASSERT_EQ(length, size);
  ASSERT_TRUE(read_message<HostAtomics>(ring, part, target.data() + skew, [] { return true; }));
  ASSERT_EQ(target, source) << size << " bytes at " << position;
}

TEST(DeviceLinesTest, LinesOfALength) {
  EXPECT_EQ(lines_for(0), 1u);
  EXPECT_EQ(lines_for(1), 2u);
  EXPECT_EQ(lines_for(8), 2u);
  EXPECT_EQ(lines_for(9), 3u);
  EXPECT_EQ(lines_for(1024), 129u);
  EXPECT_EQ(lines_for(UINT64_MAX), (uint64_t{1} << 61) + 1) << "a lie does not wrap around";
}

// Every size up to all of the ring's lines, one after the other, so that they begin everywhere in
// it.
TEST(DeviceLinesTest, EverySizeUpToTheRing) {
  constexpr uint32_t kShift = 5;
  constexpr size_t kMost = ((size_t{1} << kShift) - 1) * 8;
  Random random(1);
  for (uint8_t epoch : kEpochs) {
    for (uint64_t position : first_positions(kShift)) {
      Lane lane(kShift, epoch);
      for (size_t size = 0; size <= kMost; ++size) {
        expect_message(lane.ring, position, random.bytes(size), size % 9);
        position += lines_for(size);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceLinesTest, ALineIsThereOnlyWithBothHalvesOfItsLapAndEpoch) {
  constexpr uint32_t kShift = 2;
  for (uint8_t epoch : kEpochs) {
    for (uint64_t first : first_positions(kShift)) {
      Lane lane(kShift, epoch);
      uint64_t position = first + 4;
      uint64_t bytes = 17;
      auto there = [&] { return read_line<HostAtomics>(lane.ring, position, &bytes); };
      Pair& line = lane.lines[place_of(kShift, position)];
      EXPECT_FALSE(there()) << "zeroed";
      write_line<HostAtomics>(lane.ring, first, 1);
      EXPECT_FALSE(there()) << "of the lap before";
      Pair before = line;
      LineRing late = lane.ring;
      late.epoch = epoch == 1 ? 255 : static_cast<uint8_t>(epoch - 1);
      write_line<HostAtomics>(late, position, 2);
      EXPECT_FALSE(there()) << "of the epoch before";
      write_line<HostAtomics>(lane.ring, position, 0x1122334455667788);
      Pair whole = line;
      line = {whole.low, before.high};
      EXPECT_FALSE(there()) << "the first half only";
      line = {before.low, whole.high};
      EXPECT_FALSE(there()) << "the second half only";
      EXPECT_EQ(bytes, 17u) << "what is not there is not handed out";
      line = whole;
      EXPECT_TRUE(there());
      EXPECT_EQ(bytes, 0x1122334455667788u);
    }
  }
}

TEST(DeviceLinesTest, AWaitThatGivesUpStoresNothingIntoTheRing) {
  Lane lane(3, 7);
  uint8_t source[24];
  memset(source, 3, sizeof(source));
  uint8_t target[24] = {};
  Part part{0, sizeof(source)};
  write_message<HostAtomics>(lane.ring, part, source);
  lane.lines[2] = {};  // its second line is late
  std::vector<Pair> before = lane.lines;
  int asked = 0;
  EXPECT_FALSE(
      read_message<HostAtomics>(lane.ring, part, target, [&asked] { return ++asked == 10; }));
  EXPECT_EQ(asked, 10);
  EXPECT_EQ(memcmp(before.data(), lane.lines.data(), before.size() * sizeof(Pair)), 0);
  EXPECT_EQ(memcmp(source, target, 8), 0);
  EXPECT_EQ(target[8], 0);
}

// The length of message k, and its bytes: both sides compute them.
size_t length_of(uint64_t k, size_t most) {
  return Random(k).below(8) == 0 ? most - k % 3 : Random(k * 3).below(most + 1);
}
uint8_t byte_of(uint64_t k, uint64_t i) { return static_cast<uint8_t>(k * 31 + i * 7 + (i >> 8)); }

struct Stream {
  uint32_t shift;
  uint32_t senders;
  uint32_t receivers;
  uint8_t epoch;
  uint64_t first;
};

constexpr uint64_t kMessages = 400;

// One thread of the sending side; the first waits for room, for the others may be behind.
void send_all(Lane& lane, const Stream& stream, uint32_t rank, std::barrier<>& together) {
  size_t most = ((size_t{1} << stream.shift) - 1) * 8;
  uint64_t position = stream.first;
  std::vector<uint8_t> source(most);
  for (uint64_t k = 0; k < kMessages; ++k) {
    size_t size = length_of(k, most);
    for (size_t i = 0; i < size; ++i) source[i] = byte_of(k, i);
    if (rank == 0) {
      wait_until([&] {
        uint64_t through = poll<Delayed>(&lane.through, stream.epoch);
        return fits(stream.shift, position, lines_for(size), through);
      });
    }
    together.arrive_and_wait();
    write_message<Delayed>(lane.ring, {position, size, rank, stream.senders}, source.data());
    position += lines_for(size);
  }
}

// One thread of the receiving side. The target is shared, so that a byte has one writer.
void receive_all(Lane& lane, const Stream& stream, uint32_t rank, std::vector<uint8_t>& target,
                 std::barrier<>& together) {
  size_t most = ((size_t{1} << stream.shift) - 1) * 8;
  uint64_t position = stream.first;
  uint64_t wrong = 0;
  for (uint64_t k = 0; k < kMessages; ++k) {
    uint64_t size = 0;
    wait_until([&] { return read_length<Delayed>(lane.ring, position, &size); });
    ASSERT_EQ(size, length_of(k, most)) << "message " << k;
    read_message<Delayed>(lane.ring, {position, size, rank, stream.receivers}, target.data(),
                          NeverGiveUp{});
    position += lines_for(size);
    together.arrive_and_wait();
    if (rank == 0) {
      for (size_t i = 0; i < size; ++i) wrong += target[i] != byte_of(k, i);
      // Not each time: two messages of at most half a ring fit without.
      if (k % 2 == 0 || std::max<uint64_t>(size, length_of(k + 1, most)) > most / 2 - 8) {
        publish<Delayed>(&lane.through, stream.epoch, position);
      }
    }
    together.arrive_and_wait();
  }
  EXPECT_EQ(wrong, 0u);
}

class DeviceLinesStreamTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(DeviceLinesStreamTest, MessagesOfAllSizesArriveWholeAndInOrder) {
  auto [senders, receivers, start] = GetParam();
  Stream stream{.shift = 4,
                .senders = static_cast<uint32_t>(senders),
                .receivers = static_cast<uint32_t>(receivers),
                .epoch = kEpochs[start],
                .first = first_positions(4)[start]};
  Lane lane(stream.shift, stream.epoch);
  publish<HostAtomics>(&lane.through, stream.epoch, stream.first);
  std::vector<uint8_t> target(size_t{16} * 8);
  std::barrier<> sent(senders);
  std::barrier<> received(receivers);
  Threads threads;
  for (uint32_t rank = 0; rank < stream.senders; ++rank) {
    threads.start([&, rank] { send_all(lane, stream, rank, sent); });
  }
  for (uint32_t rank = 0; rank < stream.receivers; ++rank) {
    threads.start([&, rank] { receive_all(lane, stream, rank, target, received); });
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, DeviceLinesStreamTest,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(1, 3),
                                            ::testing::Values(0, 1, 2, 3)));

}  // namespace
