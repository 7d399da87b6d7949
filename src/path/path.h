// SPDX-License-Identifier: Apache-2.0
//
// Path: one way to move the blocks of puts and gets over one link. OneSided chooses a path, keeps
// the order of operations and ends their requests; a path moves the bytes, at both sides.
//
//   immediate path:   Immediate::copy() returns when all bytes are there
//   queued path:      push() ... push() ─▶ the path reports PathEvents::moved()
//
// docs/adding-a-path.md says how to add one.
//
// Threading: under the link's lock, but for Immediate and admit().
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

// The order is that of the table in paths.cc.
enum class PathName : uint8_t { kCopy, kEngine, kSlotted, kStaging, kRma, kFrames, kCount };
inline constexpr size_t kPathCount = static_cast<size_t>(PathName::kCount);

// A peer's region, as attached.
struct RemoteTarget {
  uint32_t index = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // address in its owner
  uint64_t length = 0;
  bool read_only = false;
  // Where it is mapped here, if it is. The peer's list of imports holds the mapping: a handle that
  // the user keeps must not keep memory which its owner has freed.
  bool imported = false;
  std::weak_ptr<ImportedBlock> import;
  bool on_device = false;
  bool plain = false;  // from cudaMalloc
  // Why atomic operations of our kernels would not be atomic there, where the link says nothing of
  // it: on another GPU than the peer's endpoint is.
  std::string why_no_atomics = {};
};

// The blocks of a put or get between one piece of local memory and one remote region.
struct Part {
  const RemoteTarget& target;
  std::shared_ptr<ImportedBlock> import;  // where the region is mapped, null: nowhere
  LocalBuffer& local;
  std::span<const Block> blocks;  // none is empty
};

// What an immediate path copies at once.
struct Movement {
  bool put = false;
  std::span<const Part> parts;
  uint64_t bytes = 0;
  BatchPlan* plan = nullptr;  // of a prepared batch, where a kernel copies it
};

class Path;

// An operation that is queued: a put or get, a notification or a signal.
struct Operation final : UcxSink {
  OpKind kind = OpKind::kPut;
  uint64_t op = 0;             // name of the request, to find it again
  Request* request = nullptr;  // null once that has ended
  Path* path = nullptr;        // of a put or get, once it is chosen
  Status failure;              // nothing more of it is given to the path

  // Of a put or get.
  Ends ends;
  uint32_t region = 0;
  uint64_t version = 0;
  uint64_t base = 0;  // of the region, in its owner
  BlockList list;
  std::span<const Block> blocks;  // of the list
  size_t block = 0;               // next one to push
  uint64_t offset = 0;            // within it
  bool more = false;              // others are queued behind it
  bool on_device = false;         // our memory
  std::shared_ptr<const GpuExport> exported;
  oh_path taken = OH_PATH_NONE;            // how its last bytes travelled; kNone: as the link's
  uint64_t missing = 0;                    // frames: bytes of a get that have not come
  std::vector<Request*> under_way;         // pieces, or parts, that have not ended
  bool whole = false;                      // of a batch over several regions: `under_way` its parts
  std::shared_ptr<RemoteKey> key;          // rma
  std::shared_ptr<RmaInFlight> in_flight;  // rma
  std::shared_ptr<InFlight> flush;         // rma: of a put, behind its last block
  Path* copier = nullptr;                  // in slices: who copies them
  RemoteTarget target;                     // in slices
  std::shared_ptr<ImportedBlock> import;   // in slices: keeps the region mapped

  // Of a notification or signal.
  Bytes bytes;
  bool notify = false;  // a put that is followed by a notification once it has ended well
  uint32_t slot = 0;
  uint64_t count = 0;

  bool moves() const { return kind == OpKind::kPut || kind == OpKind::kGet; }
  bool begun() const { return block > 0 || offset > 0; }
  // Takes in how a piece or part has ended; true when no other is under way, or to come.
  bool piece_ended(Request& piece);
  // A notification whose put has ended, and all before it.
  bool is_released() const { return kind == OpKind::kNotify && notify; }
  // Of what answers a get.
  uint8_t* place_of(uint32_t number, uint64_t at, uint64_t size) const override {
    bool fits = number < blocks.size() && slice_fits(at, size, blocks[number].size);
    return fits ? blocks[number].local + at : nullptr;
  }
};

// Ends the request of an operation, which may stay for a while.
void end_request(Link& link, Operation& operation, Status status);
// Counts a put or get whose bytes are there, unless its request has ended before, or is internal.
void count_moved(Link& link, const Operation& operation);
inline void count_moved(Link& link, bool put, oh_path path, uint64_t bytes) {
  link.stats.count(put ? MetricOp::kPut : MetricOp::kGet, path, bytes);
}
// Tells the other side how an operation of its has ended.
void acknowledge(Link& link, uint64_t op, oh_status status);
// Tells the other side that its message is not taken. `room`: of the receive.
void reject_message(Link& link, uint64_t op, oh_status why, uint64_t room);

// Hears of the ends of operations.
class PathEvents {
 public:
  virtual ~PathEvents() = default;
  // All bytes are there, or nothing of the operation is under way any more: it is gone afterwards.
  virtual void moved(Operation& operation, Status status) = 0;
};

// What paths are made of.
struct PathContext {
  Link& link;
  PathEvents& events;
  const RegionTable& regions;
  Transfers& transfers;
  RunStreams& streams;
  RmaUse rma_use;
};

// What an immediate path can do. Threading: any thread, without the link's lock.
class Immediate {
 public:
  // Copies all blocks now; how they travelled.
  virtual Result<oh_path> copy(const Movement& movement) = 0;
  // Prepares blocks that are copied often. Null: the path has nothing to gain.
  virtual std::unique_ptr<BatchPlan> plan(const Movement& movement);
  // Whether it may copy in slices, each by whatever thread makes progress then.
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

  // ---- Queued paths: operations of ours.
  // Whether an operation can begin: kLater holds up what follows it.
  enum class Ready { kNow, kLater, kNever };
  virtual Ready ready(const Operation&) { return Ready::kNow; }
  // Before an operation is queued.
  virtual Status admit(const LocalBuffer&, bool /*put*/) { return {}; }
  // It has been chosen for the operation: push() follows.
  virtual void begin(Operation&) {}
  // Moves more of the operation; true when nothing of it is left to be pushed.
  virtual bool push(Operation&) { return false; }
  // Whether notifications and signals behind it have to wait for its end, as its bytes do not keep
  // the order of frames.
  virtual bool travels_apart(const Operation&) const { return false; }
  // Whether it is too late to cancel it without loss.
  virtual bool has_begun(const Operation&) { return false; }
  // False: something is under way that cannot be taken back; `give_up` leaves that in doubt.
  virtual bool cancel(Operation& operation, const Status& status, bool give_up);
  // The link has ended.
  virtual void fail(Operation&, const Status&) {}
  // The operation is about to go.
  virtual void forget(Operation&) {}
  // What the other side says of an operation.
  virtual Status on_answer(Operation& operation, const Frame& frame);

  // ---- Operations of the other side.
  virtual Status on_frame(const Frame& frame);
  // A region of ours is retired: what works on it stops.
  virtual void retire(const RegionRecord&) {}
  // Stops the other side's operations on the region; true once none accesses it. Called until true.
  virtual bool leave(const RegionRecord&) { return true; }
  // Whether nothing is in any of them for an operation that has ended.
  virtual bool has_left() { return true; }

  // ---- Both.
  // Whether it has work that is not part of push(): then the following are asked.
  virtual bool works() const { return false; }
  // A new turn: others have theirs.
  virtual void begin_turn() {}
  // Sends more of what the other side waits for.
  virtual bool answer() { return false; }
  // Ends what is over.
  virtual bool progress() { return false; }
  virtual bool idle() const { return true; }
  // A request of the path's own has ended: a piece of an operation.
  void piece_ended(Request*) override {}
  // After fail() of all operations.
  virtual void fail_all() {}

 protected:
  Link& link_;
  PathEvents& events_;
  const RegionTable& regions_;
};

}  // namespace oh
