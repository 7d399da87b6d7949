// SPDX-License-Identifier: Apache-2.0
#include "kernels/atomic.h"

#include "onehop/detail/device_atomics.h"

extern "C" __global__ void onehop_atomic(const oh::kernels::AtomicArgs args) {
  if (threadIdx.x == 0) oh::kernels::run_atomic<onehop::detail::DeviceAtomics>(args);
}
