// SPDX-License-Identifier: Apache-2.0
//
// What the tests of batches share: the side that shows its memory, and looks at what came.
#pragma once

#include "conformance/sides.h"

namespace conformance {

inline oh_batch batch_of(Buffer& buffer) {
  oh_batch batch{};
  batch.local = buffer.data();
  batch.local_size = buffer.size();
  return batch;
}

// Shows poisoned memory, and looks at it at each of so many rounds.
using Look = std::function<void(size_t round, const onehop::Bytes& there)>;
inline Role owner(size_t space, size_t rounds, Look look) {
  return [=](Side& side) {
    Buffer buffer = side.buffer(space);
    buffer.poison();
    onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
    side.tell(region.descriptor());
    for (size_t round = 0; round < rounds; ++round) {
      side.sync();
      look(round, buffer.bytes());
      buffer.poison();
      side.sync();
    }
  };
}
// The other side's part of a round.
inline void show(Side& side) {
  side.sync();
  side.sync();
}

}  // namespace conformance
