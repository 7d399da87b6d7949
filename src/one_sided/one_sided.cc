// SPDX-License-Identifier: Apache-2.0
//
// The initiator's side; one_sided_target.cc has the other.
#include "one_sided/one_sided.h"

#include <algorithm>
#include <cstring>

#include "base/fault.h"

namespace oh {
namespace {

// While it exists, the owner of the region waits before it says that the region is gone.
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

bool OneSided::reaches(const RemoteTarget& target, bool local_on_device) const {
  if (!pair_.segment) return false;
  if (!target.on_device && !local_on_device) return target.imported || pair_.mover;
  if (!pair_.device) return false;
  // Within the process the engine reaches all addresses but those with rights of their own.
  if (pair_.path == OH_PATH_LOCAL) return !target.on_device || target.plain;
  return target.imported && target.on_device;
}

Status OneSided::copy(const RemoteTarget& target, LocalMemory& local, const Movement& movement,
                      Deadline deadline) {
  // Before anybody has to wait for us.
  OH_RETURN_IF_ERROR(wait_for_producer(local, deadline));
  // Announced, then looked at the link: whoever ends the link does it the other way round.
  CopyCount copying(copies_);
  AccessGuard guard(pair_.segment->outgoing());
  if (pair_.gone.load(std::memory_order_seq_cst) ||
      pair_.segment->their_state() == SideState::kFailed) {
    return error(OH_ERR_PEER_LOST, "the link to %s has ended", pair_.name.c_str());
  }
  if (board_->region(target.index).load(std::memory_order_seq_cst) != target.version) {
    return error(OH_ERR_RETIRED, "%s has deregistered the region", pair_.name.c_str());
  }
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  if (target.imported && !import) {
    return error(OH_ERR_RETIRED, "the memory of the region of %s is gone: attach it again",
                 pair_.name.c_str());
  }
  OH_FAULT_POINT("one_sided.copy");
  return target.on_device || local.on_device ? copy_by_device(target, import.get(), local, movement)
                                             : copy_by_cpu(target, import.get(), movement);
}

Status OneSided::copy_by_cpu(const RemoteTarget& target, const ImportedBlock* import,
                             const Movement& movement) {
  const bool put = movement.put;
  std::span<const Block> blocks = movement.blocks;
  if (import) {
    for (const Block& block : blocks) {
      uint8_t* remote = import->translate(target.base + block.remote_offset, block.size);
      if (!remote) return error(OH_ERR_RANGE, "the block lies outside of the mapped memory");
      std::memcpy(put ? remote : block.local, put ? block.local : remote, block.size);
    }
    return {};
  }
  constexpr size_t kAtOnce = 1024;
  CopyPiece pieces[kAtOnce];
  while (!blocks.empty()) {
    size_t count = 0;
    for (const Block& block : blocks.first(std::min(kAtOnce, blocks.size()))) {
      pieces[count++] = {block.local, target.base + block.remote_offset, block.size};
    }
    blocks = blocks.subspan(count);
    std::span<const CopyPiece> some(pieces, count);
    OH_RETURN_IF_ERROR(put ? pair_.mover->write(some) : pair_.mover->read(some));
  }
  return {};
}

OneSided::Operation& OneSided::enqueue(Request* request, const RemoteTarget& target,
                                       BlockList blocks, const ByteView* notify) {
  auto operation = std::make_unique<Operation>();
  operation->kind = request->kind;
  operation->request = request;
  operation->region = target.index;
  operation->version = target.version;
  operation->base = target.base;
  operation->blocks = *blocks;
  operation->list = std::move(blocks);
  if (notify) {
    operation->notify = true;
    operation->bytes.assign(notify->begin(), notify->end());
  }
  operation->op = request->op = pair_.ops.add(request);
  request->phase = Phase::kQueued;
  queue_.push_back(std::move(operation));
  return *queue_.back();
}

void OneSided::post(Request* request, const RemoteTarget& target, BlockList blocks,
                    const ByteView* notify) {
  Operation& operation = enqueue(request, target, std::move(blocks), notify);
  operation.missing = request->size;
  if (pair_.ucx && operation.kind == OpKind::kGet) {
    pair_.ucx->await_answers(operation.op, &operation);
  }
  take_turn(kPostedAtOnce);
}

void OneSided::post_notification(Request* request, ByteView bytes) {
  auto operation = std::make_unique<Operation>();
  operation->kind = OpKind::kNotify;
  operation->request = request;
  operation->op = request->op = pair_.ops.add(request);
  operation->bytes.assign(bytes.begin(), bytes.end());
  request->phase = Phase::kQueued;
  queue_.push_back(std::move(operation));
  take_turn(kPostedAtOnce);
}

void OneSided::signal(uint32_t slot, uint64_t count) {
  bool nothing_before = queue_.empty() && waiting_.empty();
  if (pair_.segment && nothing_before) {
    // seq_cst: after all earlier puts, before our look at the sleepers.
    pair_.segment->outgoing().signals[slot].fetch_add(count, std::memory_order_seq_cst);
    pair_.wake_them = true;
    return;
  }
  auto operation = std::make_unique<Operation>();
  operation->kind = OpKind::kSignal;
  operation->slot = slot;
  operation->count = count;
  queue_.push_back(std::move(operation));
  take_turn(kPostedAtOnce);
}

// So many buffers of UCX's may be filled.
bool OneSided::take_turn(size_t buffers) {
  if (!pair_.ucx) return push_all();
  pair_.ucx->begin_turn(buffers);
  const bool any = push_all();
  pair_.ucx->end_turn();
  return any;
}

// Puts on the wire, or into UCX's hands, what waits for that; without `moves` up to the next put or
// get.
bool OneSided::push_queue(bool moves) {
  bool any = false;
  while (!queue_.empty() && pair_.outbox.empty()) {
    Operation& operation = *queue_.front();
    if (!moves && operation.moves()) break;
    auto before = std::pair(operation.block, operation.offset);
    bool all = push_operation(operation);
    any = any || all || before != std::pair(operation.block, operation.offset);
    if (!all) break;
    std::unique_ptr<Operation> done = std::move(queue_.front());
    queue_.pop_front();
    if (done->moves()) {
      if (done->key) ++in_rma_;
      waiting_.push_back(std::move(done));
    } else if (done->request) {
      done->request->nbytes = done->request->size;
      // Behind a put that did not travel as messages it is the put's.
      if (done->request->path == OH_PATH_NONE) done->request->path = pair_.path;
      pair_.finish(*done->request, {});
    }
  }
  return any;
}

// True when all of it is on the wire.
bool OneSided::push_operation(Operation& operation) {
  if (must_wait(operation)) return false;
  if (operation.by_crossings) return push_runs(operation);
  if (operation.by_slots) return push_blocks(operation);
  if (Way way = choose_way(operation); way != Way::kMessages) {
    return way == Way::kRma && push_rma(operation);
  }
  switch (operation.kind) {
    case OpKind::kPut:
      return push_put(operation);
    case OpKind::kGet:
      return push_get(operation);
    case OpKind::kNotify:
      return push_notification(operation);
    default: {
      Frame frame;
      frame.type = FrameType::kSignal;
      frame.slot = operation.slot;
      frame.length = operation.count;
      return pair_.push(frame);
    }
  }
}

bool OneSided::push_put(Operation& operation) {
  for (size_t i = 0; i < frames_at_once() && operation.block < operation.blocks.size(); ++i) {
    const Block& block = operation.blocks[operation.block];
    const uint64_t left = block.size - operation.offset;
    const bool last = operation.block + 1 == operation.blocks.size();
    Frame frame;
    frame.op = operation.op;
    frame.payload = block.local + operation.offset;
    frame.payload_size = part_of(block.size, left);
    frame.more = !last || frame.payload_size < left || queue_.size() > 1;
    if (operation.offset == 0) {
      frame.type = FrameType::kPut;
      frame.region = operation.region;
      frame.tag = operation.version;
      frame.address = block.remote_offset;
      frame.length = block.size;
      frame.flags = last ? kFlush : 0;
    } else {
      frame.type = FrameType::kData;
      frame.flags = kOneSided;
      frame.address = operation.offset;
    }
    if (!pair_.push(frame)) return false;
    operation.offset += frame.payload_size;
    if (operation.offset < block.size) continue;
    ++operation.block;
    operation.offset = 0;
  }
  return operation.block == operation.blocks.size();
}

bool OneSided::push_get(Operation& operation) {
  for (size_t i = 0; i < frames_at_once() && operation.block < operation.blocks.size(); ++i) {
    const Block& block = operation.blocks[operation.block];
    Frame frame;
    frame.more = operation.block + 1 < operation.blocks.size() || queue_.size() > 1;
    frame.type = FrameType::kGet;
    frame.op = operation.op;
    frame.region = operation.region;
    frame.tag = operation.version;
    frame.address = block.remote_offset;
    frame.length = block.size;
    frame.number = static_cast<uint32_t>(operation.block);
    if (!pair_.push(frame)) return false;
    ++operation.block;
  }
  return operation.block == operation.blocks.size();
}

bool OneSided::push_notification(Operation& operation) {
  uint64_t charge = notification_charge(operation.bytes.size());
  if (notification_charge_ + charge > notification_credit(pair_.theirs)) return false;
  Frame frame;
  frame.type = FrameType::kNotify;
  frame.length = operation.bytes.size();
  frame.payload = operation.bytes.data();
  frame.payload_size = operation.bytes.size();
  if (!pair_.push(frame)) return false;
  notification_charge_ += charge;
  return true;
}

OneSided::Operation* OneSided::find(uint64_t op) {
  for (auto& operation : waiting_) {
    if (operation->op == op) return operation.get();
  }
  for (auto& operation : queue_) {
    if (operation->op == op) return operation.get();
  }
  return nullptr;
}

Status OneSided::on_reply(const Frame& frame) {
  Operation* operation = find(frame.op);
  if (!operation) return {};  // its deadline has passed
  if (operation->kind != OpKind::kGet || !operation->by_messages() ||
      frame.number >= operation->blocks.size() ||
      !slice_fits(frame.address, frame.payload_size, operation->blocks[frame.number].size) ||
      frame.payload_size > operation->missing) {
    return error(OH_ERR_PROTOCOL, "%s answered a get with bytes nobody asked for",
                 pair_.name.c_str());
  }
  const Block& block = operation->blocks[frame.number];
  if (!frame.placed) frame.copy_payload(block.local + frame.address, block.size);
  operation->missing -= frame.payload_size;
  if (operation->missing == 0) end(operation, {});
  return {};
}

void OneSided::on_ack(const Frame& frame) {
  // Without a name it acknowledges notifications that were collected.
  if (frame.op == 0) {
    notification_charge_ -= std::min(notification_charge_, frame.length);
    return;
  }
  if (Request* run = pair_.ops.find(frame.op); run && run->is_run()) return on_run_ack(*run, frame);
  Operation* operation = find(frame.op);
  if (!operation || !operation->by_messages()) return;
  oh_status code = frame.aux == 0 ? OH_OK : frame_failure(frame);
  Status status;
  if (code != OH_OK) {
    status = pair_.refusal(code);
  }
  if (status.ok() && operation->notify) {
    notify_behind(*operation);
  } else {
    end(operation, std::move(status));
  }
}

}  // namespace oh
