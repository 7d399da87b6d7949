// SPDX-License-Identifier: Apache-2.0
//
// One-sided operations between hosts where a device takes part. Blocks travel in runs, each like a
// message that needs no receive: Crossings copy, and the target's progress is needed. Where either
// side is host memory, no part of a run leaves its block there.
//
//   initiator of a put                            target
//   kPut, kCrossing: op, the blocks ─────────────▶ checks them; Cts, Data ... as of a message
//                                                ◀─ kAck: op, they are there; or why not
//   initiator of a get
//   kGet, kCrossing: op, the blocks ─────────────▶ checks them: kRts, kOneSided: tag = op, its op;
//                                                  or kAck: why not
//   Cts, Data ... as of a message                  kAbort: why it does not go on
#include <algorithm>

#include "message/receiver.h"
#include "message/sender.h"
#include "one_sided/one_sided.h"

namespace oh {
namespace {
constexpr size_t kMostBlocks = 512;              // of a run
constexpr uint64_t kMostBytes = 1 << 20;         // of one of several blocks
constexpr size_t kRunsUnderWay = 256;            // of ours over a link
constexpr size_t kMostServed = 16 * 1024;        // what was cancelled there may not be over here
constexpr size_t kEntry = 2 * sizeof(uint64_t);  // of the list: offset, length
}  // namespace

void OneSided::post_by_crossings(Request* request, const RemoteTarget& target,
                                 const LocalMemory& local, BlockList blocks,
                                 const ByteView* notify) {
  Operation& operation = enqueue(request, target, std::move(blocks), notify);
  operation.by_slots = operation.by_crossings = true;
  operation.on_device = local.on_device;
  operation.exported = local.exported;
  progress();
}

// The next blocks of an operation, as many as go together.
Request* OneSided::next_run(Operation& operation) {
  std::span<const Block> blocks = operation.blocks.subspan(operation.block);
  uint64_t size = blocks.front().size;
  size_t count = 1;
  while (count < std::min(blocks.size(), kMostBlocks) && size + blocks[count].size <= kMostBytes) {
    size += blocks[count++].size;
  }
  Request* run = blocks_.acquire();
  run->kind = operation.kind;
  run->run = BlockRun(operation.list, blocks.first(count), 0);
  run->data = blocks.front().local;
  run->size = size;
  run->on_device = operation.on_device;
  run->device.exported = operation.exported;
  run->parent = &operation;
  run->detached.store(1, std::memory_order_relaxed);
  return run;
}

// Offers more runs; true when none is left to be offered.
bool OneSided::push_runs(Operation& operation) {
  while (operation.failure.ok() && operation.block < operation.blocks.size()) {
    if (runs_ >= kRunsUnderWay) return false;
    Request* run = next_run(operation);
    std::span<const Block> blocks = run->run.blocks();
    run->op = pair_.ops.add(run);
    Frame frame;
    frame.type = run->kind == OpKind::kPut ? FrameType::kPut : FrameType::kGet;
    frame.flags = kCrossing;
    frame.op = run->op;
    frame.region = operation.region;
    frame.tag = operation.version;
    frame.length = run->size;
    frame.address = blocks.front().remote_offset;
    if (blocks.size() > 1) {
      run_list_.clear();
      Writer writer(run_list_);
      for (const Block& block : blocks) {
        writer.u64(block.remote_offset);
        writer.u64(block.size);
      }
      frame.payload = run_list_.data();
      frame.payload_size = run_list_.size();
    }
    if (!pair_.push(frame)) {
      pair_.ops.remove(run->op);
      give_back_block(run);
      return false;
    }
    sender_->await_cts(run);  // a get's waits for an Rts
    operation.under_way.push_back(run);
    operation.block += blocks.size();
    ++runs_;
  }
  return true;
}

// A get of ours can be fetched.
Status OneSided::on_run_ready(const Frame& frame) {
  Request* run = pair_.ops.find(frame.tag);
  if (!run) {
    // It was taken back, and the other side is to forget it, too.
    Frame rejection;
    rejection.type = FrameType::kReject;
    rejection.op = frame.op;
    rejection.aux = static_cast<uint32_t>(OH_ERR_CANCELLED);
    pair_.send(rejection);
    return {};
  }
  if (!run->parent || !run->is_run() || run->sends() || run->phase != Phase::kOffered ||
      frame.length != run->size) {
    return error(OH_ERR_PROTOCOL, "%s sends %llu bytes that nobody asked for", pair_.name.c_str(),
                 static_cast<unsigned long long>(frame.length));
  }
  return receiver_->begin_run(run, frame.op);
}

void OneSided::on_run_ack(Request& run, const Frame& frame) {
  if (run.serves_peer) return;
  if (frame.aux != 0) {
    Status why = pair_.refusal(frame_failure(frame));
    if (run.sends()) {
      sender_->refuse(&run, why);
    } else if (run.phase == Phase::kOffered) {
      pair_.finish(run, why);
    }
  } else if (run.sends() && run.phase == Phase::kDirect) {
    pair_.finish(run, {});
  } else {
    run.acknowledged = true;  // the channel has not let go of the last of it
  }
}

// Ends a run of ours, unless that is at its memory which cannot be left in doubt.
bool OneSided::end_run(Request& run, const Status& status, bool give_up) {
  if (run.sends()) return sender_->cancel(&run, status, give_up);
  if (run.phase != Phase::kOffered) return receiver_->cancel(&run, status, give_up);
  pair_.finish(run, status);
  return true;
}

// ---- The target's side ------------------------------------------------------------------------

// The run of a frame, checked against the region, or why there is none: OH_ERR_PROTOCOL if no
// honest peer sends such a frame.
Result<Request*> OneSided::run_of(const Frame& frame, const RegionRecord& region) {
  auto blocks = std::make_shared<std::vector<Block>>();
  Reader reader({frame.payload, frame.payload_size});
  size_t count = frame.payload_size / kEntry;
  if (count == 0) blocks->push_back({nullptr, frame.address, frame.length});
  while (count-- > 0) {
    const uint64_t offset = reader.u64();
    blocks->push_back({nullptr, offset, reader.u64()});
  }
  uint64_t left = frame.length;
  bool fits = reader.at_end() && blocks->size() <= kMostBlocks;
  for (const Block& block : *blocks) {
    fits = fits && block.size > 0 && block.size <= left;
    left -= fits ? block.size : 0;
  }
  if (!fits || left != 0) {
    return error(OH_ERR_PROTOCOL, "%s lists %zu blocks of %llu bytes in all, which they are not",
                 pair_.name.c_str(), blocks->size(), static_cast<unsigned long long>(frame.length));
  }
  for (Block& block : *blocks) {
    if (!slice_fits(block.remote_offset, block.size, region.length)) {
      return error(OH_ERR_RANGE, "a block is outside of the region");
    }
    block.local = region.base + block.remote_offset;
  }
  Request* run = blocks_.acquire();
  run->run = BlockRun(blocks, *blocks, frame.op);
  run->data = blocks->front().local;
  run->size = frame.length;
  run->on_device = region.exported != nullptr;
  run->device.exported = region.exported;
  run->region = region.index;
  run->version = region.version;
  run->serves_peer = true;
  run->detached.store(1, std::memory_order_relaxed);
  return run;
}

// The other side begins with a run of an operation on a region of ours.
Status OneSided::on_run(const Frame& frame, bool put) {
  if (pair_.segment || served_.size() >= kMostServed) {
    return error(OH_ERR_PROTOCOL, "%s asks for a crossing, %zu others are under way",
                 pair_.name.c_str(), served_.size());
  }
  std::shared_ptr<RegionRecord> region = host_.find_region(frame.region, frame.tag);
  if (!region) {
    acknowledge(frame.op, OH_ERR_RETIRED);
    return {};
  }
  Result<Request*> made = run_of(frame, *region);
  if (made.status().code() == OH_ERR_PROTOCOL) return made.status();
  if (!made.ok()) {
    acknowledge(frame.op, made.status().code());
    return {};
  }
  Request* run = *made;
  run->kind = put ? OpKind::kPut : OpKind::kGet;
  served_.push_back(run);
  // Nobody here may wait for anything.
  if (run->on_device) pair_.host->serve();
  if (put) {
    Status begun = receiver_->begin_run(run, frame.op);
    if (!begun.ok()) pair_.finish(*run, begun);
    return begun;
  }
  run->op = pair_.ops.add(run);
  sender_->await_cts(run);
  Frame ready;
  ready.type = FrameType::kRts;
  ready.flags = kOneSided;
  ready.tag = frame.op;
  ready.op = run->op;
  ready.length = run->size;
  pair_.send(ready);
  return {};
}

void OneSided::served_run_ended(Request& run) {
  if (!run.doubts.empty()) leaving_.push_back({run.region, run.version, std::move(run.doubts)});
  if (run.kind != OpKind::kPut || pair_.gone.load(std::memory_order_relaxed)) return;
  acknowledge(run.run.op(), run.status.code());
}

bool OneSided::stop_run(Request& run, const Status& why) {
  return run.sends() ? sender_->stop(&run, why) : receiver_->stop(&run, why);
}

bool OneSided::all_have_left() {
  auto is_over = [](const Doubt& doubt) {
    return doubt.crossing ? doubt.crossing->is_quiet() : doubt.flight->is_over();
  };
  std::erase_if(leaving_, [&](const Leaving& some) {
    return std::all_of(some.doubts.begin(), some.doubts.end(), is_over);
  });
  return leaving_.empty();
}

}  // namespace oh
