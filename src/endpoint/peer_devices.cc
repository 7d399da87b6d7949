// SPDX-License-Identifier: Apache-2.0
//
// What a link has for device memory, and what is known of it.
#include "base/log.h"
#include "endpoint/peer.h"

namespace oh {

void Peer::open_stream(const LinkParts& parts) {
  StreamLink::WhyNot why_not;
  if (our_gpu_.empty()) {
    why_not.at_all = "the endpoint is for host memory: create it with a device";
  } else if (identity_.gpu.empty()) {
    why_not.at_all = "the peer's endpoint is for host memory";
  } else if (pair_.segment && !pair_.device) {
    why_not.at_all = why_no_device_.text();
  }
  why_not.by_kernels = !pair_.segment ? "the link has no shared memory: " + why_no_segment_
                       : parts.why_no_mapping.empty() ? why_no_peer_access_
                                                      : parts.why_no_mapping;
  if (why_not.by_kernels.empty() && parts.gpu) {
    const cuda::Gpu& gpu = *parts.gpu;
    if (std::optional<cuda::Device> theirs = cuda::find_device(gpu.driver(), identity_.gpu)) {
      why_not.by_kernels = cuda::why_no_native_atomics(gpu.driver(), gpu.facts().ordinal, *theirs);
    } else {
      why_not.ask_by_kernels = [library = nvml_library_, ours = our_gpu_, theirs = identity_.gpu] {
        return cuda::why_not_nvlink(library, ours, theirs);
      };
    }
  }
  stream_ = std::make_unique<StreamLink>(pair_, owner_, connection_, parts.gpu, std::move(why_not));
}

// Without it device memory has no way over this link.
void Peer::open_device(const LinkParts& parts) {
  const std::shared_ptr<cuda::Gpu>& gpu = parts.gpu;
  if (!gpu) return;
  if (std::optional<cuda::Device> theirs = cuda::find_device(gpu->driver(), identity_.gpu)) {
    why_no_peer_access_ = cuda::why_no_peer_access(*gpu, *theirs);
    // Both contexts live. Between processes the driver gives access with the mapping.
    if (within_process()) (void)gpu->reach(*theirs);
  }
  if (!why_no_peer_access_.empty()) {
    if (std::string why = why_slower(facts_of_gpus()); !why.empty()) {
      OH_LOG_ONCE(kWarn, "device memory takes a long way to %s: %s", pair_.name.c_str(),
                  why.c_str());
    }
  }
  Result<std::unique_ptr<DeviceLink>> device = DeviceLink::create(gpu, *pair_.segment);
  if (device.ok()) {
    pair_.device = std::move(*device);
    // Two processes on one GPU take turns: a kernel that waits takes the other one's.
    if (within_process() || our_gpu_ != identity_.gpu) pair_.device->use(parts.worker);
  } else {
    why_no_device_ = device.status();
    OH_LOG(kWarn, "no device memory on the link to %s: %s", pair_.name.c_str(),
           why_no_device_.text().c_str());
  }
}

LinkFacts Peer::facts() const {
  LinkFacts facts;
  facts.same_process = within_process();
  facts.segment = pair_.segment != nullptr;
  facts.ucx = pair_.ucx != nullptr;
  facts.rma = rma_ && rma_->keys().use() != RmaUse::kOff;
  facts.why_no_ucx = why_no_ucx_;
  facts.we_reach_them = pair_.mover != nullptr;
  facts.they_reach_us = pair_.they_reach_us;
  facts.granted_inline = pair_.granted_inline;
  facts.eager_max = pair_.mine.eager_max;
  facts.eager_credit = pair_.theirs.eager_credit;
  facts.why_no_segment = why_no_segment_;
  facts.why_not_reached = why_no_mover_;
  facts.our_gpu = !our_gpu_.empty();
  facts.their_gpu = pair_.their_gpu;
  facts.same_gpu = pair_.same_gpu;
  if (pair_.device && pair_.device->worker()) facts.worker_max = Worker::kLongest;
  if (!why_no_device_.ok()) facts.why_no_device = why_no_device_.text();
  facts.why_no_peer_access = why_no_peer_access_;
  return facts;
}

LinkFacts Peer::facts_of_gpus() const {
  LinkFacts known = facts();
  if (known.segment && known.our_gpu && known.their_gpu) {
    known.gpu_link = cuda::links_among(nvml_library_, {our_gpu_, identity_.gpu})[1];
  }
  if (stream_) {
    const Status why_not = stream_->why_not();
    const std::string why_no_kernels = stream_->why_no_kernels();
    known.stream_path = !why_not.ok()            ? OH_PATH_NONE
                        : why_no_kernels.empty() ? OH_PATH_NVLINK
                                                 : OH_PATH_PROXY;
    known.why_stream = why_not.ok() ? why_no_kernels : why_not.text();
  }
  return known;
}

}  // namespace oh
