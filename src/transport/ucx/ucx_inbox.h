// SPDX-License-Identifier: Apache-2.0
//
// UcxInbox: the arrived frames of one link over UCX, until they are handled in the order of their
// numbers. UCX delivers in any order, so the inbox stashes early frames. Payloads that have a
// target (ucx_targets.h) are written there at once; others wait here, copied or in UCX's buffers.
// The inbox does not call UCX: the channel releases UCX's buffers.
//
//   arrive() ──▶ in sequence? ──▶ batch ──▶ peek() | pop()
//                  └──▶ stash ──▶ ┘ when all frames before it have arrived
//
// Everything that arrives is checked; a violation ends the link (Outcome::broken).
//
// Threading: arrive() and take_stashed() are called with the worker's lock held. peek(), pop() and
// take_data() are guarded by the link's lock; ready(): any thread. Both pass frames through a batch
// under `lock_`, which is taken last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/status.h"
#include "base/sync.h"
#include "base/wire.h"
#include "transport/ucx/ucx_head.h"
#include "transport/ucx/ucx_targets.h"

namespace oh {

class UcxInbox {
 public:
  // Limits of early frames, and of frames that wait to be handled; credit keeps an honest peer far
  // below them.
  static constexpr size_t kMostStashed = 65536;
  static constexpr size_t kMostWaiting = 1 << 20;
  // Limit of the bytes of early frames. An honest peer has some MiB of copies in flight; parts that
  // were requested are written to their targets and not stashed.
  static constexpr uint64_t kMostBytesStashed = 64 << 20;

  explicit UcxInbox(SpinLock& worker_lock) : targets_(worker_lock) {}
  UcxInbox(const UcxInbox&) = delete;
  UcxInbox& operator=(const UcxInbox&) = delete;

  UcxTargets& targets() { return targets_; }

  // An active message. `header`: its header behind the head.
  struct Message {
    UcxHead head;
    ByteView header;
    void* data = nullptr;  // UCX's buffer or descriptor
    size_t size = 0;
    bool rendezvous = false;  // the payload is still at the sender; `data` is UCX's descriptor
    bool may_keep = false;    // `data` may be kept until it is released
  };
  struct Outcome {
    bool keeps = false;  // the inbox keeps `data` until pop(), take_data() or take_stashed()
    bool ready = false;  // frames became ready
    Status broken;       // an error: the peer violates the protocol, and the link ends with it
  };
  Outcome arrive(const Message& message);
  // Drops the stashed frames when the link has ended. Returns UCX's buffers, to be released.
  std::vector<void*> take_stashed();

  bool ready() const { return waiting_.load(std::memory_order_acquire) > 0; }
  // The first frame, valid until pop(). Precondition: ready().
  Status peek(Frame* frame);
  // Removes the first frame. Returns its UCX buffer, to be released; mostly null.
  void* pop();
  // Takes UCX's descriptor of the first frame, whose payload is at the sender (Frame::remote).
  void* take_data();
  // Frames handled so far.
  uint64_t taken() const { return taken_; }

 private:
  // An arrived frame. Its payload is in the batch's `bytes` at `offset`, in `data`, at its target
  // (placed), or at the sender (rendezvous).
  struct Arrival {
    uint64_t word = 0;
    FrameBody body{};
    size_t offset = 0;
    void* data = nullptr;
    bool rendezvous = false;
    bool placed = false;
    bool waits = false;  // it holds bytes of a put; see UcxTargets::put_handled()
  };
  // An append-only byte buffer. A vector would first zero the bytes that it appends.
  class Payloads {
   public:
    size_t size() const { return size_; }
    const uint8_t* at(size_t offset) const { return bytes_.get() + offset; }
    void clear() { size_ = 0; }
    void append(ByteView bytes);

   private:
    std::unique_ptr<uint8_t[]> bytes_;
    size_t size_ = 0;
    size_t room_ = 0;
  };
  struct Batch {
    std::vector<Arrival> arrivals;
    Payloads bytes;
  };
  struct Stashed {
    Arrival arrival;
    uint64_t size;  // of the payload, also if UCX's buffer holds it
    Bytes bytes;
  };

  Outcome arrive_packed(const Message& message);
  bool place(const Message& message, const Arrival& arrival);
  Outcome take_turn(const UcxHead& head, const Arrival& arrival, ByteView payload);
  Outcome deliver(const Arrival& arrival, ByteView payload);
  bool land(Arrival* arrival, const void* data, size_t size);
  void enter(Arrival arrival, ByteView payload) OH_REQUIRES(lock_);
  void enter_pack(ByteView bytes) OH_REQUIRES(lock_);

  // Guarded by the link's lock.
  Batch batch_;  // being handled, from position_ on
  size_t position_ = 0;
  uint64_t taken_ = 0;

  // Guarded by the worker's lock.
  UcxTargets targets_;
  uint32_t next_sequence_ = 0;
  std::map<uint32_t, Stashed> stash_;  // early frames by number
  uint64_t stashed_ = 0;               // their bytes

  SpinLock lock_;  // taken last
  Batch arrived_ OH_GUARDED_BY(lock_);
  std::atomic<size_t> waiting_{0};  // frames between deliver() and pop()
};

}  // namespace oh
