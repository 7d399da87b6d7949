// SPDX-License-Identifier: Apache-2.0
#include "memory/staging_pool.h"

#include "platform/os/handles.h"

namespace oh {
namespace {

struct PinnedMemory final : BufferMemory {
  Mapping memory;
  std::shared_ptr<cuda::Pinned> pinned;  // released before the memory is unmapped
};

Result<std::unique_ptr<BufferMemory>> make_pinned(const std::shared_ptr<cuda::Gpu>& gpu,
                                                  size_t bytes) {
  auto made = std::make_unique<PinnedMemory>();
  OH_ASSIGN_OR_RETURN(made->memory, Mapping::anonymous(bytes));
  OH_ASSIGN_OR_RETURN(made->pinned,
                      cuda::Pinned::of(gpu, made->memory.data(), made->memory.size()));
  made->data = made->memory.data();
  made->registration = made->pinned.get();
  return std::unique_ptr<BufferMemory>(std::move(made));
}

}  // namespace

StagingPool::StagingPool(std::shared_ptr<cuda::Gpu> gpu, uint64_t buffer_size, uint32_t most)
    : pool_([gpu = std::move(gpu)](size_t bytes) { return make_pinned(gpu, bytes); }, buffer_size,
            most, 2) {}

cuda::DevicePtr StagingPool::on_device(const PooledBuffer& buffer) {
  return static_cast<const cuda::Pinned*>(buffer.registration)->device(buffer.data);
}

}  // namespace oh
