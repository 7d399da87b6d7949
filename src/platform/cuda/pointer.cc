// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/pointer.h"

#include <iterator>

namespace oh::cuda {
namespace {

// In the order of PointerFacts. A Depth is a number of entries.
constexpr PointerAttribute kAttributes[] = {
    kAttributeBufferId,   kAttributeMemoryType,       kAttributeDeviceOrdinal,
    kAttributeIsManaged,  kAttributeRangeStart,       kAttributeRangeSize,
    kAttributeMapped,     kAttributeLegacyIpcCapable, kAttributeAllowedHandleTypes,
    kAttributeMemoryPool, kAttributeMappingBase,      kAttributeMappingSize,
};
static_assert(std::size(kAttributes) == static_cast<unsigned>(Depth::kAll));

}  // namespace

Result<PointerFacts> pointer_facts(const Driver& driver, DevicePtr address, Depth depth) {
  // One zeroed word each: attributes are written as 1, 4 or 8 bytes.
  uint64_t words[std::size(kAttributes)] = {};
  int attributes[std::size(kAttributes)];
  void* places[std::size(kAttributes)];
  for (size_t i = 0; i < std::size(kAttributes); ++i) {
    attributes[i] = kAttributes[i];
    places[i] = &words[i];
  }
  Code code = driver.pointer_attributes(static_cast<unsigned>(depth), attributes, places, address);
  // Memory of no context, or of a context that is gone.
  if (code == kInvalidValue || code == kInvalidContext) return PointerFacts{};
  if (code != kSuccess) {
    return driver.failure(code, symbol::pointer_attributes,
                          strf("0x%llx", static_cast<unsigned long long>(address)));
  }
  PointerFacts facts;
  facts.buffer_id = words[0];
  facts.type = static_cast<unsigned>(words[1]);
  facts.device = static_cast<Device>(static_cast<uint32_t>(words[2]));
  facts.managed = words[3] != 0;
  facts.range_start = words[4];
  facts.range_size = words[5];
  facts.mapped = words[6] != 0;
  facts.legacy_ipc = words[7] != 0;
  facts.handle_types = words[8];
  facts.pool = reinterpret_cast<MemoryPool>(words[9]);
  facts.mapping_base = words[10];
  facts.mapping_size = words[11];
  return facts;
}

}  // namespace oh::cuda
