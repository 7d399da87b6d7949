// SPDX-License-Identifier: Apache-2.0
//
// One put or get, of one block or many, on its way from the C API into the engine.
#pragma once

#include "capi/handles.h"

namespace oh {

// That the bytes lie in the region.
Status check_piece(const oh_remote_region& remote, size_t offset, size_t size);
// That the region was attached at this peer, and for a put, that it is not read-only.
Status check_remote(const oh_remote_region& remote, const oh_peer& peer, bool put);
// Carries out what a call asks for, whose blocks are checked; with `out` null until it has ended.
oh_status run(const std::shared_ptr<Endpoint>& endpoint, Peer& peer, Move move,
              const oh_put_options* options, oh_request** out);

}  // namespace oh
