// SPDX-License-Identifier: Apache-2.0
//
// The channel in the segment: per direction a ring of cells and a payload ring.
//
// The producer publishes a frame by one store of its first cell's word. The sequence in that word
// distinguishes new frames from old ones, so the consumer never reads the producer's position. A
// short message continues in the cells behind the first. The consumer zeroes their words, so that
// user bytes are never mistaken for a sequence. The consumer returns room lazily, an eighth of a
// ring at a time.
//
// Threading: guarded by the link's lock; ready() may be called without it (a stale result is
// harmless).
#pragma once

#include "base/copy.h"
#include "base/status.h"
#include "transport/channel.h"
#include "transport/shm/segment.h"

namespace oh {

class RingChannel final : public Channel {
 public:
  explicit RingChannel(Segment& segment);

  static constexpr size_t kMaxShort = 2048;
  static constexpr size_t kMaxPayload = 16 * 1024;

  size_t max_payload() const override { return kMaxPayload; }
  size_t part_of(uint64_t size) const override {
    if (size <= kMaxShort) return size;
    uint64_t eighth = size / 8 / 1024 * 1024;
    return eighth < 2048 ? 2048 : eighth > kMaxPayload ? kMaxPayload : eighth;
  }
  size_t max_inline() const override { return kMaxShort; }

  bool push(const Frame& frame) override;
  // Pushes a message of at most kMaxShort bytes.
  bool push_short(uint64_t tag, const uint8_t* data, size_t size) {
    size_t cells = short_cells(size);
    // If the consumer is behind, save cells: put the payload into the payload ring.
    if (cells > kFewCells && !is_half_empty()) return push_beside(tag, data, size);
    if (!has_cells(cells)) return false;
    Cell& cell = out_.cells[next_ % kCells];
    cell.message.tag = tag;
    copy_bytes(payload_of(cell), data, size);
    publish(cell, cells, FrameType::kEager, kShort, static_cast<uint16_t>(size));
    return true;
  }

  // The receiving half. ready(): whether a frame has arrived; peek(): that frame, valid until
  // pop(), or OH_ERR_PROTOCOL if it is malformed; pop(): true if it returned room to the producer.
  bool ready() const {
    uint64_t head = head_.load(std::memory_order_relaxed);
    // acquire: pairs with publish().
    uint64_t word = in_.cells[head % kCells].word.load(std::memory_order_acquire);
    return static_cast<uint32_t>(word) == sequence_of(head);
  }
  Status peek(Frame* frame);
  bool pop();
  // Skips the frame at the head if it is padding. Afterwards the ring may be empty.
  // Precondition: ready().
  bool skip_pad() {
    uint64_t head = head_.load(std::memory_order_relaxed);
    uint64_t word = in_.cells[head % kCells].word.load(std::memory_order_acquire);
    if (word_type(word) != FrameType::kPad) return false;
    consume(kCells - head % kCells);
    return true;
  }
  // Takes the frame at the head if it is a short message with this tag of at most `capacity` bytes.
  // `given_back`: as the result of pop(). Precondition: ready().
  bool take_short(uint64_t tag, uint8_t* data, size_t capacity, size_t* size, bool* given_back) {
    Cell& cell = in_.cells[head_.load(std::memory_order_relaxed) % kCells];
    uint64_t word = cell.word.load(std::memory_order_acquire);  // pairs with publish()
    *size = word_short_size(word);
    constexpr auto kShortMessage = static_cast<uint16_t>(static_cast<unsigned>(FrameType::kEager) |
                                                         static_cast<unsigned>(kShort) << 8);
    if (static_cast<uint16_t>(word >> 32) != kShortMessage || cell.message.tag != tag ||
        *size > capacity || !short_fits(*size)) {
      return false;
    }
    copy_bytes(data, payload_of(cell), *size);
    *given_back = consume(short_cells(*size));
    return true;
  }
  // The same in two steps, for a caller that looks up the receive by the tag.
  struct Short {
    uint64_t tag;
    size_t size;
  };
  bool next_short(Short* next) const {
    const Cell& cell = in_.cells[head_.load(std::memory_order_relaxed) % kCells];
    uint64_t word = cell.word.load(std::memory_order_acquire);  // pairs with publish()
    constexpr auto kShortMessage = static_cast<uint16_t>(static_cast<unsigned>(FrameType::kEager) |
                                                         static_cast<unsigned>(kShort) << 8);
    *next = {cell.message.tag, word_short_size(word)};
    return static_cast<uint16_t>(word >> 32) == kShortMessage && short_fits(next->size);
  }
  bool take(const Short& next, uint8_t* data) {
    Cell& cell = in_.cells[head_.load(std::memory_order_relaxed) % kCells];
    copy_bytes(data, payload_of(cell), next.size);
    return consume(short_cells(next.size));
  }

  uint64_t credit_returned() const override {
    return out_.consumer.credit.load(std::memory_order_relaxed);
  }
  void return_credit(uint64_t bytes) override;

 private:
  // Never zero: zeroed cells and new segments hold zero.
  static uint32_t sequence_of(uint64_t position) {
    return static_cast<uint32_t>(position) << 1 | 1;
  }
  static uint8_t* payload_of(Cell& cell) { return reinterpret_cast<uint8_t*>(&cell) + 16; }
  static size_t short_cells(size_t size) { return (16 + size + 63) / 64; }
  // Whether a short message of that size fits at the head; checks a size from the peer.
  bool short_fits(size_t size) const {
    return size <= kMaxShort &&
           head_.load(std::memory_order_relaxed) % kCells + short_cells(size) <= kCells;
  }

  static constexpr size_t kFewCells = 4;
  bool is_half_empty() {
    if (next_ - cells_freed_ <= kCells / 2) return true;
    cells_freed_ = out_.consumer.cells.load(std::memory_order_acquire);  // pairs with consume()
    return next_ - cells_freed_ <= kCells / 2;
  }
  bool push_beside(uint64_t tag, const uint8_t* data, size_t size);
  bool push_frame(const Frame& frame);

  // Whether `count` contiguous cells are free. Pads to the end of the ring if necessary.
  bool has_cells(size_t count) {
    uint64_t end = next_ + count;
    if (next_ % kCells + count > kCells) end += kCells - next_ % kCells;
    if (end - cells_freed_ > kCells) {
      // acquire: pairs with consume(); the consumer's reads are over.
      cells_freed_ = out_.consumer.cells.load(std::memory_order_acquire);
      if (end - cells_freed_ > kCells) return false;
    }
    if (next_ % kCells + count > kCells) {
      publish(out_.cells[next_ % kCells], kCells - next_ % kCells, FrameType::kPad, 0, 0);
    }
    return true;
  }
  void publish(Cell& cell, size_t cells, FrameType type, uint8_t flags, uint16_t short_size) {
    // release: pairs with the acquire in ready(), peek() and take_short().
    cell.word.store(cell_word(sequence_of(next_), type, flags, short_size),
                    std::memory_order_release);
    next_ += cells;
  }
  // Advances the head past a frame of `cells` cells. True: returned room to the producer.
  bool consume(size_t cells) {
    uint64_t head = head_.load(std::memory_order_relaxed);
    for (size_t i = 1; i < cells; ++i) {
      in_.cells[head % kCells + i].word.store(0, std::memory_order_relaxed);
    }
    head += cells;
    head_.store(head, std::memory_order_relaxed);
    if (head - cells_given_ < kCells / 8) return false;
    cells_given_ = head;
    // release: the reads above are over; pairs with has_cells().
    in_.consumer.cells.store(head, std::memory_order_release);
    return true;
  }
  static uint64_t place_payload(uint64_t position, size_t size);

  SegmentDirection& out_;
  SegmentDirection& in_;

  // Producer. Positions count cells and bytes since the start; the freed positions lag behind the
  // consumer's.
  uint64_t next_ = 0;
  uint64_t cells_freed_ = 0;
  uint64_t payload_next_ = 0;
  uint64_t payload_freed_ = 0;

  // Consumer.
  std::atomic<uint64_t> head_{0};  // written under the lock, read by ready()
  uint64_t cells_given_ = 0;
  uint64_t payload_head_ = 0;
  uint64_t payload_given_ = 0;
  size_t peeked_cells_ = 1;  // of the last peeked frame
  uint64_t peeked_payload_head_ = 0;
};

}  // namespace oh
