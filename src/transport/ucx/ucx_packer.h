// SPDX-License-Identifier: Apache-2.0
//
// UcxPacker: frames that are copied on their way to UCX, and the numbers of all frames of a link.
// Small frames are copied into a note, larger ones into a buffer of the worker's pool (ucx_pool.h).
// Frames that follow each other at once (Frame::more) share a buffer (ucx_packing.h): one active
// message of type kUcxPacked, whose number is the only one that they have.
//
//   push() ──▶ note ─────────────────────▶ UCX ──▶ note is free again
//         └──▶ pack (a pooled buffer) ──▶ note, when the pack is full or the turn ends
//
// UCX queues without bound: it is given no more while the copies that it holds are above a limit.
// Where the pool has no buffer the packer waits in line for the next one.
//
// Threading: guarded by the peer's lock; what UCX calls, and the functions that say so, by the
// worker's, which the others take by themselves where they need it. push() into an open pack needs
// the peer's lock alone.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_head.h"

namespace oh {

class UcxPacker {
 public:
  // Of messages in UCX's hands, without the buffers, of which there are so many; what is above
  // stays with the requests.
  static constexpr uint64_t kMostOutstanding = 1 << 20;

  explicit UcxPacker(UcxEndpoint& endpoint);
  ~UcxPacker();
  UcxPacker(const UcxPacker&) = delete;
  UcxPacker& operator=(const UcxPacker&) = delete;

  // What the peer told: its number of the link, and its key. `max_inline`: payloads up to this size
  // travel in the header. Before the first message.
  void open(uint32_t link, uint32_t key, size_t max_inline);

  bool push(const Frame& frame);
  // Frames with `more` are pushed between the two only. No more than so many buffers are filled;
  // what is packed has gone to UCX afterwards, and a packer that waited for a buffer and did not
  // ask again leaves the queue.
  void begin_turn(size_t buffers);
  void end_turn();
  // For `buffers`: what one call of progress may fill.
  size_t depth() const { return pool().limits().depth; }
  // Nothing that needs a buffer waits any more.
  void leave_line();
  // Payload of the next frame of `left` bytes, so that it fills a buffer and is in one.
  size_t part_of_list(uint64_t left) const;
  // Frames that were packed so far; how often something had to wait for room.
  struct Counts {
    uint64_t packed = 0;
    uint64_t deferred = 0;
  };
  const Counts& counts() const { return counts_; }
  // Frames that were sent so far.
  uint64_t sent() const { return sent_; }

  // With the worker's lock held:
  // UCX holds so many copies that it is to be given nothing more now.
  bool is_full() const { return outstanding_ > kMostOutstanding; }
  // The pack goes to UCX, as a frame that does not join it must come behind it.
  void send_pack();
  // Header of the next frame, which gets its number; how many bytes that is.
  size_t write_head(uint8_t* to, const Frame& frame, bool is_short);
  // A message of `size` bytes of header: a head without a number, and zeros.
  void send_probe(FrameType type, size_t size);
  // The link ends: drops the pack, and leaves the queue.
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
  PooledBuffer pack_;  // that frames are copied into; without data: none
  size_t pack_size_ = 0;
  size_t turn_left_ = SIZE_MAX;       // buffers that may be filled in this turn
  std::atomic<bool> in_line_{false};  // for a buffer; written with the worker's lock held, relaxed
  bool asked_ = false;                // in this turn
  bool deferring_ = false;            // something waits for room
  Counts counts_;

  // Guarded by the worker's lock.
  std::vector<std::unique_ptr<Note>> notes_;
  std::vector<Note*> free_notes_;
  uint64_t outstanding_ = 0;  // bytes that UCX holds for us, without the buffers
  uint32_t messages_ = 0;     // sent so far
  size_t buffers_ = 0;        // of the pool that we have
};

}  // namespace oh
