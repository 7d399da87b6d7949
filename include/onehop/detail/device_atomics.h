// SPDX-License-Identifier: Apache-2.0
//
// How kernels access memory that they share with the host and with kernels of other GPUs: device
// memory of either, or mapped host memory; nothing else, for the accesses are to the global window.
// System scope throughout. Needs sm_70.
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

  // Orders what came before against each store_behind_fence() that follows: one fence for several.
  static ONEHOP_PROTOCOL void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
  static ONEHOP_PROTOCOL void store_behind_fence(uint64_t* to, uint64_t value) {
    store_relaxed(to, value);
  }
  // Orders what was stored before against what is loaded after it: two sides that store a word each
  // and look at the other's cannot both miss it.
  static ONEHOP_PROTOCOL void full_fence() { asm volatile("fence.sc.sys;" ::: "memory"); }

  // A line: one access of 128 bits, never a part of it. (To PTX a vector is as many accesses as it
  // has elements, in no order.)
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

  // Words of one GPU, which its blocks share. In the order of what is around them where it says so.
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
  // `fenced`: behind a fence(), which makes it a release.
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
  // To another GPU's memory: an acquire of the sum sees everything before.
  static ONEHOP_PROTOCOL void add_remote(uint64_t* word, uint64_t more) {
    asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
  }
  static ONEHOP_PROTOCOL void add_remote_relaxed(uint64_t* word, uint64_t more) {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(word), "l"(more) : "memory");
  }
  // The same with what every GPU and the host do to the word: it is the user's.
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
  // Nanoseconds, of a clock that goes on.
  static ONEHOP_PROTOCOL uint64_t now() {
    uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
  }
  // Between two looks at the same word.
  static ONEHOP_PROTOCOL void pause() {}

  // A lane of a command: likewise one access.
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
