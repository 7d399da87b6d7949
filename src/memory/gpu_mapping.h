// SPDX-License-Identifier: Apache-2.0
//
// Maps and unmaps device memory of another process.
//
// Threading: any thread.
#pragma once

#include <vector>

#include "memory/gpu_memory.h"

namespace oh {

// Checks whether a peer's record, with `fds` descriptors, describes mappable memory.
// OH_ERR_PROTOCOL: the record is malformed. OH_ERR_NOT_VIABLE: the memory has no handle, or its
// chunks cannot be mapped as one.
Status check_gpu_record(const ExportRecord& record, size_t fds);

// Maps a record that passed check_gpu_record(). On failure nothing stays mapped.
Result<GpuMapping> map_gpu_record(const std::shared_ptr<cuda::Gpu>& gpu, const ExportRecord& record,
                                  const std::vector<UniqueFd>& fds);
// Unmaps a complete or partial mapping. Does nothing when the context is lost.
void unmap_gpu(GpuMapping mapping);

}  // namespace oh
