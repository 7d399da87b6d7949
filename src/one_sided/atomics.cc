// SPDX-License-Identifier: Apache-2.0
#include "one_sided/atomics.h"

#include <utility>

namespace oh {

Status check_word(const RemoteTarget& target, uint64_t offset) {
  if (AtomicOp::fits(target.base + offset)) return {};
  return error(OH_ERR_INVALID,
               "an atomic operation at byte %llu of a region that begins at %llx: both must be "
               "multiples of 8",
               static_cast<unsigned long long>(offset),
               static_cast<unsigned long long>(target.base));
}

uint32_t Atomics::name(std::optional<Result<uint64_t>> answer) {
  do {
    ++last_;
  } while (last_ == kNoSlot || posted_.contains(last_));
  posted_.emplace(last_, std::move(answer));
  return last_;
}

Result<uint32_t> Atomics::begin(const RemoteTarget& target, uint64_t offset, const AtomicOp& op) {
  if (!reaches(target)) return post(target, offset, op);
  Result<uint64_t> found = apply(target, offset, op);
  LinkGuard guard(link_);
  return name(std::move(found));
}

Result<uint32_t> Atomics::post(const RemoteTarget& target, uint64_t offset, const AtomicOp& op) {
  if (link_.segment) OH_RETURN_IF_ERROR(link_.ask_to_serve());
  LinkGuard guard(link_);
  OH_RETURN_IF_ERROR(link_.usable());
  Frame frame;
  frame.type = FrameType::kFetch;
  frame.slot = name(std::nullopt);
  frame.region = target.index;
  frame.tag = target.version;
  frame.address = offset;
  frame.number = static_cast<uint32_t>(op.kind);
  frame.length = op.value;
  frame.op = op.expected;
  link_.send(frame);
  link_.posted();
  return frame.slot;
}

std::optional<Result<uint64_t>> Atomics::take(uint32_t name) {
  LinkGuard guard(link_);
  const auto found = posted_.find(name);
  if (found == posted_.end() || !found->second) return std::nullopt;
  std::optional<Result<uint64_t>> answer = std::move(found->second);
  posted_.erase(found);
  return answer;
}

void Atomics::abandon(uint32_t name) {
  LinkGuard guard(link_);
  posted_.erase(name);
}

Status Atomics::on_frame(const Frame& frame) {
  if (frame.type == FrameType::kFetch) return on_fetch(frame);
  const auto found = posted_.find(frame.slot);
  if (found == posted_.end()) return {};  // a late answer is ignored: the deadline has passed
  if (found->second) {
    return error(OH_ERR_PROTOCOL, "%s answered an atomic operation twice", link_.name.c_str());
  }
  if (frame.aux == 0) {
    found->second = frame.length;
  } else {
    found->second = link_.refusal(frame_failure(frame));
  }
  link_.wake_me = true;
  return {};
}

Status Atomics::on_fetch(const Frame& frame) {
  const auto kind = static_cast<AtomicOp::Kind>(frame.number);
  if (kind != AtomicOp::Kind::kAdd && kind != AtomicOp::Kind::kCompareSwap) {
    return error(OH_ERR_PROTOCOL, "%s asks for an atomic operation of kind %u", link_.name.c_str(),
                 frame.number);
  }
  Frame answer;
  answer.type = FrameType::kFetched;
  answer.slot = frame.slot;
  answer.aux = static_cast<uint32_t>(carry_out(frame, &answer.length));
  link_.send(answer);
  return {};
}

// Called with the link's lock held, so the region is not retired meanwhile.
oh_status Atomics::carry_out(const Frame& frame, uint64_t* before) const {
  const std::shared_ptr<RegionRecord> region =
      regions_.find(frame.region, frame.tag, RegionTable::Taking::kNo);
  if (!region) return OH_ERR_RETIRED;
  if (region->refuses(/*put=*/true)) return OH_ERR_READ_ONLY;
  if (region->exported || region->for_batch()) return OH_ERR_NOT_VIABLE;
  if (!slice_fits(frame.address, sizeof(uint64_t), region->length)) return OH_ERR_RANGE;
  uint8_t* word = region->base + frame.address;
  if (!AtomicOp::fits(reinterpret_cast<uint64_t>(word))) return OH_ERR_INVALID;
  const AtomicOp op{static_cast<AtomicOp::Kind>(frame.number), frame.length, frame.op};
  *before = op.apply(reinterpret_cast<uint64_t*>(word));
  return OH_OK;
}

}  // namespace oh
