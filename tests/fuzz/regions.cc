// SPDX-License-Identifier: Apache-2.0
//
// Export records and the descriptors of regions.
#include "link/regions.h"
#include "fuzz/fuzz.h"
#include "memory/import_cache.h"

namespace fuzz {

using namespace oh;

std::vector<Bytes> seeds() {
  RegionDescriptor descriptor;
  descriptor.version = 1;
  descriptor.record.base = 0x1000;
  descriptor.record.length = 100;
  descriptor.record.chunks.push_back({0, 60, ChunkKind::kPrivate, {}});
  descriptor.record.chunks.push_back({60, 40, ChunkKind::kShared, {1, 0, 0, 0}});
  Bytes record;
  Writer writer(record);
  descriptor.record.encode(writer);
  return {descriptor.encode(), record};
}

namespace {

void hold(const ExportRecord& record) {
  uint64_t covered = 0;
  for (const ExportChunk& chunk : record.chunks) {
    require(chunk.offset == covered && chunk.length > 0, "chunks follow each other");
    covered += chunk.length;
    require(chunk.handle.size() <= ExportRecord::kMaxHandle, "a handle has a bound");
  }
  require(covered == record.length, "chunks cover the record");
  require(record.base + record.length >= record.base, "a record does not wrap around");
}

}  // namespace

void check(ByteView input) {
  Exact exact(input);
  Reader reader(exact.view());
  Result<ExportRecord> record = ExportRecord::decode(reader);
  if (record.ok()) hold(*record);
  Result<RegionDescriptor> descriptor = RegionDescriptor::decode(exact.view());
  if (descriptor.ok()) {
    hold(descriptor->record);
    require(descriptor->index < ControlPage::kMaxRegions && descriptor->version != 0,
            "it may exist");
    Bytes again = descriptor->encode();
    require(again.size() == input.size(), "a descriptor goes round");
    require(RegionDescriptor::decode(again).ok(), "a descriptor goes round");
  }
  // Translation never leaves the mapping.
  static ImportedHostBlock* const block = [] {
    auto* made = new ImportedHostBlock;
    made->mapping = std::move(*Mapping::anonymous(8192));
    made->local_base = made->mapping.data();
    made->size = 8192;
    return made;
  }();
  Input in(input);
  block->remote_base = in.number(8);
  uint64_t remote = in.number(8);
  uint64_t size = in.number(8);
  if (uint8_t* at = block->translate(remote, size)) {
    uint8_t* begin = block->mapping.data();
    require(at >= begin && at <= begin + 8192, "it points into the mapping");
    require(size <= static_cast<uint64_t>(begin + 8192 - at), "all of it");
  }
}

}  // namespace fuzz
