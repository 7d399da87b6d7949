// SPDX-License-Identifier: Apache-2.0
#include "transport/shm/segment.h"

#include "platform/os/numa.h"

namespace oh {

// Sets the NUMA policy before the first page is allocated.
Status Segment::map_own(bool shared, int node) {
  Mapping mapping;
  if (shared) {
    constexpr uint64_t kAll = kSegmentSize + kPipesSize;
    OH_ASSIGN_OR_RETURN(fd_, make_memfd("onehop-pair", kAll));
    if (node >= 0) {
      // The policy of one mapping applies to the file, and so to the pipes and the peer's mapping.
      OH_ASSIGN_OR_RETURN(Mapping whole, Mapping::of_fd(fd_.get(), kAll, /*populate=*/false));
      place_memory(whole.data(), whole.size(), node);
    }
    OH_ASSIGN_OR_RETURN(mapping, Mapping::of_fd(fd_.get(), kSegmentSize, /*populate=*/true));
  } else {
    OH_ASSIGN_OR_RETURN(mapping, Mapping::anonymous(kSegmentSize, /*populate=*/node < 0));
    place_memory(mapping.data(), mapping.size(), node);
  }
  mapping_ = std::make_shared<Mapping>(std::move(mapping));
  OH_RETURN_IF_ERROR(map_pipes());
  if (!shared) place_memory(pipes_, kPipesSize, node);
  return {};
}

Result<std::unique_ptr<Segment>> Segment::create(bool shared, int node) {
  std::unique_ptr<Segment> segment(new Segment);
  OH_RETURN_IF_ERROR(segment->map_own(shared, node));
  // Zero is the initial state of everything but the header.
  segment->layout_ = reinterpret_cast<SegmentLayout*>(segment->mapping_->data());
  SegmentHeader& header = segment->layout_->header;
  header.magic = kSegmentMagic;
  header.layout = kSegmentLayout;
  header.cells = kCells;
  header.payload_ring = kPayloadRing;
  header.slots = kSlots;
  header.signals = kSignals;
  header.total = kSegmentSize;
  return segment;
}

Result<std::unique_ptr<Segment>> Segment::open(UniqueFd fd) {
  std::unique_ptr<Segment> segment(new Segment);
  OH_ASSIGN_OR_RETURN(Mapping mapping, Mapping::of_fd(fd.get(), kSegmentSize, /*populate=*/true));
  segment->fd_ = std::move(fd);
  segment->mapping_ = std::make_shared<Mapping>(std::move(mapping));
  segment->layout_ = reinterpret_cast<SegmentLayout*>(segment->mapping_->data());
  const SegmentHeader& header = segment->layout_->header;
  if (header.magic != kSegmentMagic || header.layout != kSegmentLayout || header.cells != kCells ||
      header.payload_ring != kPayloadRing || header.slots != kSlots || header.signals != kSignals ||
      header.total != kSegmentSize) {
    return error(OH_ERR_VERSION, "the segment has layout %u, this build knows %u", header.layout,
                 kSegmentLayout);
  }
  OH_RETURN_IF_ERROR(segment->map_pipes());
  return segment;
}

Status Segment::map_pipes() {
  if (fd_.valid()) {
    OH_ASSIGN_OR_RETURN(Mapping mapping,
                        Mapping::of_fd(fd_.get(), kPipesSize, /*populate=*/false, kSegmentSize));
    pipe_mapping_ = std::make_shared<Mapping>(std::move(mapping));
  } else {
    OH_ASSIGN_OR_RETURN(Mapping mapping, Mapping::anonymous(kPipesSize, /*populate=*/false));
    pipe_mapping_ = std::make_shared<Mapping>(std::move(mapping));
  }
  pipes_ = reinterpret_cast<PipeLayout*>(pipe_mapping_->data());
  return {};
}

std::unique_ptr<Segment> Segment::alias(const Segment& other) {
  std::unique_ptr<Segment> segment(new Segment);
  segment->mapping_ = other.mapping_;
  segment->layout_ = other.layout_;
  segment->pipe_mapping_ = other.pipe_mapping_;
  segment->pipes_ = other.pipes_;
  return segment;
}

void Segment::take_side(int side, bool loopback) {
  side_ = side;
  loopback_ = loopback;
}

bool Segment::advance(SideState to) {
  uint32_t now = mine().state.load();
  while (now < static_cast<uint32_t>(to)) {
    if (mine().state.compare_exchange_weak(now, static_cast<uint32_t>(to))) return true;
  }
  return false;
}

}  // namespace oh
