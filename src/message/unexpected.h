// SPDX-License-Identifier: Apache-2.0
//
// UnexpectedQueue: messages that arrived before their receive was posted. Eager messages are stored
// with their bytes; the bytes of announced ones (RTS) are still at the sender.
//
// Threading: guarded by the link's lock.
#pragma once

#include <memory>
#include <vector>

#include "base/list.h"
#include "base/pool.h"
#include "path/direct/transfers.h"
#include "transport/frame.h"

namespace oh {

struct InTag;
struct InUserTags;

// The most operations that a sender may refer to by ID at once.
inline constexpr size_t kMaxOps = 1 << 20;

// A message that its sender has announced.
struct Rts {
  uint64_t tag = 0;
  uint64_t length = 0;
  uint64_t op = 0;  // the sender's operation ID
  bool has_slot = false;
  bool not_yet = false;  // earlier work on the sender's memory is not done
  Transfers::Offer offer = {};
};

// One message. `op` of a complete batch offer is the operation ID of the batch's receive.
struct Unexpected : ListNode<InTag>, ListNode<InUserTags>, Rts {
  List<Unexpected, InTag>* queue = nullptr;  // of its tag
  bool announced = false;                    // the bytes are at the sender
  uint64_t received = 0;
  uint8_t small[64];
  std::unique_ptr<uint8_t[]> large;
  uint8_t* bytes() { return large ? large.get() : small; }
  bool is_whole() const { return !announced && received == length; }
};

class UnexpectedQueue {
 public:
  using OfTag = List<Unexpected, InTag>;

  // Queues an eager message behind those of its tag, with the bytes of its first frame.
  Unexpected* keep(OfTag& queue, const Frame& eager);
  // The same for an announced message.
  void keep(OfTag& queue, const Rts& rts);
  void drop(Unexpected* message);

  // The first message that an any-tag receive takes.
  Unexpected* front() const { return of_users_.front(); }
  bool has_user_messages() const { return !of_users_.empty(); }
  size_t size() const { return size_; }

  // An announced message, by the sender's operation ID.
  Unexpected* find_announced(uint64_t op) const { return announced_.find(op); }
  // A batch offer, by the operation ID of the batch's receive. name_offer() registers it once it is
  // complete.
  Unexpected* find_offer(uint64_t op) const { return offers_.find(op); }
  void name_offer(Unexpected* message);

 private:
  // Messages by the index in their ID. Of two messages with one ID, which a correct sender never
  // causes, the later one is found.
  class Names {
   public:
    void add(Unexpected* message, uint64_t op);
    Unexpected* find(uint64_t op) const;
    void remove(const Unexpected* message);

   private:
    std::vector<Unexpected*> messages_;
  };

  Unexpected* append(OfTag& queue, const Rts& message);

  Pool<Unexpected> pool_;
  List<Unexpected, InUserTags> of_users_;  // with user tags, in the order of arrival
  Names announced_;
  Names offers_;
  size_t size_ = 0;
};

}  // namespace oh
