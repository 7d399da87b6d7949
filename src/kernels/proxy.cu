// SPDX-License-Identifier: Apache-2.0
#include "kernels/proxy.h"

#include "onehop/detail/groups.cuh"

extern "C" __global__ void __launch_bounds__(oh::kernels::kProxyThreads)
    onehop_proxy(const __grid_constant__ oh::kernels::ProxyArgs args) {
  onehop::BlockGroup block;
  for (uint32_t i = 0; i < args.count; ++i) {
    const oh::kernels::ProxyOp& op = args.ops[i];
    if (op.block == blockIdx.x) oh::kernels::run_proxy<onehop::detail::DeviceAtomics>(op, block);
  }
}
