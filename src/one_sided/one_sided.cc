// SPDX-License-Identifier: Apache-2.0
#include "one_sided/one_sided.h"

#include <iterator>
#include <utility>

namespace oh {
void OneSided::open(const LinkFacts& facts, std::shared_ptr<const ControlPage> page) {
  selection_ = std::make_unique<const Selection>(facts);
  copies_.open(std::move(page));
}

void OneSided::open(Transfers& transfers, RunStreams& streams, RmaUse rma_use) {
  const PathContext context{link_, *this, regions_, transfers, streams, rma_use};
  for (size_t i = 0; i < kPathCount; ++i) {
    paths_[i] = path_table()[i].create(context);
    if (paths_[i] && paths_[i]->works()) working_.push_back(paths_[i].get());
  }
  background_ = std::make_unique<BackgroundCopies>(context, copies_);
}

// ---- Puts and gets ------------------------------------------------------------------------------

Ends OneSided::ends_of(const RemoteTarget& target, const LocalBuffer& local) {
  const MemoryKind remote = !target.on_device
                                ? (target.imported ? MemoryKind::kShared : MemoryKind::kHost)
                            : target.imported || target.plain ? MemoryKind::kDevice
                                                              : MemoryKind::kDevicePrivate;
  return {local.on_device ? MemoryKind::kDevice : MemoryKind::kHost, remote};
}

// Chooses the path of one part of a movement of `bytes` in total.
Result<ChosenPart> OneSided::choose(const MovePart& part, LocalBuffer& local,
                                    uint64_t bytes) const {
  const Ends ends = ends_of(part.target, local);
  const PathName name =
      selection_->cheapest(ends, bytes, [this](PathName each) { return path(each) != nullptr; });
  if (name != PathName::kCount) return ChosenPart{&part, &local, ends, path(name)};
  return error(OH_ERR_NOT_VIABLE, "no path to or from memory of %s: %s", link_.name.c_str(),
               selection_->explain(ends, bytes).why.c_str());
}

Status OneSided::move(Request* request, const Move& move) {
  OH_RETURN_IF_ERROR(link_.usable());
  if (move.parts.size() > 1) return move_parts(request, move);
  const MovePart& part = move.parts.front();
  LocalBuffer found;
  if (!move.located && (link_.gpu || move.after.given())) {
    OH_ASSIGN_OR_RETURN(
        found, locate(link_.gpu, part.data, part.size, move.after, {.host = move.deadline}));
  }
  LocalBuffer& local = move.located ? *move.located : found;
  if (part.blocks.empty()) {
    request->path = link_.path;
    return end_now(request, move, {});
  }
  OH_ASSIGN_OR_RETURN(const ChosenPart chosen, choose(part, local, part.bytes));
  OH_RETURN_IF_ERROR(wait_for_producer(&local.after, move.deadline, "the memory of a put or get"));
  if (!copies_now(chosen, move)) return enqueue({&chosen, 1}, request, move);
  OH_RETURN_IF_ERROR(copies_.copy({&chosen, 1}, move, &request->path));
  return end_now(request, move, {&chosen, 1});
}

// Whether the calling thread copies. Copies that may be sliced queue behind earlier background
// copies.
bool OneSided::copies_now(const ChosenPart& chosen, const Move& move) const {
  const Immediate* copier = chosen.path->immediate();
  return copier && !(copier->slices() && (move.background || background_->any()));
}

// Copies what the calling thread can copy first, path by path: if that fails, nothing has been
// posted.
Status OneSided::move_parts(Request* request, const Move& move) {
  std::vector<LocalBuffer> locals;
  OH_ASSIGN_OR_RETURN(std::vector<ChosenPart> chosen, choose_all(move, &locals));
  for (LocalBuffer& local : locals) {
    OH_RETURN_IF_ERROR(
        wait_for_producer(&local.after, move.deadline, "the memory of a put or get"));
  }
  auto end = std::partition(chosen.begin(), chosen.end(),
                            [&](const ChosenPart& each) { return copies_now(each, move); });
  const std::span<const ChosenPart> queued(end, chosen.end());
  for (auto begin = chosen.begin(); begin != end;) {
    const Path* path = begin->path;
    auto next =
        std::partition(begin, end, [=](const ChosenPart& each) { return each.path == path; });
    const std::span<const ChosenPart> copied(std::exchange(begin, next), next);
    OH_RETURN_IF_ERROR(copies_.copy(copied, move, &request->path));
    LinkGuard guard(link_);
    OH_RETURN_IF_ERROR(link_.usable());
    count(copied, *request, now_ns());
  }
  return queued.empty() ? end_now(request, move, {}) : enqueue(queued, request, move);
}

// Locates local memory once for consecutive parts that share it.
Result<std::vector<ChosenPart>> OneSided::choose_all(const Move& move,
                                                     std::vector<LocalBuffer>* locals) const {
  const uint64_t bytes = move.bytes();
  const bool locates = link_.gpu != nullptr || move.after.given();
  locals->reserve(locates ? move.parts.size() : 1);  // ChosenPart points to them
  if (!locates) locals->emplace_back();
  std::vector<ChosenPart> chosen;
  chosen.reserve(move.parts.size());
  const MovePart* before = nullptr;
  for (const MovePart& part : move.parts) {
    if (locates && (!before || before->data != part.data || before->size != part.size)) {
      // The first buffer waits for earlier work on behalf of all.
      const AfterOption after = before ? AfterOption{} : move.after;
      OH_ASSIGN_OR_RETURN(LocalBuffer local,
                          locate(link_.gpu, part.data, part.size, after, {.host = move.deadline}));
      locals->push_back(std::move(local));
    }
    before = &part;
    OH_ASSIGN_OR_RETURN(ChosenPart one, choose(part, locals->back(), bytes));
    chosen.push_back(one);
  }
  return chosen;
}

Result<std::unique_ptr<BatchPlan>> OneSided::plan(const Move& move) {
  OH_RETURN_IF_ERROR(link_.usable());
  if (!link_.gpu || move.parts.front().blocks.empty()) return std::unique_ptr<BatchPlan>();
  std::vector<LocalBuffer> locals;
  Result<std::vector<ChosenPart>> chosen = choose_all(move, &locals);
  if (chosen.status().code() == OH_ERR_NOT_VIABLE) return std::unique_ptr<BatchPlan>();
  OH_RETURN_IF_ERROR(chosen.status());
  Path* path = chosen->front().path;
  std::vector<Part> parts;
  uint64_t bytes = 0;
  for (const ChosenPart& each : *chosen) {
    std::shared_ptr<ImportedBlock> import = each.part->target.import.lock();
    const bool gone = each.part->target.imported && !import;
    if (gone || each.path != path) return std::unique_ptr<BatchPlan>();
    parts.push_back({each.part->target, std::move(import), *each.local, each.part->blocks});
    bytes += each.part->bytes;
  }
  if (!path->immediate()) return std::unique_ptr<BatchPlan>();
  return path->immediate()->plan({move.put, parts, bytes, nullptr});
}

// Completes a move whose bytes are copied: counts them, and sends its notification.
Status OneSided::end_now(Request* request, const Move& move, std::span<const ChosenPart> copied) {
  request->nbytes = move.bytes();
  request->peer = link_.peer;
  request->peer_id = link_.id;
  request->peer_rank = link_.rank;
  if (!copied.empty() || move.notify) {
    LinkGuard guard(link_);
    // Check that the peer was alive throughout: another process may have reused its pid.
    OH_RETURN_IF_ERROR(link_.usable());
    if (!copied.empty()) {
      const int64_t now = now_ns();
      count(copied, *request, now);
      if (request->began && !move.notify) link_.observe(*request, now);
    }
    if (move.notify) {
      if (request->posted_at) link_.note_end(*request);
      request->kind = OpKind::kNotify;
      post_notification(request, *move.notify);
      link_.posted();
      return {};
    }
  }
  request->done.store(1, std::memory_order_release);
  return {};
}

// Counts what an immediate path has copied.
void OneSided::count(std::span<const ChosenPart> copied, const Request& request, int64_t now) {
  uint64_t bytes = 0;
  for (const ChosenPart& each : copied) bytes += each.part->bytes;
  if (!request.internal) count_moved(link_, request.kind == OpKind::kPut, request.path, bytes);
  link_.flight.note(request.kind, request.path, 0, bytes, OH_OK, now);
}

Status OneSided::enqueue(std::span<const ChosenPart> chosen, Request* request, const Move& move) {
  for (const ChosenPart& each : chosen) {
    if (each.local->on_device) OH_RETURN_IF_ERROR(find_export(*link_.gpu, each.local));
    OH_RETURN_IF_ERROR(each.path->admit(*each.local, move.put));
    if (each.path->immediate()) OH_RETURN_IF_ERROR(copies_.admit(each).status());
  }
  BlockList copied;
  if (!move.list) {
    const std::span<const Block> blocks = chosen.front().part->blocks;
    copied = std::make_shared<const std::vector<Block>>(blocks.begin(), blocks.end());
  }
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  request->peer = link_.peer;
  // A small operation in the background may take long, too: time it.
  const bool background = chosen.front().path->immediate() != nullptr;
  if (background && !request->internal && !request->began) request->began = now_ns();
  Operation* last = nullptr;
  if (move.parts.size() == 1) {
    last = &append_move(chosen.front(), request);
    last->list = move.list ? move.list : copied;
    if (copied) last->blocks = *copied;
  } else {
    std::vector<Request*> parts;
    for (const ChosenPart& each : chosen) {
      parts.push_back(part_of(*request, each.part->bytes));
      append_move(each, parts.back()).list = move.list;
    }
    last = &append(request->kind, request);
    last->whole = true;
    for (const ChosenPart& each : chosen) last->missing += each.part->bytes;
    for (Request* part : parts) part->parent = last;
    last->under_way = std::move(parts);
  }
  if (move.notify) {
    last->notify = true;
    last->bytes.assign(move.notify->begin(), move.notify->end());
  }
  take_turn(kPostedAtOnce);
  link_.posted();
  link_.note_posted(*request);
  return {};
}

// A new request for one part of a batch over several regions.
Request* OneSided::part_of(const Request& whole, uint64_t bytes) {
  Request* part = part_requests_.acquire();
  part->kind = whole.kind;
  part->size = bytes;
  part->peer = link_.peer;
  part->owner = this;
  part->internal = true;
  part->detached.store(1, std::memory_order_relaxed);
  return part;
}

Operation& OneSided::append_move(const ChosenPart& chosen, Request* request) {
  const RemoteTarget& target = chosen.part->target;
  Operation& operation = append(request->kind, request);
  operation.ends = chosen.ends;
  operation.region = target.index;
  operation.version = target.version & ~kTakenBit;  // the peer's table has it without the bit
  operation.base = target.base;
  operation.blocks = chosen.part->blocks;
  operation.missing = chosen.part->bytes;
  operation.on_device = chosen.local->on_device;
  operation.pinned = chosen.local->pinned;
  operation.exported = chosen.local->exported;
  if (chosen.path->immediate()) background_->add(operation, chosen);
  return operation;
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
    // seq_cst: ordered after all earlier puts and before the check for sleepers.
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

// Fills at most `buffers` buffers of UCX.
bool OneSided::take_turn(size_t buffers) {
  if (!link_.ucx) return push_all();
  link_.ucx->packer().begin_turn(buffers);
  const bool any = push_all();
  link_.ucx->packer().end_turn();
  return any;
}

bool OneSided::push_all() {
  for (Path* path : working_) path->begin_turn();
  // Answers and pushes take turns in going first: whichever is first could take all the room.
  const bool answers_first = answers_first_;
  const bool answered = answers_first && answer();
  const bool pushed = push_queue();
  if (answers_first ? answered : pushed) answers_first_ = !answers_first;
  bool any = answered || pushed;
  // Next, push what waited for the end of a put.
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

// Pushes queued operations to their paths. Without `moves`, stops at the next put or get.
bool OneSided::push_queue(bool moves) {
  bool any = false;
  while (!queue_.empty() && link_.outbox.empty()) {
    Operation& operation = *queue_.front();
    if (!moves && operation.moves()) break;
    const auto before = std::pair(operation.block, operation.offset);
    bool all = push(operation);
    any = any || all || before != std::pair(operation.block, operation.offset);
    if (!all) break;
    std::unique_ptr<Operation> done = std::move(queue_.front());
    queue_.pop_front();
    if (done->moves()) {
      Operation& moving = *done;
      waiting_.push_back(std::move(done));
      if (moving.whole && moving.under_way.empty()) moved(moving, moving.failure);
    } else if (done->request) {
      done->request->nbytes = done->request->size;
      // A notification behind a put reports the path of the put, if that differs from the link's.
      if (done->request->path == OH_PATH_NONE) done->request->path = link_.path;
      link_.finish(*done->request, {});
    }
  }
  return any;
}

// True when all of it is pushed.
bool OneSided::push(Operation& operation) {
  if (must_wait(operation)) return false;
  if (operation.kind == OpKind::kNotify) return notification_parts_.push(operation);
  if (operation.kind == OpKind::kSignal) {
    Frame frame;
    frame.type = FrameType::kSignal;
    frame.slot = operation.slot;
    frame.length = operation.count;
    return link_.push(frame);
  }
  if (operation.whole) return true;
  if (!operation.path && !begin(operation)) return false;
  operation.more = queue_.size() > 1;
  return operation.path->push(operation);
}

// Chooses the path of a put or get whose turn has come: the cheapest queued path that can be used.
// False: that path is not ready yet.
bool OneSided::begin(Operation& operation) {
  Path::Ready ready = Path::Ready::kNever;
  const PathName name = selection_->cheapest(operation.ends, operation.missing, [&](PathName each) {
    return path(each) && !path(each)->immediate() &&
           path(each)->ready(operation) != Path::Ready::kNever;
  });
  if (name != PathName::kCount) ready = path(name)->ready(operation);
  if (ready != Path::Ready::kNow) return false;
  operation.path = path(name);
  operation.path->begin(operation);
  return true;
}

// Whether the operation must wait for an earlier one that has not completed: one whose bytes are
// not ordered with frames or, for a notification, one whose own notification comes first.
bool OneSided::must_wait(const Operation& operation) const {
  if (operation.moves() || operation.is_released()) return false;
  const bool notifies = operation.kind == OpKind::kNotify;
  return std::ranges::any_of(waiting_, [=](const auto& other) {
    return travels_apart(*other) || (notifies && other->notify);
  });
}

bool OneSided::travels_apart(const Operation& operation) {
  return operation.path && operation.path->travels_apart(operation);
}

// ---- Ends ---------------------------------------------------------------------------------------

void OneSided::moved(Operation& operation, Status status) {
  if (status.ok()) count_moved(link_, operation);
  if (status.ok() && operation.notify) {
    notify_behind(operation);
  } else {
    end(operation, std::move(status));
  }
}

// A put has succeeded: turns it into its notification.
void OneSided::notify_behind(Operation& operation) {
  auto is_it = [&](const auto& other) { return other.get() == &operation; };
  if (std::ranges::none_of(waiting_, is_it)) return;
  if (operation.path) operation.path->forget(operation);
  operation.path = nullptr;
  operation.kind = OpKind::kNotify;
  operation.offset = 0;
  if (operation.request && operation.taken != OH_PATH_NONE) {
    operation.request->path = operation.taken;
  }
  ++notifying_;
  release_notifications();
}

// Queues the notifications of completed puts, ahead of operations that were posted later. A
// notification stays in waiting_ while an operation before it is in flight whose bytes are not
// ordered with frames. waiting_ is in the order of posting.
void OneSided::release_notifications() {
  if (notifying_ == 0) return;
  // Insert behind notifications that were released before. None of the later ones has begun: see
  // must_wait().
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

// A part of a batch over several regions has ended.
void OneSided::piece_ended(Request* part) {
  Operation& whole = *part->parent;
  const bool over = whole.piece_ended(*part);
  part->clear();
  part_requests_.release(part);
  // If the whole is still queued, push_queue() ends it.
  auto is_it = [&](const auto& other) { return other.get() == &whole; };
  if (over && !failing_ && std::ranges::any_of(waiting_, is_it)) moved(whole, whole.failure);
}

bool OneSided::has_begun(const Request& request) {
  const Operation* operation = find(request.op);
  if (!operation) return false;
  if (operation->kind == OpKind::kNotify) return operation->begun();
  if (operation->whole) {
    return std::ranges::any_of(operation->under_way,
                               [this](const Request* part) { return has_begun(*part); });
  }
  return operation->path && operation->path->has_begun(*operation);
}

bool OneSided::cancel(Request* request, const Status& status, bool give_up) {
  background_->stop();
  if (request->op == 0) return request->ended();
  Operation* operation = find(request->op);
  if (!operation) return false;
  if (operation->kind == OpKind::kNotify && operation->begun()) {
    // The peer has a part of the notification: send the rest, and end only the request.
    end_request(link_, *operation, status);
    return true;
  }
  if (operation->moves() && operation->whole) return cancel_parts(*operation, status, give_up);
  if (operation->path) return operation->path->cancel(*operation, status, give_up);
  end(*operation, status);
  return true;
}

// False: some part cannot be cancelled now.
bool OneSided::cancel_parts(Operation& whole, const Status& status, bool give_up) {
  const uint64_t op = whole.op;
  if (whole.failure.ok()) whole.failure = status;
  const std::vector<Request*> parts = whole.under_way;  // a copy: a part that ends leaves the list
  for (Request* part : parts) (void)cancel(part, status, give_up);
  Operation* left = find(op);  // the last part may have ended it
  if (!left) return true;
  if (!left->under_way.empty()) return false;
  end(*left, left->failure);
  return true;
}

void OneSided::fail_all(const Status& status) {
  std::vector<Operation*> all;
  all.reserve(queue_.size() + waiting_.size());
  for (auto& operation : queue_) all.push_back(operation.get());
  for (auto& operation : waiting_) all.push_back(operation.get());
  failing_ = true;  // piece_ended() must not end the whole
  for (Operation* operation : all) {
    if (operation->path) operation->path->fail(*operation, status);  // may destroy it
  }
  for (bool whole : {false, true}) {
    auto end = [&](auto& operation) {
      if (operation->whole != whole) return;
      const bool told = whole && !operation->failure.ok();
      end_request(link_, *operation, told ? operation->failure : status);
    };
    std::ranges::for_each(queue_, end);
    std::ranges::for_each(waiting_, end);
  }
  failing_ = false;
  queue_.clear();
  waiting_.clear();
  notifying_ = 0;
  notification_parts_.clear();
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
  switch (frame.type) {
    case FrameType::kNotify:
      return notification_parts_.on_frame(frame);
    case FrameType::kSignal:
      return signals_.on_frame(frame);
    case FrameType::kAck:
      return on_answer(frame);
    case FrameType::kData:
      if (frame.flags & kReply) return on_answer(frame);
      break;
    default:
      break;
  }
  if (Path* path = this->path(path_for(frame))) return path->on_frame(frame);
  return error(OH_ERR_PROTOCOL, "%s sent a frame of type %u with flags %u, whose path is not open",
               link_.name.c_str(), static_cast<unsigned>(frame.type),
               static_cast<unsigned>(frame.flags));
}

Status OneSided::on_answer(const Frame& frame) {
  const bool ack = frame.type == FrameType::kAck;
  // An Ack without an operation returns the credit of notifications.
  if (ack && frame.op == 0) {
    notification_parts_.add_credit(frame.length);
    return {};
  }
  Request* piece = ack ? link_.ops.find(frame.op) : nullptr;
  if (piece && piece->path_of_piece) return piece->path_of_piece->on_frame(frame);
  Operation* operation = find(frame.op);
  if (!operation) return {};  // a late answer is ignored: the deadline has passed
  if (operation->path) return operation->path->on_answer(*operation, frame);
  if (ack) return {};
  return error(OH_ERR_PROTOCOL, "%s answered a get with bytes that were not requested",
               link_.name.c_str());
}

}  // namespace oh
