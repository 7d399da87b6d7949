// SPDX-License-Identifier: Apache-2.0
//
// UcxInbox: frames of one link that have arrived over UCX, until they are handled in the order of
// their numbers. UCX delivers in any order: what comes before its turn is stashed. Payloads that
// have a target (ucx_targets.h) are written there at once; others wait here, copied or in UCX's
// hands. It calls nothing of UCX: the channel gives back the data of UCX's that the inbox has done
// with.
//
//   arrive() ──▶ in its turn? ──▶ batch ──▶ peek() | pop()
//                  └──▶ stash ──▶ ┘ when those before it have come
//
// Nothing that arrives is believed: an outcome that says so ends the link.
//
// Threading: arrive() and take_stashed() are called with the worker's lock held, from UCX's
// callbacks. peek(), pop() and take_data() are guarded by the peer's lock; ready(): any thread. The
// two sides meet in a batch under a lock of its own, which is taken last.
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
  // Frames that may come before their turn, or wait to be looked at; credit keeps an honest peer
  // far below.
  static constexpr size_t kMostStashed = 65536;
  static constexpr size_t kMostWaiting = 1 << 20;
  // Bytes of the former. What overtakes is on its way: an honest peer has some MiB of copies there,
  // and parts that were asked for are written to their targets and not stashed.
  static constexpr uint64_t kMostBytesStashed = 64 << 20;

  explicit UcxInbox(SpinLock& worker_lock) : targets_(worker_lock) {}
  UcxInbox(const UcxInbox&) = delete;
  UcxInbox& operator=(const UcxInbox&) = delete;

  UcxTargets& targets() { return targets_; }

  // An active message. `header`: what follows the head in it.
  struct Message {
    UcxHead head;
    ByteView header;
    void* data = nullptr;  // of UCX
    size_t size = 0;
    bool rendezvous = false;  // the data is with the sender; `data` describes it
    bool may_keep = false;    // `data` may be kept until it is given back
  };
  struct Outcome {
    bool keeps = false;  // the inbox has `data` until pop(), take_data() or take_stashed()
    bool ready = false;  // frames became ready
    Status broken;       // not ok: the peer breaks the rules, and the link ends with this text
  };
  Outcome arrive(const Message& message);
  // Data of UCX's that stashed frames have. They are dropped: the link has ended.
  std::vector<void*> take_stashed();

  bool ready() const { return waiting_.load(std::memory_order_acquire) > 0; }
  // The first frame, until pop(); ready() has said that there is one.
  Status peek(Frame* frame);
  // Data of UCX's that the frame had, to be given back; mostly null.
  void* pop();
  // The data of the first frame, which is with its sender (Frame::remote), to fetch it.
  void* take_data();
  // Frames that were handled so far.
  uint64_t taken() const { return taken_; }

 private:
  // A frame that has come. Its payload is in `bytes` of the batch, or in `data`, or with its
  // sender.
  struct Arrival {
    uint64_t word = 0;
    FrameBody body{};
    size_t offset = 0;
    void* data = nullptr;
    bool rendezvous = false;
    bool placed = false;
    bool waits = false;  // bytes of a put that wait here
  };
  // Bytes one behind the other. A vector would write each of them twice.
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
    uint64_t size;  // with what UCX keeps for it
    Bytes bytes;
  };

  Outcome arrive_packed(const Message& message);
  bool place(const Message& message, const Arrival& arrival);
  Outcome take_turn(const UcxHead& head, const Arrival& arrival, ByteView payload);
  Outcome deliver(const Arrival& arrival, ByteView payload);
  bool land(Arrival* arrival, const void* data, size_t size);
  void enter(Arrival arrival, ByteView payload) OH_REQUIRES(lock_);
  void enter_pack(ByteView bytes) OH_REQUIRES(lock_);

  // Guarded by the peer's lock.
  Batch batch_;  // at hand
  size_t position_ = 0;
  uint64_t taken_ = 0;

  // Guarded by the worker's lock.
  UcxTargets targets_;
  uint32_t next_sequence_ = 0;
  std::map<uint32_t, Stashed> stash_;  // came before their turn
  uint64_t stashed_ = 0;               // bytes of them

  SpinLock lock_;  // taken last
  Batch arrived_ OH_GUARDED_BY(lock_);
  std::atomic<size_t> waiting_{0};  // frames between deliver() and pop()
};

}  // namespace oh
