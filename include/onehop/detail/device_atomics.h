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

  // Two halves in no order: to PTX a vector is as many accesses as it has elements.
  static ONEHOP_PROTOCOL Pair load_pair(const Pair* from) {
    Pair value;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(from)
                 : "memory");
    return value;
  }
  static ONEHOP_PROTOCOL void store_pair(Pair* to, Pair value) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(value.low),
                 "l"(value.high)
                 : "memory");
  }

  // A lane: one access of 128 bits, never a part of it.
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
