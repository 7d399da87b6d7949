// SPDX-License-Identifier: Apache-2.0
#include "base/copy.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace oh {
namespace {

constexpr size_t kLine = 64;

using Drain = void (*)(uint8_t* to, uint8_t* ring, size_t lines);

void drain_plain(uint8_t* to, uint8_t* ring, size_t lines) {
  for (size_t i = 0; i < lines; ++i, to += kLine, ring += kLine) {
    uint8_t line[kLine];
    std::memcpy(line, ring, kLine);
    std::memcpy(to, line, kLine);
    *reinterpret_cast<volatile uint64_t*>(ring) = 0;
  }
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void drain_avx2(uint8_t* to, uint8_t* ring, size_t lines) {
  for (size_t i = 0; i < lines; ++i, to += kLine, ring += kLine) {
    __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(ring));
    __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(ring + 32));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), high);
    *reinterpret_cast<volatile uint64_t*>(ring) = 0;
  }
}

// `to` is aligned to 32 bytes.
[[gnu::target("avx2")]] void drain_avx2_past_cache(uint8_t* to, uint8_t* ring, size_t lines) {
  for (size_t i = 0; i < lines; ++i, to += kLine, ring += kLine) {
    __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(ring));
    __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(ring + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
    *reinterpret_cast<volatile uint64_t*>(ring) = 0;
  }
  // Make the bytes visible before later stores.
  _mm_sfence();
}

// Replaces __builtin_cpu_supports(), whose data some compilers' libraries lack.
bool has_avx2() {
  constexpr unsigned kSavedAndAvx = 3u << 27;  // OSXSAVE, AVX
  constexpr unsigned kXmmAndYmm = 6;           // states that the kernel saves
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(1, &a, &b, &c, &d) || (c & kSavedAndAvx) != kSavedAndAvx) return false;
  unsigned low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low & kXmmAndYmm) != kXmmAndYmm) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_AVX2);
}
#endif

Drain pick(bool past_cache) {
#if defined(__x86_64__)
  if (has_avx2()) return past_cache ? drain_avx2_past_cache : drain_avx2;
#endif
  (void)past_cache;
  return drain_plain;
}

}  // namespace

void drain_copy(uint8_t* to, uint8_t* ring, size_t size, bool past_cache) {
  static const Drain cached = pick(false);
  static const Drain past = pick(true);
  bool aligned = reinterpret_cast<uintptr_t>(to) % 32 == 0;
  size_t lines = size / kLine;
  (past_cache && aligned ? past : cached)(to, ring, lines);
  size_t rest = size % kLine;
  if (rest == 0) return;
  copy_small(to + lines * kLine, ring + lines * kLine, rest);
  *reinterpret_cast<volatile uint64_t*>(ring + lines * kLine) = 0;
}

}  // namespace oh
