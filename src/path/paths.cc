// SPDX-License-Identifier: Apache-2.0
#include "path/paths.h"

#include <atomic>

#include "path/direct/copy_path.h"
#include "path/direct/slots_path.h"
#include "path/engine/engine_path.h"
#include "path/frames/frames_path.h"
#include "path/rma/rma_path.h"
#include "path/staging/staging_path.h"

namespace oh {
namespace {

template <typename Made>
std::unique_ptr<Path> over_segment(const PathContext& context) {
  return context.link.segment ? std::make_unique<Made>(context) : nullptr;
}

template <typename Made>
std::unique_ptr<Path> between_hosts(const PathContext& context) {
  return context.link.segment ? nullptr : std::make_unique<Made>(context);
}

std::unique_ptr<Path> over_device(const PathContext& context) {
  return context.link.device ? std::make_unique<EnginePath>(context) : nullptr;
}

std::unique_ptr<Path> over_ucx(const PathContext& context) {
  return context.link.ucx ? std::make_unique<RmaPath>(context) : nullptr;
}

std::unique_ptr<Path> always(const PathContext& context) {
  return std::make_unique<FramesPath>(context);
}

}  // namespace

constexpr PathTable kPaths = {{
    /* kCopy    */ {estimate_copy, over_segment<CopyPath>},
    /* kEngine  */ {estimate_engine, over_device},
    /* kSlotted */ {estimate_slots, over_segment<SlotsPath>},
    /* kStaging */ {estimate_staging, between_hosts<StagingPath>},
    /* kRma     */ {estimate_rma, over_ucx},
    /* kFrames  */ {estimate_frames, always},
}};

PathName path_for(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kPut:
    case FrameType::kGet:
      if (frame.flags & kBySlot) return PathName::kSlotted;
      return frame.flags & kStaged ? PathName::kStaging : PathName::kFrames;
    case FrameType::kRts:
      return PathName::kStaging;
    case FrameType::kKeyWanted:
    case FrameType::kKey:
    case FrameType::kRetireKey:
    case FrameType::kKeyGone:
      return PathName::kRma;
    default:
      return PathName::kFrames;
  }
}

namespace {
std::atomic<const PathTable*> g_table{&kPaths};
}  // namespace

const PathTable& path_table() { return *g_table.load(std::memory_order_acquire); }

void use_path_table(const PathTable* table) {
  g_table.store(table ? table : &kPaths, std::memory_order_release);
}

}  // namespace oh
