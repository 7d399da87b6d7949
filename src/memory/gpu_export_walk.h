// SPDX-License-Identifier: Apache-2.0
//
// Exports device memory: walks the allocations of a range and obtains a handle for each, by its
// kind.
//
//   cudaMalloc         one allocation                    legacy IPC handle
//   memory pool        one allocation                    descriptor of the pool, pointer data
//   VMM                contiguous allocations            one descriptor each
//   anything else      one allocation                    none, and a remedy
//
// Threading: any thread.
#pragma once

#include <memory>

#include "memory/gpu_memory.h"

namespace oh {

// Makes the export of [data, data + size), without its number. Memory that other processes cannot
// map has an export too, with `why_not`. OH_ERR_FAULT: part of the range is not mapped.
Result<std::shared_ptr<GpuExport>> make_gpu_export(const cuda::Driver& driver, uint64_t data,
                                                   uint64_t size);
// A number that is unique in the process.
uint32_t next_gpu_export_number();

}  // namespace oh
