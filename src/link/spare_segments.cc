// SPDX-License-Identifier: Apache-2.0
#include "link/spare_segments.h"

#include "base/clock.h"

namespace oh {
namespace {
constexpr size_t kSpares = 2;
// The connection that is being set up has priority.
constexpr int64_t kRefillDelay = 10 * kMillisecond;
}  // namespace

void SpareSegments::open(const Config& config, const Status& why_not, std::shared_ptr<Node> node,
                         int numa_node, std::weak_ptr<void> holder) {
  holder_ = std::move(holder);
  node_ = std::move(node);
  numa_node_ = numa_node;
  if (config.segment == "off") {
    why_no_segments_ = "ONEHOP_SEGMENT=off";
  } else if (config.transport != "auto") {
    why_no_segments_ = "ONEHOP_TRANSPORT=" + config.transport;
  } else if (!why_not.ok()) {
    why_no_segments_ = why_not.text();
  }
  refill();
}

void SpareSegments::close() {
  std::vector<std::unique_ptr<Segment>> spares;  // unmapped without the lock
  MutexLock lock(mutex_);
  closed_ = true;
  spares.swap(spares_);
}

Status SpareSegments::allowed(const char* side) const {
  if (why_no_segments_.empty()) return {};
  return error(OH_ERR_NOT_VIABLE, "%s at %s", why_no_segments_.c_str(), side);
}

Result<std::unique_ptr<Segment>> SpareSegments::take() {
  OH_RETURN_IF_ERROR(allowed("the initiator"));
  std::unique_ptr<Segment> segment;
  {
    MutexLock lock(mutex_);
    if (!spares_.empty()) {
      segment = std::move(spares_.back());
      spares_.pop_back();
    }
  }
  if (!segment) return Segment::create(/*shared=*/true, numa_node_);
  node_->watcher().post_at(now_ns() + kRefillDelay, [this, weak = holder_] {
    if (std::shared_ptr<void> held = weak.lock()) refill();
  });
  return segment;
}

void SpareSegments::refill() {
  if (!why_no_segments_.empty()) return;
  while (true) {
    {
      MutexLock lock(mutex_);
      if (spares_.size() >= kSpares || closed_) return;
    }
    Result<std::unique_ptr<Segment>> segment = Segment::create(/*shared=*/true, numa_node_);
    if (!segment.ok()) return;  // connect() tries again and reports
    MutexLock lock(mutex_);
    if (!closed_) spares_.push_back(std::move(*segment));
  }
}

}  // namespace oh
