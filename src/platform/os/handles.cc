// SPDX-License-Identifier: Apache-2.0
#include "platform/os/handles.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {

UniqueFd::UniqueFd(int fd) : fd_(fd), generation_(fork_generation()) {
  if (fd_ >= 0) fork_watch_fd(fd_);
}

void UniqueFd::reset() {
  if (fd_ < 0) return;
  // In a child of fork() the descriptor is already closed, and its number may be reused.
  if (generation_ == fork_generation()) {
    fork_forget_fd(fd_);
    close(fd_);
  }
  fd_ = -1;
}

// Counts free numbers from the limit down, where most are free. Does not take them: another thread
// may need them.
Status check_room_for_fds(size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0) return {};
  size_t free = 0;
  for (int fd = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX)); fd-- > 0;) {
    if (fcntl(fd, F_GETFD) < 0 && ++free >= count) return {};
  }
  return Status::from_errno(
      OH_ERR_NO_RESOURCE, EMFILE,
      strf("%zu descriptors more are needed, and %zu can be had", count, free));
}

Result<Mapping> Mapping::anonymous(uint64_t size, bool populate) {
  void* data = nullptr;
  int result = os().mmap(size, -1, 0, populate, &data);
  if (result < 0) {
    return Status::from_errno(
        OH_ERR_SYSTEM, -result,
        strf("mmap of %llu anonymous bytes", static_cast<unsigned long long>(size)));
  }
  return Mapping(data, size);
}

Result<Mapping> Mapping::of_fd(int fd, uint64_t size, bool populate, uint64_t offset) {
  // Check the seal first: the size of a file that can shrink is not reliable.
  int sealed = os().is_sealed(fd);
  if (sealed < 0 && sealed != -EINVAL) {  // EINVAL: the file does not support seals
    return Status::from_errno(OH_ERR_SYSTEM, -sealed, "asking for the seals of a shared segment");
  }
  uint64_t there = 0;
  int result = os().fstat_size(fd, &there);
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "fstat of a shared segment");
  if (there < offset + size || sealed != 1) {
    return error(
        OH_ERR_PROTOCOL, "a shared segment has %llu bytes or may shrink, %llu were announced",
        static_cast<unsigned long long>(there), static_cast<unsigned long long>(offset + size));
  }
  void* data = nullptr;
  result = os().mmap(size, fd, offset, populate, &data);
  if (result < 0) {
    return Status::from_errno(
        OH_ERR_SYSTEM, -result,
        strf("mmap of %llu shared bytes", static_cast<unsigned long long>(size)));
  }
  return Mapping(data, size);
}

void Mapping::reset() {
  if (data_) os().munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

Result<UniqueFd> make_memfd(const char* name, uint64_t size) {
  int result = os().memfd_create(name);
  if (result == -EPERM || result == -EACCES || result == -ENOSYS) {
    return Status::from_errno(OH_ERR_NOT_VIABLE, -result,
                              strf("memfd_create(%s), which a seccomp filter or security module of "
                                   "this process has to allow",
                                   name));
  }
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, strf("memfd_create(%s)", name));
  UniqueFd fd(result);
  result = os().ftruncate(fd.get(), size);
  if (result < 0) {
    const bool full = result == -EFBIG || result == -ENOMEM || result == -ENOSPC;
    return Status::from_errno(
        full ? OH_ERR_NO_RESOURCE : OH_ERR_SYSTEM, -result,
        strf("growing the shared memory %s to %llu bytes (is there a limit on "
             "shared memory in this container?)",
             name, static_cast<unsigned long long>(size)));
  }
  result = os().seal(fd.get());
  if (result < 0) {
    return Status::from_errno(OH_ERR_SYSTEM, -result, strf("sealing the shared memory %s", name));
  }
  return fd;
}

Result<SharedMemory> make_shared_memory(const char* name, uint64_t size) {
  SharedMemory memory;
  Result<UniqueFd> fd = make_memfd(name, size);
  if (fd.ok()) {
    memory.fd = std::move(*fd);
    OH_ASSIGN_OR_RETURN(memory.mapping, Mapping::of_fd(memory.fd.get(), size, /*populate=*/false));
    return memory;
  }
  if (fd.status().code() != OH_ERR_NOT_VIABLE) return fd.status();
  memory.why_private = fd.status();
  OH_ASSIGN_OR_RETURN(memory.mapping, Mapping::anonymous(size, /*populate=*/false));
  return memory;
}

}  // namespace oh
