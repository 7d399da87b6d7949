// SPDX-License-Identifier: Apache-2.0
//
// Path: one way to move the blocks of puts and gets over one link. OneSided chooses the path, keeps
// operations in order and completes their requests. The path moves the bytes, on both sides.
//
//   immediate path:   Immediate::copy() returns when all bytes are copied
//   queued path:      push() ... push() ─▶ the path calls PathEvents::moved()
//
// docs/adding-a-path.md says how to add one.
//
// Threading: guarded by the link's lock, except Immediate and admit().
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/block.h"
#include "device/locate.h"
#include "link/link.h"
#include "link/regions.h"
#include "path/choice.h"
#include "path/rma_use.h"

namespace oh {

class BatchPlan;
class RunStreams;
class Transfers;
struct RemoteKey;
struct RmaInFlight;

// In the order of the table in paths.cc.
enum class PathName : uint8_t { kCopy, kEngine, kSlotted, kStaging, kRma, kFrames, kCount };
inline constexpr size_t kPathCount = static_cast<size_t>(PathName::kCount);

// A remote region that the user has attached.
struct RemoteTarget {
  uint32_t index = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // address in the owner's process
  uint64_t length = 0;
  bool read_only = false;
  // The local mapping, if any. The link's Imports own it: a handle that the user keeps must not
  // keep memory alive that the region's owner has freed.
  bool imported = false;
  std::weak_ptr<ImportedBlock> import;
  bool on_device = false;
  bool plain = false;  // allocated by cudaMalloc
  // Why atomic operations of local kernels would not be atomic there, if the link does not tell:
  // the region is on another GPU than the peer's endpoint.
  std::string why_no_atomics = {};
};

// The blocks of a put or get between one piece of local memory and one remote region.
struct Part {
  const RemoteTarget& target;
  std::shared_ptr<ImportedBlock> import;  // the region's local mapping; null: not mapped
  LocalBuffer& local;
  std::span<const Block> blocks;  // none is empty
};

// The argument of Immediate::copy() and plan().
struct Movement {
  bool put = false;
  std::span<const Part> parts;
  uint64_t bytes = 0;
  BatchPlan* plan = nullptr;  // of a prepared batch that a kernel copies
};

class Path;

// A queued operation: a put, get, notification or signal.
struct Operation final : UcxSink {
  OpKind kind = OpKind::kPut;
  uint64_t op = 0;             // identifies the operation in frames and in Link::ops
  Request* request = nullptr;  // null once it has completed
  Path* path = nullptr;        // of a put or get; null until it is chosen
  Status failure;              // once set, nothing more is pushed

  // Of a put or get.
  Ends ends;
  uint32_t region = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // the region's address in the owner's process
  BlockList list;
  std::span<const Block> blocks;  // points into `list`
  size_t block = 0;               // index of the next block to push
  uint64_t offset = 0;            // bytes of that block already pushed
  bool more = false;              // more operations are queued behind this one
  bool on_device = false;         // the local memory is on a device
  bool pinned = false;            // it is host memory that is registered with the driver
  std::shared_ptr<const GpuExport> exported;
  oh_path taken = OH_PATH_NONE;     // path of the last bytes; OH_PATH_NONE: the link's path
  uint64_t missing = 0;             // bytes; of a get by frames: those not yet received
  std::vector<Request*> under_way;  // pieces or parts in flight
  bool whole = false;               // a batch over several regions; `under_way` holds its parts
  std::shared_ptr<RemoteKey> key;   // rma
  std::shared_ptr<RmaInFlight> in_flight;  // rma
  std::shared_ptr<InFlight> flush;         // rma: of a put, issued after its last block
  Path* copier = nullptr;                  // in slices: the path that copies them
  RemoteTarget target;                     // in slices
  std::shared_ptr<ImportedBlock> import;   // in slices: keeps the region mapped

  // Of a notification or signal.
  Bytes bytes;
  bool notify = false;  // a put: a notification follows once it has succeeded
  uint32_t slot = 0;
  uint64_t count = 0;

  bool moves() const { return kind == OpKind::kPut || kind == OpKind::kGet; }
  bool begun() const { return block > 0 || offset > 0; }
  // Records the result of a piece or part. True when it was the last: none is in flight or left to
  // push.
  bool piece_ended(Request& piece);
  // Of a queued operation: whether it is a notification whose put has completed.
  bool is_released() const { return kind == OpKind::kNotify && notify; }
  // Where bytes of the answer to a get belong; null: outside of its blocks.
  uint8_t* place_of(uint32_t number, uint64_t at, uint64_t size) const override {
    bool fits = number < blocks.size() && slice_fits(at, size, blocks[number].size);
    return fits ? blocks[number].local + at : nullptr;
  }
};

// Completes the operation's request, if it still has one. The operation itself may live on.
void end_request(Link& link, Operation& operation, Status status);
// Counts a put or get whose bytes have moved in the statistics, unless its request has completed
// before or is internal.
void count_moved(Link& link, const Operation& operation);
inline void count_moved(Link& link, bool put, oh_path path, uint64_t bytes) {
  link.stats.count(put ? MetricOp::kPut : MetricOp::kGet, path, bytes);
}
// Sends the peer the result of its operation (kAck).
void acknowledge(Link& link, uint64_t op, oh_status status);
// Rejects a message of the peer (kReject). `room`: the size of the receive's buffer.
void reject_message(Link& link, uint64_t op, oh_status why, uint64_t room);

// Receives the completions of operations.
class PathEvents {
 public:
  virtual ~PathEvents() = default;
  // The operation is over: all bytes have moved, or it has failed. The path must not use it
  // afterwards.
  virtual void moved(Operation& operation, Status status) = 0;
};

// What a path is constructed from.
struct PathContext {
  Link& link;
  PathEvents& events;
  const RegionTable& regions;
  Transfers& transfers;
  RunStreams& streams;
  RmaUse rma_use;
};

// The interface of an immediate path. Threading: any thread, without the link's lock.
class Immediate {
 public:
  // Copies all blocks. Returns the path to report for them.
  virtual Result<oh_path> copy(const Movement& movement) = 0;
  // Prepares a batch that is posted repeatedly. Null: preparing it gains nothing.
  virtual std::unique_ptr<BatchPlan> plan(const Movement& movement);
  // Whether BackgroundCopies may split a movement into slices, which the threads that make progress
  // copy.
  virtual bool slices() const { return false; }

 protected:
  ~Immediate() = default;
};

class Path : public PieceOwner {
 public:
  explicit Path(const PathContext& context)
      : link_(context.link), events_(context.events), regions_(context.regions) {}
  virtual ~Path() = default;
  Path(const Path&) = delete;
  Path& operator=(const Path&) = delete;

  // Null: a queued path.
  virtual Immediate* immediate() { return nullptr; }

  // ---- Queued paths: local operations.
  // Whether the operation can begin. kLater blocks the queue behind it.
  enum class Ready { kNow, kLater, kNever };
  virtual Ready ready(const Operation&) { return Ready::kNow; }
  // Called before an operation is queued, without the link's lock.
  virtual Status admit(const LocalBuffer&, bool /*put*/) { return {}; }
  // Called once, when this path is chosen for the operation and before push().
  virtual void begin(Operation&) {}
  // Pushes more of the operation. True when all of it is pushed.
  virtual bool push(Operation&) { return false; }
  // Whether notifications and signals posted later must wait until the operation completes, because
  // its bytes are not ordered with frames.
  virtual bool travels_apart(const Operation&) const { return false; }
  // Whether bytes may have moved already: too late to cancel the operation without effect.
  virtual bool has_begun(const Operation&) { return false; }
  // Cancels the operation with `status`. False: part of it is in flight and cannot be revoked; with
  // `give_up` its buffer is left in doubt instead.
  virtual bool cancel(Operation& operation, const Status& status, bool give_up);
  // The link has ended: fails what the operation has in flight.
  virtual void fail(Operation&, const Status&) {}
  // The operation is over: releases what the path holds for it.
  virtual void forget(Operation&) {}
  // Handles the peer's answer to an operation.
  virtual Status on_answer(Operation& operation, const Frame& frame);

  // ---- Operations of the peer.
  virtual Status on_frame(const Frame& frame);
  // A local region is retired: stops the work on it.
  virtual void retire(const RegionRecord&) {}
  // Stops the peer's operations on the region. True once none accesses it; called until then.
  virtual bool leave(const RegionRecord&) { return true; }
  // Whether no region is accessed any more on behalf of operations that have ended.
  virtual bool has_left() { return true; }

  // ---- Both directions.
  // Whether the path has work besides push(). Only then begin_turn(), answer(), progress() and
  // idle() are called.
  virtual bool works() const { return false; }
  // Begins a new turn, with a new budget of work.
  virtual void begin_turn() {}
  // Sends more of the answers that the peer waits for.
  virtual bool answer() { return false; }
  // Completes operations that are over.
  virtual bool progress() { return false; }
  virtual bool idle() const { return true; }
  // A piece has ended: a request of the path itself that moved part of an operation.
  void piece_ended(Request*) override {}
  // Called after fail() of every operation.
  virtual void fail_all() {}

 protected:
  Link& link_;
  PathEvents& events_;
  const RegionTable& regions_;
};

}  // namespace oh
