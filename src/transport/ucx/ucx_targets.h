// SPDX-License-Identifier: Apache-2.0
//
// UcxTargets: memory of ours that payloads of one link are copied into straight from UCX's segment,
// before their frames are handled. Those who know of such memory post it and revoke it; once it is
// revoked nothing is written there. What finds no target waits in the inbox with its bytes.
//
//   parts of a message that was requested      post()          by the message's op
//   eager messages, whole or not               post_message()  by tag and number
//   puts into a region that was used before    post_region()   by the region's version
//   answers to a get                           post_answers()  by the get's op
//
// Puts are written in the order of their frames: while the bytes of one wait in the inbox, those of
// later ones wait there, too.
//
// Threading: everything is guarded by the worker's lock. Functions that post and revoke take it,
// and any thread may call them. What an arrival calls is called with it held. put_handled() needs
// neither.
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

// Where the answers to a get go. Asked with the worker's lock held, by any thread: it looks at
// nothing that changes.
class UcxSink {
 public:
  virtual ~UcxSink() = default;
  // Null: nowhere.
  virtual uint8_t* place_of(uint32_t block, uint64_t offset, uint64_t size) const = 0;
};

class UcxTargets {
 public:
  // Regions of one peer; puts into others go through the inbox.
  static constexpr size_t kMostRegions = 64;
  // Gets; the answers to others go through the inbox.
  static constexpr size_t kMostGets = 16;

  explicit UcxTargets(SpinLock& worker_lock) : lock_(worker_lock) {}
  UcxTargets(const UcxTargets&) = delete;
  UcxTargets& operator=(const UcxTargets&) = delete;

  // Bytes [begin, begin + size) of the message `op` go to `to`. revoke(): those that begin at
  // `begin`, or all of them.
  void post(uint64_t op, uint8_t* to, uint64_t begin, uint64_t size);
  void revoke(uint64_t op, std::optional<uint64_t> begin = {});
  // The message with this number of its tag goes to `to`, if it fits. False: that number is posted
  // already, or the link has ended.
  struct Message {
    uint32_t number;
    uint32_t epoch;
    uint8_t* to;
    uint64_t capacity;
    bool has_come;
  };
  bool post_message(uint64_t tag, const Message& message);
  // False: it has come, and is ready; it is only forgotten once it is `taken`.
  bool revoke_message(uint64_t tag, uint32_t number, bool taken);
  // Puts into a region of ours, once one of them was checked.
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
  // The link has ended: revokes everything, and what is posted from now on.
  void revoke_all();

  // With the lock held. True: the bytes are where they belong.
  bool write_part(const FrameBody& body, const void* data, size_t size);
  bool write_message(const FrameBody& body, const void* data, size_t size);
  // Called for each frame, in their order; `data` is null where its bytes wait already. For puts
  // and answers to gets. `waits`: they are bytes of a put that wait; put_handled() follows.
  bool write_in_order(uint64_t word, const FrameBody& body, const void* data, size_t size,
                      bool* waits);
  // Bytes of a put that waited have been copied to where they belong.
  void put_handled() {
    // release: pairs with write_in_order().
    waiting_.fetch_sub(1, std::memory_order_release);
  }

 private:
  static constexpr size_t kTidyAt = 4096;
  // Of the message `op`.
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
  // The put that is arriving, as far as all of it was written.
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
  size_t tidy_at_ = kTidyAt;  // tags at which idle ones are forgotten
  std::vector<Region> regions_;
  std::vector<std::pair<uint64_t, const UcxSink*>> answers_;
  Put put_;
  std::atomic<size_t> waiting_{0};  // frames in the inbox with bytes of puts
};

}  // namespace oh
