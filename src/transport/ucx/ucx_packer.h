// SPDX-License-Identifier: Apache-2.0
//
// UcxPacker: copies frames on their way to UCX, and numbers all messages of a link. It copies small
// frames into a note (send descriptor) and larger ones into a buffer of the worker's pool
// (ucx_pool.h). Frames that follow each other at once (Frame::more) share a buffer (ucx_packing.h)
// and one active message of type kUcxPacked, with one number.
//
//   push() ──▶ note ─────────────────────▶ UCX ──▶ note is free again
//         └──▶ pack (a pooled buffer) ──▶ note, when the pack is full or the turn ends
//
// UCX queues without bound: the packer gives it no more while it holds too many bytes of copies. If
// the pool has no free buffer, the packer queues for the next one.
//
// Threading: guarded by the link's lock. The functions marked below, and UCX's callbacks, are
// called with the worker's lock held; the others take it when they need it. push() into an open
// pack needs only the link's lock.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_head.h"

namespace oh {

class UcxPacker {
 public:
  // Limit of the bytes of notes in flight; pooled buffers are limited by their number. Beyond it
  // frames wait with their requests.
  static constexpr uint64_t kMostOutstanding = 1 << 20;

  explicit UcxPacker(UcxEndpoint& endpoint);
  ~UcxPacker();
  UcxPacker(const UcxPacker&) = delete;
  UcxPacker& operator=(const UcxPacker&) = delete;

  // Sets the peer's number of the link and its key. `max_inline`: payloads up to this size travel
  // in the header. Call it before the first message.
  void open(uint32_t link, uint32_t key, size_t max_inline);

  bool push(const Frame& frame);
  // A turn fills at most `buffers` buffers; frames with `more` are pushed only within a turn.
  // end_turn() sends the open pack. A packer that is queued for a buffer and did not request one in
  // this turn leaves the queue.
  void begin_turn(size_t buffers);
  void end_turn();
  // The value of `buffers` for one call of progress.
  size_t depth() const { return pool().limits().depth; }
  // Leaves the queue for buffers: no frame waits for one any more.
  void leave_line();
  // Payload of the next frame when `left` bytes remain: fills the open pack, or a new buffer if too
  // little room is left.
  size_t part_of_list(uint64_t left) const;
  // Frames packed so far; how often frames had to wait for room.
  struct Counts {
    uint64_t packed = 0;
    uint64_t deferred = 0;
  };
  const Counts& counts() const { return counts_; }
  // Frames sent so far.
  uint64_t sent() const { return sent_; }

  // With the worker's lock held:
  // Whether UCX holds too many bytes of notes to be given more now.
  bool is_full() const { return outstanding_ > kMostOutstanding; }
  // Sends the open pack. Call it before a frame that does not join the pack, to keep the order.
  void send_pack();
  // Writes the header of the next frame, with the next number; returns its size.
  size_t write_head(uint8_t* to, const Frame& frame, bool is_short);
  // Sends a header of `size` bytes: a head without a number, and zeros.
  void send_probe(FrameType type, size_t size);
  // Ends the link: drops the open pack and leaves the queue for buffers.
  void stop();

 private:
  struct Note;

  UcxPool& pool() const { return endpoint_.worker().pool(); }
  UcxHead next_head(FrameType type, uint8_t flags);
  bool push_alone(const Frame& frame);
  bool take_buffer(PooledBuffer* buffer);
  void give_buffer(PooledBuffer* buffer);
  void pack(const Frame& frame);
  void drop_pack();
  void leave();
  bool defer();
  Note* take_note();
  void send_note(Note* note, size_t header_size, size_t payload_size);
  void release(Note* note, ucx::StatusPointer pointer);
  static void on_note_sent(void* request, ucx::Code code, void* context);

  UcxEndpoint& endpoint_;
  uint32_t link_ = 0;
  uint32_t key_ = 0;
  size_t max_inline_ = 0;
  uint64_t sent_ = 0;
  PooledBuffer pack_;  // the open pack; no data: none
  size_t pack_size_ = 0;
  size_t turn_left_ = SIZE_MAX;       // buffers that this turn may still fill
  std::atomic<bool> in_line_{false};  // queued for a buffer; relaxed, written under worker's lock
  bool asked_ = false;                // has requested a buffer in this turn
  bool deferring_ = false;            // a frame waits for room
  Counts counts_;

  // Guarded by the worker's lock.
  std::vector<std::unique_ptr<Note>> notes_;
  std::vector<Note*> free_notes_;
  uint64_t outstanding_ = 0;  // bytes of notes in flight, without pooled buffers
  uint32_t messages_ = 0;     // messages sent: the next number
  size_t buffers_ = 0;        // pooled buffers in use
};

}  // namespace oh
