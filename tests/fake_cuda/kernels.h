// SPDX-License-Identifier: Apache-2.0
//
// Kernels: what every module holds, whatever its image says. Each has a file of its own,
// kernel_*.cc, and a place in the table of modules.cc.
//
// Threading: constant. A kernel runs without the lock on its stream's worker, or on a thread of its
// graph: kernels of different streams, or branches, run at once.
#pragma once

#include <memory>
#include <vector>

#include "world.h"

namespace oh::cuda::fake {

struct Kernel {
  const char* name;
  size_t argument;  // bytes of the only one, which is read at the launch or its capture
  bool is_copy;     // for failures of copies
  // A code that is not kSuccess puts the context into that error. One that waits looks at
  // context.killed and leaves when it is set: nothing else ends it.
  Code (*run)(ContextState& context, const void* argument);
};

extern const Kernel kAtomic;
extern const Kernel kBatch;
extern const Kernel kStreamBatch;
extern const Kernel kWorker;
extern const Kernel kSpin;
extern const Kernel kStream;
extern const Kernel kStreamFew;
extern const Kernel kStreamMany;
extern const Kernel kLanes;
extern const Kernel kProxy;

// What a kernel of the context may touch, as the host addresses it. False: not all is mapped.
bool pieces_of(const ContextState& context, uint64_t address, uint64_t size,
               std::vector<Piece>* out);

// Whether the address is memory of another device, over a link that has no atomics of its own.
bool lacks_atomics(const ContextState& context, uint64_t address);

// Copies `size` bytes between pieces of so many.
void copy_pieces(std::vector<Piece> target, std::vector<Piece> source, uint64_t size);
// As the library's kernels copy. False: not all is mapped.
bool copy_mapped(const ContextState& context, uint64_t to, uint64_t from, uint64_t size);

// `count` objects at a device address, as the host addresses them; they live while somebody holds
// them. Null: not mapped, or not in one piece.
template <typename T>
std::shared_ptr<T> mapped(const ContextState& context, T* address, uint64_t count = 1) {
  std::vector<Piece> pieces;
  if (!pieces_of(context, reinterpret_cast<uint64_t>(address), count * sizeof(T), &pieces) ||
      pieces.size() != 1) {
    return nullptr;
  }
  return {pieces[0].keep, reinterpret_cast<T*>(pieces[0].bytes)};
}

}  // namespace oh::cuda::fake
