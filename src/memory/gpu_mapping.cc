// SPDX-License-Identifier: Apache-2.0
#include "memory/gpu_mapping.h"

#include <cstring>

#include "base/log.h"
#include "base/text.h"
#include "platform/cuda/pointer.h"

namespace oh {
namespace {

using cuda::Code;
using cuda::Driver;
using cuda::kSuccess;
namespace symbol = cuda::symbol;

// The driver's API takes a descriptor as a void pointer.
void* as_handle(const UniqueFd& fd) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(fd.get()));
}

cuda::AccessDesc access_of(const cuda::Gpu& gpu) {
  return {{cuda::kLocationDevice, gpu.facts().ordinal}, cuda::kAccessReadWrite};
}

// Checks the length that the peer claims against the extent that the driver reports.
Status check_extent(const Driver& driver, cuda::DevicePtr address, uint64_t length) {
  OH_ASSIGN_OR_RETURN(cuda::PointerFacts there,
                      cuda::pointer_facts(driver, address, cuda::Depth::kPlace));
  const uint64_t offset = address - there.range_start;
  if (offset <= there.range_size && length <= there.range_size - offset) return {};
  return error(OH_ERR_PROTOCOL,
               "a peer announced %llu bytes of device memory, but its handle maps %llu from 0x%llx "
               "(at 0x%llx)",
               ull(length), ull(there.range_size), ull(there.range_start), ull(address));
}

Status map_ipc(const Driver& driver, const ExportRecord& record, GpuMapping& mapping) {
  cuda::IpcHandle handle;
  std::memcpy(handle.bytes, record.chunks[0].handle.data(), sizeof(handle.bytes));
  cuda::DevicePtr address = 0;
  // Without lazy peer access this process would first need a context on the owner's device.
  Code code = driver.ipc_open(&address, handle, cuda::kIpcLazyPeerAccess);
  if (code != kSuccess) {
    return driver.failure(code, symbol::ipc_open, strf("%llu bytes", ull(record.length)));
  }
  mapping.address = address;
  return check_extent(driver, address, record.length);
}

Status map_pool(const Driver& driver, const ExportRecord& record, const UniqueFd& fd,
                GpuMapping& mapping) {
  Code code = driver.pool_import(&mapping.pool, as_handle(fd), cuda::kHandleTypePosixFd, 0);
  if (code != kSuccess) {
    mapping.pool = nullptr;
    return driver.failure(code, symbol::pool_import, strf("descriptor %d", fd.get()));
  }
  const cuda::AccessDesc access = access_of(*mapping.gpu);
  OH_CUDA_TRY(driver, pool_set_access, mapping.pool, &access, 1);
  cuda::PoolPointer pointer;
  std::memcpy(pointer.bytes, record.chunks[0].handle.data(), sizeof(pointer.bytes));
  cuda::DevicePtr address = 0;
  code = driver.pool_import_pointer(&address, mapping.pool, &pointer);
  if (code != kSuccess) {
    return driver.failure(code, symbol::pool_import_pointer,
                          strf("%llu bytes", ull(record.length)));
  }
  mapping.address = address;
  return check_extent(driver, address, record.length);
}

// Maps one chunk behind those already mapped.
Status map_piece(const Driver& driver, const ExportChunk& chunk, const UniqueFd& fd,
                 GpuMapping& mapping) {
  cuda::AllocationHandle handle = 0;
  Code code = driver.vmm_import(&handle, as_handle(fd), cuda::kHandleTypePosixFd);
  if (code != kSuccess) {
    return driver.failure(code, symbol::vmm_import,
                          strf("descriptor %d, %llu bytes", fd.get(), ull(chunk.length)));
  }
  code = driver.vmm_map(mapping.address + chunk.offset, chunk.length, 0, handle, 0);
  driver.vmm_release(handle);  // the mapping holds it
  if (code != kSuccess) {
    return driver.failure(
        code, symbol::vmm_map,
        strf("0x%llx, %llu bytes", ull(mapping.address + chunk.offset), ull(chunk.length)));
  }
  mapping.mapped += chunk.length;
  return {};
}

Status map_vmm(const Driver& driver, const ExportRecord& record, const std::vector<UniqueFd>& fds,
               GpuMapping& mapping) {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.requested_handle_types = cuda::kHandleTypePosixFd;
  prop.location = {cuda::kLocationDevice, mapping.gpu->facts().ordinal};
  size_t granularity = 0;
  OH_CUDA_TRY(driver, vmm_granularity, &granularity, &prop, cuda::kGranularityMinimum);
  for (const ExportChunk& chunk : record.chunks) {
    if (granularity != 0 && chunk.length % granularity == 0) continue;
    return error(OH_ERR_PROTOCOL,
                 "a peer announced a piece of %llu bytes; pieces are multiples of %zu",
                 ull(chunk.length), granularity);
  }
  cuda::DevicePtr address = 0;
  Code code = driver.vmm_reserve(&address, record.length, granularity, 0, 0);
  if (code != kSuccess) {
    return driver.failure(code, symbol::vmm_reserve, strf("%llu bytes", ull(record.length)));
  }
  mapping.address = address;
  mapping.reserved = record.length;
  for (size_t i = 0; i < record.chunks.size(); ++i) {
    OH_RETURN_IF_ERROR(map_piece(driver, record.chunks[i], fds[i], mapping));
  }
  const cuda::AccessDesc access = access_of(*mapping.gpu);
  OH_CUDA_TRY(driver, vmm_set_access, address, record.length, &access, 1);
  return {};
}

// Logs a failed release: no caller can handle it.
void expect(const Driver& driver, Code code, const char* call, uint64_t address) {
  if (code == kSuccess) return;
  Status status = driver.failure(code, call, strf("0x%llx", ull(address)));
  OH_LOG(kWarn, "imported device memory was not given back: %s", status.text().c_str());
}

size_t handle_size(ChunkKind kind) {
  if (kind == ChunkKind::kCudaIpc) return sizeof(cuda::IpcHandle);
  if (kind == ChunkKind::kCudaPool) return sizeof(cuda::PoolPointer);
  return 0;
}

}  // namespace

Status check_gpu_record(const ExportRecord& record, size_t fds) {
  if (record.chunks.empty() || record.length == 0 || record.length > UINT64_MAX - record.base) {
    return error(OH_ERR_PROTOCOL, "a peer described device memory of %llu bytes in %zu chunks",
                 ull(record.length), record.chunks.size());
  }
  uint64_t covered = 0;
  const ChunkKind kind = record.chunks[0].kind;
  for (const ExportChunk& chunk : record.chunks) {
    if (chunk.kind != ChunkKind::kCudaIpc && chunk.kind != ChunkKind::kCudaFd &&
        chunk.kind != ChunkKind::kCudaPool) {
      return error(OH_ERR_NOT_VIABLE,
                   "the peer's memory at 0x%llx has no handle and cannot be mapped here (its side "
                   "knows why: kind %u)",
                   ull(record.base + covered), static_cast<unsigned>(chunk.kind));
    }
    if (chunk.kind != kind || (kind != ChunkKind::kCudaFd && record.chunks.size() != 1)) {
      return error(OH_ERR_NOT_VIABLE,
                   "the peer's memory at 0x%llx consists of %zu pieces of kinds that cannot be "
                   "mapped as one: transfer them one by one",
                   ull(record.base), record.chunks.size());
    }
    if (chunk.offset != covered || chunk.length == 0 || chunk.length > record.length - covered ||
        chunk.handle.size() != handle_size(kind)) {
      return error(OH_ERR_PROTOCOL, "a peer described %llu bytes at offset %llu of %llu",
                   ull(chunk.length), ull(chunk.offset), ull(record.length));
    }
    covered += chunk.length;
  }
  const size_t wanted = kind == ChunkKind::kCudaIpc ? 0 : record.chunks.size();
  if (covered == record.length && fds == wanted) return {};
  return error(OH_ERR_PROTOCOL, "a peer described %llu of %llu bytes with %zu of %zu descriptors",
               ull(covered), ull(record.length), fds, wanted);
}

Result<GpuMapping> map_gpu_record(const std::shared_ptr<cuda::Gpu>& gpu, const ExportRecord& record,
                                  const std::vector<UniqueFd>& fds) {
  GpuMapping mapping;
  mapping.gpu = gpu;
  mapping.kind = record.chunks[0].kind;
  const Driver& driver = gpu->driver();
  Status status;
  {
    cuda::Enter enter(*gpu);
    OH_RETURN_IF_ERROR(enter.status());
    switch (mapping.kind) {
      case ChunkKind::kCudaIpc:
        status = map_ipc(driver, record, mapping);
        break;
      case ChunkKind::kCudaPool:
        status = map_pool(driver, record, fds[0], mapping);
        break;
      default:
        status = map_vmm(driver, record, fds, mapping);
    }
  }
  if (status.ok()) return mapping;
  unmap_gpu(std::move(mapping));
  return status;
}

void unmap_gpu(GpuMapping mapping) {
  if (mapping.gpu->is_lost()) return;
  const Driver& driver = mapping.gpu->driver();
  cuda::Enter enter(*mapping.gpu);
  if (!enter.status().ok()) return;
  const uint64_t address = mapping.address;
  if (mapping.kind == ChunkKind::kCudaIpc && address) {
    expect(driver, driver.ipc_close(address), symbol::ipc_close, address);
  }
  if (mapping.kind == ChunkKind::kCudaPool && address) {
    expect(driver, driver.memory_free(address), symbol::memory_free, address);
  }
  if (mapping.pool)
    expect(driver, driver.pool_destroy(mapping.pool), symbol::pool_destroy, address);
  if (mapping.mapped) {
    expect(driver, driver.vmm_unmap(address, mapping.mapped), symbol::vmm_unmap, address);
  }
  if (mapping.reserved) {
    expect(driver, driver.vmm_unreserve(address, mapping.reserved), symbol::vmm_unreserve, address);
  }
}

}  // namespace oh
