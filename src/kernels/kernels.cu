// SPDX-License-Identifier: Apache-2.0
//
// All kernels of the library: one image.
#include "kernels/atomic.cu"
#include "kernels/batch.cu"
#include "kernels/proxy.cu"
#include "kernels/stream.cu"
#include "kernels/worker.cu"
