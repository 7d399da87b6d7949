# SPDX-License-Identifier: Apache-2.0
"""Exchanges between ranks on streams, on the fake driver: a process each, on two GPUs."""

import struct

import numpy as np
import onehop
import pytest
from fake_gpu import CudaArray, Driver
from onehop import patterns
from processes import run_ranks

pytestmark = pytest.mark.usefixtures("fake_gpus")
LARGE = 1_000_003
CAPACITY = 300_000
PARTS = (0, 17, 3000, 70_001, 300_000)  # bytes


def pattern(size, *seed):
    return np.random.default_rng(seed).bytes(size)


def part_of(source, target, step):
    """Bytes that one rank sends to another."""
    return PARTS[(2 * source + 3 * target + step) % len(PARTS)]


class Gpu:
    """The rank's device and a stream of it."""

    def __init__(self, comm):
        self.comm = comm
        self.driver = Driver(comm.rank % 2)
        self.stream = self.driver.stream()

    def array(self, content):
        return CudaArray(self.driver, content)

    def finish(self):
        self.driver.synchronize(self.stream)
        for rank in range(self.comm.size):
            assert self.comm.peer(rank).async_error() is None, rank


def run_on_gpus(size, function):
    run_ranks(size, function, devices=[rank % 2 for rank in range(size)])


def pass_on(comm):
    gpu = Gpu(comm)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for size in (0, 100, LARGE):
        into = gpu.array(bytes(size))
        out = gpu.array(pattern(size, comm.rank))
        patterns.sendrecv(comm, gpu.stream, out, into, after, source=before, lane=3, timeout=30)
        gpu.finish()
        assert into.bytes() == pattern(size, before)
    if comm.size == 2:
        patterns.sendrecv(comm, gpu.stream, out, into, after)
        gpu.finish()


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_pass_something_on(size):
    run_on_gpus(size, pass_on)


def lead_or_follow(comm):
    gpu = Gpu(comm)
    others = range(1, comm.size)
    if comm.rank == 0:
        intos = {rank: gpu.array(bytes(LARGE + rank)) for rank in others}
        outs = {rank: gpu.array(pattern(LARGE + rank, rank)) for rank in others}
        patterns.send_many(comm, gpu.stream, outs, lane=1)
        patterns.recv_many(comm, gpu.stream, intos, lane=1)
        gpu.finish()
        for rank, into in intos.items():
            assert into.bytes() == pattern(LARGE + rank, rank), rank
    else:
        into = gpu.array(bytes(LARGE + comm.rank))
        patterns.recv_many(comm, gpu.stream, {0: into}, lane=1)
        patterns.send_many(comm, gpu.stream, {0: into}, lane=1)
        gpu.finish()


def test_one_to_many_and_back():
    run_on_gpus(3, lead_or_follow)


def exchange_parts(comm):
    gpu = Gpu(comm)
    ranks = range(comm.size)
    for step in range(3):
        out_counts = [part_of(comm.rank, rank, step) for rank in ranks]
        into_counts = [part_of(rank, comm.rank, step) for rank in ranks]
        sent = b"".join(pattern(count, comm.rank, rank) for rank, count in enumerate(out_counts))
        out, into = gpu.array(sent), gpu.array(bytes(sum(into_counts)))
        patterns.all_to_all_v(
            comm,
            gpu.stream,
            comm.endpoint.register(out),
            [sum(out_counts[:rank]) for rank in ranks],
            out_counts,
            comm.endpoint.register(into),
            [sum(into_counts[:rank]) for rank in ranks],
            into_counts,
        )
        gpu.finish()
        came = b"".join(pattern(count, rank, comm.rank) for rank, count in enumerate(into_counts))
        assert into.bytes() == came, step
    region = comm.endpoint.register(gpu.array(bytes(10)))
    with pytest.raises(onehop.InvalidArgument, match="1 out_counts"):
        patterns.all_to_all_v(comm, gpu.stream, region, [0, 0], [1], region, [0, 0], [1, 1])


def test_parts_from_all_to_all():
    run_on_gpus(2, exchange_parts)


def dispatch_rows(comm):
    gpu = Gpu(comm)
    ranks = range(comm.size)
    comm.warmup(ranks, timeout=30)
    out = [gpu.array(bytes(CAPACITY)) for _ in ranks]
    into = [gpu.array(bytes(CAPACITY)) for _ in ranks]
    out_bytes = [gpu.array(bytes(8)) for _ in ranks]
    into_bytes = [gpu.array(bytes(8)) for _ in ranks]

    def exchange():
        patterns.dispatch(comm, gpu.stream, out, out_bytes, into, into_bytes, lane=2)

    with gpu.driver.capture(gpu.stream) as graphs:
        exchange()
    for step in range(4):
        for rank in ranks:
            gpu.driver.write(out[rank].address, pattern(CAPACITY, comm.rank, rank, step))
            size = struct.pack("<q", part_of(comm.rank, rank, step))
            gpu.driver.write(out_bytes[rank].address, size)
            gpu.driver.write(into[rank].address, bytes(CAPACITY))
        if step == 0:
            exchange()
        else:
            gpu.driver.launch(graphs[0], gpu.stream)
        gpu.finish()
        for rank in ranks:
            size = part_of(rank, comm.rank, step)
            assert struct.unpack("<q", into_bytes[rank].bytes()) == (size,), (step, rank)
            came = pattern(CAPACITY, rank, comm.rank, step)[:size]
            assert into[rank].bytes() == came + bytes(CAPACITY - size), (step, rank)


def test_rows_of_which_only_the_gpu_knows_how_many():
    run_on_gpus(3, dispatch_rows)
