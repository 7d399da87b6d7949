// SPDX-License-Identifier: Apache-2.0
//
// Payload of the benchmark: bytes determined by a seed, the iteration and their position, so that
// lost, stale or misplaced bytes are detected.
//
//   word 0        words 1 .. last - 1                      last 8 bytes
//   | iteration | pattern(seed, position), and in one    | iteration |
//                 word among it the iteration
//
// The pattern is written once, outside of the timed part. The three stamps cost a few nanoseconds
// per iteration, so every message is sampled, and the last one is checked completely.
//
// Threading: none; each side has its own payloads.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "spec.h"

namespace bench {

inline constexpr uint8_t kPoison = 0xee;
inline constexpr uint64_t kNoIteration = ~uint64_t{0};

// Writes the pattern of `seed`.
void fill(void* data, size_t size, uint64_t seed);
// Overwrites old bytes so that they cannot pass for new ones.
void poison(void* data, size_t size);
// Returns the number of bytes that differ from the pattern.
uint64_t count_wrong(const void* data, size_t size, uint64_t seed);
// Returns the number of bytes that are no longer poisoned.
uint64_t count_touched(const void* data, size_t size);

// Stamps `data`, which holds the pattern, as message `iteration`, and removes the moving stamp of
// `previous` (kNoIteration: none).
void stamp(void* data, size_t size, uint64_t seed, uint64_t previous, uint64_t iteration);
// Returns the number of wrong bytes in the stamps.
uint64_t check_stamps(const void* data, size_t size, uint64_t iteration);
// Poisons the positions of message `iteration`'s stamps.
void poison_stamps(void* data, size_t size, uint64_t iteration);
// Checks all bytes of message `iteration` and returns the number of wrong ones. Removes its stamps,
// so that `data` holds the pattern afterwards.
uint64_t check_message(void* data, size_t size, uint64_t seed, uint64_t iteration);

// Memory of messages. Transfers use place(). The payload is written and checked in data(), which is
// the same for host memory and a host copy for GPU memory. Initially poisoned.
class Buffer {
 public:
  // Private host memory.
  explicit Buffer(size_t size);
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  virtual ~Buffer() = default;

  uint8_t* data() const { return data_; }
  uint8_t* place() const { return place_; }
  size_t size() const { return size_; }
  // Copies all bytes from data() to place(), and back.
  virtual void publish() {}
  virtual void fetch() {}

 protected:
  // `memory` owns `data`.
  Buffer(size_t size, std::shared_ptr<void> memory, uint8_t* data);
  void set_place(uint8_t* place) { place_ = place; }

 private:
  std::shared_ptr<void> memory_;
  uint8_t* data_;
  uint8_t* place_;
  size_t size_;
};

// The bytes of one direction of a row, on the sending or the receiving side.
class Payload {
 public:
  virtual ~Payload() = default;
  // Size of a message.
  virtual size_t bytes() const = 0;
  // The memory that holds all its bytes, for copying them.
  struct Place {
    uint8_t* at;
    size_t size;
  };
  virtual std::vector<Place> places() const = 0;
  // Sender, before a pass: writes new bytes to all slots. `last`: last pass of the row.
  virtual void lay_out(uint64_t pass, bool last) = 0;
  // Receiver, before a pass: poisons the memory.
  virtual void clear(uint64_t pass, bool last) = 0;
  // Sender, before message i. `last`: last message of the row.
  virtual void mark(uint64_t i, bool last) = 0;
  // Receiver, before and after message i; check() returns the number of wrong bytes.
  virtual void expect(uint64_t i) = 0;
  virtual uint64_t check(uint64_t i, uint64_t* checked) = 0;
  // Checks the last message of each slot after `count` messages. Adds the number of completely
  // compared messages to `checked`.
  virtual uint64_t check_all(uint64_t count, uint64_t* checked) = 0;
};

// The seed of the bytes that side `writer` sends in `phase` of a row.
uint64_t seed_of(const Spec& spec, int writer, uint64_t phase);
// Flips a byte if the row is to be corrupted and this is the last message.
inline void maybe_corrupt(const Spec& spec, bool last, uint8_t* data) {
  if (spec.corrupt && last && spec.size > 0) data[spec.size / 2] ^= 1;
}
// Mode::kEvent: how many bytes of a message GPU work writes over the pattern, and their value.
inline size_t produced(size_t size) { return std::min<size_t>(size, 8); }
inline uint8_t produced_mark(uint64_t i) { return static_cast<uint8_t>(i * 5 + 3); }

// One slot of spec.size bytes per operation in flight; each slot holds one message.
class Slots final : public Payload {
 public:
  struct Role {
    int writer;          // the side that sends the bytes
    bool spoils = true;  // spec.corrupt applies to the row's last message
    bool fixed = false;  // the sender is passive, so all messages of a slot are equal
  };
  // `memory` has room for all slots.
  Slots(const Spec& spec, Role role, std::unique_ptr<Buffer> memory);

  // Latency has one slot; this avoids a division in the timed part.
  uint64_t slot(uint64_t i) const { return spec_.window == 1 ? 0 : i % spec_.window; }
  size_t offset(uint64_t i) const { return slot(i) * spec_.size; }
  // The memory that transfers use.
  uint8_t* place(uint64_t i) const { return memory_->place() + offset(i); }
  Buffer& memory() { return *memory_; }

  size_t bytes() const override { return spec_.size; }
  std::vector<Place> places() const override { return {{memory_->place(), memory_->size()}}; }
  void lay_out(uint64_t pass, bool last) override;
  void clear(uint64_t pass, bool last) override;
  void mark(uint64_t i, bool last) override;
  void expect(uint64_t i) override;
  uint64_t check(uint64_t i, uint64_t* checked) override;
  uint64_t check_all(uint64_t count, uint64_t* checked) override;

 private:
  uint64_t seed(uint64_t i) const;
  uint64_t check_produced(uint64_t count);
  uint8_t* at(uint64_t i) const { return memory_->data() + offset(i); }
  // The number in message i's stamps.
  uint64_t number(uint64_t i) const { return role_.fixed ? slot(i) : i; }

  const Spec spec_;
  const Role role_;
  std::unique_ptr<Buffer> memory_;
  uint64_t pass_ = 0;
};

// Inline, because the bandwidth loop times it.
inline uint64_t Slots::seed(uint64_t i) const {
  const uint64_t phase = pass_ * spec_.window + slot(i);
  // In thorough rows no two messages are equal.
  return seed_of(spec_, role_.writer, spec_.thorough ? (phase << 32) + i : phase);
}

inline void Slots::mark(uint64_t i, bool last) {
  if (!spec_.stamped) return;
  if (spec_.thorough) {
    fill(at(i), spec_.size, seed(i));
  } else {
    const bool before = i >= spec_.window;
    stamp(at(i), spec_.size, seed(i), before ? i - spec_.window : kNoIteration, i);
  }
  maybe_corrupt(spec_, last && role_.spoils, at(i));
}

inline void Slots::expect(uint64_t i) {
  if (role_.fixed && spec_.stamped) poison_stamps(at(i), spec_.size, number(i));
}

inline uint64_t Slots::check(uint64_t i, uint64_t* checked) {
  if (!spec_.stamped) return 0;
  if (!spec_.thorough) return check_stamps(at(i), spec_.size, number(i));
  const uint64_t wrong = count_wrong(at(i), spec_.size, seed(i));
  poison(at(i), spec_.size);
  ++*checked;
  return wrong;
}

// Whether side 0 of a one-sided or batch row is the source of the bytes.
bool puts(const Spec& spec);

// The blocks of a batch. A message is a batch, and its first block holds the number. Blocks are not
// contiguous: the poisoned gaps between them must not change. In list form, the target has them in
// reverse order, so that no blocks can be merged.
class Blocks : public Payload {
 public:
  // `number`: this side's number; side 1 is the target. `memory` has room for two blocks per block.
  Blocks(const Spec& spec, int number, std::unique_ptr<Buffer> memory);

  static size_t pitch(const Spec& spec) { return 2 * spec.size; }
  static size_t memory_size(const Spec& spec) { return spec.blocks * pitch(spec); }
  // Offset of block i at the initiator or at the target.
  size_t offset(size_t i, bool target) const {
    return (target && !spec_.strided ? spec_.blocks - 1 - i : i) * pitch(spec_);
  }
  uint8_t* block(size_t i) const { return memory_->data() + offset(i, target_); }
  Buffer& memory() { return *memory_; }

  size_t bytes() const override { return spec_.blocks * spec_.size; }
  std::vector<Place> places() const override { return {{memory_->place(), memory_->size()}}; }
  void lay_out(uint64_t pass, bool last) override;
  void clear(uint64_t pass, bool last) override;
  void mark(uint64_t i, bool last) override;
  void expect(uint64_t) override {}
  uint64_t check(uint64_t, uint64_t*) override { return 0; }
  uint64_t check_all(uint64_t count, uint64_t* checked) override;

 private:
  uint64_t seed(size_t i) const;
  // Whether the first block holds the batch's number.
  bool counted() const { return puts(spec_) && spec_.stamped; }

  const Spec spec_;
  const bool target_;
  std::unique_ptr<Buffer> memory_;
  uint64_t pass_ = 0;
};

}  // namespace bench
