// SPDX-License-Identifier: Apache-2.0
#include "memory/export_record.h"

#include <cstring>

namespace oh {

void ExportRecord::encode(Writer& writer) const {
  writer.u64(base);
  writer.u64(length);
  writer.raw({reinterpret_cast<const uint8_t*>(gpu.bytes), sizeof(gpu.bytes)});
  writer.u32(static_cast<uint32_t>(chunks.size()));
  for (const ExportChunk& chunk : chunks) {
    writer.u64(chunk.offset);
    writer.u64(chunk.length);
    writer.u8(static_cast<uint8_t>(chunk.kind));
    writer.bytes(chunk.handle);
  }
}

Result<ExportRecord> ExportRecord::decode(Reader& reader) {
  ExportRecord record;
  record.base = reader.u64();
  record.length = reader.u64();
  const ByteView gpu = reader.raw(sizeof(record.gpu.bytes));
  if (!gpu.empty()) std::memcpy(record.gpu.bytes, gpu.data(), gpu.size());
  uint32_t count = reader.u32();
  if (!reader.ok() || count > kMaxChunks || record.base + record.length < record.base) {
    return error(OH_ERR_PROTOCOL, "an export record is cut off or has %u chunks", count);
  }
  uint64_t covered = 0;
  for (uint32_t i = 0; i < count; ++i) {
    ExportChunk chunk;
    chunk.offset = reader.u64();
    chunk.length = reader.u64();
    uint8_t kind = reader.u8();
    ByteView handle = reader.bytes(kMaxHandle);
    bool known = kind >= static_cast<uint8_t>(ChunkKind::kPrivate) &&
                 kind <= static_cast<uint8_t>(ChunkKind::kCudaPrivate);
    if (!reader.ok() || !known || chunk.offset != covered || chunk.length == 0 ||
        chunk.length > record.length - covered) {
      return error(OH_ERR_PROTOCOL, "chunk %u of an export record makes no sense", i);
    }
    chunk.kind = static_cast<ChunkKind>(kind);
    chunk.handle.assign(handle.begin(), handle.end());
    covered += chunk.length;
    record.chunks.push_back(std::move(chunk));
  }
  if (covered != record.length) {
    return error(OH_ERR_PROTOCOL, "the chunks of an export record cover %llu of %llu bytes",
                 static_cast<unsigned long long>(covered),
                 static_cast<unsigned long long>(record.length));
  }
  return record;
}

}  // namespace oh
