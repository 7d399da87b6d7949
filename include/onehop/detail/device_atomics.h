// SPDX-License-Identifier: Apache-2.0
//
// How kernels access memory that they share with the host and with kernels of other GPUs. The
// memory must be device memory of either GPU or mapped host memory, because all accesses use the
// global window. Accesses have system scope, except those to words that only one GPU uses. Requires
// sm_70.
//
// Threading: any thread. Memory must be aligned to the size of the access.
#pragma once

#include "onehop/detail/word.h"

#if defined(__CUDACC__)
namespace onehop::detail {

struct DeviceAtomics {
  static ONEHOP_PROTOCOL uint64_t load_relaxed(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static ONEHOP_PROTOCOL uint64_t load_acquire(const uint64_t* from) {
    uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  static ONEHOP_PROTOCOL void store_relaxed(uint64_t* to, uint64_t value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }
  static ONEHOP_PROTOCOL void store_release(uint64_t* to, uint64_t value) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }

  // Orders all earlier accesses before each later store_behind_fence(). One fence serves several
  // stores.
  static ONEHOP_PROTOCOL void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
  static ONEHOP_PROTOCOL void store_behind_fence(uint64_t* to, uint64_t value) {
    store_relaxed(to, value);
  }
  // Orders earlier stores before later loads. If two sides each store a word and then load the
  // other's, at least one of them sees the other's store.
  static ONEHOP_PROTOCOL void full_fence() { asm volatile("fence.sc.sys;" ::: "memory"); }

  // A line is one indivisible access of 128 bits. (PTX treats a vector access as one access per
  // element, in no order.)
  static ONEHOP_PROTOCOL Pair load_line(const Pair* from) {
    Pair value;
    asm volatile(
        "{ .reg .b128 line;\n"
        "  ld.relaxed.sys.global.b128 line, [%2];\n"
        "  mov.b128 {%0, %1}, line; }"
        : "=l"(value.low), "=l"(value.high)
        : "l"(from)
        : "memory");
    return value;
  }
  static ONEHOP_PROTOCOL void store_line(Pair* to, Pair value) {
    asm volatile(
        "{ .reg .b128 line;\n"
        "  mov.b128 line, {%1, %2};\n"
        "  st.relaxed.sys.global.b128 [%0], line; }" ::"l"(to),
        "l"(value.low), "l"(value.high)
        : "memory");
  }

  static ONEHOP_PROTOCOL Pair load_keyed(const Pair* from) { return load_line(from); }
  static ONEHOP_PROTOCOL void store_keyed(Pair* to, Pair value) { store_line(to, value); }

  // Words that only blocks of one GPU access. Relaxed, except _acquire, _ordered (acquire and
  // release) and compare_swap (acquire).
  static ONEHOP_PROTOCOL uint64_t fetch_or(uint64_t* word, uint64_t bits) {
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(bits)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t fetch_or_acquire(uint64_t* word, uint64_t bits) {
    uint64_t old;
    asm volatile("atom.acquire.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(bits)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t fetch_and(uint64_t* word, uint64_t bits) {
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.and.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(bits)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t fetch_or_ordered(uint64_t* word, uint64_t bits) {
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(bits)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t fetch_and_ordered(uint64_t* word, uint64_t bits) {
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.and.b64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(bits)
                 : "memory");
    return old;
  }
  // `fenced`: follows a fence(), which makes it a release.
  static ONEHOP_PROTOCOL void add(uint64_t* word, uint64_t more, bool /*fenced*/ = false) {
    asm volatile("red.relaxed.gpu.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
  }
  static ONEHOP_PROTOCOL uint64_t fetch_add(uint64_t* word, uint64_t more) {
    uint64_t old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(more)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t fetch_add_ordered(uint64_t* word, uint64_t more) {
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(more)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t compare_swap(uint64_t* word, uint64_t expected, uint64_t value) {
    uint64_t old;
    asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(word), "l"(expected), "l"(value)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t compare_swap_ordered(uint64_t* word, uint64_t expected,
                                                       uint64_t value) {
    uint64_t old;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(word), "l"(expected), "l"(value)
                 : "memory");
    return old;
  }
  // Adds to a word in another GPU's memory. Release: an acquire of the sum sees all earlier stores.
  static ONEHOP_PROTOCOL void add_remote(uint64_t* word, uint64_t more) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
  }
  static ONEHOP_PROTOCOL void add_remote_relaxed(uint64_t* word, uint64_t more) {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
  }
  // Atomics on the user's words, which every GPU and the host may access.
  static ONEHOP_PROTOCOL uint64_t fetch_add_system(uint64_t* word, uint64_t more) {
    uint64_t old;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;"
                 : "=l"(old)
                 : "l"(word), "l"(more)
                 : "memory");
    return old;
  }
  static ONEHOP_PROTOCOL uint64_t compare_swap_system(uint64_t* word, uint64_t expected,
                                                      uint64_t value) {
    uint64_t old;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(word), "l"(expected), "l"(value)
                 : "memory");
    return old;
  }
  // Nanoseconds of the GPU's global timer.
  static ONEHOP_PROTOCOL uint64_t now() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  }
  // Called between two polls of the same word.
  static ONEHOP_PROTOCOL void pause() {}

  // A lane of a command is also one indivisible access.
  static ONEHOP_PROTOCOL Pair load_lane(const Pair* from) {
    Pair value;
    asm volatile(
        "{ .reg .b128 lane;\n"
        "  ld.acquire.sys.global.b128 lane, [%2];\n"
        "  mov.b128 {%0, %1}, lane; }"
        : "=l"(value.low), "=l"(value.high)
        : "l"(from)
        : "memory");
    return value;
  }
  static ONEHOP_PROTOCOL void store_lane(Pair* to, Pair value) {
    asm volatile(
        "{ .reg .b128 lane;\n"
        "  mov.b128 lane, {%1, %2};\n"
        "  st.release.sys.global.b128 [%0], lane; }" ::"l"(to),
        "l"(value.low), "l"(value.high)
        : "memory");
  }
};

}  // namespace onehop::detail
#endif
