# SPDX-License-Identifier: Apache-2.0
"""Gets and waits by all blocks of a grid, and relaxed signals; both sides share the only GPU."""

import importlib
import os

import pytest
from processes import run_pair

torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(
    COUNT < 1 or "ONEHOP_CUDA_LIBRARY" in os.environ, reason="needs a GPU and PyTorch"
)
device_tests = importlib.import_module("test_torch_gpu_device")

GPUS = ("cuda:0", f"cuda:{1 % COUNT}" if COUNT else "")
OK, TIMEOUT = 0, 3  # oh_lane_fault


@pytest.fixture(scope="module")
def image():
    return device_tests.compiled()


def begin(side, image):
    torch.cuda.set_device(GPUS[side.number])
    kernels = device_tests.Kernels(image)
    side.peer.warmup(timeout=30)
    return kernels, device_tests.handle_of(side.peer)


def get_rounds(side, image, rounds):
    kernels, lane = begin(side, image)
    shapes = ((1, 100), (7, 100_001), (16, 2_000_000))  # blocks, bytes
    memory, there, leave = device_tests.map_memory(side, shapes[-1][1])
    into = torch.empty_like(memory)
    for blocks, size in shapes:
        if side.number == 0:
            kernels.launch("write_rounds", (blocks, 256), lane, memory, size, rounds)
        else:
            kernels.launch("get_rounds", (2 * blocks - 1, 128), lane, there, into, size, rounds)
        kernels.check((blocks, size))
        side.sync()
    leave()


def test_a_grid_gets_behind_one_wait_a_round(image):
    run_pair(get_rounds, get_rounds, image, 50 if COUNT > 1 else 10, devices=GPUS)


# All replays of a graph have the same launch number, by which blocks know each other.
def get_in_replays(side, image):
    kernels, lane = begin(side, image)
    size, rounds, blocks = 100_001, 3, 5
    memory, there, leave = device_tests.map_memory(side, size)
    into = torch.empty_like(memory)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if side.number == 0:
            kernels.launch("write_rounds", (blocks, 128), lane, memory, size, rounds)
        else:
            kernels.launch("get_rounds", (blocks, 128), lane, there, into, size, rounds)
    for replay in range(5):
        graph.replay()
        kernels.check(replay)
    leave()


def test_gets_by_a_grid_in_replays_of_a_graph(image):
    run_pair(get_in_replays, get_in_replays, image, devices=GPUS)


def wait_in_vain(side, image):
    kernels, lane = begin(side, image)
    blocks = 6

    def wait_for(count):
        faults = torch.full((blocks,), -1, dtype=torch.int64, device="cuda")
        kernels.launch("wait_by_grid", (blocks, 64), lane, count, faults)
        return faults.tolist()

    if side.number == 0:
        assert wait_for(2) == [TIMEOUT] * blocks
    side.sync()
    if side.number == 1:
        stream = torch.cuda.Stream()
        side.peer.on(stream).signal(4, 3)
        stream.synchronize()
    side.sync()
    # Nothing was taken before, and the slot is as before.
    if side.number == 0:
        assert wait_for(2) == [OK] * blocks
        assert wait_for(1) == [OK] * blocks
        assert wait_for(1) == [TIMEOUT] * blocks
    side.sync()
    assert side.peer.async_error() is None


def test_a_wait_by_a_grid_ends_at_its_timeout_for_all_blocks(image, monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "1")
    run_pair(wait_in_vain, wait_in_vain, image, devices=GPUS)


def signal_in_no_order(side, image):
    kernels, lane = begin(side, image)
    size = 300_000
    memory, there, leave = device_tests.map_memory(side, size)
    for value in (3, 4):
        if side.number == 0:
            out = torch.full((size,), value, dtype=torch.uint8, device="cuda")
            kernels.launch("put_and_signal_twice", (1, 256), lane, there, out, size)
        else:
            kernels.launch("wait_for_either", (2, 256), lane, memory, value, size)
        kernels.check(value)
        side.sync()
    leave()


def test_relaxed_signals_behind_a_flush_are_seen_behind_its_puts(image):
    run_pair(signal_in_no_order, signal_in_no_order, image, devices=GPUS)
