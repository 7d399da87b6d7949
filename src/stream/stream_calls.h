// SPDX-License-Identifier: Apache-2.0
//
// Calls of the stream domain. Each becomes an operation of a kernel, which is launched at once or
// at the end of the thread's group.
//
// Threading: any thread; a group belongs to the thread that began it.
#pragma once

#include <memory>
#include <vector>

#include "endpoint/endpoint.h"

namespace oh {

struct StreamCall {
  kernels::StreamKind kind = kernels::StreamKind::kSend;
  cuda::Stream stream = nullptr;
  void* data = nullptr;
  uint64_t size = 0;  // signals: their count
  uint32_t lane = 0;
  uint32_t slot = 0;
  uint64_t timeout_ns = UINT64_MAX;
  const uint64_t* size_from = nullptr;
  uint64_t* size_to = nullptr;
};

// Checks the call, connects the lanes if necessary, and enqueues the operation or adds it to the
// group.
Status call_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                   const StreamCall& call, Deadline deadline);
// Connects the lanes and waits for the peer. An error states why they cannot be connected.
Status warm_up(Endpoint& endpoint, Peer& peer, Deadline deadline);
Status reset_lane(Endpoint& endpoint, Peer& peer, uint32_t lane, Deadline deadline);
Status check_lane(uint32_t lane);

// Device memory of the endpoint's GPU that kernels may use.
Result<std::shared_ptr<const GpuExport>> memory_for_kernels(const cuda::Gpu& gpu, const void* data,
                                                            uint64_t size);
// Connects the lanes if necessary, which a graph cannot record. Returns whether the stream is being
// captured, by a driver query.
Result<bool> connect_for(Endpoint& endpoint, Peer& peer, cuda::Stream stream, Deadline deadline);

// A buffer that the peer's kernels may put messages into, for receives by kernels.
Result<oh_lane_target> target_for_kernels(Endpoint& endpoint, Peer& peer, void* data, uint64_t size,
                                          Deadline deadline);

void begin_group();
// OH_ERR_INVALID: no group has begun. When launches on several streams fail, returns the first
// error.
Status end_group();

}  // namespace oh
