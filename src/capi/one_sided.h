// SPDX-License-Identifier: Apache-2.0
//
// Shared parts of the put and get calls of the C API, for one block or many.
#pragma once

#include "capi/handles.h"

namespace oh {

// Checks that the bytes lie within the region.
Status check_piece(const oh_remote_region& remote, size_t offset, size_t size);
// Checks that the region was attached at this peer and, for a put, that it is not read-only.
Status check_remote(const oh_remote_region& remote, const oh_peer& peer, bool put);
// Posts `move`, whose blocks are checked. If `out` is null, waits until it has ended.
oh_status run(const std::shared_ptr<Endpoint>& endpoint, Peer& peer, Move move,
              const oh_put_options* options, oh_request** out);

}  // namespace oh
