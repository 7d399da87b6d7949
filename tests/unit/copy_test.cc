// SPDX-License-Identifier: Apache-2.0
#include "base/copy.h"

#include <sys/mman.h>

#include <memory>

#include "unit/support.h"

namespace copy_test {
namespace {

using namespace oh;

constexpr size_t kMost = 1100;
constexpr size_t kMargin = 64;

// Pages of their own, aligned to 4096 bytes.
class Area {
 public:
  explicit Area(size_t size) : size_((size + 4095) / 4096 * 4096) {
    void* made = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(made, MAP_FAILED);
    data_ = static_cast<uint8_t*>(made);
  }
  ~Area() { munmap(data_, size_); }
  uint8_t* data() const { return data_; }

 private:
  size_t size_;
  uint8_t* data_;
};

// Whether exactly [to, to + size) holds the source, and the surrounding bytes are unchanged.
bool exact(const uint8_t* to, const uint8_t* from, size_t size) {
  if (std::memcmp(to, from, size) != 0) return false;
  for (size_t i = 1; i <= kMargin; ++i) {
    if (to[-static_cast<ptrdiff_t>(i)] != 0xee || to[size + i - 1] != 0xee) return false;
  }
  return true;
}

TEST(CopyTest, CopiesEverySizeAtEveryAlignment) {
  unit::Random random(1);
  Bytes source = random.bytes(kMost + 64);
  Bytes target(kMost + 64 + 2 * kMargin);
  for (size_t size = 0; size <= kMost; ++size) {
    for (size_t at = 0; at < 64; at += size % 3 + 1) {
      std::memset(target.data(), 0xee, size + at + 2 * kMargin);
      uint8_t* to = target.data() + kMargin + at;
      copy_bytes(to, source.data() + (63 - at), size);
      ASSERT_TRUE(exact(to, source.data() + (63 - at), size)) << size << " at " << at;
      std::memset(to, 0xee, size);
      copy_small(to, source.data() + at, size);
      ASSERT_TRUE(exact(to, source.data() + at, size)) << size << " at " << at;
    }
  }
}

TEST(CopyTest, NeverReadsBeyondTheSource) {
  for (size_t size = 0; size <= 256; ++size) {
    std::unique_ptr<uint8_t[]> from(new uint8_t[size]);
    std::unique_ptr<uint8_t[]> to(new uint8_t[size]);
    std::memset(from.get(), static_cast<int>(size), size);
    copy_bytes(to.get(), from.get(), size);
    copy_small(to.get(), from.get(), size);
    EXPECT_EQ(std::memcmp(to.get(), from.get(), size), 0);
  }
}

// Whether at least the first word of every line read was overwritten, and nothing behind the last
// line.
bool spoilt(const uint8_t* ring, const uint8_t* before, size_t size) {
  for (size_t line = 0; line < size; line += 64) {
    uint64_t word;
    std::memcpy(&word, ring + line, sizeof(word));
    if (word != 0) return false;
  }
  size_t end = (size + 63) / 64 * 64;
  return std::memcmp(ring + end, before + end, 64) == 0;
}

TEST(CopyTest, DrainsEverySizeAtEveryAlignment) {
  Area ring(kMost + 128);
  unit::Random random(2);
  Bytes source = random.bytes(kMost + 192);
  Bytes target(kMost + 64 + 2 * kMargin);
  for (bool past_cache : {false, true}) {
    for (size_t size = 0; size <= kMost; ++size) {
      for (size_t at = 0; at < 64; at += size % 5 + 3) {
        std::memcpy(ring.data(), source.data(), size + 128);
        std::memset(target.data(), 0xee, target.size());
        uint8_t* to = target.data() + kMargin + at;
        drain_copy(to, ring.data(), size, past_cache);
        ASSERT_TRUE(exact(to, source.data(), size)) << size << " at " << at;
        ASSERT_TRUE(spoilt(ring.data(), source.data(), size)) << size << " at " << at;
      }
    }
  }
}

TEST(CopyTest, DrainsLargeSizesAroundTheThresholds) {
  for (size_t size : {size_t{4095}, size_t{4096}, size_t{16 * 1024}, size_t{65535}, size_t{65536},
                      size_t{1 << 20}, static_cast<size_t>(kPastCache - 1),
                      static_cast<size_t>(kPastCache), static_cast<size_t>(kPastCache + 1)}) {
    Area ring(size + 64);
    Area to(size + 64);
    unit::Random random(size);
    for (size_t i = 0; i + 8 <= size; i += 8) {
      uint64_t word = random.next();
      std::memcpy(ring.data() + i, &word, sizeof(word));
    }
    Bytes source(ring.data(), ring.data() + size);
    drain_copy(to.data() + (size & 1), ring.data(), size, size >= kPastCache);
    EXPECT_EQ(std::memcmp(to.data() + (size & 1), source.data(), size), 0) << size;
  }
}

}  // namespace
}  // namespace copy_test
