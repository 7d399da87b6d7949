// SPDX-License-Identifier: Apache-2.0
//
// What fork() must not carry over. A child (a data loader's worker, say) would keep our sockets
// open and so hide our death from our peers, and its copies of our objects belong to threads it
// does not have. So in the child every descriptor of the library is closed and every object is
// poisoned: it compares its generation with fork_generation() and answers OH_ERR_FORKED.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>

namespace oh {

// Number of forks between the library's first use and this process.
inline std::atomic<uint32_t> g_fork_generation{0};
inline uint32_t fork_generation() { return g_fork_generation.load(std::memory_order_relaxed); }

// Makes sure that forks are noticed; called by owners of descriptors.
void fork_watch();

// What there is one of in each process, by `make`, which allocates it. A child of fork() has its
// own: a thread of the parent's, which the child does not have, may hold the lock of the former
// one. It is never destroyed: threads may still run when static destructors do.
template <typename Make>
auto& of_this_process(Make make) {
  struct Made {
    decltype(make()) value;
    uint32_t generation;
  };
  static std::atomic<Made*> current{nullptr};
  // acquire: pairs with the exchange that publishes it.
  Made* found = current.load(std::memory_order_acquire);
  if (found && found->generation == fork_generation()) return *found->value;
  fork_watch();
  auto* made = new Made{make(), fork_generation()};
  if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return *made->value;
  delete made->value;  // another thread was faster
  delete made;
  return *found->value;
}

// Descriptors to close in a child of fork().
void fork_watch_fd(int fd);
void fork_forget_fd(int fd);

}  // namespace oh
