// SPDX-License-Identifier: Apache-2.0
#include "one_sided/one_sided.h"

#include <iterator>
#include <utility>

#include "base/fault.h"

namespace oh {
namespace {

// While it exists, the owner of the region does not report the region as retired.
class AccessGuard {
 public:
  explicit AccessGuard(SegmentDirection& direction) : direction_(direction) {
    while (true) {
      uint64_t phase = direction_.access_phase.phase.load(std::memory_order_seq_cst);
      index_ = phase & 1;
      // seq_cst: announced before we look at the region's version; pairs with
      // Peer::wait_until_outside().
      direction_.access.active[index_].fetch_add(1, std::memory_order_seq_cst);
      if (direction_.access_phase.phase.load(std::memory_order_seq_cst) == phase) return;
      direction_.access.active[index_].fetch_sub(1, std::memory_order_seq_cst);
    }
  }
  ~AccessGuard() { direction_.access.active[index_].fetch_sub(1, std::memory_order_seq_cst); }
  AccessGuard(const AccessGuard&) = delete;
  AccessGuard& operator=(const AccessGuard&) = delete;

 private:
  SegmentDirection& direction_;
  uint64_t index_ = 0;
};

class CopyCount {
 public:
  explicit CopyCount(std::atomic<uint32_t>& count) : count_(count) {
    count_.fetch_add(1, std::memory_order_seq_cst);
  }
  ~CopyCount() { count_.fetch_sub(1, std::memory_order_seq_cst); }
  CopyCount(const CopyCount&) = delete;
  CopyCount& operator=(const CopyCount&) = delete;

 private:
  std::atomic<uint32_t>& count_;
};

}  // namespace

void OneSided::open(const LinkFacts& facts, std::shared_ptr<const Board> board) {
  selection_ = std::make_unique<const Selection>(facts);
  board_ = std::move(board);
}

void OneSided::open(Transfers& transfers, RunStreams& streams, RmaUse rma_use) {
  const PathContext context{link_, *this, regions_, transfers, streams, rma_use};
  for (size_t i = 0; i < kPathCount; ++i) {
    paths_[i] = path_table()[i].create(context);
    if (paths_[i] && paths_[i]->works()) working_.push_back(paths_[i].get());
  }
}

// ---- Puts and gets ------------------------------------------------------------------------------

Ends OneSided::ends_of(const RemoteTarget& target, const LocalBuffer& local) {
  const MemoryKind remote = !target.on_device
                                ? (target.imported ? MemoryKind::kShared : MemoryKind::kHost)
                            : target.imported || target.plain ? MemoryKind::kDevice
                                                              : MemoryKind::kDevicePrivate;
  return {local.on_device ? MemoryKind::kDevice : MemoryKind::kHost, remote};
}

Path* OneSided::choose(const Ends& ends, uint64_t size) const {
  const PathName name =
      selection_->cheapest(ends, size, [this](PathName each) { return path(each) != nullptr; });
  return name == PathName::kCount ? nullptr : path(name);
}

Status OneSided::move(Request* request, const Move& move) {
  OH_RETURN_IF_ERROR(link_.usable());
  LocalBuffer found;
  if (!move.located && (link_.gpu || move.after.given())) {
    OH_ASSIGN_OR_RETURN(
        found, locate(link_.gpu, move.data, move.size, move.after, {.host = move.deadline}));
  }
  LocalBuffer& local = move.located ? *move.located : found;
  if (move.movement.blocks.empty()) return copy_now(nullptr, local, request, move);
  const Ends ends = ends_of(move.target, local);
  Path* path = choose(ends, move.movement.bytes);
  if (!path) {
    return error(OH_ERR_NOT_VIABLE, "no path to or from memory of %s: %s", link_.name.c_str(),
                 selection_->explain(ends, move.movement.bytes).why.c_str());
  }
  return path->is_immediate() ? copy_now(path, local, request, move)
                              : enqueue(*path, ends, local, request, move);
}

Result<std::unique_ptr<BatchPlan>> OneSided::plan(const Move& move) {
  OH_RETURN_IF_ERROR(link_.usable());
  if (!link_.gpu || move.movement.blocks.empty()) return std::unique_ptr<BatchPlan>();
  OH_ASSIGN_OR_RETURN(LocalBuffer local, locate(link_.gpu, move.data, move.size, {}, {}));
  Path* path = choose(ends_of(move.target, local), move.movement.bytes);
  std::shared_ptr<ImportedBlock> import = move.target.import.lock();
  if (!path || (move.target.imported && !import)) return std::unique_ptr<BatchPlan>();
  return path->plan(move.target, import.get(), local, move.movement);
}

Status OneSided::copy(Path& path, LocalBuffer& local, const Move& move, oh_path* taken) {
  const RemoteTarget& target = move.target;
  // Before a retirement has to wait for this copy.
  OH_RETURN_IF_ERROR(wait_for_producer(&local.after, move.deadline, "the memory of a put or get"));
  // Count the copy, then check the link; the end of the link does it in the opposite order.
  CopyCount copying(copies_);
  AccessGuard guard(link_.segment->outgoing());
  if (link_.gone.load(std::memory_order_seq_cst) ||
      link_.segment->their_state() == SideState::kFailed) {
    return error(OH_ERR_PEER_LOST, "the link to %s has ended", link_.name.c_str());
  }
  if (board_->region(target.index).load(std::memory_order_seq_cst) != target.version) {
    return error(OH_ERR_RETIRED, "%s has deregistered the region", link_.name.c_str());
  }
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  if (target.imported && !import) {
    return error(OH_ERR_RETIRED, "the memory of the region of %s is gone: attach it again",
                 link_.name.c_str());
  }
  OH_FAULT_POINT("one_sided.copy");
  OH_ASSIGN_OR_RETURN(*taken, path.copy(target, import.get(), local, move.movement));
  return {};
}

// By an immediate path; null: there are no bytes.
Status OneSided::copy_now(Path* path, LocalBuffer& local, Request* request, const Move& move) {
  const Movement& movement = move.movement;
  request->path = link_.path;
  if (path) OH_RETURN_IF_ERROR(copy(*path, local, move, &request->path));
  request->nbytes = movement.bytes;
  request->peer = link_.peer;
  request->peer_id = link_.id;
  request->peer_rank = link_.rank;
  if (path || move.notify) {
    LinkGuard guard(link_);
    // Whether the peer was alive throughout: a process that took over its number would not be it.
    OH_RETURN_IF_ERROR(link_.usable());
    if (path) {
      auto& counts = movement.put ? link_.stats.sent : link_.stats.received;
      counts[request->path].operations += movement.count;
      counts[request->path].bytes += movement.bytes;
      link_.flight.note(request->kind, request->path, 0, movement.bytes, OH_OK, now_ns());
    }
    if (move.notify) {
      request->kind = OpKind::kNotify;
      post_notification(request, *move.notify);
      link_.posted();
      return {};
    }
  }
  request->done.store(1, std::memory_order_release);
  return {};
}

Status OneSided::enqueue(Path& path, const Ends& ends, LocalBuffer& local, Request* request,
                         const Move& move) {
  const Movement& movement = move.movement;
  OH_RETURN_IF_ERROR(wait_for_producer(&local.after, move.deadline, "the memory of a put or get"));
  if (local.on_device) OH_RETURN_IF_ERROR(find_export(*link_.gpu, &local));
  OH_RETURN_IF_ERROR(path.admit(local, movement.put));
  BlockList list = move.list ? move.list
                             : std::make_shared<const std::vector<Block>>(movement.blocks.begin(),
                                                                          movement.blocks.end());
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  request->peer = link_.peer;
  Operation& operation = append(request->kind, request);
  operation.ends = ends;
  operation.region = move.target.index;
  operation.version =
      move.target.version & ~kTakenBit;  // their table has the version that was offered
  operation.base = move.target.base;
  operation.blocks = *list;
  operation.list = std::move(list);
  operation.missing = movement.bytes;
  operation.on_device = local.on_device;
  operation.exported = local.exported;
  if (move.notify) {
    operation.notify = true;
    operation.bytes.assign(move.notify->begin(), move.notify->end());
  }
  take_turn(kPostedAtOnce);
  link_.posted();
  return {};
}

Operation& OneSided::append(OpKind kind, Request* request) {
  queue_.push_back(std::make_unique<Operation>());
  Operation& operation = *queue_.back();
  operation.kind = kind;
  operation.request = request;
  if (request) {
    operation.op = request->op = link_.ops.add(request);
    request->phase = Phase::kQueued;
  }
  return operation;
}

void OneSided::post_notification(Request* request, ByteView bytes) {
  append(OpKind::kNotify, request).bytes.assign(bytes.begin(), bytes.end());
  take_turn(kPostedAtOnce);
}

void OneSided::signal(uint32_t slot, uint64_t count) {
  bool nothing_before = queue_.empty() && waiting_.empty();
  if (link_.segment && nothing_before) {
    // seq_cst: after all earlier puts, before the check for sleepers.
    link_.segment->outgoing().signals[slot].fetch_add(count, std::memory_order_seq_cst);
    link_.wake_them = true;
    return;
  }
  Operation& operation = append(OpKind::kSignal, nullptr);
  operation.slot = slot;
  operation.count = count;
  take_turn(kPostedAtOnce);
}

// ---- The queue ----------------------------------------------------------------------------------

// Fills at most so many buffers of UCX.
bool OneSided::take_turn(size_t buffers) {
  if (!link_.ucx) return push_all();
  link_.ucx->packer().begin_turn(buffers);
  const bool any = push_all();
  link_.ucx->packer().end_turn();
  return any;
}

bool OneSided::push_all() {
  for (Path* path : working_) path->begin_turn();
  // They alternate: the first would take all the room.
  const bool answers_first = answers_first_;
  const bool answered = answers_first && answer();
  const bool pushed = push_queue();
  if (answers_first ? answered : pushed) answers_first_ = !answers_first;
  bool any = answered || pushed;
  // Next, what waited for the end of a put.
  while (progress_paths()) {
    (void)push_queue();
    any = true;
  }
  return (!answers_first && answer()) || any;
}

bool OneSided::answer() {
  bool any = false;
  for (Path* path : working_) any = path->answer() || any;
  return any;
}

bool OneSided::progress_paths() {
  bool any = false;
  for (Path* path : working_) any = path->progress() || any;
  return any;
}

// Pushes what is queued to its paths; without `moves`, only up to the next put or get.
bool OneSided::push_queue(bool moves) {
  bool any = false;
  while (!queue_.empty() && link_.outbox.empty()) {
    Operation& operation = *queue_.front();
    if (!moves && operation.moves()) break;
    auto before = std::pair(operation.block, operation.offset);
    bool all = push(operation);
    any = any || all || before != std::pair(operation.block, operation.offset);
    if (!all) break;
    std::unique_ptr<Operation> done = std::move(queue_.front());
    queue_.pop_front();
    if (done->moves()) {
      waiting_.push_back(std::move(done));
    } else if (done->request) {
      done->request->nbytes = done->request->size;
      // The put sends it, unless the put travelled as messages.
      if (done->request->path == OH_PATH_NONE) done->request->path = link_.path;
      link_.finish(*done->request, {});
    }
  }
  return any;
}

// True when all of it is pushed.
bool OneSided::push(Operation& operation) {
  if (must_wait(operation)) return false;
  if (operation.kind == OpKind::kNotify) return push_notification(operation);
  if (operation.kind == OpKind::kSignal) {
    Frame frame;
    frame.type = FrameType::kSignal;
    frame.slot = operation.slot;
    frame.length = operation.count;
    return link_.push(frame);
  }
  if (!operation.path && !begin(operation)) return false;
  operation.more = queue_.size() > 1;
  return operation.path->push(operation);
}

// Chooses the path of a put or get whose turn has come: the cheapest that can be used now.
bool OneSided::begin(Operation& operation) {
  Path::Ready ready = Path::Ready::kNever;
  const PathName name = selection_->cheapest(operation.ends, operation.missing, [&](PathName each) {
    return path(each) && !path(each)->is_immediate() &&
           path(each)->ready(operation) != Path::Ready::kNever;
  });
  if (name != PathName::kCount) ready = path(name)->ready(operation);
  if (ready != Path::Ready::kNow) return false;
  operation.path = path(name);
  operation.path->begin(operation);
  return true;
}

bool OneSided::push_notification(Operation& operation) {
  uint64_t charge = notification_charge(operation.bytes.size());
  if (notification_charge_ + charge > notification_credit(link_.theirs)) return false;
  Frame frame;
  frame.type = FrameType::kNotify;
  frame.length = operation.bytes.size();
  frame.payload = operation.bytes.data();
  frame.payload_size = operation.bytes.size();
  if (!link_.push(frame)) return false;
  notification_charge_ += charge;
  return true;
}

// Whether something before it, whose bytes travel apart from the frames, has not ended.
bool OneSided::must_wait(const Operation& operation) const {
  if (operation.moves() || operation.is_released()) return false;
  return std::ranges::any_of(waiting_, [](const auto& other) { return travels_apart(*other); });
}

bool OneSided::travels_apart(const Operation& operation) {
  return operation.path && operation.path->travels_apart(operation);
}

// ---- Ends ---------------------------------------------------------------------------------------

void OneSided::moved(Operation& operation, Status status) {
  if (status.ok() && operation.notify) {
    notify_behind(operation);
  } else {
    end(operation, std::move(status));
  }
}

// A put has ended well: its notification is next.
void OneSided::notify_behind(Operation& operation) {
  auto is_it = [&](const auto& other) { return other.get() == &operation; };
  if (std::ranges::none_of(waiting_, is_it)) return;
  operation.path->forget(operation);
  operation.path = nullptr;
  operation.kind = OpKind::kNotify;
  if (operation.request && operation.taken != OH_PATH_NONE) {
    operation.request->path = operation.taken;
  }
  ++notifying_;
  release_notifications();
}

// A notification is sent once everything that was posted before its put has ended, ahead of what
// was posted after it. waiting_ is in the order of posting.
void OneSided::release_notifications() {
  if (notifying_ == 0) return;
  auto is_released = [](const auto& queued) { return queued->is_released(); };
  auto next = std::ranges::find_if_not(queue_, is_released);
  for (auto& waiting : waiting_) {
    if (travels_apart(*waiting)) break;
    if (waiting->moves()) continue;
    next = std::next(queue_.insert(next, std::move(waiting)));
    --notifying_;
  }
  std::erase(waiting_, nullptr);
}

void OneSided::end(Operation& operation, Status status) {
  if (operation.path) operation.path->forget(operation);
  end_request(link_, operation, std::move(status));
  const bool notifies = !operation.moves();
  auto is_it = [&](const auto& other) { return other.get() == &operation; };
  const size_t waited = std::erase_if(waiting_, is_it);
  if (notifies) notifying_ -= waited;
  if (waited == 0) std::erase_if(queue_, is_it);
  release_notifications();
}

Operation* OneSided::find(uint64_t op) {
  for (auto& operation : waiting_) {
    if (operation->op == op) return operation.get();
  }
  for (auto& operation : queue_) {
    if (operation->op == op) return operation.get();
  }
  return nullptr;
}

bool OneSided::has_begun(const Request& request) {
  const Operation* operation = find(request.op);
  return operation && operation->path && operation->path->has_begun(*operation);
}

bool OneSided::cancel(Request* request, const Status& status, bool give_up) {
  Operation* operation = find(request->op);
  if (!operation) return false;
  if (operation->path) return operation->path->cancel(*operation, status, give_up);
  end(*operation, status);
  return true;
}

void OneSided::fail_all(const Status& status) {
  std::vector<Operation*> all;
  for (auto& operation : queue_) all.push_back(operation.get());
  for (auto& operation : waiting_) all.push_back(operation.get());
  for (Operation* operation : all) {
    if (operation->path) operation->path->fail(*operation, status);  // it may be gone then
  }
  for (auto& operation : queue_) end_request(link_, *operation, status);
  for (auto& operation : waiting_) end_request(link_, *operation, status);
  queue_.clear();
  waiting_.clear();
  notifying_ = 0;
  for (auto& path : paths_) {
    if (path) path->fail_all();
  }
}

void OneSided::retire(const RegionRecord& region) {
  for (auto& path : paths_) {
    if (path) path->retire(region);
  }
}

bool OneSided::leave(const RegionRecord& region) {
  bool left = true;
  for (auto& path : paths_) {
    if (path) left = path->leave(region) && left;
  }
  return left;
}

bool OneSided::all_have_left() {
  return std::ranges::all_of(paths_, [](auto& path) { return !path || path->has_left(); });
}

// ---- Frames -------------------------------------------------------------------------------------

Status OneSided::on_frame(const Frame& frame) {
  Path* path = nullptr;
  switch (frame.type) {
    case FrameType::kNotify:
      return on_notify(frame);
    case FrameType::kSignal:
      return on_signal(frame);
    case FrameType::kAck:
      return on_answer(frame);
    case FrameType::kData:
      if (frame.flags & kReply) return on_answer(frame);
      path = this->path(PathName::kFrames);
      break;
    case FrameType::kRts:
      path = this->path(PathName::kStaging);
      break;
    case FrameType::kPut:
    case FrameType::kGet:
      path = this->path(frame.flags & kBySlot   ? PathName::kSlotted
                        : frame.flags & kStaged ? PathName::kStaging
                                                : PathName::kFrames);
      break;
    case FrameType::kAbort:
      path = this->path(PathName::kFrames);
      break;
    default:
      path = this->path(PathName::kRma);
      break;
  }
  if (path) return path->on_frame(frame);
  return error(OH_ERR_PROTOCOL, "%s sent a frame of type %u with flags %u, whose path is not open",
               link_.name.c_str(), static_cast<unsigned>(frame.type),
               static_cast<unsigned>(frame.flags));
}

Status OneSided::on_answer(const Frame& frame) {
  const bool ack = frame.type == FrameType::kAck;
  // Without a name it acknowledges notifications that were collected.
  if (ack && frame.op == 0) {
    notification_charge_ -= std::min(notification_charge_, frame.length);
    return {};
  }
  Request* piece = ack ? link_.ops.find(frame.op) : nullptr;
  if (piece && piece->path_of_piece) return piece->path_of_piece->on_frame(frame);
  Operation* operation = find(frame.op);
  if (!operation) return {};  // a late answer: its deadline has passed
  if (operation->path) return operation->path->on_answer(*operation, frame);
  if (ack) return {};
  return error(OH_ERR_PROTOCOL, "%s answered a get with bytes nobody asked for",
               link_.name.c_str());
}

Status OneSided::on_notify(const Frame& frame) {
  uint64_t charge = notification_charge(frame.length);
  if (frame.payload_size != frame.length || frame.length > kMaxNotification ||
      notifications_held_ + charge > notification_credit(link_.mine)) {
    return error(OH_ERR_PROTOCOL,
                 "%s sent a notification of %llu bytes, %llu are not collected yet",
                 link_.name.c_str(), static_cast<unsigned long long>(frame.length),
                 static_cast<unsigned long long>(notifications_held_));
  }
  notifications_held_ += charge;
  Notification notification;
  notification.peer_id = link_.id;
  notification.peer_rank = link_.rank;
  notification.bytes.assign(frame.payload, frame.payload + frame.payload_size);
  link_.wake_me = true;
  notifications_.add(std::move(notification));
  full_fence();  // there before the look at the sleepers; pairs with Doorbell::sleep()
  link_.my_bell->ring();
  return {};
}

void OneSided::give_back(size_t bytes) {
  Frame frame;
  frame.type = FrameType::kAck;
  frame.length = notification_charge(bytes);
  notifications_held_ -= frame.length;
  link_.send(frame);
}

Status OneSided::on_signal(const Frame& frame) {
  if (frame.slot >= kSignals) {
    return error(OH_ERR_PROTOCOL, "%s signalled slot %u", link_.name.c_str(), frame.slot);
  }
  signals_by_message_[frame.slot] += frame.length;
  link_.wake_me = true;
  return {};
}

uint64_t OneSided::signals_waiting(uint32_t slot) const {
  uint64_t came = signals_by_message_[slot];
  // acquire: what was put before the signal is visible to the thread that takes it.
  if (link_.segment) {
    came += link_.segment->incoming().signals[slot].load(std::memory_order_acquire);
  }
  return came - signals_taken_[slot];
}

bool OneSided::take_signals(uint32_t slot, uint64_t count) {
  if (signals_waiting(slot) < count) return false;
  signals_taken_[slot] += count;
  return true;
}

}  // namespace oh
