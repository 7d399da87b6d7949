// SPDX-License-Identifier: Apache-2.0
#include "platform/os/os.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>

namespace oh {
namespace {

template <typename T>
T or_errno(T result) {
  return result < 0 ? static_cast<T>(-errno) : result;
}

// nullptr: no limit.
const timespec* relative(int64_t nanoseconds, timespec* out) {
  if (nanoseconds == std::numeric_limits<int64_t>::max()) return nullptr;
  nanoseconds = std::max<int64_t>(nanoseconds, 0);
  out->tv_sec = nanoseconds / 1000000000;
  out->tv_nsec = nanoseconds % 1000000000;
  return out;
}

std::atomic<Os*> g_os{nullptr};

}  // namespace

Os& os() {
  static Os* const standard = new Os;
  Os* chosen = g_os.load(std::memory_order_relaxed);
  return chosen ? *chosen : *standard;
}

Os* os_replace(Os* other) { return g_os.exchange(other); }

int Os::memfd_create(const char* name) {
  return or_errno(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
}

int Os::ftruncate(int fd, uint64_t size) {
  return or_errno(::ftruncate(fd, static_cast<off_t>(size)));
}

int Os::fstat_size(int fd, uint64_t* size) {
  struct stat status;
  if (::fstat(fd, &status) < 0) return -errno;
  *size = static_cast<uint64_t>(status.st_size);
  return 0;
}

int Os::fstat_identity(int fd, uint64_t* device, uint64_t* inode) {
  struct stat about;
  if (fstat(fd, &about) != 0) return -errno;
  *device = about.st_dev;
  *inode = about.st_ino;
  return 0;
}

int Os::seal(int fd) {
  return or_errno(::fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
}

int Os::is_sealed(int fd) {
  int seals = or_errno(::fcntl(fd, F_GET_SEALS));
  return seals < 0 ? seals : (seals & F_SEAL_SHRINK) != 0;
}

int Os::mmap(uint64_t size, int fd, uint64_t offset, bool populate, void** out) {
  int flags = MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0) | (populate ? MAP_POPULATE : 0);
  void* address =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, flags, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return -errno;
  *out = address;
  return 0;
}

int Os::munmap(void* address, uint64_t size) { return or_errno(::munmap(address, size)); }

int Os::socket(int domain, int type) {
  return or_errno(::socket(domain, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

int Os::bind(int fd, const sockaddr* address, socklen_t size) {
  return or_errno(::bind(fd, address, size));
}

int Os::listen(int fd, int backlog) { return or_errno(::listen(fd, backlog)); }

int Os::connect(int fd, const sockaddr* address, socklen_t size) {
  return or_errno(::connect(fd, address, size));
}

int Os::accept(int fd) {
  return or_errno(::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

int64_t Os::sendmsg(int fd, const msghdr* message, int flags) {
  return or_errno(::sendmsg(fd, message, flags | MSG_NOSIGNAL));
}

int64_t Os::recvmsg(int fd, msghdr* message, int flags) {
  return or_errno(::recvmsg(fd, message, flags | MSG_CMSG_CLOEXEC));
}

int Os::getsockopt(int fd, int level, int name, void* value, socklen_t* size) {
  return or_errno(::getsockopt(fd, level, name, value, size));
}

int Os::setsockopt(int fd, int level, int name, const void* value, socklen_t size) {
  return or_errno(::setsockopt(fd, level, name, value, size));
}

int Os::getpeername(int fd, sockaddr* address, socklen_t* size) {
  return or_errno(::getpeername(fd, address, size));
}

int Os::getaddrinfo(const char* host, const addrinfo* hints, addrinfo** found) {
  return ::getaddrinfo(host, nullptr, hints, found);
}

int Os::shutdown(int fd, int how) { return or_errno(::shutdown(fd, how)); }

int Os::poll(pollfd* entries, size_t count, int64_t timeout_ns) {
  timespec time;
  return or_errno(::ppoll(entries, count, relative(timeout_ns, &time), nullptr));
}

int Os::epoll_create() { return or_errno(::epoll_create1(EPOLL_CLOEXEC)); }

int Os::epoll_ctl(int epoll, int operation, int fd, epoll_event* event) {
  return or_errno(::epoll_ctl(epoll, operation, fd, event));
}

int Os::epoll_wait(int epoll, epoll_event* events, int most, int64_t timeout_ns) {
  int milliseconds = -1;
  if (timeout_ns != std::numeric_limits<int64_t>::max()) {
    // Round up, so that a wait does not end before a timer is due.
    int64_t rounded = (std::max<int64_t>(timeout_ns, 0) + 999999) / 1000000;
    milliseconds = static_cast<int>(std::min<int64_t>(rounded, std::numeric_limits<int>::max()));
  }
  return or_errno(::epoll_wait(epoll, events, most, milliseconds));
}

int Os::eventfd() { return or_errno(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

int Os::futex_wait(uint32_t* word, uint32_t expected, int64_t timeout_ns) {
  timespec time;
  return static_cast<int>(or_errno(
      ::syscall(SYS_futex, word, FUTEX_WAIT, expected, relative(timeout_ns, &time), nullptr, 0)));
}

int Os::futex_wake(uint32_t* word) {
  return static_cast<int>(or_errno(::syscall(
      SYS_futex, word, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0)));
}

int Os::pidfd_open(int pid) {
  return static_cast<int>(or_errno(::syscall(SYS_pidfd_open, pid, 0)));
}

int64_t Os::process_vm_readv(int pid, const iovec* local, size_t locals, const iovec* remote,
                             size_t remotes) {
  return or_errno(static_cast<int64_t>(::process_vm_readv(pid, local, locals, remote, remotes, 0)));
}

int64_t Os::process_vm_writev(int pid, const iovec* local, size_t locals, const iovec* remote,
                              size_t remotes) {
  return or_errno(
      static_cast<int64_t>(::process_vm_writev(pid, local, locals, remote, remotes, 0)));
}

int Os::sched_getaffinity(void* mask, size_t size) {
  return or_errno(::sched_getaffinity(0, size, static_cast<cpu_set_t*>(mask)));
}

int Os::sched_setaffinity(const void* mask, size_t size) {
  return or_errno(::sched_setaffinity(0, size, static_cast<const cpu_set_t*>(mask)));
}

void Os::yield() { ::sched_yield(); }

int Os::find_page(uintptr_t address) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  unsigned char resident = 0;
  return or_errno(::mincore(reinterpret_cast<void*>(address / page * page), 1, &resident));
}

int Os::mbind_preferred(void* address, uint64_t size, int node) {
  constexpr int kMostNodes = 1024;  // Linux's maximum
  constexpr int kBits = 8 * sizeof(unsigned long);
  if (node < 0 || node >= kMostNodes) return -EINVAL;
  unsigned long mask[kMostNodes / kBits] = {};
  mask[node / kBits] = 1UL << node % kBits;
  // The kernel uses one bit less than the given number.
  return static_cast<int>(
      or_errno(::syscall(SYS_mbind, address, size, MPOL_PREFERRED, mask, kMostNodes + 1UL, 0)));
}

int64_t Os::read_file(const char* path, char* out, size_t size) {
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  auto got = or_errno(static_cast<int64_t>(::read(fd, out, size)));
  ::close(fd);
  return got;
}

int Os::getrandom(void* out, size_t size) {
  ssize_t got = ::getrandom(out, size, 0);
  if (got < 0) return -errno;
  return static_cast<size_t>(got) == size ? 0 : -EIO;
}

}  // namespace oh
