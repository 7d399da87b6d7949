// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/cursor.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "unit/device_protocol.h"

namespace device_lines_test {
namespace {

using namespace unit;

constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kMargin = 16;

struct Ring {
  Ring(uint32_t shift, uint8_t epoch)
      : lines(size_t{1} << shift), ring{lines.data(), shift, epoch} {}
  std::vector<Pair> lines;
  LineRing ring;
};

// Runs an action at each poll; gives up after `most` polls.
struct Looks {
  int most;
  std::function<void(int)> at = {};
  int looked = 0;
  bool over() {
    if (at) at(looked);
    return ++looked >= most;
  }
};

// How one message is sent and received, with the offsets of the buffers from an alignment of 16.
struct Way {
  uint32_t writers = 1;
  uint32_t readers = 1;
  size_t from_skew = 0;
  size_t to_skew = 0;
  uint64_t capacity = UINT64_MAX;
};

void write_all(const LineRing& ring, uint64_t position, uint32_t writers, const uint8_t* from,
               size_t size) {
  const uint32_t bytes = static_cast<uint32_t>(size);
  const Cursor cursor(ring, position);
  for (uint32_t rank = 0; rank < writers; ++rank) {
    write_message<HostAtomics>(cursor, {rank, writers}, from, bytes);
  }
}
template <typename Patience>
bool read_part(const LineRing& ring, uint64_t position, const Share& share, uint8_t* to,
               size_t size, uint64_t capacity, Patience&& patience) {
  const uint32_t most = static_cast<uint32_t>(size < capacity ? size : capacity);
  const Cursor cursor(ring, position);
  const Line head = load_line<HostAtomics>(cursor.at(0));
  const Line seed = load_line<HostAtomics>(cursor.at(1 + share.rank));
  EXPECT_EQ(head.words[0], size);
  return read_message<HostAtomics>(cursor, share, to, most, head, seed, patience);
}

// Checks that the bytes arrive, and that nothing else is written.
void expect_message(const LineRing& ring, uint64_t position, const oh::Bytes& bytes,
                    const Way& way) {
  const size_t size = bytes.size();
  const std::vector<Pair> before(ring.lines, ring.lines + (size_t{1} << ring.shift));
  std::vector<Pair> from_memory((size + way.from_skew) / 16 + 1);
  uint8_t* from = reinterpret_cast<uint8_t*>(from_memory.data()) + way.from_skew;
  if (size > 0) memcpy(from, bytes.data(), size);
  write_all(ring, position, way.writers, from, size);

  std::vector<Pair> to_memory((size + way.to_skew + 2 * kMargin) / 16 + 1);
  std::vector<uint8_t> expected(to_memory.size() * 16, kUntouched);
  memcpy(to_memory.data(), expected.data(), expected.size());
  const size_t begin = kMargin + way.to_skew;
  const uint64_t most = size < way.capacity ? size : way.capacity;
  if (most > 0) memcpy(expected.data() + begin, bytes.data(), most);
  for (uint32_t rank = 0; rank < way.readers; ++rank) {
    ASSERT_TRUE(read_part(ring, position, {rank, way.readers},
                          reinterpret_cast<uint8_t*>(to_memory.data()) + begin, size, way.capacity,
                          Looks{1}));
  }
  ASSERT_EQ(memcmp(to_memory.data(), expected.data(), expected.size()), 0)
      << size << " bytes at " << position << ", " << way.capacity << " wanted, from "
      << way.from_skew << " to " << way.to_skew;
  for (uint64_t i = body_lines(size); i + 1 < uint64_t{1} << ring.shift; ++i) {
    const uint64_t place = place_of(ring.shift, position + 1 + i);
    ASSERT_EQ(memcmp(&ring.lines[place], &before[place], sizeof(Pair)), 0) << "a line too many";
  }
}

// Sizes around the head, around each kind of word, around rows, and around 128 lines.
constexpr size_t kBoundaries[] = {0,   1,   4,   5,   7,   8,   9,   11,  12,  13,   16,
                                  131, 132, 133, 135, 136, 137, 139, 140, 141, 263,  264,
                                  265, 391, 392, 393, 396, 397, 519, 520, 521, 1160, 1161};

TEST(DeviceLinesTest, LinesOfALength) {
  EXPECT_EQ(lines_for(0), 1u);
  EXPECT_EQ(lines_for(8), 1u);
  EXPECT_EQ(lines_for(9), 2u);
  EXPECT_EQ(lines_for(12), 2u);
  EXPECT_EQ(lines_for(13), 3u);
  EXPECT_EQ(lines_for(8 + 128), 33u);
  EXPECT_EQ(lines_for(8 + 384), 33u) << "a row";
  EXPECT_EQ(lines_for(8 + 385), 34u);
  EXPECT_EQ(lines_for(8 + 1024), 97u);
}

TEST(DeviceLinesTest, TheMostBytesOfSoManyLines) {
  for (uint64_t lines = 1; lines < 300; ++lines) {
    EXPECT_LE(lines_for(bytes_within(lines)), lines);
    EXPECT_GT(lines_for(bytes_within(lines) + 1), lines);
  }
}

// Consecutive messages, so that they begin at every place of the ring.
TEST(DeviceLinesTest, EverySizeInEveryEpochAndLap) {
  constexpr uint32_t kShift = 7;
  Random random(1);
  for (uint8_t epoch : kEpochs) {
    for (uint64_t position : first_positions(kShift)) {
      Ring ring(kShift, epoch);
      for (size_t size = 0; size <= bytes_within(128); ++size) {
        const Way way{.from_skew = size % 16, .to_skew = size * 7 % 16};
        expect_message(ring.ring, position, random.bytes(size), way);
        position += lines_for(size);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceLinesTest, EveryAlignmentAroundEachBoundary) {
  Ring ring(7, 9);
  Random random(2);
  uint64_t position = 0;
  for (size_t size : kBoundaries) {
    const oh::Bytes bytes = random.bytes(size);
    for (size_t i = 0; i < 256; ++i) {
      expect_message(ring.ring, position, bytes, {.from_skew = i / 16, .to_skew = i % 16});
      position += lines_for(size);
      if (HasFatalFailure()) return;
    }
  }
}

// More than a row, so that most of a message uses the widest accesses.
TEST(DeviceLinesTest, EveryAlignmentOfEveryLengthModuloSixteen) {
  Ring ring(7, 9);
  Random random(9);
  uint64_t position = 0;
  for (size_t size = 528; size < 544; ++size) {
    const oh::Bytes bytes = random.bytes(size);
    for (size_t i = 0; i < 256; ++i) {
      expect_message(ring.ring, position, bytes, {.from_skew = i / 16, .to_skew = i % 16});
      position += lines_for(size);
      if (HasFatalFailure()) return;
    }
  }
}

// The memory ends with the message: AddressSanitizer detects accesses beyond either end.
TEST(DeviceLinesTest, WordsOfAnyMemoryAreThoseOfItsBytesAndTouchNothingElse) {
  Random random(10);
  for (size_t skew = 0; skew < 16; ++skew) {
    for (uint32_t bytes = 0; bytes <= 40; ++bytes) {
      const oh::Bytes given = random.bytes(skew + bytes);
      const std::unique_ptr<uint8_t[]> from(new uint8_t[skew + bytes]);
      const std::unique_ptr<uint8_t[]> to(new uint8_t[skew + bytes]);
      std::copy(given.begin(), given.end(), from.get());
      std::fill_n(to.get(), skew + bytes, kUntouched);
      const AnyWords<const uint8_t> source{from.get() + skew, bytes};
      const AnyWords<uint8_t> target{to.get() + skew, bytes};
      for (uint32_t at = 0; at < bytes + 8; at += 4) {
        const uint32_t word = source.load(at);
        for (uint32_t i = 0; i < 4; ++i) {
          const uint32_t expected = at + i < bytes ? given[skew + at + i] : 0;
          ASSERT_EQ(word >> 8 * i & 0xff, expected) << skew << ", " << bytes << ", " << at + i;
        }
        target.store(at, word);
      }
      for (size_t i = 0; i < skew; ++i) ASSERT_EQ(to[i], kUntouched);
      ASSERT_TRUE(std::equal(given.begin() + static_cast<std::ptrdiff_t>(skew), given.end(),
                             to.get() + skew));
    }
  }
}

TEST(DeviceLinesTest, AnyNumberOfThreadsOnEitherSide) {
  Ring ring(7, 255);
  Random random(3);
  uint64_t position = first_positions(7)[2];
  for (size_t size : kBoundaries) {
    const oh::Bytes bytes = random.bytes(size);
    for (uint32_t writers : {1u, 2u, 5u, 32u, 130u}) {
      for (uint32_t readers : {1u, 3u, 32u, 64u}) {
        expect_message(ring.ring, position, bytes, {.writers = writers, .readers = readers});
        position += lines_for(size);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Starts anywhere in a ring that the message fills, except for the head's line.
TEST(DeviceLinesTest, AMessageOfTheWholeRingFromEveryPlace) {
  Random random(4);
  for (uint32_t shift : {1u, 2u, 5u, 6u}) {
    Ring ring(shift, 200);
    const uint64_t lines = uint64_t{1} << shift;
    for (uint64_t i = 0; i < 2 * lines; ++i) {
      for (uint64_t less : {0, 1, 4, 5}) {
        const uint64_t position = first_positions(shift)[1] + i * (lines + 1);
        expect_message(ring.ring, position, random.bytes(bytes_within(lines) - less), {});
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceLinesTest, NothingIsStoredBehindTheCapacity) {
  Ring ring(7, 3);
  Random random(5);
  uint64_t position = 0;
  for (size_t size : {9u, 40u, 200u, 520u}) {
    const oh::Bytes bytes = random.bytes(size);
    for (uint64_t capacity = 0; capacity <= size + 1; ++capacity) {
      expect_message(ring.ring, position, bytes, {.to_skew = capacity % 5, .capacity = capacity});
      position += lines_for(size);
      if (HasFatalFailure()) return;
    }
  }
}

// A line of an earlier lap or epoch is ignored; once the right line arrives, the message is
// complete.
TEST(DeviceLinesTest, ALineOfAnotherLapOrEpochIsNotThere) {
  constexpr uint32_t kShift = 6;
  constexpr size_t kSize = 500;
  constexpr uint64_t kLap = uint64_t{1} << kShift;
  const oh::Bytes bytes = Random(6).bytes(kSize);
  const oh::Bytes others = Random(7).bytes(kSize);
  for (uint8_t epoch : kEpochs) {
    for (uint64_t first : first_positions(kShift)) {
      Ring ring(kShift, epoch);
      const uint64_t position = first + kLap;
      LineRing late = ring.ring;
      late.epoch = epoch == 1 ? 255 : static_cast<uint8_t>(epoch - 1);
      for (uint64_t i = 0; i < body_lines(kSize); ++i) {
        Pair* line = line_at(ring.ring, position + 1 + i);
        write_all(ring.ring, first, 1, others.data(), kSize);
        const Pair lap_before = *line;
        write_all(late, position, 1, others.data(), kSize);
        const Pair epoch_before = *line;
        write_all(ring.ring, position, 1, bytes.data(), kSize);
        const Pair whole = *line;
        for (const Pair& instead : {Pair{}, lap_before, epoch_before}) {
          *line = instead;
          oh::Bytes target(kSize, kUntouched);
          Looks never{10};
          ASSERT_FALSE(read_part(ring.ring, position, {0, 1}, target.data(), kSize, kSize, never));
          ASSERT_EQ(never.looked, 10);
          Looks then{1000, [&](int look) { *line = look < 3 ? instead : whole; }};
          ASSERT_TRUE(read_part(ring.ring, position, {0, 1}, target.data(), kSize, kSize, then));
          ASSERT_EQ(memcmp(target.data() + 8, bytes.data() + 8, kSize - 8), 0);
        }
      }
    }
  }
}

TEST(DeviceLinesTest, AWaitThatGivesUpStoresNothingIntoTheRing) {
  Ring ring(4, 7);
  const oh::Bytes bytes = Random(8).bytes(60);
  write_all(ring.ring, 0, 1, bytes.data(), bytes.size());
  ring.lines[7] = {};  // one of its lines is late
  const std::vector<Pair> before = ring.lines;
  oh::Bytes target(60, kUntouched);
  EXPECT_FALSE(read_part(ring.ring, 0, {0, 1}, target.data(), 60, 60, Looks{10}));
  EXPECT_EQ(memcmp(before.data(), ring.lines.data(), before.size() * sizeof(Pair)), 0);
}

}  // namespace
}  // namespace device_lines_test
