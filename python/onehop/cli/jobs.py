# SPDX-License-Identifier: Apache-2.0
"""Jobs of a benchmark: one per row, done by both sides, and what either side says of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onehop import _bench
from onehop.cli.gpus import HOST, MEMORY, NO_DEVICES, Pair

# Set: the last message of every row is spoilt on its way, so that the tests see it found. It is not
# one of onehop's variables, which are all documented.
CORRUPT = "OH_BENCH_CORRUPT"

IN_STREAM = ("stream", "graph", "stream_put", "graph_put")
IN_KERNEL = ("kernel", "kernel_put")
LATENCY_MODES = ("stream", "graph", "kernel")
BANDWIDTH_MODES = ("stream", "stream_put", "graph_put", "kernel_put")
# Threads of a kernel's group: a warp, and blocks.
_GROUPS = (32, 128, 512)
# How NCCL does what is measured; of a kernel there is nothing.
_NCCL = {"stream": "stream", "stream_put": "stream", "graph": "graph", "graph_put": "graph"}
# Modes of floors, in the terms of the loops; the others have the name of a mode.
_LIKE = {
    "flag": "sendrecv",
    "memcpy": "sendrecv",
    "process_vm": "get",
    "put_flag": "sendrecv",
    "put_flag_event": "event",
}
# What a Spec has under the same name.
_SPEC = (
    "size", "iterations", "warmup", "window", "blocks", "threads",
    "strided", "shared", "corrupt", "both", "offset",
)  # fmt: skip
_GIB = 2**30


def corrupts() -> bool:
    """Return whether rows are to be spoilt."""
    return bool(os.environ.get(CORRUPT))


@dataclass(frozen=True)
class Job:
    """One row to be measured.

    Attributes:
        op: latency, bandwidth, batch or setup.
        api: c or python; of GPU memory python-region, python-array or python-torch; device: by a
            kernel of the benchmark; floor: without a library; nccl.
        mode: sendrecv, event, put, get or put_signal, stream, graph, stream_put or graph_put;
            kernel, kernel_single or kernel_put; of a floor: flag, process_vm or memcpy, and of GPU
            memory memcpy, put_flag or put_flag_event, stream, graph or kernel.
        size: bytes of a message or a block.
        iterations: timed operations; 0: chosen by the size.
        window: operations in flight, and of a set-up the links kept to see what they take.
        blocks: of a batch.
        threads: of a kernel's group; 0: no kernel of the benchmark.
        strided: the batch is described by strides, not by lists.
        shared: buffers are shared blocks.
        memory: kind of memory of either side.
        devices: device of either side's endpoint; empty: host memory.
        offset: of the messages in their allocation; not of host memory.
        both: both directions at once; figures are each way's.
        libraries: where NCCL may be.
        inline: what the endpoints ask for (ONEHOP_MAX_INLINE); None: the configuration's.

    """

    op: str
    api: str
    mode: str
    size: int
    iterations: int = 0
    window: int = 1
    blocks: int = 1
    threads: int = 0
    strided: bool = False
    shared: bool = False
    memory: Pair = HOST
    devices: Pair = NO_DEVICES
    offset: int = 0
    both: bool = False
    libraries: tuple[str, ...] = ()
    inline: int | None = None
    corrupt: bool = field(default_factory=corrupts)

    def settled(self) -> Job:
        """Return the job with its number of iterations."""
        if self.iterations > 0:
            return self
        most, least, volume = {
            "latency": (10000, 20, _GIB),
            "bandwidth": (20000, 32, 4 * _GIB),
            "batch": (1000, 10, _GIB),
            "setup": (100, 100, 0),
        }[self.op]
        fitting = volume // max(1, self.size * self.blocks)
        if self.api.startswith("python"):
            most //= 2
        return replace(self, iterations=max(least, min(most, fitting)))

    @property
    def in_order(self) -> bool:
        """Whether operations follow each other on a stream, so that none are in flight at once."""
        return self.mode.startswith(("stream", "graph", "kernel"))

    @property
    def warmup(self) -> int:
        """Operations before the timed ones; they are checked all the same."""
        return max(2, self.iterations // 10)

    def spec(self, number: int) -> _bench.Spec:
        """Return the job as the loops of a side take it."""
        spec = _bench.Spec()
        spec.mode = _bench.Mode[_LIKE.get(self.mode, self.mode).upper()]
        for name in _SPEC:
            setattr(spec, name, getattr(self, name))
        spec.memory = MEMORY[self.memory[number]]
        spec.stamped = self.memory == HOST
        return spec


@dataclass(frozen=True)
class Part:
    """What one side has to say of one row; side 0 measures, side 1 only finds wrong bytes.

    Attributes:
        job: number of the job.
        mode: step, where a job has several rows.

    """

    job: int
    mode: str
    samples_us: list[float]
    seconds: float
    moved: float
    wrong: int
    path: str
    extras: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Note:
    """Why something could not be compared with; the run goes on."""

    text: str


def by_group(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs as they are measured: those of kernels by themselves, for each group."""
    return [one for job in jobs for one in _by_group(job)]


def _by_group(job: Job) -> Iterator[Job]:
    if job.mode in IN_STREAM:
        yield replace(job, window=1)
    elif job.mode == "kernel":
        # Side by side, for they are compared.
        for threads in _GROUPS:
            yield replace(job, api="device", threads=threads)
            yield replace(job, api="device", threads=threads, mode="kernel_single")
    elif job.mode == "kernel_put":
        yield replace(job, api="device", window=1)
    else:
        yield job


def nccl_modes(modes: Sequence[str]) -> list[str]:
    """Return how NCCL is measured beside these modes."""
    found = (_NCCL.get(mode, "sendrecv") for mode in modes if mode not in IN_KERNEL)
    return list(dict.fromkeys(found))


def line_floors(base: Job, modes: Sequence[str]) -> Iterator[Job]:
    """Yield the floors of messages by kernels."""
    for mode in modes:
        if mode in ("stream", "graph"):
            yield replace(base, mode=mode)
        elif mode == "kernel":
            for threads in _GROUPS:
                yield replace(base, mode=mode, threads=threads)
