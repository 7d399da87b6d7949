// SPDX-License-Identifier: Apache-2.0
//
// Request: one operation in flight. A blocking call keeps its request on the stack; other requests
// come from the endpoint's pool. A small message touches only the three cache lines of RequestCore,
// and clear() skips it. Once `done` is set the library no longer touches the request, so the
// waiting thread may reuse it at once.
//
// Threading: the link's lock guards the fields until `done`; afterwards the caller owns them.
// `done` is atomic.
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

// Owner of a request that a part of the link posts itself: a piece of a put or get, or the offer of
// a batch. The link calls piece_ended() at its end, with the lock held.
class PieceOwner {
 public:
  virtual void piece_ended(Request* piece) = 0;

 protected:
  ~PieceOwner() = default;
};

struct InPosted;       // posted receives that wait for a message
struct InQueue;        // sends, streams and one-sided operations that wait for room
struct InOutstanding;  // in flight, where the link keeps PostedTimes
struct InEnded;        // ended, not yet returned to an event loop

enum class OpKind : uint8_t {
  kSend,
  kRecv,
  kPut,
  kGet,
  kNotify,
  kSignal,
  kRecvBatch,
  kReady,  // ends when something can be taken: see readiness.h
};

// State of a request.     A send:    QUEUED ─▶ OFFERED ─▶ DIRECT | STREAM ─▶ ENDED
//                         A receive: POSTED ────────────▶ DIRECT | STREAM ─▶ ENDED
enum class Phase : uint8_t { kIdle, kQueued, kPosted, kOffered, kDirect, kStream, kEnded };
// For error texts.
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

// Post order of a receive, comparable between peers: any-source receives advance the era
// (any_source.h).
struct PostOrder {
  uint64_t era = 0;
  uint64_t serial = 0;
  bool before(const PostOrder& other) const {
    return era != other.era ? era < other.era : serial < other.serial;
  }
};

// The buffer of a request in device memory. The library accesses it only from the GPU.
struct DeviceMemory {
  std::shared_ptr<const GpuExport> exported;  // the export that the peer maps
  After after;                                // earlier work that may still use the buffer
  std::unique_ptr<uint8_t[]> bounce;          // bounce buffer for bytes that arrived in host memory
  uint64_t bounce_size = 0;
};

// An agent that may still access the buffer of an ended request: a transfer, UCX or a copy engine.
struct Doubt {
  TransferSlot* slot = nullptr;
  uint32_t sequence = 0;
  std::shared_ptr<InFlight> in_flight = {};
  std::shared_ptr<StagedCopy> staged = {};
};

// State that few requests need: of device memory, of streams between hosts, of one-sided
// operations, of batches, and of buffers in doubt.
struct alignas(64) RequestExtras : ListNode<InOutstanding>, ListNode<InEnded> {
  uint64_t entered = 0;   // any-source receive: era of its last entry into the list
  uint64_t moved = 0;     // bytes that the stream has sent
  uint64_t granted = 0;   // bytes of the stream that the peer has room for
  uint64_t border = 0;    // no part crosses a multiple of this; 0: no limit
  uint64_t expected = 0;  // bytes of the message, once known
  uint64_t theirs = 0;    // the sender's operation ID of a message that arrives in parts
  std::shared_ptr<StagedCopy> staged;   // set while in the staging pipeline
  std::shared_ptr<InFlight> in_flight;  // set while the channel holds the buffer
  DeviceMemory device;

  PieceOwner* owner = nullptr;  // null: the pool or a handle owns it

  // Times of a timed request, in nanoseconds.
  int64_t began = 0;    // when it was posted; 0: not timed
  int64_t posting = 0;  // duration of the posting call; 0: it returned after the end
  int64_t took = 0;     // from post to end; 0: unknown
  // Post time of a traced request; 0: not traced, or already recorded.
  int64_t posted_at = 0;
  NvtxRange range;
  int64_t outstanding_since = 0;  // valid while listed in the link's PostedTimes

  // A piece of a put or get that a path posts.
  Path* path_of_piece = nullptr;  // the path that posted it
  Operation* parent = nullptr;    // null: the piece serves the peer's operation
  BlockRun run;
  bool acknowledged = false;  // the peer has acknowledged the put of the run

  // The receive of a batch, and the message that offers it.
  BatchReceive* batch = nullptr;

  // One-sided operations that travel as messages.
  uint32_t region = 0;
  uint64_t version = 0;
  uint64_t remote_offset = 0;

  // Buffers in doubt after the end. `doubts`: the agents that may still access the buffer; a slot
  // until it has left its sequence.
  std::vector<Doubt> doubts;
  std::shared_ptr<RegionRecord> doubt_region;  // in doubt until all peers have left this region
  std::shared_ptr<Peer> doubt_peer;            // keeps the segment of the slots alive
};

// State that every request needs.
struct alignas(64) RequestCore : ListNode<InPosted>, ListNode<InQueue> {
  OpKind kind = OpKind::kSend;
  Phase phase = Phase::kIdle;
  bool any_source = false;
  bool attended = false;  // a thread is waiting for it
  bool on_device = false;
  bool pinned = false;    // host memory that is registered with the driver
  bool in_place = false;  // offered to the channel (RTR), which writes straight into the buffer
  bool eager = false;     // sent before its receive is known
  bool plain = false;     // ended as a short message, which uses no extras
  bool internal = false;  // posted by the library: a piece, a batch offer; not in the statistics
  bool counted = false;   // counted in the link's `outstanding`
  Endpoint* endpoint = nullptr;
  Peer* peer = nullptr;  // any-source receives: set once known

  uint8_t* data = nullptr;
  uint64_t size = 0;  // bytes to send, or capacity
  uint64_t tag = 0;

  PostOrder order;
  uint64_t op = 0;  // local operation ID, once the peer refers to it
  Transfer* transfer = nullptr;
  uint32_t number = 0;  // message number of a receive that was offered (RTR)

  // The result.
  oh_path path = OH_PATH_NONE;
  Status status;
  uint64_t nbytes = 0;
  uint64_t message_tag = 0;
  uint64_t peer_id = 0;
  int64_t peer_rank = -1;

  std::atomic<int64_t> waits_since{0};  // start of the first wait that did not see the end
};
static_assert(sizeof(RequestCore) <= 3 * 64);

struct Request : RequestExtras, RequestCore {
  static constexpr uint32_t kAnnounce = 1;   // the end announces by Completions::armed()
  static constexpr uint32_t kOpenGates = 2;  // the end opens the gates of streams
  static constexpr uint32_t kList = 4;    // the end lists it in the pool and announces by listed()
  static constexpr uint32_t kEnding = 8;  // ending without a lock: may have missed the other bits

  // Written once, with release; pairs with the waiters' acquire.
  std::atomic<uint32_t> done{0};
  std::atomic<uint32_t> armed{0};  // actions at the end: kAnnounce, kOpenGates, kList
  bool to_list = false;            // armed for the list, not yet in it; guarded by the pool's lock
  std::atomic<uint32_t> detached{0};  // no handle is left: the end recycles it
  // Gates of the streams that wait for the end; no_gates() once they are taken. Exchanged with
  // seq_cst: the thread that takes the list sees every gate that add_gate() pushed.
  std::atomic<StreamGate*> gates{nullptr};

  bool is_run() const { return !run.empty(); }
  // Whether this side sends its bytes as a message or a run.
  bool sends() const {
    return is_run() ? (kind == OpKind::kPut) != serves_peer() : kind == OpKind::kSend;
  }
  // Whether it is a piece of the peer's operation.
  bool serves_peer() const { return path_of_piece && !parent; }
  // Whether earlier work may still use its memory.
  bool pending() const { return device.after.pending(); }
  // False: the request is ending and takes no more gates.
  bool add_gate(StreamGate* gate) {
    gate->next = gates.load();
    do {
      if (gate->next == no_gates()) return false;
    } while (!gates.compare_exchange_weak(gate->next, gate));
    armed.fetch_or(kOpenGates, std::memory_order_seq_cst);
    return true;
  }
  // Closes the list and returns its gates. The end takes them before it sets `done`, while the
  // request still exists, and opens them afterwards: a thread that has waited for the stream sees
  // that the request has ended.
  StreamGate* take_gates() {
    StreamGate* taken = gates.exchange(no_gates());
    return taken == no_gates() ? nullptr : taken;
  }
  static StreamGate* no_gates() {
    static StreamGate none;
    return &none;
  }
  bool ended() const { return done.load(std::memory_order_acquire) != 0; }
  // Records a wait that did not see the end, or that continues elsewhere: for the text of a
  // timeout.
  void wait_began(int64_t at) {
    int64_t none = 0;
    waits_since.compare_exchange_strong(none, at, std::memory_order_relaxed);
  }

  // Releases what the request holds, before its reuse. The caller must be its only user.
  void clear() {
    if (plain) return;  // renew() resets it
    this->~Request();
    new (this) Request;  // `Request()` would zero all of it first
  }
  // Resets a plain request, which clear() skips.
  void renew() {
    if (!plain) return;
    kind = OpKind::kSend;
    phase = Phase::kIdle;
    any_source = attended = on_device = pinned = in_place = eager = plain = false;
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
