// SPDX-License-Identifier: Apache-2.0
//
// The operating system interface: every call that can fail is virtual, so that a test can make it
// fail. Calls return a value >= 0, or -errno; callers write the error texts.
//
// Threading: any thread. The instance is chosen before the first endpoint is created.
#pragma once

#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstddef>
#include <cstdint>

namespace oh {

class Os {
 public:
  virtual ~Os() = default;

  // Memory.
  virtual int memfd_create(const char* name);
  virtual int ftruncate(int fd, uint64_t size);
  virtual int fstat_size(int fd, uint64_t* size);
  // Identifies the file, independent of the descriptor's number.
  virtual int fstat_identity(int fd, uint64_t* device, uint64_t* inode);
  // Seals a memfd against resizing: if a peer shrank it, this process would die of SIGBUS.
  virtual int seal(int fd);
  virtual int is_sealed(int fd);  // 0 or 1
  // Shared, read and write; `populate` faults all pages in. fd -1: anonymous shared memory.
  virtual int mmap(uint64_t size, int fd, uint64_t offset, bool populate, void** out);
  virtual int munmap(void* address, uint64_t size);
  // 0, or -ENOMEM if the address is not mapped.
  virtual int find_page(uintptr_t address);

  // Sockets.
  virtual int socket(int domain, int type);
  virtual int bind(int fd, const sockaddr* address, socklen_t size);
  virtual int listen(int fd, int backlog);
  virtual int connect(int fd, const sockaddr* address, socklen_t size);
  virtual int accept(int fd);  // non-blocking, close-on-exec
  virtual int64_t sendmsg(int fd, const msghdr* message, int flags);
  virtual int64_t recvmsg(int fd, msghdr* message, int flags);
  virtual int getsockopt(int fd, int level, int name, void* value, socklen_t* size);
  virtual int setsockopt(int fd, int level, int name, const void* value, socklen_t size);
  virtual int getpeername(int fd, sockaddr* address, socklen_t* size);
  virtual int shutdown(int fd, int how);
  // 0, or EAI_*. May block on name servers without limit.
  virtual int getaddrinfo(const char* host, const addrinfo* hints, addrinfo** found);

  // Waiting.
  virtual int poll(pollfd* entries, size_t count, int64_t timeout_ns);
  virtual int epoll_create();
  virtual int epoll_ctl(int epoll, int operation, int fd, epoll_event* event);
  virtual int epoll_wait(int epoll, epoll_event* events, int most, int64_t timeout_ns);
  virtual int eventfd();
  virtual int futex_wait(uint32_t* word, uint32_t expected, int64_t timeout_ns);
  virtual int futex_wake(uint32_t* word);  // all waiters

  // Other processes.
  virtual int pidfd_open(int pid);
  virtual void yield();
  virtual int64_t process_vm_readv(int pid, const iovec* local, size_t locals, const iovec* remote,
                                   size_t remotes);
  virtual int64_t process_vm_writev(int pid, const iovec* local, size_t locals, const iovec* remote,
                                    size_t remotes);

  // CPUs and NUMA nodes. Masks have one bit per CPU and apply to the calling thread.
  virtual int sched_getaffinity(void* mask, size_t size);
  virtual int sched_setaffinity(const void* mask, size_t size);
  // Prefers `node` for unallocated pages of the range.
  virtual int mbind_preferred(void* address, uint64_t size, int node);
  // Reads the start of a small file, such as those of /sys.
  virtual int64_t read_file(const char* path, char* out, size_t size);

  virtual int getrandom(void* out, size_t size);
};

// The instance in use.
Os& os();
// For tests: replaces the instance and returns the previous one.
Os* os_replace(Os* other);

}  // namespace oh
