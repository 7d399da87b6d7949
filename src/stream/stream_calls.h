// SPDX-License-Identifier: Apache-2.0
//
// Calls of the stream domain: each becomes an operation of a kernel, launched at once or at the end
// of the thread's group.
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
  uint64_t size = 0;  // of signals: their count
  uint32_t lane = 0;
  uint32_t slot = 0;
  uint64_t timeout_ns = UINT64_MAX;
  const uint64_t* size_from = nullptr;
  uint64_t* size_to = nullptr;
};

// Checks the call, connects the lanes if they are not, and enqueues it or keeps it for the group.
Status call_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                   const StreamCall& call, Deadline deadline);
// Whether the lanes are connected, or why not: waits for the other side.
Status warm_up(Endpoint& endpoint, Peer& peer, Deadline deadline);
Status reset_lane(Endpoint& endpoint, Peer& peer, uint32_t lane, Deadline deadline);
Status check_lane(uint32_t lane);

// Copies into a region in the stream's order: by the engine where it is mapped, else by proxy where
// the link's streams go so.
struct StreamPut {
  const RemoteTarget& target;
  cuda::Stream stream = nullptr;
  const void* data = nullptr;
  uint64_t offset = 0;
  uint64_t size = 0;
  uint64_t timeout_ns = UINT64_MAX;
  Deadline deadline = Deadline::never();  // of the call itself
};
Status put_by_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                     const StreamPut& put);
// Where our kernels find a region.
Result<oh_remote_memory> region_for_kernels(Endpoint& endpoint, Peer& peer,
                                            const RemoteTarget& target);

// Where messages that our kernels receive may be put.
Result<oh_lane_target> target_for_kernels(Endpoint& endpoint, Peer& peer, void* data, uint64_t size,
                                          Deadline deadline);

void begin_group();
// OH_ERR_INVALID: there is none. Of several streams whose launches fail the first is told.
Status end_group();

}  // namespace oh
