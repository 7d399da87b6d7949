// SPDX-License-Identifier: Apache-2.0
//
// Handling of fork(). A child, such as a data loader's worker, would keep onehop's sockets open, so
// peers would not notice the death of the parent; and the objects in the child depend on threads
// that it does not have. So in the child all of the library's descriptors are closed, and every
// object returns OH_ERR_FORKED: it compares its own generation with fork_generation().
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace oh {

// Number of forks between the library's first use and this process.
inline std::atomic<uint32_t> g_fork_generation{0};
inline uint32_t fork_generation() { return g_fork_generation.load(std::memory_order_relaxed); }

// Installs the fork handlers. Owners of descriptors call it.
void fork_watch();

// Returns the process's instance, which `make` allocates on first use. A child of fork() gets a new
// one: a thread that only the parent has may hold the lock of the parent's. Instances are never
// destroyed, because threads may still run during static destruction.
template <typename Make>
auto& of_this_process(Make make) {
  struct Made {
    decltype(make()) value;
    uint32_t generation;
    Made* former;  // the parent's, still reachable for leak checkers
  };
  static std::atomic<Made*> current{nullptr};
  // acquire: pairs with the exchange that publishes it.
  Made* found = current.load(std::memory_order_acquire);
  if (found && found->generation == fork_generation()) return *found->value;
  fork_watch();
  auto* made = new Made{make(), fork_generation(), found};
  if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made->value;
  delete made->value;  // another thread was faster
  delete made;
  return *found->value;
}

// Remembers which process uses a library that a child of fork() cannot use. A child reads it
// without a lock, which a thread of the parent may hold. If the parent was about to open the
// library, the child never learns whether that failed.
class ForkMark {
 public:
  // Whether a process that this one was forked from uses the library, or was about to.
  bool is_of_parent() const {
    const int64_t by = by_.load(std::memory_order_relaxed);
    return by != kNobody && by != fork_generation();
  }
  void set() { by_.store(fork_generation(), std::memory_order_relaxed); }
  void clear() { by_.store(kNobody, std::memory_order_relaxed); }

 private:
  static constexpr int64_t kNobody = -1;
  std::atomic<int64_t> by_{kNobody};  // relaxed: a child has only the thread that forked
};

// Registers and deregisters a descriptor to close in a child of fork().
void fork_watch_fd(int fd);
void fork_forget_fd(int fd);

}  // namespace oh
