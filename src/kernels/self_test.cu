// SPDX-License-Identifier: Apache-2.0
//
// Proves that the chain from source to loaded kernel works: out[i] = in[i] + 1 for i < count.

extern "C" __global__ void onehop_self_test(const unsigned* in, unsigned* out, unsigned count) {
  unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = in[i] + 1;
}
