// SPDX-License-Identifier: Apache-2.0
//
// How device memory becomes an export: the allocations under a range are walked one by one, and
// each gives the handle that its kind has.
//
//   cudaMalloc         one allocation                    legacy IPC handle
//   memory pool        one allocation                    descriptor of the pool, pointer data
//   VMM                pieces, one after the other       a descriptor each
//   anything else      one allocation                    none, and a remedy
//
// Threading: any thread.
#pragma once

#include <memory>

#include "memory/gpu_memory.h"

namespace oh {

// All but its number. OH_ERR_FAULT: a piece of the range is not mapped.
Result<std::shared_ptr<GpuExport>> make_gpu_export(const cuda::Driver& driver, uint64_t data,
                                                   uint64_t size);
// Never the same twice in a process.
uint32_t next_gpu_export_number();

}  // namespace oh
