// SPDX-License-Identifier: Apache-2.0
#include "path/staging/staging_path.h"

#include <algorithm>

namespace oh {
namespace {
constexpr size_t kMostBlocks = 512;              // per run
constexpr uint64_t kMostBytes = 1 << 20;         // per run of several blocks
constexpr size_t kRunsUnderWay = 256;            // local runs per link
constexpr size_t kMostServed = 16 * 1024;        // runs that the peer cancelled may still be served
constexpr size_t kEntry = 2 * sizeof(uint64_t);  // bytes per block of the list: offset, length
}  // namespace

Estimate estimate_staging(const LinkFacts& facts, const Ends& ends) {
  if (facts.segment || !(on_device(ends.local) || on_device(ends.remote))) return {};
  Estimate estimate{
      .cost = {.viable = true, .by_target = true, .latency_us = 60, .bytes_per_us = 5e3F}};
  estimate.choice = by_staging(facts);
  estimate.choice.why += ", with the target's progress";
  return estimate;
}

// Local device memory needs local progress.
Status StagingPath::admit(const LocalBuffer& local, bool) {
  if (local.on_device) link_.serve();
  return {};
}

// A run of the operation's next blocks, as many as fit.
Request* StagingPath::next_run(Operation& operation) {
  std::span<const Block> blocks = operation.blocks.subspan(operation.block);
  uint64_t size = blocks.front().size;
  size_t count = 1;
  while (count < std::min(blocks.size(), kMostBlocks) && size + blocks[count].size <= kMostBytes) {
    size += blocks[count++].size;
  }
  Request* run = piece_of(operation);
  run->run = BlockRun(operation.list, blocks.first(count), 0);
  run->data = blocks.front().local;
  run->size = size;
  return run;
}

// Offers more runs. True when all are offered.
bool StagingPath::push(Operation& operation) {
  while (operation.failure.ok() && operation.block < operation.blocks.size()) {
    if (under_way() >= kRunsUnderWay) return false;
    Request* run = next_run(operation);
    std::span<const Block> blocks = run->run.blocks();
    run->op = link_.ops.add(run);
    Frame frame;
    frame.type = run->kind == OpKind::kPut ? FrameType::kPut : FrameType::kGet;
    frame.flags = kStaged;
    frame.op = run->op;
    frame.region = operation.region;
    frame.tag = operation.version;
    frame.length = run->size;
    frame.address = blocks.front().remote_offset;
    if (blocks.size() > 1) {
      list_.clear();
      Writer writer(list_);
      for (const Block& block : blocks) {
        writer.u64(block.remote_offset);
        writer.u64(block.size);
      }
      frame.payload = list_.data();
      frame.payload_size = list_.size();
    }
    if (!link_.push(frame)) {
      link_.ops.remove(run->op);
      give_back(run);
      return false;
    }
    streams_.await_cts(run);  // a get waits for its Rts
    is_under_way(operation, run);
    operation.block += blocks.size();
  }
  return true;
}

// The target is ready to send a run of a local get.
Status StagingPath::on_ready(const Frame& frame) {
  Request* run = link_.ops.find(frame.tag);
  if (!run) {
    // The run was cancelled here: the target must drop it, too.
    reject_message(link_, frame.op, OH_ERR_CANCELLED, 0);
    return {};
  }
  if (!run->parent || !run->is_run() || run->sends() || run->phase != Phase::kOffered ||
      frame.length != run->size) {
    return error(OH_ERR_PROTOCOL, "%s sends %llu bytes that were not requested", link_.name.c_str(),
                 static_cast<unsigned long long>(frame.length));
  }
  return streams_.begin_incoming(run, frame.op);
}

void StagingPath::on_ack(Request& run, const Frame& frame) {
  if (run.serves_peer()) return;
  if (frame.aux != 0) {
    Status why = link_.refusal(frame_failure(frame));
    if (run.sends()) {
      streams_.refuse(&run, why);
    } else if (run.phase == Phase::kOffered) {
      link_.finish(run, why);
    }
  } else if (run.sends() && run.phase == Phase::kDirect) {
    link_.finish(run, {});
  } else {
    run.acknowledged = true;  // the channel still sends the last part
  }
}

bool StagingPath::has_begun(const Operation& operation) {
  size_t offered = 0;
  for (const Request* run : operation.under_way) offered += run->run.blocks().size();
  return operation.block != offered ||
         std::ranges::any_of(operation.under_way,
                             [](const Request* run) { return run->phase != Phase::kOffered; });
}

bool StagingPath::end_piece(Request& run, const Status& status, bool give_up) {
  if (run.sends() || run.phase != Phase::kOffered) return streams_.cancel(&run, status, give_up);
  link_.finish(run, status);
  return true;
}

void StagingPath::served_ended(Request& run) {
  if (!run.doubts.empty()) leaving_.push_back({run.region, run.version, std::move(run.doubts)});
  if (run.kind != OpKind::kPut || link_.gone.load(std::memory_order_relaxed)) return;
  acknowledge(link_, run.run.op(), run.status.code());
}

Status StagingPath::on_frame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kRts:
      return on_ready(frame);
    case FrameType::kAck:
      on_ack(*link_.ops.find(frame.op), frame);
      return {};
    default:
      return on_run(frame);
  }
}

// ---- The target's side ------------------------------------------------------------------------

// Creates the run that a frame describes, checked against the region. OH_ERR_PROTOCOL: no correct
// peer sends such a frame.
Result<Request*> StagingPath::run_of(const Frame& frame, const RegionRecord& region) {
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
    return error(OH_ERR_PROTOCOL, "%s lists %zu blocks that do not add up to %llu bytes",
                 link_.name.c_str(), blocks->size(), static_cast<unsigned long long>(frame.length));
  }
  for (Block& block : *blocks) {
    if (!slice_fits(block.remote_offset, block.size, region.length)) {
      return error(OH_ERR_RANGE, "a block is outside of the region");
    }
    block.local = region.base + block.remote_offset;
  }
  Request* run = piece_of(region, frame.type == FrameType::kPut);
  run->run = BlockRun(blocks, *blocks, frame.op);
  run->data = blocks->front().local;
  run->size = frame.length;
  return run;
}

// The peer begins a run on a local region.
Status StagingPath::on_run(const Frame& frame) {
  const bool put = frame.type == FrameType::kPut;
  if (served() >= kMostServed) {
    return error(OH_ERR_PROTOCOL, "%s asks for a staged transfer, %zu others are under way",
                 link_.name.c_str(), served());
  }
  std::shared_ptr<RegionRecord> region = regions_.find(frame.region, frame.tag);
  if (!region || region->refuses(put)) {
    acknowledge(link_, frame.op, region ? OH_ERR_READ_ONLY : OH_ERR_RETIRED);
    return {};
  }
  Result<Request*> made = run_of(frame, *region);
  if (made.status().code() == OH_ERR_PROTOCOL) return made.status();
  if (!made.ok()) {
    acknowledge(link_, frame.op, made.status().code());
    return {};
  }
  Request* run = *made;
  is_served(run);
  // Start the progress thread: no local thread may be waiting.
  if (run->on_device) link_.serve();
  if (put) {
    Status begun = streams_.begin_incoming(run, frame.op);
    if (!begun.ok()) link_.finish(*run, begun);
    return begun;
  }
  run->op = link_.ops.add(run);
  streams_.await_cts(run);
  Frame ready;
  ready.type = FrameType::kRts;
  ready.flags = kOneSided;
  ready.tag = frame.op;
  ready.op = run->op;
  ready.length = run->size;
  link_.send(ready);
  return {};
}

bool StagingPath::leave(const RegionRecord& region) {
  const bool left = PiecewisePath::leave(region);
  return has_left() ? left : left && std::ranges::none_of(leaving_, [&](const Leaving& some) {
                               return some.region == region.index && some.version == region.version;
                             });
}

bool StagingPath::has_left() {
  auto is_over = [](const Doubt& doubt) {
    return doubt.staged ? doubt.staged->is_quiet() : doubt.in_flight->is_over();
  };
  std::erase_if(leaving_,
                [&](const Leaving& some) { return std::ranges::all_of(some.doubts, is_over); });
  return leaving_.empty();
}

}  // namespace oh
