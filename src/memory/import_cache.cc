// SPDX-License-Identifier: Apache-2.0
#include "memory/import_cache.h"

#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {

ImportCache& ImportCache::instance() {
  return of_this_process([] { return new ImportCache; });
}

Result<std::shared_ptr<ImportedBlock>> ImportCache::open(const Id& owner, uint32_t number,
                                                         uint64_t remote_base, uint64_t size,
                                                         int fd) {
  uint64_t device = 0;
  uint64_t inode = 0;
  int result = os().fstat_identity(fd, &device, &inode);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "fstat of a shared block");
  std::lock_guard lock(mutex_);
  std::erase_if(blocks_, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<ImportedHostBlock>& known = blocks_[{owner, number}];
  if (std::shared_ptr<ImportedHostBlock> block = known.lock()) {
    // Owner and number are the peer's claims; the identity of the file is not.
    if (block->device == device && block->inode == inode && block->remote_base == remote_base &&
        block->mapping.size() == size) {
      return std::shared_ptr<ImportedBlock>(std::move(block));
    }
    return error(OH_ERR_PROTOCOL, "block %u of this process is another file", number);
  }
  auto block = std::make_shared<ImportedHostBlock>();
  block->device = device;
  block->inode = inode;
  block->number = number;
  block->remote_base = remote_base;
  OH_ASSIGN_OR_RETURN(block->mapping, Mapping::of_fd(fd, size, /*populate=*/false));
  block->local_base = block->mapping.data();
  block->size = size;
  block->count();
  known = block;
  return std::shared_ptr<ImportedBlock>(std::move(block));
}

size_t ImportCache::size() const {
  std::lock_guard lock(mutex_);
  size_t alive = 0;
  for (const auto& entry : blocks_) alive += !entry.second.expired();
  return alive;
}

}  // namespace oh
