// SPDX-License-Identifier: Apache-2.0
//
// Channel: the sending half of a link, frames to one peer in order. Three backends: a ring of cells
// in shared memory, UCX, and the control socket.
//
// Threading: guarded by the peer's lock.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/frame.h"

namespace oh {

class Channel {
 public:
  virtual ~Channel() = default;

  // Largest payload of one frame.
  virtual size_t max_payload() const = 0;
  // Payload of the next frame of a message of `size` bytes: small enough that sender and receiver
  // overlap within the message, large enough to pay.
  virtual size_t part_of(uint64_t size) const = 0;
  // Payload up to this size travels inside the control message.
  virtual size_t max_inline() const = 0;

  // Sends a frame, or returns false when there is no room now (nothing was sent).
  virtual bool push(const Frame& frame) = 0;

  // Eager credit in bytes since the start: what the other side has given back to us.
  virtual uint64_t credit_returned() const = 0;
  // Gives `bytes` back to the other side.
  virtual void return_credit(uint64_t bytes) = 0;
};

}  // namespace oh
