// SPDX-License-Identifier: Apache-2.0
//
// Locks. Mutex is std::mutex with annotations, for control paths. SpinLock guards a peer's state on
// the data path. It is held for tens of nanoseconds; a waiting receive may hold it while it polls,
// as long as no other thread wants it.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/annotations.h"

#if defined(__SANITIZE_THREAD__)
#define OH_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OH_THREAD_SANITIZER 1
#endif
#endif

namespace oh {

inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Full barrier: also orders earlier stores before later loads.
inline void full_fence() {
#if defined(OH_THREAD_SANITIZER)
  // ThreadSanitizer does not see fences. A read-modify-write acts as one on the machines that it
  // supports.
  static std::atomic<uint32_t> word{0};
  word.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

class OH_CAPABILITY("mutex") Mutex {
 public:
  void lock() OH_ACQUIRE() { mutex_.lock(); }
  void unlock() OH_RELEASE() { mutex_.unlock(); }
  std::mutex& native() { return mutex_; }

 private:
  std::mutex mutex_;
};

class OH_CAPABILITY("spinlock") SpinLock {
 public:
  bool try_lock() OH_TRY_ACQUIRE(true) {
    // acquire: pairs with the release in unlock().
    return held_.load(std::memory_order_relaxed) == 0 &&
           held_.exchange(1, std::memory_order_acquire) == 0;
  }
  void lock() OH_ACQUIRE() {
    if (try_lock()) return;
    waiters_.fetch_add(1, std::memory_order_relaxed);
    for (uint32_t round = 0; !try_lock(); ++round) {
      // The holder may have been descheduled: yield the CPU to it.
      if (round < 64) {
        cpu_relax();
      } else {
        sched_yield();
      }
    }
    waiters_.fetch_sub(1, std::memory_order_relaxed);
  }
  void unlock() OH_RELEASE() { held_.store(0, std::memory_order_release); }
  // Whether another thread waits for the lock. A holder that only polls should then release it.
  bool contended() const { return waiters_.load(std::memory_order_relaxed) != 0; }

 private:
  std::atomic<uint32_t> held_{0};
  std::atomic<uint32_t> waiters_{0};
};

template <typename Lock>
class OH_SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(Lock& lock) OH_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~LockGuard() OH_RELEASE() { lock_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Lock& lock_;
};
using MutexLock = LockGuard<Mutex>;
using SpinGuard = LockGuard<SpinLock>;

}  // namespace oh
