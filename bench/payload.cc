// SPDX-License-Identifier: Apache-2.0
#include "payload.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace bench {
namespace {

constexpr size_t kWord = sizeof(uint64_t);
// The smallest size with room for a stamp that moves between the first and the last.
constexpr size_t kWandering = 4 * kWord;

uint64_t pattern(uint64_t seed, uint64_t word) {
  uint64_t mixed = (word + 1) * 0xc2b2ae3d27d4eb4fULL + (seed + 1) * 0x9e3779b97f4a7c15ULL;
  return mixed ^ (mixed >> 29);
}

uint64_t mark(uint64_t iteration) { return pattern(~iteration, iteration); }

// Offset of the moving stamp: a whole word, neither the first nor within the last 8 bytes.
size_t wandering(size_t size, uint64_t iteration) {
  size_t words = size / kWord - 2;
  return (1 + (mark(iteration) >> 32) % words) * kWord;
}

uint64_t differing(uint64_t left, uint64_t right, size_t bytes) {
  uint64_t count = 0;
  uint64_t difference = left ^ right;
  for (size_t i = 0; i < bytes; ++i) count += ((difference >> (8 * i)) & 0xff) != 0;
  return count;
}

uint64_t load(const uint8_t* at, size_t bytes) {
  uint64_t word = 0;
  std::memcpy(&word, at, bytes);
  return word;
}

// Calls visit(offset, bytes) for each stamp.
template <typename Visit>
void for_each_stamp(size_t size, uint64_t iteration, Visit visit) {
  visit(size_t{0}, std::min(size, kWord));
  if (size >= 2 * kWord) visit(size - kWord, kWord);
  if (size >= kWandering) visit(wandering(size, iteration), kWord);
}

// Restores the pattern of `bytes` bytes at `offset`, which need not be word-aligned.
void restore(uint8_t* data, size_t offset, size_t bytes, uint64_t seed) {
  for (size_t i = offset; i < offset + bytes; ++i) {
    data[i] = static_cast<uint8_t>(pattern(seed, i / kWord) >> (8 * (i % kWord)));
  }
}

}  // namespace

void fill(void* data, size_t size, uint64_t seed) {
  auto* at = static_cast<uint8_t*>(data);
  size_t whole = size / kWord;
  for (size_t i = 0; i < whole; ++i) {
    uint64_t word = pattern(seed, i);
    std::memcpy(at + i * kWord, &word, kWord);
  }
  restore(at, whole * kWord, size % kWord, seed);
}

void poison(void* data, size_t size) { std::memset(data, kPoison, size); }

uint64_t count_wrong(const void* data, size_t size, uint64_t seed) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t wrong = 0;
  for (size_t i = 0; i < size; i += kWord) {
    size_t bytes = std::min(kWord, size - i);
    uint64_t found = load(at + i, bytes);
    uint64_t expected = pattern(seed, i / kWord);
    if (bytes < kWord) expected &= (uint64_t{1} << (8 * bytes)) - 1;
    if (found != expected) wrong += differing(found, expected, bytes);
  }
  return wrong;
}

uint64_t count_touched(const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  return size - static_cast<uint64_t>(std::count(at, at + size, kPoison));
}

void stamp(void* data, size_t size, uint64_t seed, uint64_t previous, uint64_t iteration) {
  auto* at = static_cast<uint8_t*>(data);
  if (size == 0) return;
  if (previous != kNoIteration && size >= kWandering) {
    restore(at, wandering(size, previous), kWord, seed);
  }
  uint64_t word = mark(iteration);
  for_each_stamp(size, iteration,
                 [&](size_t offset, size_t bytes) { std::memcpy(at + offset, &word, bytes); });
}

uint64_t check_stamps(const void* data, size_t size, uint64_t iteration) {
  const auto* at = static_cast<const uint8_t*>(data);
  uint64_t word = mark(iteration);
  uint64_t wrong = 0;
  for_each_stamp(size, iteration, [&](size_t offset, size_t bytes) {
    uint64_t found = load(at + offset, bytes);
    if (found != word) wrong += differing(found, word, bytes);
  });
  return wrong;
}

void poison_stamps(void* data, size_t size, uint64_t iteration) {
  auto* at = static_cast<uint8_t*>(data);
  for_each_stamp(size, iteration,
                 [&](size_t offset, size_t bytes) { std::memset(at + offset, kPoison, bytes); });
}

uint64_t check_message(void* data, size_t size, uint64_t seed, uint64_t iteration) {
  auto* at = static_cast<uint8_t*>(data);
  uint64_t wrong = check_stamps(data, size, iteration);
  for_each_stamp(size, iteration,
                 [&](size_t offset, size_t bytes) { restore(at, offset, bytes, seed); });
  return wrong + count_wrong(data, size, seed);
}

Buffer::Buffer(size_t size) : Buffer(size, nullptr, nullptr) {
  constexpr size_t kPage = 4096;
  const size_t room = std::max<size_t>((size + kPage - 1) / kPage, 1) * kPage;
  memory_.reset(std::aligned_alloc(kPage, room), std::free);
  if (!memory_) throw std::bad_alloc();
  data_ = place_ = static_cast<uint8_t*>(memory_.get());
  poison(data_, room);
}

Buffer::Buffer(size_t size, std::shared_ptr<void> memory, uint8_t* data)
    : memory_(std::move(memory)), data_(data), place_(data), size_(size) {
  if (data_) poison(data_, size_);
}

uint64_t seed_of(const Spec& spec, int writer, uint64_t phase) {
  return (phase * 2 + static_cast<uint64_t>(writer)) * 0x100000001b3ULL + spec.size;
}

Slots::Slots(const Spec& spec, Role role, std::unique_ptr<Buffer> memory)
    : spec_(spec), role_(role), memory_(std::move(memory)) {}

void Slots::lay_out(uint64_t pass, bool last) {
  pass_ = pass;
  for (uint64_t i = 0; i < spec_.window; ++i) {
    fill(at(i), spec_.size, seed(i));
    if (role_.fixed && spec_.stamped) stamp(at(i), spec_.size, seed(i), kNoIteration, i);
  }
  const bool untouched = role_.fixed || !spec_.stamped;
  maybe_corrupt(spec_, untouched && last && role_.spoils, at(0));
  memory_->publish();
}

void Slots::clear(uint64_t pass, bool) {
  pass_ = pass;
  poison(memory_->data(), memory_->size());
  memory_->publish();
}

uint64_t Slots::check_all(uint64_t count, uint64_t* checked) {
  if (spec_.thorough) return 0;
  memory_->fetch();
  uint64_t wrong = spec_.mode == Mode::kEvent ? check_produced(count) : 0;
  for (uint64_t i = count - std::min<uint64_t>(count, spec_.window); i < count; ++i) {
    wrong += spec_.stamped ? check_message(at(i), spec_.size, seed(i), number(i))
                           : count_wrong(at(i), spec_.size, seed(i));
    ++*checked;
  }
  return wrong;
}

// Checks the bytes that the GPU wrote, and restores their pattern. Returns the number of bytes it
// did not write.
uint64_t Slots::check_produced(uint64_t count) {
  uint8_t* data = memory_->data();
  const size_t bytes = produced(spec_.size);
  const auto written = std::count(data, data + bytes, produced_mark(count - 1));
  fill(data, bytes, seed(0));
  return bytes - static_cast<uint64_t>(written);
}

bool puts(const Spec& spec) {
  return spec.mode == Mode::kPut || spec.mode == Mode::kPutPrepared ||
         spec.mode == Mode::kPutStream || spec.mode == Mode::kBulk;
}

Blocks::Blocks(const Spec& spec, int number, std::unique_ptr<Buffer> memory)
    : spec_(spec), target_(number != 0), memory_(std::move(memory)) {}

uint64_t Blocks::seed(size_t i) const {
  return seed_of(spec_, puts(spec_) ? 0 : 1, pass_ * spec_.blocks + i);
}

void Blocks::lay_out(uint64_t pass, bool last) {
  pass_ = pass;
  poison(memory_->data(), memory_->size());
  for (size_t i = 0; i < spec_.blocks; ++i) {
    fill(block(i), spec_.size, seed(i));
    stamp(block(i), spec_.size, seed(i), kNoIteration, 0);
  }
  maybe_corrupt(spec_, last, block(spec_.blocks / 2));
  memory_->publish();
}

void Blocks::clear(uint64_t pass, bool) {
  pass_ = pass;
  poison(memory_->data(), memory_->size());
  memory_->publish();
}

void Blocks::mark(uint64_t i, bool) {
  if (counted()) stamp(block(0), spec_.size, seed(0), i == 0 ? kNoIteration : i - 1, i);
}

uint64_t Blocks::check_all(uint64_t count, uint64_t* checked) {
  uint64_t wrong = 0;
  memory_->fetch();
  for (size_t i = 0; i < spec_.blocks; ++i) {
    const bool first = i == 0 && counted();
    wrong += check_message(block(i), spec_.size, seed(i), first ? count - 1 : 0);
    wrong += count_touched(block(i) + spec_.size, spec_.size);
  }
  ++*checked;
  return wrong;
}

}  // namespace bench
