// SPDX-License-Identifier: Apache-2.0
//
// Request: one operation in flight. A blocking call keeps its request on the stack; the others come
// from the endpoint's pool. A small message touches the three cache lines of RequestCore only, and
// is not cleared behind it. Once `done` is set nothing else touches the request, so the waiting
// thread may reuse it at once.
//
// Threading: fields are guarded by the peer's lock until `done`, afterwards by the caller; `done`
// is atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "base/list.h"
#include "base/status.h"
#include "device/after.h"
#include "device/block.h"
#include "device/stream_gate.h"
#include "link/nvtx.h"
#include "memory/gpu_memory.h"
#include "onehop/types.h"
#include "transport/slot.h"

namespace oh {

class Endpoint;
class Path;
class Peer;
struct Transfer;
struct StagedCopy;
struct InFlight;
struct Operation;
struct Request;
struct BatchReceive;
struct RegionRecord;

// Takes a request back that a part of the link made for itself: a piece of a put or get, the offer
// of a batch. With the lock held.
class PieceOwner {
 public:
  virtual void piece_ended(Request* piece) = 0;

 protected:
  ~PieceOwner() = default;
};

struct InPosted;       // receives that wait for a message
struct InQueue;        // sends, streams, one-sided operations that wait for room
struct InOutstanding;  // in flight, where somebody asks for how long
struct InEnded;        // ended, not yet told to an event loop

enum class OpKind : uint8_t {
  kSend,
  kRecv,
  kPut,
  kGet,
  kNotify,
  kSignal,
  kRecvBatch,
  kReady,  // ends when something is there to be taken: see readiness.h
};

// Where a request stands. A send:    QUEUED ─▶ OFFERED ─▶ DIRECT | STREAM ─▶ ENDED
//                         A receive: POSTED ────────────▶ DIRECT | STREAM ─▶ ENDED
enum class Phase : uint8_t { kIdle, kQueued, kPosted, kOffered, kDirect, kStream, kEnded };
// For texts.
constexpr const char* phase_text(Phase phase) {
  constexpr const char* kTexts[] = {"not begun",
                                    "queued for room",
                                    "posted, unmatched",
                                    "offered, not matched",
                                    "being copied",
                                    "partly transferred",
                                    "ended"};
  return kTexts[static_cast<int>(phase)];
}

// When a receive was posted, comparable between peers: any-source receives advance the era
// (any_source.h).
struct PostOrder {
  uint64_t era = 0;
  uint64_t serial = 0;
  bool before(const PostOrder& other) const {
    return era != other.era ? era < other.era : serial < other.serial;
  }
};

// The memory of a request, where it is on a device: only copy engines touch it.
struct DeviceMemory {
  std::shared_ptr<const GpuExport> exported;  // as the peer gets it
  After after;                                // earlier work that still uses it
  std::unique_ptr<uint8_t[]> bounce;          // bytes that came through the CPU's hands
  uint64_t bounce_size = 0;
};

// What may still touch the buffer of a request that has ended: a transfer, UCX or an engine.
struct Doubt {
  TransferSlot* slot = nullptr;
  uint32_t sequence = 0;
  std::shared_ptr<InFlight> in_flight = {};
  std::shared_ptr<StagedCopy> staged = {};
};

// What few requests have: those of device memory, of streams between hosts, of one-sided operations
// and of batches, and those whose buffer is in doubt.
struct alignas(64) RequestExtras : ListNode<InOutstanding>, ListNode<InEnded> {
  uint64_t entered = 0;   // of an any-source receive: era in which it entered the list last
  uint64_t moved = 0;     // bytes that a stream has pushed
  uint64_t granted = 0;   // bytes of it that the other side has room for
  uint64_t border = 0;    // no part crosses a multiple of this; 0: any may
  uint64_t expected = 0;  // bytes of the message, once known
  uint64_t theirs = 0;    // the sender's name for a message that comes in parts
  std::shared_ptr<StagedCopy> staged;   // its way from or to a device
  std::shared_ptr<InFlight> in_flight;  // its buffer is in the channel's hands
  DeviceMemory device;

  PieceOwner* owner = nullptr;  // null: the pool, or a handle

  // Of a request that is timed, in nanoseconds.
  int64_t began = 0;    // when it was posted; 0: it is not timed
  int64_t posting = 0;  // how long the call that posted it took; 0: until its end
  int64_t took = 0;     // from its post to its end; 0: not known
  // When it was posted, if it is traced; 0: it is not, or no more.
  int64_t posted_at = 0;
  NvtxRange range;
  int64_t outstanding_since = 0;  // while it is among the PostedTimes of its link

  // Of a piece of a put or get that a path posts.
  Path* path_of_piece = nullptr;  // whose piece it is
  Operation* parent = nullptr;    // null: it serves the other side
  BlockRun run;
  bool acknowledged = false;  // a run that was put is there

  // Of the receive of a batch, and of the message that offers it.
  BatchReceive* batch = nullptr;

  // One-sided operations that travel as messages.
  uint32_t region = 0;
  uint64_t version = 0;
  uint64_t remote_offset = 0;

  // Where the buffer still is in doubt after the end: the slots, until each has left its sequence.
  std::vector<Doubt> doubts;
  std::shared_ptr<RegionRecord> doubt_region;  // or until all peers have left it
  std::shared_ptr<Peer> doubt_peer;            // keeps the slots' segment
};

// What each request has.
struct alignas(64) RequestCore : ListNode<InPosted>, ListNode<InQueue> {
  OpKind kind = OpKind::kSend;
  Phase phase = Phase::kIdle;
  bool any_source = false;
  bool attended = false;  // a thread waits for it now
  bool on_device = false;
  bool in_place = false;  // the channel knows it (RTR): the bytes come straight
  bool eager = false;     // sent before its receive is known
  bool plain = false;     // it has ended as a short message, which has no extras
  bool internal = false;  // the library's own: a piece, the offer of a batch; not counted
  bool counted = false;   // among the outstanding ones of its link
  Endpoint* endpoint = nullptr;
  Peer* peer = nullptr;  // set once it is known

  uint8_t* data = nullptr;
  uint64_t size = 0;  // bytes to send, or capacity
  uint64_t tag = 0;

  PostOrder order;
  uint64_t op = 0;  // our name for it, once the other side refers to it
  Transfer* transfer = nullptr;
  uint32_t number = 0;  // of a receive that was announced (RTR)

  // The result.
  oh_path path = OH_PATH_NONE;
  Status status;
  uint64_t nbytes = 0;
  uint64_t message_tag = 0;
  uint64_t peer_id = 0;
  int64_t peer_rank = -1;

  std::atomic<int64_t> waits_since{0};  // when the first wait began that did not see its end
};
static_assert(sizeof(RequestCore) <= 3 * 64);

struct Request : RequestExtras, RequestCore {
  static constexpr uint32_t kAnnounce = 1;   // by Completions::armed()
  static constexpr uint32_t kOpenGates = 2;  // for streams
  static constexpr uint32_t kList = 4;       // among the ended of its pool, by listed()
  static constexpr uint32_t kEnding = 8;     // without a lock: it may have missed the others

  // Written once, with release; pairs with the waiters' acquire.
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> armed{0};     // what its end is to do: kAnnounce, kOpenGates, kList
  bool to_list = false;               // guarded by its pool: armed for the list, and not yet in it
  std::atomic<uint32_t> detached{0};  // no handle is left: back to the pool at its end
  // Of streams that wait for its end; no_gates() once they are taken. Exchanged with seq_cst: who
  // takes the list sees what add_gate() put into it.
  std::atomic<StreamGate*> gates{nullptr};

  bool is_run() const { return !run.empty(); }
  // Whether its bytes leave here as a message's do.
  bool sends() const {
    return is_run() ? (kind == OpKind::kPut) != serves_peer() : kind == OpKind::kSend;
  }
  // A piece of an operation of the other side.
  bool serves_peer() const { return path_of_piece && !parent; }
  // Earlier work on its memory is not done yet.
  bool pending() const { return device.after.pending(); }
  // False: it is ending, and takes no more.
  bool add_gate(StreamGate* gate) {
    gate->next = gates.load();
    do {
      if (gate->next == no_gates()) return false;
    } while (!gates.compare_exchange_weak(gate->next, gate));
    armed.fetch_or(kOpenGates, std::memory_order_seq_cst);
    return true;
  }
  // It takes no more of them. Its end takes them before `done`, while the request is there, and
  // opens them behind it: who waited for the stream sees that the request has ended.
  StreamGate* take_gates() {
    StreamGate* taken = gates.exchange(no_gates());
    return taken == no_gates() ? nullptr : taken;
  }
  static StreamGate* no_gates() {
    static StreamGate none;
    return &none;
  }
  bool ended() const { return done.load(std::memory_order_acquire) != 0; }
  // A wait did not see its end, or goes on elsewhere: for the text of a deadline.
  void wait_began(int64_t at) {
    int64_t none = 0;
    waits_since.compare_exchange_strong(none, at, std::memory_order_relaxed);
  }

  // Before it is used again: gives back what it holds. Only for its sole user.
  void clear() {
    if (plain) return;  // renew() does the rest
    this->~Request();
    new (this) Request;  // with () all of it would be zeroed before
  }
  // As it was made, when it was cleared.
  void renew() {
    if (!plain) return;
    kind = OpKind::kSend;
    phase = Phase::kIdle;
    any_source = attended = on_device = in_place = eager = plain = false;
    internal = counted = false;
    endpoint = nullptr;
    peer = nullptr;
    data = nullptr;
    size = tag = 0;
    order = {};
    op = 0;
    transfer = nullptr;
    number = 0;
    path = OH_PATH_NONE;
    message_tag = nbytes = 0;
    peer_id = 0;
    peer_rank = -1;
    waits_since.store(0, std::memory_order_relaxed);
    done.store(0, std::memory_order_relaxed);
    armed.store(0, std::memory_order_relaxed);
    detached.store(0, std::memory_order_relaxed);
    gates.store(nullptr, std::memory_order_relaxed);
  }
};

}  // namespace oh
