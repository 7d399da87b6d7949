# SPDX-License-Identifier: Apache-2.0
"""Jobs of a benchmark: one per row, done by both sides, and what becomes of their parts."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onehop.cli.gpus import HOST, NO_DEVICES, Pair
from onehop.cli.rows import Row, percentile
from onehop.cli.sides import Placement, Role, Side, SideError, run_sides

# Set: the last message of every row is spoilt on its way, so that the tests see it found. It is not
# one of onehop's variables, which are all documented.
CORRUPT = "OH_BENCH_CORRUPT"


def corrupts() -> bool:
    """Return whether rows are to be spoilt."""
    return bool(os.environ.get(CORRUPT))


_GIB = 2**30
# Rows of kernels use two lanes, which are compared: all are as wide as the first.
_WIDE = {"ONEHOP_STREAM_SLAB": str(32 * 2**20)}


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


def measure(jobs: Sequence[Job], placement: Placement) -> Iterator[Row | Note]:
    """Do all jobs and yield their rows; several per set-up.

    Raises:
        SideError: a side failed, died, or hung.

    """
    from onehop.cli.gpu_roles import line_role, nccl_role, put_flag_role
    from onehop.cli.roles import bench_role, floor_role

    jobs = [job.settled() for job in jobs]
    for api in dict.fromkeys(job.api for job in jobs if job.api not in ("floor", "nccl")):
        where = replace(placement, env={**_WIDE, **placement.env}) if api == "device" else placement
        yield from rows_of_pair(bench_role, [job for job in jobs if job.api == api], where)
    apart = replace(placement, within=False)
    of_floor = [job for job in jobs if job.api == "floor"]
    pairs = [job for job in of_floor if job.mode.startswith("put_flag")]
    lines = [job for job in of_floor if job.mode in ("stream", "graph", "kernel")]
    floors = [job for job in of_floor if job not in (*pairs, *lines)]
    if floors:
        for _, part in run_sides(floor_role, floors, replace(apart, count=1)):
            yield make_row(floors[part.job], part, None)
    for role, some in ((put_flag_role, pairs), (line_role, lines)):
        if some:
            yield from rows_of_pair(role, some, apart)
    nccl = [job for job in jobs if job.api == "nccl"]
    if nccl:
        try:
            yield from rows_of_pair(nccl_role, nccl, apart)
        except SideError as failure:
            yield Note(f"not compared with NCCL: {failure}")


def rows_of_pair(role: Role, jobs: Sequence[Job], placement: Placement) -> Iterator[Row | Note]:
    """Do jobs whose rows have a part of either side; a side may say why it leaves them out."""
    pending: dict[tuple[int, str], Part] = {}
    for _, part in run_sides(role, jobs, placement):
        if isinstance(part, Note):
            yield part
            continue
        key = (part.job, part.mode)
        if key not in pending:
            pending[key] = part
            continue
        yield make_row(jobs[part.job], pending.pop(key), part)


def make_row(job: Job, part: Part, other: Part | None) -> Row:
    """Make a row of what one side or both sides found."""
    both = [part, other] if other else [part]
    first = max(both, key=lambda one: len(one.samples_us))
    p50 = percentile(first.samples_us, 0.5)
    paths = [one.path for one in (first, *both) if one.path != "none"]
    extras = {key: value for one in both for key, value in one.extras.items()}
    if job.op == "batch":
        extras |= {"blocks": job.blocks, "block_us": p50 / job.blocks}
    if job.op == "bandwidth" and not job.in_order:
        extras["window"] = job.window
    if job.threads:
        extras["group"] = "warp" if job.threads == 32 else str(job.threads)
    if job.devices != NO_DEVICES:
        extras["devices"] = ",".join(name.removeprefix("cuda:") or "host" for name in job.devices)
    return Row(
        op=job.op,
        api=job.api,
        mode=part.mode + ("_strided" if job.strided else "") + ("_both" if job.both else ""),
        memory=",".join(dict.fromkeys(job.memory)),
        buffers="shared" if job.shared else "private",
        path=paths[0] if paths else "none",
        size=job.size,
        iters=job.iterations,
        p50_us=p50,
        p99_us=percentile(first.samples_us, 0.99),
        GBps=_rate(job, first, p50),
        wrong=sum(one.wrong for one in both),
        **extras,
    )


def _rate(job: Job, part: Part, p50: float) -> float:
    if job.op == "setup" or not p50 or math.isnan(p50):
        return 0.0
    if job.op == "bandwidth" and part.seconds > 0:
        return part.moved / part.seconds / 1e9
    return job.size * job.blocks / p50 / 1e3


__all__ = [
    "CORRUPT",
    "Job",
    "Note",
    "Part",
    "Placement",
    "Side",
    "make_row",
    "measure",
    "rows_of_pair",
]
