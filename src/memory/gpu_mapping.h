// SPDX-License-Identifier: Apache-2.0
//
// Device memory of another process as the driver maps it, and how that is undone.
//
// Threading: any thread.
#pragma once

#include <vector>

#include "memory/gpu_memory.h"

namespace oh {

// Whether a record that came from another process describes memory that can be mapped at all.
// OH_ERR_PROTOCOL: it makes no sense. OH_ERR_NOT_VIABLE: it is not for others, or of mixed kinds.
Status check_gpu_record(const ExportRecord& record, size_t fds);

// Maps a record that passed. Nothing is left behind on failure.
Result<GpuMapping> map_gpu_record(const std::shared_ptr<cuda::Gpu>& gpu, const ExportRecord& record,
                                  const std::vector<UniqueFd>& fds);
// Releases all that was mapped, even in part. When the context is lost there is nothing to do.
void unmap_gpu(GpuMapping mapping);

}  // namespace oh
