# SPDX-License-Identifier: Apache-2.0
"""Kernels of the application's on real GPUs: what groups share, and lanes that are not closed."""

import ctypes
import importlib
import os
import sys
from pathlib import Path

import pytest
from processes import run_pair

sys.path.append(str(Path(__file__).parents[2] / "examples"))
raw_kernel = importlib.import_module("raw_kernel")
torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 1 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs a GPU and PyTorch",
)
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
GPUS = ("cuda:0", "cuda:1")
LANE = 3
ROUNDS = 100_000

SOURCE = r"""
#include "onehop/device.cuh"

using Block = onehop::BlockGroup;

// By a copy of the group.
__device__ void expect(Block group, unsigned long long value, int* wrong) {
  if (group.share(group.leads() ? value : ~value) != value) atomicAdd(wrong, 1);
}
extern "C" __global__ void share(unsigned long long rounds, int* wrong) {
  Block one;
  Block other;
  for (unsigned long long i = 0; i < rounds; ++i) {
    expect(one, 4 * i, wrong);
    expect(other, 4 * i + 1, wrong);
    Block inner;
    expect(inner, 4 * i + 2, wrong);
    expect(one, 4 * i + 3, wrong);
  }
}

// Does not call close().
extern "C" __global__ void forget(oh_lane_handle lane, int* fault) {
  Block block;
  onehop::SendLane<Block> sender(lane, block);
  onehop::RecvLane<Block> receiver(lane, block);
  if (threadIdx.x == 0) *fault = sender.fault() + receiver.fault();
}

// Ends with both halves of the lane.
extern "C" __global__ void keep(oh_lane_handle lane, int* fault) {
  Block block;
  onehop::detail::Sender<onehop::detail::DeviceAtomics> sender(lane, block);
  onehop::detail::Receiver<onehop::detail::DeviceAtomics> receiver(lane, block);
  const bool taken = sender.take(block) && receiver.take(block);
  if (threadIdx.x == 0) *fault = taken ? 0 : 1;
}
"""


def run_kernel(name, *arguments):
    """Run a kernel of the source whose last argument is a count of faults, and return that."""
    major, minor = torch.cuda.get_device_capability()
    kernel = raw_kernel.Kernel(raw_kernel.compile_kernel(SOURCE, f"sm_{major}{minor}"), name)
    faults = torch.zeros(1, dtype=torch.int32, device="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    kernel.launch(stream, 512, *arguments, ctypes.c_void_p(faults.data_ptr()))
    return faults.item()


def test_groups_that_nest_and_copies_share_the_leaders_value():
    torch.zeros(1, device="cuda")  # now there is a context
    assert run_kernel("share", ctypes.c_uint64(ROUNDS)) == 0


def exchange(side, value):
    out = torch.full((10_000,), value + side.number, dtype=torch.uint8, device="cuda")
    into = torch.zeros_like(out)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    on = side.peer.on(stream)
    on.send(out, lane=LANE, timeout=30)
    on.recv(into, lane=LANE, timeout=30)
    stream.synchronize()
    assert side.peer.async_error() is None
    assert bool((into == value + 1 - side.number).all())
    side.sync()


def use_lane_after(side, kernel):
    torch.cuda.set_device(side.number)
    side.peer.warmup(timeout=30)
    exchange(side, 1)
    lane = (ctypes.c_char * 128).from_buffer_copy(bytes(side.peer.device_handle(LANE)))
    if side.number == 0:
        assert run_kernel(kernel, lane) == 0
        if kernel == "keep":
            side.peer.reset_lane(LANE, timeout=30)
    side.sync()
    exchange(side, 11)


@two_gpus
@pytest.mark.parametrize("kernel", ["forget", "keep"])
def test_a_lane_that_a_kernel_did_not_close(kernel):
    run_pair(use_lane_after, use_lane_after, kernel, devices=GPUS)
