// SPDX-License-Identifier: Apache-2.0
#include "memory/gpu_memory.h"
#include "platform/cuda/pointer.h"

namespace oh {

Result<MemoryFacts> classify(const cuda::Driver& driver, const void* data, uint64_t size) {
  const auto address = reinterpret_cast<uint64_t>(data);
  OH_ASSIGN_OR_RETURN(cuda::PointerFacts there,
                      cuda::pointer_facts(driver, address, cuda::Depth::kPlace));
  MemoryFacts facts;
  const bool device = there.type == cuda::kMemoryTypeDevice;
  if (!device && !there.managed) {
    if (there.type != cuda::kMemoryTypeHost || there.buffer_id == 0) return facts;
    // Each registration has an id of its own.
    OH_ASSIGN_OR_RETURN(cuda::PointerFacts last,
                        cuda::pointer_facts(driver, address + size - 1, cuda::Depth::kId));
    facts.pinned = last.buffer_id == there.buffer_id;
    return facts;
  }
  facts.placement = there.managed ? Placement::kManaged : Placement::kDevice;
  facts.device = there.device;
  facts.buffer_id = there.buffer_id;
  if (there.buffer_id == 0 || !there.mapped) {
    return error(OH_ERR_FAULT,
                 "nothing is at %p, an address of cuda:%d: it was freed or not mapped; keep memory "
                 "until its transfers have ended",
                 data, there.device);
  }
  const uint64_t offset = address - there.range_start;
  if (offset > there.range_size || size > there.range_size - offset) {
    return error(OH_ERR_FAULT,
                 "%llu bytes at %p reach beyond their allocation, which has %llu bytes from 0x%llx "
                 "on cuda:%d",
                 static_cast<unsigned long long>(size), data,
                 static_cast<unsigned long long>(there.range_size),
                 static_cast<unsigned long long>(there.range_start), there.device);
  }
  return facts;
}

}  // namespace oh
