# SPDX-License-Identifier: Apache-2.0
"""The headers for kernels under NVRTC, which has no headers of its own and no host."""

import importlib
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "examples"))
raw_kernel = importlib.import_module("raw_kernel")

ALL = r"""
#include "onehop/device.cuh"

// As much of a cooperative group as is asked for.
struct Tile {
  __device__ unsigned thread_rank() const { return threadIdx.x % 32; }
  __device__ unsigned size() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
};

extern "C" __global__ void all(oh_lane_handle lane, oh_remote_memory remote, unsigned char* data,
                               unsigned long long bytes) {
  onehop::BlockGroup block;
  onehop::SendLane<onehop::BlockGroup> sender(lane, block);
  sender.send(data, bytes);
  sender.close();
  onehop::RecvLane<onehop::BlockGroup> receiver(lane, block);
  if (receiver.probe()) receiver.recv(data, bytes);
  receiver.close();
  onehop::forward(lane, lane, block, data, bytes);
  onehop::WarpGroup warp;
  onehop::put_signal(remote, 0, warp, data, bytes, lane, 1);
  onehop::wait(lane, warp, 1);
  onehop::get(remote, 0, warp, data, bytes);
  onehop::flush(warp);
  onehop::fetch_add(remote, 8, 1);
  onehop::compare_swap(remote, 8, 1, 2);
  onehop::set_signal(lane, warp, 1, 2);
  onehop::wait_until(lane, warp, 1, 2);
  uint64_t count;
  onehop::read_signal(lane, warp, 1, &count);
  onehop::ThreadGroup thread;
  onehop::signal(lane, thread, 1);
  onehop::WarpsGroup warps(1, 0, 2);
  onehop::send(lane, warps, data, bytes);
  __shared__ uint64_t places[32];
  onehop::CoopGroup tile(Tile{}, &places[threadIdx.x / 32]);
  onehop::send(lane, tile, data, bytes);
  onehop::GridGroup grid;
  onehop::put_signal(remote, 0, grid, data, bytes, lane, 1);
  onehop::wait(lane, grid, 1);
  onehop::get(remote, 0, grid, data, bytes);
  onehop::relaxed_signal(lane, warp, 1);
  onehop::send(lane, grid, data, bytes);
  onehop::recv(lane, grid, data, bytes);
#if __CUDA_ARCH__ >= 900
  onehop::ClusterGroup cluster;
  onehop::send(lane, cluster, data, bytes);
#endif
}
"""


@pytest.fixture(scope="module", autouse=True)
def _nvrtc():
    try:
        raw_kernel.load_nvrtc()
    except SystemExit as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
@pytest.mark.parametrize("source", [raw_kernel.SOURCE, ALL], ids=["example", "all"])
def test_kernels_are_compiled_by_nvrtc(source, architecture):
    assert raw_kernel.compile_kernel(source, architecture)
