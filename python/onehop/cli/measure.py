# SPDX-License-Identifier: Apache-2.0
"""Jobs of a benchmark: one per row, done by both sides, and the rows that their parts make."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onehop import _bench
from onehop.cli.gpus import HOST, MEMORY, NO_DEVICES, Pair
from onehop.cli.python_loops import PythonSide
from onehop.cli.rows import Row, percentile
from onehop.cli.sides import Placement, Role, Side, SideError, run_sides

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
# Rows of kernels use two lanes, which are compared: all are as wide as the first.
_WIDE = {"ONEHOP_STREAM_SLAB": str(32 * 2**20)}
# What onehop is compared with comes last.
_RANK = {"floor": 1, "nccl": 2}

Loops = _bench.Side | PythonSide


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
        op = {"bandwidth": _bench.Op.BANDWIDTH, "batch": _bench.Op.BATCH}.get(self.op)
        return _bench.Spec(
            op=op or _bench.Op.LATENCY,
            mode=_bench.Mode[_LIKE.get(self.mode, self.mode).upper()],
            memory=MEMORY[self.memory[number]],
            stamped=self.memory == HOST,
            **{name: getattr(self, name) for name in _SPEC},
        )


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


# ---- What the sides do


def link(side: Side, loops: Loops) -> None:
    """Connect side 0 to side 1."""
    if side.number == 1:
        side.tell(loops.address())
        loops.accept()
    else:
        loops.connect(side.hear())


def together(side: Side) -> None:
    """Return when the other side has come here, too."""
    side.tell("here")
    side.hear()


def unlink(side: Side, loops: Loops) -> None:
    """Close when the other side has finished, too, so nothing it waits for is cancelled."""
    together(side)
    loops.close()


def part_of(number: int, mode: str, found: _bench.Outcome, **extras: object) -> Part:
    """Return what a side has to say of a row."""
    return Part(
        number, mode, found.samples_us, found.seconds, found.bytes, found.wrong, found.path, extras
    )


def bench_role(side: Side, jobs: Sequence[Job]) -> None:
    """Do all jobs over one link, or over one for each inline limit, and report each part."""
    links: dict[int | None, Loops] = {}
    for job in jobs:
        if job.inline not in links:
            links[job.inline] = _loops(side, job)
    for loops in links.values():
        if jobs[0].api == "device" and _left_out(side, jobs, loops):
            return
        link(side, loops)
    for number, job in enumerate(jobs):
        loops = links[job.inline]
        if job.op == "setup":
            _setup(side, loops, number, job)
            continue
        found = loops.run(job.spec(side.number))
        own: dict[str, object] = {}
        if found.post_us:
            own["post_us"] = percentile(found.post_us, 0.5)
        if job.inline is not None and isinstance(loops, _bench.Side):
            own |= {"asked_inline": job.inline, "max_inline": loops.max_inline}
        side.report(part_of(number, job.mode, found, **own))
    for loops in links.values():
        unlink(side, loops)


def _loops(side: Side, job: Job) -> Loops:
    device = job.devices[side.number]
    if job.api.startswith("python"):
        return PythonSide(side.number, device, job.api)
    return _bench.Side(side.number, device, job.inline)


def _left_out(side: Side, jobs: Sequence[Job], loops: Any) -> bool:  # noqa: ANN401
    """Say why jobs are left out, if there is a reason; it is the same at both sides."""
    why_not = loops.why_no_kernels()
    if why_not and side.number == 0:
        modes = ", ".join(dict.fromkeys(job.mode for job in jobs))
        side.report(Note(f"no rows of {jobs[0].api} {modes}: {why_not}"))
    return bool(why_not)


def _setup(side: Side, loops: Loops, number: int, job: Job) -> None:
    assert isinstance(loops, _bench.Side)
    found = loops.setup(job.spec(side.number))
    memory: dict[str, object] = {}
    created: dict[str, object] = {}
    if side.number == 0:
        names = ("rss_per_peer", "pss_per_peer", "device_per_peer")
        memory = {name: round(getattr(found, name)) for name in names}
        created = {"first_us": loops.created_us}
    side.report(part_of(number, "endpoint", found.endpoint, **created))
    side.report(part_of(number, "connect", found.connect, **memory))
    side.report(part_of(number, "first", found.first))
    side.report(part_of(number, "further", found.further))


def _join(side: Side, yardstick: _bench.Yardstick) -> None:
    side.tell(yardstick.place())
    yardstick.join(side.hear())


def floor_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure what the machine can do without any library."""
    yardstick = _bench.Yardstick(side.number, jobs[0].devices[side.number])
    if jobs[0].in_order and _left_out(side, jobs, yardstick):
        return
    _join(side, yardstick)
    for number, job in enumerate(jobs):
        found = yardstick.floor(job.spec(side.number), job.mode)
        side.report(part_of(number, job.mode, found))
    # The other side may still use our memory.
    together(side)


def nccl_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure NCCL's send and receive."""
    yardstick = _bench.Yardstick(side.number, jobs[0].devices[side.number])
    _join(side, yardstick)
    nccl = _bench.Nccl(yardstick, list(jobs[0].libraries))
    extras: dict[str, object] = {}
    if side.number == 0:
        extras = {
            "nccl": nccl.version,
            "init_ms": round(nccl.init_ms, 1),
            "first_ms": round(nccl.first_ms, 1),
            "device_per_peer": round(nccl.device_bytes),
        }
    for number, job in enumerate(jobs):
        side.report(part_of(number, job.mode, nccl.run(job.spec(side.number)), **extras))
        extras = {}
    together(side)


# ---- Rows


def measure(jobs: Sequence[Job], placement: Placement) -> Iterator[Row | Note]:
    """Do all jobs and yield their rows; several per set-up.

    Raises:
        SideError: a side failed, died, or hung.

    """
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_group(job), []).append(job.settled())
    for (api, kind), some in sorted(groups.items(), key=lambda group: _RANK.get(group[0][0], 0)):
        if api == "floor":
            yield from rows_of_pair(floor_role, some, replace(placement, within=kind == "within"))
        elif api == "nccl":
            try:
                yield from rows_of_pair(nccl_role, some, replace(placement, within=False))
            except SideError as failure:
                yield Note(f"not compared with NCCL: {failure}")
        elif api == "device":
            wide = replace(placement, env={**_WIDE, **placement.env})
            yield from rows_of_pair(bench_role, some, wide)
        else:
            yield from rows_of_pair(bench_role, some, placement)


def _group(job: Job) -> tuple[str, str]:
    """Return what jobs have in common that are done by the same sides."""
    if job.api != "floor":
        return job.api, ""
    if job.in_order:
        return job.api, "kernels"
    return job.api, "within" if job.mode == "memcpy" else "apart"


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
        yield _row(jobs[part.job], (pending.pop(key), part))


def _row(job: Job, both: tuple[Part, Part]) -> Row:
    """Make a row of what both sides found."""
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
        mode=first.mode + ("_strided" if job.strided else "") + ("_both" if job.both else ""),
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
