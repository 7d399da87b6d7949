// SPDX-License-Identifier: Apache-2.0
//
// Puts and gets of the stream domain, of one block or many.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <span>

#include "endpoint/endpoint.h"
#include "one_sided/move.h"

namespace oh {

struct StreamMove {
  bool put;  // local memory is only read
  std::span<const MovePart> parts;
  cuda::Stream stream = nullptr;
  uint64_t timeout_ns = UINT64_MAX;
  Deadline deadline = Deadline::never();  // of the call itself
};
// For a region mapped on this GPU, the copy engine moves a single block and a kernel moves many.
// For other regions the link's proxy moves the blocks, if its streams use one. A call that is
// refused has enqueued nothing; after a driver error a part may have been enqueued.
Status move_by_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                      const StreamMove& move);

}  // namespace oh
