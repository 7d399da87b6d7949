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
// Into and out of regions that this GPU has mapped, a single block by the copy engine and many by
// a kernel; else by proxy, where streams of the link use one. What is refused has enqueued nothing;
// where the driver fails in between, a part may have been enqueued.
Status move_by_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                      const StreamMove& move);

}  // namespace oh
