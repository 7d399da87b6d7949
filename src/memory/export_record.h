// SPDX-License-Identifier: Apache-2.0
//
// Export record: how a piece of memory is described to another process. A list of chunks, because
// one range of addresses may consist of several allocations, each with a handle of its own.
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
  kPrivate = 1,  // host memory of the process; no handle
  kShared = 2,  // a shared block or an exported piece of device memory; handle: its number, 4 bytes
  // Device memory, in the record of an export. Descriptors travel beside it, in the chunks' order.
  kCudaIpc = 3,      // one cudaMalloc allocation; handle: 64 bytes for cuIpcOpenMemHandle
  kCudaFd = 4,       // one VMM allocation; a descriptor, no handle
  kCudaPool = 5,     // from an exportable pool; the pool's descriptor; handle: 64 bytes
  kCudaPrivate = 6,  // cannot be mapped by others
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

  uint64_t base = 0;  // address in the owner
  uint64_t length = 0;
  cuda::Uuid gpu{};                 // that holds it; zeros: host memory
  std::vector<ExportChunk> chunks;  // ascending; they cover [0, length) without gap or overlap

  void encode(Writer& writer) const;
  // OH_ERR_PROTOCOL unless all of the above holds.
  static Result<ExportRecord> decode(Reader& reader);
};

}  // namespace oh
