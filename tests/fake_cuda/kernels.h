// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the functions that every module contains, whatever its image. Each has its own file,
// kernel_*.cc, and a row in the table of modules.cc.
//
// Threading: constant. A kernel runs without the lock on its stream's worker, or on a thread of its
// graph: kernels of different streams, or branches, run concurrently.
#pragma once

#include <memory>
#include <vector>

#include "world.h"

namespace oh::cuda::fake {

inline constexpr unsigned kWarp = 32;
inline constexpr unsigned kMostThreads = 1024;  // of a block

// The thread blocks of a launch.
struct Grid {
  unsigned blocks;
  unsigned threads;  // of a block
  unsigned cluster;  // blocks of a cluster
};

struct Kernel {
  const char* name;
  size_t argument;   // size of the only argument, which is read at the launch or its capture
  unsigned threads;  // of a block, at most
  bool is_copy;      // counts as a copy for injected failures
  // An error puts the context into that error; kLaunchFailed: the grid or a value in the argument
  // is wrong. A kernel that waits must poll context.killed and return when it is set: nothing else
  // ends it.
  Code (*run)(ContextState& context, const Grid& grid, const void* argument);
};

extern const Kernel kAtomic;
extern const Kernel kBatch;
extern const Kernel kStreamBatch;
extern const Kernel kStreamFewBlocks;
extern const Kernel kWorker;
extern const Kernel kSpin;
extern const Kernel kStream;
extern const Kernel kStreamLarge;
extern const Kernel kStreamFew;
extern const Kernel kStreamMany;
extern const Kernel kLanes;
extern const Kernel kProxy;

// Returns the memory that a kernel of the context may access, at host addresses. False: not all of
// it is mapped.
bool pieces_of(const ContextState& context, uint64_t address, uint64_t size,
               std::vector<Piece>* out);

// Whether the address is memory of another device, over a link without native atomics.
bool lacks_atomics(const ContextState& context, uint64_t address);

// Copies `size` bytes between lists of pieces.
void copy_pieces(std::vector<Piece> target, std::vector<Piece> source, uint64_t size);
// Copies as the library's kernels do. False: not all of it is mapped.
bool copy_mapped(const ContextState& context, uint64_t to, uint64_t from, uint64_t size);

// Maps `count` objects at a device address to host addresses; the pointer keeps the memory alive.
// Null: not mapped, or not contiguous.
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
