// SPDX-License-Identifier: Apache-2.0
//
// One put or get, of one block or many, on its way from the C API into the engine.
#pragma once

#include "capi/handles.h"

namespace oh {

// What a call asks for; its blocks are checked.
struct OneSidedCall {
  const AttachedRegion& region;
  void* data;  // the local memory
  size_t size;
  Movement movement;
  BlockList list = nullptr;  // holds the blocks; null: they are gone with the call
};

// That the bytes lie in the region.
Status check_piece(const oh_remote_region& remote, size_t offset, size_t size);
// That the region was attached at this peer.
Status check_attached_at(const oh_remote_region& remote, const oh_peer& peer);
// Copies at once, or posts it as messages; with `out` null until it has ended.
oh_status run(const OneSidedCall& call, const oh_put_options* options, oh_request** out);

}  // namespace oh
