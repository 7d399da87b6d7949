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

// Descriptors to close in a child of fork().
void fork_watch_fd(int fd);
void fork_forget_fd(int fd);

}  // namespace oh
