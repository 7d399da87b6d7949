// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_packer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_packing.h"

namespace oh {
namespace {
// Estimate of UCX's memory per message, beside the header.
constexpr size_t kNoteCost = 512;
// A smaller part goes into the next buffer.
constexpr size_t kLeastPart = 4096;
}  // namespace

// A send descriptor: the copy of one frame or pack, free or in flight. Guarded by the worker's
// lock.
struct UcxPacker::Note {
  Note(UcxPacker* owner, size_t room)
      : packer(owner), worker(&owner->endpoint_.worker()), bytes(new uint8_t[room]) {}
  uint8_t* head() { return bytes.get(); }

  UcxPacker* packer;  // null: the packer was destroyed while the note was in flight
  UcxWorker* worker;
  bool in_flight = false;
  size_t size = 0;
  std::unique_ptr<uint8_t[]> bytes;  // header and small payload
  PooledBuffer buffer;               // larger payload or pack
};

UcxPacker::UcxPacker(UcxEndpoint& endpoint) : endpoint_(endpoint) {}

UcxPacker::~UcxPacker() {
  SpinGuard guard(endpoint_.worker().lock);
  // UCX still reads notes in flight: on_note_sent() frees them.
  for (std::unique_ptr<Note>& note : notes_) {
    if (!note->in_flight) continue;
    note->packer = nullptr;
    (void)note.release();
  }
}

void UcxPacker::open(uint32_t link, uint32_t key, size_t max_inline) {
  link_ = link;
  key_ = key;
  max_inline_ = max_inline;
}

UcxHead UcxPacker::next_head(FrameType type, uint8_t flags) {
  return {link_, messages_++, cell_word(key_, type, flags, 0)};
}

size_t UcxPacker::write_head(uint8_t* to, const Frame& frame, bool is_short) {
  uint8_t flags = static_cast<uint8_t>(frame.flags | (is_short ? kShort : 0));
  UcxHead head = next_head(frame.type, flags);
  ++sent_;
  std::memcpy(to, &head, sizeof(head));
  if (is_short) {
    std::memcpy(to + sizeof(head), &frame.tag, sizeof(frame.tag));
    return kUcxShortSize;
  }
  FrameBody body = body_of(frame);
  std::memcpy(to + sizeof(head), &body, sizeof(body));
  return kUcxBodySize;
}

void UcxPacker::send_probe(FrameType type, size_t size) {
  if (!endpoint_.handle() || size > kUcxBodySize + max_inline_) return;
  Note* note = take_note();
  UcxHead head{link_, 0, cell_word(key_, type, 0, 0)};
  std::memset(note->head(), 0, size);
  std::memcpy(note->head(), &head, sizeof(head));
  send_note(note, size, 0);
}

// ---- Frames -------------------------------------------------------------------------------------

bool UcxPacker::push(const Frame& frame) {
  const size_t room = pool().limits().packed;
  const size_t size = kPackedHead + frame.payload_size;
  // Only this packer uses the buffer: the link's lock is enough.
  if (pack_.data && frame.more && pack_size_ + size <= room) {
    pack(frame);
    return true;
  }
  SpinGuard guard(endpoint_.worker().lock);
  if (pack_.data && pack_size_ + size > room) send_pack();
  // As on a socket: drop the frame; the loss of the link is detected elsewhere.
  if (!endpoint_.is_usable()) return true;
  if (!pack_.data && (!frame.more || size > room)) return push_alone(frame);
  if (!pack_.data) {
    if (is_full() || turn_left_ == 0) return defer();
    // A frame with a small payload needs no buffer.
    if (!take_buffer(&pack_)) {
      return frame.payload_size <= max_inline_ ? push_alone(frame) : defer();
    }
    pack_size_ = 0;
  }
  pack(frame);
  if (!frame.more) send_pack();
  return true;
}

void UcxPacker::pack(const Frame& frame) {
  pack_size_ += pack_frame(pack_.data + pack_size_, frame);
  ++sent_;
  ++counts_.packed;
}

bool UcxPacker::push_alone(const Frame& frame) {
  const bool within = frame.payload_size <= max_inline_;
  const bool is_short =
      within && frame.type == FrameType::kEager && frame.payload_size == frame.length;
  if (is_full() || (!within && turn_left_ == 0)) return defer();
  PooledBuffer buffer;
  if (!within && !take_buffer(&buffer)) return defer();
  Note* note = take_note();
  size_t header = write_head(note->head(), frame, is_short);
  size_t payload = 0;
  if (within) {
    if (frame.payload_size > 0) {
      std::memcpy(note->head() + header, frame.payload, frame.payload_size);
    }
    header += frame.payload_size;
  } else {
    std::memcpy(buffer.data, frame.payload, frame.payload_size);
    note->buffer = buffer;
    payload = frame.payload_size;
  }
  send_note(note, header, payload);
  return true;
}

void UcxPacker::send_pack() {
  if (!pack_.data || !endpoint_.is_usable()) return drop_pack();
  Note* note = take_note();
  const UcxHead head = next_head(kUcxPacked, 0);
  std::memcpy(note->head(), &head, sizeof(head));
  note->buffer = std::exchange(pack_, {});
  send_note(note, sizeof(head), pack_size_);
}

void UcxPacker::drop_pack() {
  if (pack_.data) give_buffer(&pack_);
}

size_t UcxPacker::part_of_list(uint64_t left) const {
  const size_t whole = pool().limits().packed - kPackedHead;
  const size_t used = pack_.data ? pack_size_ : 0;
  const size_t room = whole > used ? whole - used : 0;
  return std::min<uint64_t>(left, room >= std::min<uint64_t>(left, kLeastPart) ? room : whole);
}

// ---- Turns and the line for buffers -------------------------------------------------------------

// False: the window is full, the pool is empty, or another packer is before this one in the queue.
bool UcxPacker::take_buffer(PooledBuffer* buffer) {
  UcxPool& pool = this->pool();
  if (buffers_ >= pool.window()) return false;
  Result<PooledBuffer> taken = pool.take(this);
  if (!taken.ok()) {
    // If buffers are in use, one of them will be returned; otherwise no frame can ever be sent.
    if (pool.stats().in_use == 0) {
      endpoint_.break_off("no memory to copy into: " + taken.status().text());
    }
    return false;
  }
  asked_ = true;
  const bool waited = in_line_.exchange(!taken->data, std::memory_order_relaxed);
  if (!taken->data) return false;
  if (waited) endpoint_.worker().let_next_go_on();
  *buffer = *taken;
  ++buffers_;
  if (turn_left_ != SIZE_MAX) --turn_left_;
  deferring_ = false;
  pool.grow_if_low();
  return true;
}

void UcxPacker::give_buffer(PooledBuffer* buffer) {
  --buffers_;
  pool().give(std::exchange(*buffer, {}));
  endpoint_.worker().let_next_go_on();
}

// Counts a frame that must wait for room. Returns false, for push().
bool UcxPacker::defer() {
  if (turn_left_ > 0 && !std::exchange(deferring_, true)) ++counts_.deferred;
  return false;
}

void UcxPacker::begin_turn(size_t buffers) {
  SpinGuard guard(endpoint_.worker().lock);
  turn_left_ = buffers;
  asked_ = false;
}

void UcxPacker::end_turn() {
  SpinGuard guard(endpoint_.worker().lock);
  send_pack();
  turn_left_ = SIZE_MAX;
  if (!asked_) leave();
}

void UcxPacker::leave_line() {
  if (!in_line_.load(std::memory_order_relaxed)) return;
  SpinGuard guard(endpoint_.worker().lock);
  leave();
}

void UcxPacker::leave() {
  if (!in_line_.exchange(false, std::memory_order_relaxed)) return;
  pool().forget(this);
  endpoint_.worker().let_next_go_on();
}

void UcxPacker::stop() {
  drop_pack();
  leave();
}

// ---- Notes --------------------------------------------------------------------------------------

UcxPacker::Note* UcxPacker::take_note() {
  if (free_notes_.empty()) {
    notes_.push_back(std::make_unique<Note>(this, kUcxBodySize + max_inline_));
    return notes_.back().get();
  }
  Note* note = free_notes_.back();
  free_notes_.pop_back();
  return note;
}

// Sends the note's header and the first `payload_size` bytes of its buffer.
void UcxPacker::send_note(Note* note, size_t header_size, size_t payload_size) {
  note->size = kNoteCost + header_size;
  const UcxEndpoint::Sending what{.header = note->head(),
                                  .header_size = header_size,
                                  .payload = {note->buffer.data, payload_size},
                                  .registration = note->buffer.registration};
  release(note, endpoint_.send(what, on_note_sent, note));
}

// After UCX's call: frees the note if UCX has completed it, else marks it in flight.
void UcxPacker::release(Note* note, ucx::StatusPointer pointer) {
  if (pointer && !ucx::is_error(pointer)) {
    note->in_flight = true;
    endpoint_.worker().note_held(1);
    outstanding_ += note->size;
    return;
  }
  if (note->buffer.data) give_buffer(&note->buffer);
  free_notes_.push_back(note);
}

void UcxPacker::on_note_sent(void* request, ucx::Code code, void* context) {
  auto* note = static_cast<Note*>(context);
  UcxPacker* packer = note->packer;
  const ucx::Library& library = note->worker->library();
  library.request_free(request);
  note->worker->note_held(-1);
  if (!packer) {
    if (note->buffer.data) {
      note->worker->pool().give(note->buffer);
      note->worker->let_next_go_on();
    }
    delete note;
    return;
  }
  note->in_flight = false;
  packer->outstanding_ -= note->size;
  packer->release(note, nullptr);
  if (code != ucx::kOk) {
    packer->endpoint_.break_off(library.failure(code, ucx::symbol::am_send, "").text());
  }
}

}  // namespace oh
