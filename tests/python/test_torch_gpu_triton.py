# SPDX-License-Identifier: Apache-2.0
"""Signals and barriers of kernels in Triton on real GPUs; both sides share the only one."""

import importlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import DEADLINE, run_pair, run_ranks

torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(
    COUNT < 1 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs a GPU, PyTorch and Triton",
)
triton = pytest.importorskip("triton", minversion="3.6")
oh = importlib.import_module("onehop.triton")
kernels = importlib.import_module("triton_kernels")

EXAMPLE = Path(__file__).parents[2] / "examples" / "triton_all_to_all.py"
GPUS = ("cuda:0", f"cuda:{1 % COUNT}" if COUNT else "")
LANE = 5
SIZE, BLOCK = 100_003, 1024
PROGRAMS = triton.cdiv(SIZE, BLOCK)
# A GPU that is shared changes between the processes at each turn.
ROUNDS = 1000 if COUNT > 1 else 50
TIMEOUT, ABORTED = 3, 4  # oh_lane_fault


class Kernels:
    """The side's lane, where kernels say what was wrong, and memory that both sides have mapped."""

    def __init__(self, side, size=SIZE):
        torch.cuda.set_device(GPUS[side.number])
        side.peer.warmup(timeout=30)
        self.lane = oh.to_device(side.peer.device_handle(LANE))
        self.fault = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.wrong = torch.zeros(1, dtype=torch.int32, device="cuda")
        self.here = torch.zeros(size, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        self.region = side.endpoint.register(self.here)
        side.give(self.region.descriptor)
        self.remote = side.peer.attach(side.take(), timeout=30)
        self.there, _ = self.remote.device_memory()

    def check(self, what=None):
        assert (self.fault.item(), self.wrong.item()) == (0, 0), what

    def leave(self, side):
        side.sync()
        self.remote.detach()
        side.sync()
        self.region.deregister(timeout=30)


def blocks(seed):
    """Return the bytes that push() stores at a step."""
    at = torch.arange(SIZE, dtype=torch.int64, device="cuda")
    return ((at * 7 + at // 253 + seed * 31) % 251).to(torch.uint8)


def push_blocks(side):
    gpu = Kernels(side)
    step = torch.zeros(1, dtype=torch.int64, device="cuda")
    into = torch.zeros(SIZE, dtype=torch.uint8, device="cuda")

    def enqueue():
        if side.number == 0:
            kernels.push[(PROGRAMS,)](gpu.lane, gpu.there, SIZE, step, gpu.fault, block=BLOCK)
            kernels.take_back[(1,)](gpu.lane, gpu.fault)
            step.add_(1)
        else:
            into.fill_(0xEE)
            where = (gpu.lane, gpu.here, into, SIZE, PROGRAMS, gpu.fault)
            kernels.pull[(PROGRAMS,)](*where, block=BLOCK)
            kernels.take[(1,)](gpu.lane, PROGRAMS, gpu.fault)

    def check(number):
        gpu.check(number)
        assert side.number == 0 or torch.equal(into, blocks(number)), number

    for number in range(20):
        enqueue()
        check(number)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        enqueue()
    for number in range(20, 120):
        graph.replay()
        check(number)
    assert side.peer.async_error() is None
    gpu.leave(side)


def test_puts_with_signals_launch_by_launch_and_in_replays_of_a_graph():
    run_pair(push_blocks, push_blocks, devices=GPUS)


def exchange_in_one_launch(side):
    gpu = Kernels(side, 8 * BLOCK)
    here = gpu.here.view(torch.int64)
    for warps in (1, 4, 8):
        arguments = (gpu.lane, gpu.there, here, side.number, ROUNDS, gpu.wrong, gpu.fault)
        kernels.rounds[(1,)](*arguments, block=BLOCK, num_warps=warps)
        gpu.check(warps)
    kernels.steps[(1,)](gpu.lane, ROUNDS, gpu.wrong, gpu.fault)
    gpu.check("steps")
    gpu.leave(side)


def test_many_rounds_in_one_launch():
    run_pair(exchange_in_one_launch, exchange_in_one_launch, devices=GPUS)


# ---- Waits that end


def wait_in_vain(side):
    gpu = Kernels(side)
    into = torch.zeros_like(gpu.here)
    if side.number == 0:
        kernels.take_back[(1,)](gpu.lane, gpu.fault)
        assert gpu.fault.item() == TIMEOUT
        gpu.fault.zero_()
        where = (gpu.lane, gpu.here, into, SIZE, PROGRAMS, gpu.fault)
        kernels.pull[(PROGRAMS,)](*where, block=BLOCK)
        assert gpu.fault.item() == TIMEOUT
    side.sync()
    if side.number == 1:
        there, fault = (torch.full((128,), -1, dtype=torch.int64, device="cuda") for _ in range(2))
        kernels.signal_once[(1,)](gpu.lane, 4, 1, there, fault)
        assert fault[0].item() == 0
    side.sync()
    # Nothing was taken, and nothing has failed.
    if side.number == 0:
        gpu.fault.zero_()
        kernels.take_back[(1,)](gpu.lane, gpu.fault)
        gpu.check()
    assert side.peer.async_error() is None
    gpu.leave(side)


def test_a_wait_ends_at_its_timeout(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "1")
    run_pair(wait_in_vain, wait_in_vain, devices=GPUS)


def wait_until_closed(side):
    gpu = Kernels(side)
    if side.number == 0:
        kernels.take_back[(1,)](gpu.lane, gpu.fault)
        ended = torch.cuda.Event()
        ended.record()
    side.sync()
    if side.number == 1:
        side.peer.close()
        return
    end = time.monotonic() + DEADLINE
    while not ended.query():
        side.peer.async_error()
        assert time.monotonic() < end, "the kernel waits for ever"
        time.sleep(0.001)
    assert gpu.fault.item() == ABORTED


def test_a_wait_ends_when_the_peer_closes_the_link():
    run_pair(wait_until_closed, wait_until_closed, devices=GPUS)


# ---- All ranks of a communicator


def meet_often(comm, rounds):
    torch.cuda.set_device(comm.rank % COUNT)
    comm.warmup(timeout=30)
    here = torch.zeros(64, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    region = comm.endpoint.register(here)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(region.descriptor, rank) for rank in others]
    places, remotes = torch.zeros(comm.size, dtype=torch.int64), []
    for rank in others:
        descriptor = bytearray(4096)
        length = comm.recv(descriptor, rank, timeout=30).nbytes
        remotes.append(comm.peer(rank).attach(bytes(descriptor[:length]), timeout=30))
        places[rank], _ = remotes[-1].device_memory()
    for request in sent:
        request.wait(timeout=30)
    ranks = oh.to_device(comm.device_handle(LANE))
    places = places.cuda()
    fault, wrong = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    for warps in (1, 4, 8):
        arguments = (ranks, places, here, comm.rank, comm.size, rounds, wrong, fault)
        kernels.meet_often[(1,)](*arguments, num_warps=warps)
        assert (fault.item(), wrong.item()) == (0, 0), warps
        here.zero_()
        torch.cuda.synchronize()
        comm.barrier(timeout=30)


def test_a_barrier_of_ranks_orders_what_they_store():
    ranks = min(4, max(2, COUNT))
    devices = [f"cuda:{rank % COUNT}" for rank in range(ranks)]
    run_ranks(ranks, meet_often, ROUNDS, devices=devices)


def meet_alone(comm):
    torch.cuda.set_device(comm.rank % COUNT)
    comm.warmup(timeout=30)
    ranks = oh.to_device(comm.device_handle(LANE))
    if comm.rank == 0:
        there, fault = (torch.zeros(128, dtype=torch.int64, device="cuda") for _ in range(2))
        kernels.meet_once[(1,)](ranks, 8, 0, there, fault)
        assert fault[0].item() == TIMEOUT
    comm.barrier(timeout=30)


def test_a_barrier_without_a_rank_ends_at_its_timeout(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "10")  # the ranks have as long to meet
    run_ranks(2, meet_alone, devices=GPUS)


def test_the_example():
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all right") == max(2, COUNT), done.stdout
