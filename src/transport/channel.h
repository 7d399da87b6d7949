// SPDX-License-Identifier: Apache-2.0
//
// Channel: the sending half of a link; delivers frames to one peer in order. Three backends: a ring
// of cells in shared memory, UCX, and the control socket.
//
// Threading: guarded by the link's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/frame.h"

namespace oh {

class Channel {
 public:
  virtual ~Channel() = default;

  // Maximum payload of one frame.
  virtual size_t max_payload() const = 0;
  // Payload of the next frame of a message of `size` bytes: small enough that the copies of sender
  // and receiver overlap, large enough to amortize the cost of a frame.
  virtual size_t part_of(uint64_t size) const = 0;
  // Payloads up to this size travel inline, in the frame itself.
  virtual size_t max_inline() const = 0;

  // Sends a frame. Returns false when there is no room now; nothing was sent.
  virtual bool push(const Frame& frame) = 0;

  // Eager credit that the peer has returned, in bytes since the start.
  virtual uint64_t credit_returned() const = 0;
  // Returns `bytes` of eager credit to the peer.
  virtual void return_credit(uint64_t bytes) = 0;
};

}  // namespace oh
