// SPDX-License-Identifier: Apache-2.0
#include "path/frames/frames_path.h"

namespace oh {
namespace {
constexpr size_t kMaxServing = 1 << 20;
}  // namespace

Estimate estimate_frames(const LinkFacts& facts, const Ends& ends) {
  if (on_device(ends.local) || on_device(ends.remote)) return {};
  const std::string why = facts.segment
                              ? "messages, with the target's progress: " + facts.why_not_reached
                              : "messages, with the target's watcher, " + between_hosts(facts);
  return {.cost = {.viable = true, .by_target = true, .latency_us = 4, .bytes_per_us = 5e3F},
          .choice = {bulk_path(facts), Method::kStream, why}};
}

void FramesPath::begin(Operation& operation) {
  if (link_.ucx && operation.kind == OpKind::kGet) {
    link_.ucx->targets().post_answers(operation.op, &operation);
  }
}

bool FramesPath::push(Operation& operation) {
  return operation.kind == OpKind::kPut ? push_put(operation) : push_get(operation);
}

bool FramesPath::push_put(Operation& operation) {
  for (size_t i = 0; i < frames_at_once() && operation.block < operation.blocks.size(); ++i) {
    const Block& block = operation.blocks[operation.block];
    const uint64_t left = block.size - operation.offset;
    const bool last = operation.block + 1 == operation.blocks.size();
    Frame frame;
    frame.op = operation.op;
    frame.payload = block.local + operation.offset;
    frame.payload_size = part_of(block.size, left);
    frame.more = !last || frame.payload_size < left || operation.more;
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
    if (!link_.push(frame)) return false;
    operation.offset += frame.payload_size;
    if (operation.offset < block.size) continue;
    ++operation.block;
    operation.offset = 0;
  }
  return operation.block == operation.blocks.size();
}

bool FramesPath::push_get(Operation& operation) {
  for (size_t i = 0; i < frames_at_once() && operation.block < operation.blocks.size(); ++i) {
    const Block& block = operation.blocks[operation.block];
    Frame frame;
    frame.more = operation.block + 1 < operation.blocks.size() || operation.more;
    frame.type = FrameType::kGet;
    frame.op = operation.op;
    frame.region = operation.region;
    frame.tag = operation.version;
    frame.address = block.remote_offset;
    frame.length = block.size;
    frame.number = static_cast<uint32_t>(operation.block);
    if (!link_.push(frame)) return false;
    ++operation.block;
  }
  return operation.block == operation.blocks.size();
}

bool FramesPath::has_begun(const Operation& operation) {
  if (operation.kind == OpKind::kPut) return operation.begun();
  uint64_t bytes = 0;
  for (const Block& block : operation.blocks) bytes += block.size;
  return operation.missing < bytes;
}

// Frames that were sent cannot be revoked, and a late answer is ignored. An Abort ends a put block
// that is partly sent: otherwise the target would take the next frames for its rest.
bool FramesPath::cancel(Operation& operation, const Status& status, bool give_up) {
  if (operation.kind == OpKind::kPut && operation.offset > 0) {
    Frame frame;
    frame.type = FrameType::kAbort;
    frame.flags = kOneSided;
    frame.op = operation.op;
    link_.send(frame);
  }
  return Path::cancel(operation, status, give_up);
}

void FramesPath::forget(Operation& operation) {
  if (link_.ucx && operation.kind == OpKind::kGet) {
    link_.ucx->targets().revoke_answers(operation.op);
  }
}

Status FramesPath::on_answer(Operation& operation, const Frame& frame) {
  if (frame.type == FrameType::kAck) {
    const oh_status code = frame.aux == 0 ? OH_OK : frame_failure(frame);
    events_.moved(operation, code == OH_OK ? Status() : link_.refusal(code));
    return {};
  }
  if (operation.kind != OpKind::kGet || frame.number >= operation.blocks.size() ||
      !slice_fits(frame.address, frame.payload_size, operation.blocks[frame.number].size) ||
      frame.payload_size > operation.missing) {
    return Path::on_answer(operation, frame);
  }
  const Block& block = operation.blocks[frame.number];
  if (!frame.placed) frame.copy_payload(block.local + frame.address, block.size);
  operation.missing -= frame.payload_size;
  if (operation.missing == 0) events_.moved(operation, {});
  return {};
}

// ---- The target's side ------------------------------------------------------------------------

Status FramesPath::on_frame(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kPut:
      return on_put(frame);
    case FrameType::kGet:
      return on_get(frame);
    case FrameType::kData:
      return on_data(frame);
    case FrameType::kAbort:
      on_abort(frame);
      return {};
    default:
      return Path::on_frame(frame);
  }
}

// Answers the peer's gets.
bool FramesPath::answer() {
  bool any = false;
  while (!serving_.empty() && link_.outbox.empty()) {
    uint64_t before = serving_.front().sent;
    bool all = serve(serving_.front());
    any = any || all || before != serving_.front().sent;
    if (!all) break;
    serving_.pop_front();
  }
  return any;
}

Status FramesPath::on_put(const Frame& frame) {
  if (arriving_.received < arriving_.length || frame.payload_size > frame.length) {
    return error(OH_ERR_PROTOCOL, "%s began a put inside of another", link_.name.c_str());
  }
  oh_status before = arriving_.op == frame.op ? arriving_.status : OH_OK;
  arriving_ = Arriving{};
  arriving_.op = frame.op;
  arriving_.position = frame.address;
  arriving_.length = frame.length;
  arriving_.flush = (frame.flags & kFlush) != 0;
  arriving_.status = before;
  // The region was valid when the channel placed the bytes, and all of them have arrived.
  if (frame.placed && frame.payload_size == frame.length) return place(frame);
  arriving_.region = regions_.find(frame.region, frame.tag);
  if (!arriving_.region) {
    arriving_.status = OH_ERR_RETIRED;
  } else if (arriving_.region->refuses(/*put=*/true)) {
    arriving_.status = OH_ERR_READ_ONLY;
    arriving_.region.reset();
  } else if (arriving_.region->exported && frame.length > 0) {
    arriving_.status = OH_ERR_NOT_VIABLE;  // device memory: only engines access it
    arriving_.region.reset();
  } else if (!slice_fits(frame.address, frame.length, arriving_.region->length)) {
    arriving_.status = OH_ERR_RANGE;
    arriving_.region.reset();
  } else if (link_.ucx && !frame.placed) {
    const RegionRecord& region = *arriving_.region;
    link_.ucx->targets().post_region({region.index, region.version, region.base, region.length});
  }
  return place(frame);
}

Status FramesPath::on_data(const Frame& frame) {
  if (frame.op != arriving_.op || frame.address != arriving_.received ||
      frame.payload_size > arriving_.length - arriving_.received) {
    return error(OH_ERR_PROTOCOL, "%s sent %zu bytes of a put that is not under way",
                 link_.name.c_str(), frame.payload_size);
  }
  return place(frame);
}

// Copies the next bytes of the arriving put into the region.
Status FramesPath::place(const Frame& frame) {
  if (arriving_.region && !frame.placed) {
    frame.copy_payload(arriving_.region->base + arriving_.position + arriving_.received,
                       arriving_.length);
  }
  arriving_.received += frame.payload_size;
  if (arriving_.received < arriving_.length) return {};
  arriving_.region.reset();
  if (arriving_.flush) acknowledge(link_, arriving_.op, arriving_.status);
  return {};
}

// The peer has aborted the put that is arriving: its rest will not arrive.
void FramesPath::on_abort(const Frame& frame) {
  if (frame.op != arriving_.op) return;
  arriving_.region.reset();
  arriving_.received = arriving_.length;
}

Status FramesPath::on_get(const Frame& frame) {
  if (serving_.size() >= kMaxServing) {
    return error(OH_ERR_PROTOCOL, "%s asked for %zu blocks at once", link_.name.c_str(),
                 serving_.size());
  }
  std::shared_ptr<RegionRecord> region =
      regions_.find(frame.region, frame.tag, RegionTable::Taking::kNo);
  if (!region) {
    acknowledge(link_, frame.op, OH_ERR_RETIRED);
  } else if (region->exported) {
    acknowledge(link_, frame.op, OH_ERR_NOT_VIABLE);
  } else if (!slice_fits(frame.address, frame.length, region->length)) {
    acknowledge(link_, frame.op, OH_ERR_RANGE);
  } else {
    serving_.push_back({frame.op, frame.number, std::move(region), frame.address, frame.length, 0});
  }
  return {};
}

// Pushes more of the answer. True when all of it is pushed.
bool FramesPath::serve(Serving& serving) {
  for (size_t i = 0; i < frames_at_once() && serving.sent < serving.length; ++i) {
    Frame frame;
    frame.type = FrameType::kData;
    frame.flags = kOneSided | kReply;
    frame.op = serving.op;
    frame.number = static_cast<uint32_t>(serving.block);
    frame.address = serving.sent;
    frame.payload = serving.region->base + serving.position + serving.sent;
    const uint64_t left = serving.length - serving.sent;
    frame.payload_size = part_of(serving.length, left);
    frame.more = frame.payload_size < left || serving_.size() > 1;
    if (!link_.push(frame)) return false;
    serving.sent += frame.payload_size;
  }
  return serving.sent == serving.length;
}

void FramesPath::retire(const RegionRecord& region) {
  if (link_.ucx) link_.ucx->targets().revoke_region(region.version);
  if (arriving_.region.get() == &region) {
    arriving_.region.reset();
    arriving_.status = OH_ERR_RETIRED;
  }
  std::erase_if(serving_, [&](const Serving& serving) {
    if (serving.region.get() != &region) return false;
    acknowledge(link_, serving.op, OH_ERR_RETIRED);
    return true;
  });
}

}  // namespace oh
