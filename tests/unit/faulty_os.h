// SPDX-License-Identifier: Apache-2.0
//
// FaultyOs: an operating system that fails the n-th use of a call with a chosen error, moves fewer
// bytes than requested, or interrupts calls continually. All other calls are real.
//
// Threading: any thread; faults are armed before the calls that they target.
#pragma once

#include <errno.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "platform/os/os.h"

namespace unit {

// clang-format off
#define OH_UNIT_CALLS(X) \
  X(memfd_create) X(ftruncate) X(fstat_size) X(fstat_identity) X(seal) X(is_sealed) X(mmap) \
  X(socket) X(bind) X(listen) X(connect) X(accept) X(sendmsg) X(recvmsg) X(getsockopt) \
  X(setsockopt) X(getpeername) X(shutdown) X(poll) X(epoll_create) X(epoll_ctl) X(epoll_wait) \
  X(eventfd) X(futex_wait) X(pidfd_open) X(process_vm_readv) X(process_vm_writev) \
  X(getrandom)
// clang-format on

enum class Call {
#define OH_UNIT_ENUM(name) name,
  OH_UNIT_CALLS(OH_UNIT_ENUM)
#undef OH_UNIT_ENUM
      kCount
};
inline constexpr size_t kCalls = static_cast<size_t>(Call::kCount);

inline const char* call_name(Call call) {
  static constexpr const char* kNames[] = {
#define OH_UNIT_NAME(name) #name,
      OH_UNIT_CALLS(OH_UNIT_NAME)
#undef OH_UNIT_NAME
  };
  return kNames[static_cast<size_t>(call)];
}

// Never destroyed: a thread of the library may be in one of its calls at any time.
class FaultySystem final : public oh::Os {
 public:
  static FaultySystem& instance() {
    static auto* const only = new FaultySystem;
    return *only;
  }

  void arm(Call call, uint64_t n, int error_number, bool forever) {
    for (auto& count : uses_) count.store(0);
    fired_.store(false);
    nth_.store(n);
    error_.store(error_number);
    forever_.store(forever);
    call_.store(static_cast<int>(call));
  }
  void disarm() { call_.store(-1); }
  bool fired() const { return fired_.load(); }
  uint64_t uses(Call call) const { return uses_[static_cast<size_t>(call)].load(); }
  void limit_io(size_t bytes) { limit_.store(bytes); }
  void interrupt_all_but(uint64_t n) { storm_.store(n); }

  int memfd_create(const char* name) override {
    int fault = hit(Call::memfd_create);
    return fault ? fault : Os::memfd_create(name);
  }
  int ftruncate(int fd, uint64_t size) override {
    int fault = hit(Call::ftruncate);
    return fault ? fault : Os::ftruncate(fd, size);
  }
  int fstat_size(int fd, uint64_t* size) override {
    int fault = hit(Call::fstat_size);
    return fault ? fault : Os::fstat_size(fd, size);
  }
  int fstat_identity(int fd, uint64_t* device, uint64_t* inode) override {
    int fault = hit(Call::fstat_identity);
    return fault ? fault : Os::fstat_identity(fd, device, inode);
  }
  int seal(int fd) override {
    int fault = hit(Call::seal);
    return fault ? fault : Os::seal(fd);
  }
  int is_sealed(int fd) override {
    int fault = hit(Call::is_sealed);
    return fault ? fault : Os::is_sealed(fd);
  }
  int mmap(uint64_t size, int fd, uint64_t offset, bool populate, void** out) override {
    int fault = hit(Call::mmap);
    return fault ? fault : Os::mmap(size, fd, offset, populate, out);
  }
  int socket(int domain, int type) override {
    int fault = hit(Call::socket);
    return fault ? fault : Os::socket(domain, type);
  }
  int bind(int fd, const sockaddr* address, socklen_t size) override {
    int fault = hit(Call::bind);
    return fault ? fault : Os::bind(fd, address, size);
  }
  int listen(int fd, int backlog) override {
    int fault = hit(Call::listen);
    return fault ? fault : Os::listen(fd, backlog);
  }
  int connect(int fd, const sockaddr* address, socklen_t size) override {
    int fault = hit(Call::connect);
    return fault ? fault : Os::connect(fd, address, size);
  }
  int accept(int fd) override {
    int fault = hit(Call::accept);
    return fault ? fault : Os::accept(fd);
  }
  int64_t sendmsg(int fd, const msghdr* message, int flags) override {
    int fault = hit(Call::sendmsg);
    if (!fault) fault = storm();
    if (fault) return fault;
    iovec piece{};
    msghdr cut = *message;
    shorten(&cut, &piece);
    return Os::sendmsg(fd, &cut, flags);
  }
  int64_t recvmsg(int fd, msghdr* message, int flags) override {
    int fault = hit(Call::recvmsg);
    if (!fault) fault = storm();
    if (fault) return fault;
    iovec piece{};
    msghdr cut = *message;
    shorten(&cut, &piece);
    int64_t got = Os::recvmsg(fd, &cut, flags);
    message->msg_controllen = cut.msg_controllen;
    message->msg_flags = cut.msg_flags;
    return got;
  }
  int getsockopt(int fd, int level, int name, void* value, socklen_t* size) override {
    int fault = hit(Call::getsockopt);
    return fault ? fault : Os::getsockopt(fd, level, name, value, size);
  }
  int setsockopt(int fd, int level, int name, const void* value, socklen_t size) override {
    int fault = hit(Call::setsockopt);
    return fault ? fault : Os::setsockopt(fd, level, name, value, size);
  }
  int getpeername(int fd, sockaddr* address, socklen_t* size) override {
    int fault = hit(Call::getpeername);
    return fault ? fault : Os::getpeername(fd, address, size);
  }
  int shutdown(int fd, int how) override {
    int fault = hit(Call::shutdown);
    return fault ? fault : Os::shutdown(fd, how);
  }
  int poll(pollfd* entries, size_t count, int64_t timeout_ns) override {
    int fault = hit(Call::poll);
    if (!fault) fault = storm();
    return fault ? fault : Os::poll(entries, count, timeout_ns);
  }
  int epoll_create() override {
    int fault = hit(Call::epoll_create);
    return fault ? fault : Os::epoll_create();
  }
  int epoll_ctl(int epoll, int operation, int fd, epoll_event* event) override {
    // Removing a descriptor can only fail because of a bug.
    int fault = operation == EPOLL_CTL_DEL ? 0 : hit(Call::epoll_ctl);
    return fault ? fault : Os::epoll_ctl(epoll, operation, fd, event);
  }
  int epoll_wait(int epoll, epoll_event* events, int most, int64_t timeout_ns) override {
    int fault = hit(Call::epoll_wait);
    if (!fault) fault = storm();
    return fault ? fault : Os::epoll_wait(epoll, events, most, timeout_ns);
  }
  int eventfd() override {
    int fault = hit(Call::eventfd);
    return fault ? fault : Os::eventfd();
  }
  int futex_wait(uint32_t* word, uint32_t expected, int64_t timeout_ns) override {
    int fault = hit(Call::futex_wait);
    return fault ? fault : Os::futex_wait(word, expected, timeout_ns);
  }
  int pidfd_open(int pid) override {
    int fault = hit(Call::pidfd_open);
    return fault ? fault : Os::pidfd_open(pid);
  }
  int64_t process_vm_readv(int pid, const iovec* local, size_t locals, const iovec* remote,
                           size_t remotes) override {
    int fault = hit(Call::process_vm_readv);
    return fault ? fault : Os::process_vm_readv(pid, local, locals, remote, remotes);
  }
  int64_t process_vm_writev(int pid, const iovec* local, size_t locals, const iovec* remote,
                            size_t remotes) override {
    int fault = hit(Call::process_vm_writev);
    return fault ? fault : Os::process_vm_writev(pid, local, locals, remote, remotes);
  }
  int getrandom(void* out, size_t size) override {
    int fault = hit(Call::getrandom);
    return fault ? fault : Os::getrandom(out, size);
  }

 private:
  // Returns zero, or the error that the call fails with.
  int hit(Call call) {
    uint64_t use = uses_[static_cast<size_t>(call)].fetch_add(1);
    if (static_cast<int>(call) != call_.load()) return 0;
    if (use != nth_.load() && !(forever_.load() && use > nth_.load())) return 0;
    fired_.store(true);
    return -error_.load();
  }
  int storm() {
    uint64_t every = storm_.load();
    // Pseudo-random, so that among alternating calls not always the same one succeeds.
    uint64_t mixed = (storms_.fetch_add(1) + 1) * 0x9e3779b97f4a7c15ULL;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ULL;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebULL;
    return every && (mixed >> 32) % every != 0 ? -EINTR : 0;
  }
  void shorten(msghdr* message, iovec* piece) {
    size_t limit = limit_.load();
    if (!limit || message->msg_iovlen != 1) return;
    *piece = message->msg_iov[0];
    piece->iov_len = std::min(piece->iov_len, limit);
    message->msg_iov = piece;
  }

  std::array<std::atomic<uint64_t>, kCalls> uses_{};
  std::atomic<int> call_{-1};
  std::atomic<uint64_t> nth_{0};
  std::atomic<int> error_{0};
  std::atomic<bool> forever_{false};
  std::atomic<bool> fired_{false};
  std::atomic<size_t> limit_{0};
  std::atomic<uint64_t> storm_{0};
  std::atomic<uint64_t> storms_{0};
};

// Replaces the operating system during its lifetime.
class FaultyOs {
 public:
  FaultyOs() {
    system_.disarm();
    oh::os_replace(&system_);
  }
  ~FaultyOs() {
    oh::os_replace(nullptr);
    system_.disarm();
    system_.limit_io(0);
    system_.interrupt_all_but(0);
  }
  FaultyOs(const FaultyOs&) = delete;
  FaultyOs& operator=(const FaultyOs&) = delete;

  // Makes the n-th use (from 0) of `call` from now on fail with `error_number`; with `forever`, all
  // later uses too.
  void arm(Call call, uint64_t n, int error_number, bool forever = false) {
    system_.arm(call, n, error_number, forever);
  }
  void disarm() { system_.disarm(); }
  bool fired() const { return system_.fired(); }
  uint64_t uses(Call call) const { return system_.uses(call); }

  // Limits the bytes that a socket call moves; 0: no limit.
  void limit_io(size_t bytes) { system_.limit_io(bytes); }
  // Interrupts all but one in n of the calls that wait or move bytes; 0: none.
  void interrupt_all_but(uint64_t n) { system_.interrupt_all_but(n); }

 private:
  FaultySystem& system_ = FaultySystem::instance();
};

}  // namespace unit
