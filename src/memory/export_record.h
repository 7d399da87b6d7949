// SPDX-License-Identifier: Apache-2.0
//
// Export record: the description of a range of memory for another process. It is a list of chunks,
// because one address range may consist of several allocations, each with its own handle.
//
//   | base 8 | length 8 | GPU 16 | chunks 4 | { offset 8 | length 8 | kind 1 | handle bytes } … |
//
// Threading: values.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "platform/cuda/abi.h"

namespace oh {

enum class ChunkKind : uint8_t {
  kPrivate = 1,  // private host memory; no handle
  kShared = 2,  // a shared block or an exported piece of device memory; handle: its number, 4 bytes
  // Device memory. Descriptors are passed beside the record, in the order of the chunks.
  kCudaIpc = 3,      // one cudaMalloc allocation; handle: 64 bytes for cuIpcOpenMemHandle
  kCudaFd = 4,       // one VMM allocation; a descriptor, no handle
  kCudaPool = 5,     // from an exportable pool; the pool's descriptor; handle: 64 bytes
  kCudaPrivate = 6,  // other processes cannot map it
};

struct ExportChunk {
  uint64_t offset = 0;  // from the record's base
  uint64_t length = 0;
  ChunkKind kind = ChunkKind::kPrivate;
  Bytes handle;
};

struct ExportRecord {
  static constexpr uint32_t kMaxChunks = 65536;
  static constexpr size_t kMaxHandle = 256;

  uint64_t base = 0;  // address in the owner's process
  uint64_t length = 0;
  cuda::Uuid gpu{};                 // the GPU that holds it; zeros for host memory
  std::vector<ExportChunk> chunks;  // ascending; cover [0, length) without gap or overlap

  void encode(Writer& writer) const;
  // OH_ERR_PROTOCOL: truncated, or the chunks violate an invariant above.
  static Result<ExportRecord> decode(Reader& reader);
};

}  // namespace oh
