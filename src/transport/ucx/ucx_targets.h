// SPDX-License-Identifier: Apache-2.0
//
// UcxTargets: local memory into which payloads of one link are copied straight from UCX's segment,
// before their frames are handled. Its users post and revoke targets; after revoke nothing is
// written there. A payload without a target waits in the inbox.
//
//   parts of a message that was requested      post()          by the message's op
//   eager messages, whole or in parts          post_message()  by tag and number
//   puts into a region that was used before    post_region()   by the region's version
//   answers to a get                           post_answers()  by the get's op
//
// Puts are written in the order of their frames: while bytes of one put wait in the inbox, later
// puts wait there too.
//
// Threading: guarded by the worker's lock. The functions that post and revoke take it; any thread
// may call them. Those for arrivals (write_*) are called with it held. put_handled(): any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/sync.h"
#include "base/tag_table.h"
#include "transport/frame.h"

namespace oh {

// The target of the answers to a get. Any thread calls it with the worker's lock held, so it reads
// only immutable state.
class UcxSink {
 public:
  virtual ~UcxSink() = default;
  // The local address for `size` bytes at `offset` of a block; null: out of bounds.
  virtual uint8_t* place_of(uint32_t block, uint64_t offset, uint64_t size) const = 0;
};

class UcxTargets {
 public:
  // Limit of posted regions; puts into other regions go through the inbox.
  static constexpr size_t kMostRegions = 64;
  // Limit of posted gets; the answers to other gets go through the inbox.
  static constexpr size_t kMostGets = 16;

  explicit UcxTargets(SpinLock& worker_lock) : lock_(worker_lock) {}
  UcxTargets(const UcxTargets&) = delete;
  UcxTargets& operator=(const UcxTargets&) = delete;

  // Posts `to` as the target of bytes [begin, begin + size) of the message `op`. revoke(): the
  // target that begins at `begin`, or all targets of `op`.
  void post(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size);
  void revoke(uint64_t op, std::optional<uint64_t> begin = {});
  // Posts the target of the message with this number of its tag. A message that does not fit is not
  // written. False: that number is already posted, or the link has ended.
  struct Message {
    uint32_t number;
    uint32_t epoch;
    uint8_t* to;
    uint64_t capacity;
    bool has_come;
  };
  bool post_message(uint64_t tag, const Message& message);
  // Revokes the target. False: the message has been written there and its frame is in the inbox; it
  // is removed only with `taken`, when that frame is handled.
  bool revoke_message(uint64_t tag, uint32_t number, bool taken);
  // Posts a local region as the target of puts; call it after a put into it was checked.
  struct Region {
    uint32_t index;
    uint64_t version;
    uint8_t* base;
    uint64_t length;
  };
  void post_region(const Region& region);
  void revoke_region(uint64_t version);
  void post_answers(uint64_t op, const UcxSink* sink);
  void revoke_answers(uint64_t op);
  // Ends the link: revokes all targets; later posts have no effect.
  void revoke_all();

  // With the lock held. True: the bytes were written to their target.
  bool write_part(const FrameBody& body, const void* data, size_t size);
  bool write_message(const FrameBody& body, const void* data, size_t size);
  // Called for each frame, in order; writes puts and answers to gets. `data`: null if the payload
  // already waits in the inbox. `waits`: set if these are bytes of a put that must wait; the inbox
  // calls put_handled() later.
  bool write_in_order(uint64_t word, const FrameBody& body, const void* data, size_t size,
                      bool* waits);
  // Bytes of a put that waited in the inbox have been handled.
  void put_handled() {
    // release: pairs with write_in_order().
    waiting_.fetch_sub(1, std::memory_order_release);
  }

 private:
  static constexpr size_t kTidyAt = 4096;
  // The target of a part of the message `op`.
  struct Part {
    uint64_t op;
    uint8_t* to;
    uint64_t begin;
    uint64_t size;
  };
  struct Tag {
    uint64_t tag = 0;
    Tag* next_in_bucket = nullptr;
    std::deque<Message> messages;  // by number
    void reset() {}
    bool idle() const { return messages.empty(); }
    std::deque<Message>::iterator find(uint32_t number);
  };
  // The put that is arriving, if all its bytes so far were written to the target.
  struct Put {
    uint64_t version = 0;  // of its region; 0: none
    uint64_t op = 0;
    uint8_t* to = nullptr;
    uint64_t length = 0;
    uint64_t received = 0;
  };

  bool write_put(const FrameBody& body, const void* data, size_t size);
  bool write_rest_of_put(const FrameBody& body, const void* data, size_t size);
  bool write_answer(const FrameBody& body, const void* data, size_t size);

  SpinLock& lock_;
  bool all_revoked_ = false;
  std::vector<Part> parts_;  // few
  TagTable<Tag> tags_;
  size_t tidy_at_ = kTidyAt;  // number of tags at which idle ones are dropped
  std::vector<Region> regions_;
  std::vector<std::pair<uint64_t, const UcxSink*>> answers_;
  Put put_;
  std::atomic<size_t> waiting_{0};  // frames in the inbox that hold bytes of puts
};

}  // namespace oh
