# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on GPU memory of a peer, on real GPUs: both sides at once, none is lost."""

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
# Two processes on one GPU, and on two.
GPUS = [
    pytest.param(("cuda:0", "cuda:0"), id="one"),
    pytest.param(("cuda:0", "cuda:1"), id="two", marks=two_gpus),
]
THREADS = 256
ROUNDS = 200
LOCKED = 50
CALLS = 50
OWNER = 0
# Words of the owner's memory.
TICKETS, SWAPS, LOCK, GUARDED, SPARE, WORDS = range(6)

SOURCE = r"""
#include "onehop/device.cuh"

using Count = unsigned long long;

// Each thread takes tickets, and tells which.
extern "C" __global__ void take_tickets(oh_remote_memory there, Count rounds, uint64_t* taken,
                                        int* fault) {
  for (Count i = 0; i < rounds; ++i) {
    const Count own = threadIdx.x * rounds + i;
    const oh_lane_fault found = onehop::fetch_add(there, 0, 1, &taken[own]);
    if (found != OH_LANE_OK) atomicMax(fault, found);
  }
}

// Adds by compare_swap. A side with CUDA's own operations adds by them.
extern "C" __global__ void add_by_swaps(oh_remote_memory there, Count rounds, int* fault) {
  for (Count i = 0; i < rounds; ++i) {
    uint64_t seen = 0;
    uint64_t expected;
    do {
      expected = seen;
      const oh_lane_fault found = onehop::compare_swap(there, 8, expected, expected + 1, &seen);
      if (found != OH_LANE_OK) {
        atomicMax(fault, found);
        return;
      }
    } while (seen != expected);
  }
}
extern "C" __global__ void add_by_cuda(oh_remote_memory there, Count rounds, int* fault) {
  Count* word = reinterpret_cast<Count*>(there.base + 8);
  for (Count i = 0; i < rounds; ++i) atomicAdd_system(word, 1ull);
}

// One thread adds with plain accesses, while it has the lock.
extern "C" __global__ void add_under_lock(oh_remote_memory there, Count rounds, int* fault) {
  if (threadIdx.x != 0) return;
  for (Count i = 0; i < rounds; ++i) {
    uint64_t held = 1;
    for (unsigned polls = 0; held != 0; ++polls) {
      onehop::compare_swap(there, 16, 0, 1, &held);
      if (polls == 50'000'000) {
        atomicMax(fault, 100);
        return;
      }
    }
    uint64_t* guarded = reinterpret_cast<uint64_t*>(there.base + 24);
    *guarded = *guarded + 1;
    onehop::compare_swap(there, 16, 1, 0, &held);
    if (held != 1) atomicMax(fault, 101);
  }
}

extern "C" __global__ void misuse(oh_remote_memory there, Count, int* fault) {
  if (threadIdx.x != 0) return;
  uint64_t before = 77;
  const Count size = there.size;
  if (onehop::fetch_add(there, size, 1, &before) != OH_LANE_RANGE) *fault = 110;
  if (onehop::compare_swap(there, ~Count{0} - 7, 0, 1, &before) != OH_LANE_RANGE) *fault = 111;
  if (onehop::fetch_add(there, size - 4, 1, &before) != OH_LANE_RANGE) *fault = 112;
  if (onehop::fetch_add(there, 4, 1, &before) != OH_LANE_MISALIGNED) *fault = 113;
  if (before != 77) *fault = 114;
}
"""


class Words:
    """The owner's words as kernels of both sides reach them."""

    def __init__(self, side, devices):
        torch.cuda.set_device(devices[side.number])
        side.peer.warmup(timeout=30)
        self.side = side
        major, minor = torch.cuda.get_device_capability()
        self.image = raw_kernel.compile_kernel(SOURCE, f"sm_{major}{minor}")
        self.fault = torch.zeros(1, dtype=torch.int32, device="cuda")
        if side.number == OWNER:
            self.here = torch.zeros(WORDS, dtype=torch.int64, device="cuda")
            torch.cuda.synchronize()
            self.region = side.endpoint.register(self.here)
            side.give(self.region.descriptor)
            place = (self.here.data_ptr(), 8 * WORDS)
        else:
            self.remote = side.peer.attach(side.take(), timeout=30)
            place = self.remote.device_memory()
        self.memory = (ctypes.c_uint64 * 2)(*place)
        side.sync()

    def launch(self, name, rounds, *arguments):
        kernel = raw_kernel.Kernel(self.image, name)
        given = [ctypes.c_void_p(one.data_ptr()) for one in (*arguments, self.fault)]
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(stream, THREADS, self.memory, ctypes.c_uint64(rounds), *given)
        torch.cuda.synchronize()
        assert self.fault.item() == 0, name
        self.side.sync()

    def leave(self):
        self.side.sync()
        if self.side.number != OWNER:
            self.remote.detach()
        self.side.sync()
        if self.side.number == OWNER:
            self.region.deregister(timeout=30)


def run_kernels(side, devices):
    words = Words(side, devices)
    taken = torch.full((THREADS * ROUNDS,), -1, dtype=torch.int64, device="cuda")
    words.launch("take_tickets", ROUNDS, taken)
    words.launch("add_by_swaps" if side.number else "add_by_cuda", ROUNDS)
    words.launch("add_under_lock", LOCKED)
    words.launch("misuse", 0)
    if side.number == OWNER:
        both = 2 * THREADS * ROUNDS
        all_taken = torch.cat((taken.cpu(), torch.tensor(side.take()))).sort().values
        assert torch.equal(all_taken, torch.arange(both)), "a ticket was given twice"
        assert words.here.tolist() == [both, both, 0, 2 * LOCKED, 0]
    else:
        side.give(taken.tolist())
    words.leave()


@pytest.mark.parametrize("devices", GPUS)
def test_kernels_of_both_sides_lose_nothing(devices):
    run_pair(run_kernels, run_kernels, devices, devices=devices)


# ---- Streams, graphs and the host beside kernels of the owner


def add_from_here(side, remote):
    word = remote[8 * SWAPS : 8 * SWAPS + 8]
    before = torch.full((CALLS + 1,), -1, dtype=torch.int64, device="cuda")
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    on = side.peer.on(stream)
    for i in range(CALLS):
        on.fetch_add(word, 1, before=before[i : i + 1])
    stream.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        on.fetch_add(word, 1, before=before[CALLS:])
    with torch.cuda.stream(stream):
        for _ in range(CALLS):
            graph.replay()
    told = [side.peer.fetch_add(word, 1, timeout=30) for _ in range(CALLS)]
    stream.synchronize()
    streamed = before.tolist()
    assert streamed == sorted(set(streamed))
    assert streamed[0] >= 0
    assert told == sorted(set(told))
    assert side.peer.async_error() is None


def run_calls(side, devices):
    words = Words(side, devices)
    if side.number == OWNER:
        words.launch("add_by_cuda", ROUNDS)
        side.sync()
        assert words.here.tolist() == [0, THREADS * ROUNDS + 3 * CALLS, 0, 0, 8]
    else:
        add_from_here(side, words.remote)
        lock = words.remote[8 * SPARE : 8 * SPARE + 8]
        assert side.peer.compare_swap(lock, 1, 7, timeout=30) == 0
        assert side.peer.compare_swap(lock, 0, 7, timeout=30) == 0
        side.peer.on(0).compare_swap(lock, 7, 8)
        torch.cuda.synchronize()
        side.sync()
        side.sync()
    words.leave()


@pytest.mark.parametrize("devices", GPUS)
def test_streams_graphs_and_the_host_lose_nothing(devices):
    run_pair(run_calls, run_calls, devices, devices=devices)
