// SPDX-License-Identifier: Apache-2.0
#include "memory/gpu_export_walk.h"

#include <fcntl.h>

#include <atomic>
#include <cstring>

#include "base/text.h"
#include "platform/cuda/pointer.h"

namespace oh {
namespace {

using cuda::Code;
using cuda::Driver;
using cuda::kSuccess;
using cuda::PointerFacts;
namespace symbol = cuda::symbol;

struct Chunk {
  PointerFacts facts;
  uint64_t base = 0;
  uint64_t length = 0;
  bool vmm = false;  // another allocation may follow it
};

// The allocation at `address`.
Result<Chunk> chunk_at(const Driver& driver, uint64_t address) {
  Chunk chunk;
  OH_ASSIGN_OR_RETURN(chunk.facts, cuda::pointer_facts(driver, address, cuda::Depth::kAll));
  const PointerFacts& facts = chunk.facts;
  const bool there = facts.managed || (facts.type == cuda::kMemoryTypeDevice && facts.mapped);
  if (!there || facts.buffer_id == 0) {
    return error(OH_ERR_FAULT,
                 "no device memory is at 0x%llx: it was freed or never mapped; keep memory until "
                 "its transfers have ended",
                 ull(address));
  }
  // A VMM mapping is one allocation in the reserved range. A mapping of cudaMalloc or of a pool may
  // hold several allocations; their own extent is the range that the driver reports.
  chunk.vmm = !facts.legacy_ipc && !facts.pool && !facts.managed && facts.mapping_base != 0;
  chunk.base = chunk.vmm ? facts.mapping_base : facts.range_start;
  chunk.length = chunk.vmm ? facts.mapping_size : facts.range_size;
  if (address < chunk.base || address - chunk.base >= chunk.length) {
    return error(OH_ERR_FAULT, "the driver puts 0x%llx into %llu bytes at 0x%llx", ull(address),
                 ull(chunk.length), ull(chunk.base));
  }
  return chunk;
}

// Handles a driver error: returns it if it would fail for any memory, else stores it as the reason
// why this memory cannot be mapped.
Status refused(GpuExport& made, const Status& status) {
  const oh_status code = status.code();
  if (code == OH_ERR_DEVICE || code == OH_ERR_CLOSED || code == OH_ERR_NO_RESOURCE) return status;
  made.why_not = strf(
      "the driver does not export it: %s; memory that was itself imported from "
      "another process cannot be exported again: copy it to memory of cudaMalloc",
      status.text().c_str());
  return {};
}

UniqueFd own(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return UniqueFd(fd);
}

template <typename Handle>
void set_handle(ExportChunk& out, ChunkKind kind, const Handle& handle) {
  out.kind = kind;
  out.handle.resize(sizeof(handle.bytes));
  std::memcpy(out.handle.data(), handle.bytes, sizeof(handle.bytes));
}

Status export_ipc(const Driver& driver, const Chunk& chunk, ExportChunk& out, GpuExport& made) {
  cuda::IpcHandle handle{};
  Code code = driver.ipc_export(&handle, chunk.base);
  if (code != kSuccess) {
    return refused(made, driver.failure(code, symbol::ipc_export, strf("0x%llx", ull(chunk.base))));
  }
  set_handle(out, ChunkKind::kCudaIpc, handle);
  return {};
}

Status export_pool(const Driver& driver, const Chunk& chunk, ExportChunk& out, GpuExport& made) {
  // Export the pool first: the driver exports pointers only of a pool that was exported once.
  int fd = -1;
  Code code = driver.pool_export(&fd, chunk.facts.pool, cuda::kHandleTypePosixFd, 0);
  if (code != kSuccess) {
    return refused(made, driver.failure(code, symbol::pool_export,
                                        strf("the pool of 0x%llx", ull(chunk.base))));
  }
  UniqueFd pool = own(fd);
  cuda::PoolPointer pointer{};
  code = driver.pool_export_pointer(&pointer, chunk.base);
  if (code != kSuccess) {
    return refused(
        made, driver.failure(code, symbol::pool_export_pointer, strf("0x%llx", ull(chunk.base))));
  }
  made.fds.push_back(std::move(pool));
  set_handle(out, ChunkKind::kCudaPool, pointer);
  return {};
}

Status export_vmm(const Driver& driver, const Chunk& chunk, ExportChunk& out, GpuExport& made) {
  const std::string where = strf("0x%llx", ull(chunk.base));
  cuda::AllocationHandle handle = 0;
  Code code = driver.vmm_retain(&handle, reinterpret_cast<void*>(chunk.base));
  if (code != kSuccess) return refused(made, driver.failure(code, symbol::vmm_retain, where));
  int fd = -1;
  code = driver.vmm_export(&fd, handle, cuda::kHandleTypePosixFd, 0);
  driver.vmm_release(handle);
  if (code != kSuccess) return refused(made, driver.failure(code, symbol::vmm_export, where));
  made.fds.push_back(own(fd));
  out.kind = ChunkKind::kCudaFd;
  return {};
}

// Why the memory has no handle, and the remedy.
std::string why_private(const PointerFacts& facts) {
  if (facts.managed) {
    return "managed memory moves between host and devices and has no handle: allocate with "
           "cudaMalloc";
  }
  if (facts.pool) {
    return "it is from a memory pool that does not export, as the default pool of cudaMallocAsync: "
           "allocate with cudaMalloc, or from a pool created with "
           "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR";
  }
  if ((facts.handle_types & cuda::kHandleTypeFabric) != 0) {
    return "its VMM allocation (cuMemCreate) allows fabric handles only: request "
           "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR as well";
  }
  return "its allocation allows no handle, as memory that was imported from another process: "
         "allocate with cudaMalloc, or by cuMemCreate with "
         "CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR (PyTorch's expandable segments do)";
}

// Obtains the handle of the chunk's kind, or sets `why_not`.
Status give_handle(const Driver& driver, const Chunk& chunk, ExportChunk& out, GpuExport& made) {
  const PointerFacts& facts = chunk.facts;
  const bool by_fd = (facts.handle_types & cuda::kHandleTypePosixFd) != 0;
  if (facts.device != made.device || facts.managed) made.for_kernels = false;
  if (facts.device != made.device) {
    made.why_not =
        strf("its pieces lie on several devices (cuda:%d, cuda:%d): send them one by one",
             made.device, facts.device);
    return {};
  }
  if (!facts.managed) {
    if (facts.legacy_ipc) return export_ipc(driver, chunk, out, made);
    if (by_fd && facts.pool) return export_pool(driver, chunk, out, made);
    if (by_fd) return export_vmm(driver, chunk, out, made);
  }
  made.why_not = why_private(facts);
  return {};
}

// Appends the chunk to the record, with a handle if its kind has one.
Status add(const Driver& driver, const Chunk& chunk, GpuExport& made) {
  ExportChunk out;
  out.offset = chunk.base - made.record.base;
  out.length = chunk.length;
  out.kind = ChunkKind::kCudaPrivate;
  // Once one chunk cannot be mapped, handles of the others are useless.
  if (made.mappable()) OH_RETURN_IF_ERROR(give_handle(driver, chunk, out, made));
  made.record.chunks.push_back(std::move(out));
  made.record.length += chunk.length;
  made.buffer_ids.push_back(chunk.facts.buffer_id);
  return {};
}

// Verifies the buffer ids after the handles were obtained: the memory may have been freed and the
// address reused meanwhile. OH_ERR_FAULT: it was.
Status still_there(const Driver& driver, const GpuExport& made) {
  for (size_t i = 0; i < made.buffer_ids.size(); ++i) {
    const uint64_t base = made.record.base + made.record.chunks[i].offset;
    OH_ASSIGN_OR_RETURN(PointerFacts now, cuda::pointer_facts(driver, base, cuda::Depth::kId));
    if (now.buffer_id == made.buffer_ids[i]) continue;
    return error(OH_ERR_FAULT,
                 "device memory at 0x%llx was freed while it was being exported: keep memory until "
                 "its transfers have ended",
                 ull(base));
  }
  return {};
}

Status walk(const Driver& driver, Chunk chunk, uint64_t data, uint64_t size, GpuExport& made) {
  made.record.base = chunk.base;
  const uint64_t end = data + size;
  while (true) {
    OH_RETURN_IF_ERROR(add(driver, chunk, made));
    const uint64_t next = chunk.base + chunk.length;
    if (next >= end) return still_there(driver, made);
    if (!chunk.vmm) {
      return error(OH_ERR_FAULT,
                   "%llu bytes at 0x%llx reach beyond their allocation, which ends at 0x%llx",
                   ull(size), ull(data), ull(next));
    }
    if (made.record.chunks.size() == ExportRecord::kMaxChunks) {
      return error(OH_ERR_NO_RESOURCE, "%llu bytes at 0x%llx have more than %u pieces", ull(size),
                   ull(data), ExportRecord::kMaxChunks);
    }
    OH_ASSIGN_OR_RETURN(chunk, chunk_at(driver, next));
    if (chunk.base != next) {
      return error(OH_ERR_FAULT, "the piece at 0x%llx starts at 0x%llx already", ull(next),
                   ull(chunk.base));
    }
  }
}

}  // namespace

Result<std::shared_ptr<GpuExport>> make_gpu_export(const Driver& driver, uint64_t data,
                                                   uint64_t size) {
  if (size > UINT64_MAX - data) {
    return error(OH_ERR_FAULT, "%llu bytes at 0x%llx reach beyond all addresses", ull(size),
                 ull(data));
  }
  OH_ASSIGN_OR_RETURN(Chunk first, chunk_at(driver, data));
  auto made = std::make_shared<GpuExport>();
  made->device = first.facts.device;
  OH_ASSIGN_OR_RETURN(std::shared_ptr<cuda::Gpu> gpu, cuda::Gpu::open(driver, made->device));
  made->record.gpu = gpu->facts().uuid;
  {
    cuda::Enter enter(*gpu);
    OH_RETURN_IF_ERROR(enter.status());
    OH_RETURN_IF_ERROR(walk(driver, first, data, size, *made));
  }
  if (made->mappable()) return made;
  // Drop the handles of the chunks before the one that has none.
  made->fds.clear();
  for (ExportChunk& chunk : made->record.chunks) {
    chunk.kind = ChunkKind::kCudaPrivate;
    chunk.handle.clear();
  }
  return made;
}

uint32_t next_gpu_export_number() {
  // relaxed: only its value matters.
  static std::atomic<uint32_t> last{0};
  return GpuExports::kNumberBit | (last.fetch_add(1, std::memory_order_relaxed) + 1);
}

}  // namespace oh
