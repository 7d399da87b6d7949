# SPDX-License-Identifier: Apache-2.0
"""Jobs of a benchmark, one per row and run by all sides, and the rows made of their results."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import onehop
from onehop import _bench
from onehop.cli.between import Host, Play, run_between
from onehop.cli.gpus import HOST, MEMORY, NO_DEVICES, shown
from onehop.cli.python_loops import PythonSide
from onehop.cli.rows import Row, percentile
from onehop.cli.sides import (
    Note,
    Placement,
    Role,
    Side,
    SideError,
    current_cpu,
    run_sides,
    shared_cpu,
)

# If set, the last message of every row is corrupted in transit, so that tests see the check fail.
# Not one of onehop's variables, which are all documented.
CORRUPT = "OH_BENCH_CORRUPT"

BATCHES_IN_STREAM = ("put_stream", "get_stream", "put_graph", "get_graph")
IN_STREAM = ("stream", "graph", "stream_put", "graph_put", *BATCHES_IN_STREAM)
IN_KERNEL = ("kernel", "kernel_put")
LATENCY_MODES = ("stream", "graph", "kernel")
BANDWIDTH_MODES = ("stream", "stream_put", "graph_put", "kernel", "kernel_put")
PATTERNS = tuple(
    name + how
    for name in ("sendrecv", "send_many", "recv_many", "all_to_all_v", "dispatch")
    for how in ("", "_graph")
)
# Threads of a kernel's group: a warp, blocks, and a cluster of four blocks.
GROUPS = {"warp": 32, "128": 128, "512": 512, "cluster": 2048}
_GROUP_NAMES = {threads: name for name, threads in GROUPS.items()}
# NCCL's counterpart of each mode; modes of kernels have none.
_NCCL = {"stream": "stream", "stream_put": "stream", "graph": "graph", "graph_put": "graph"}
# The loops' names for modes, where they differ.
_LIKE = {
    "graph": "stream",
    "graph_put": "stream_put",
    "put_graph": "put_stream",
    "get_graph": "get_stream",
    "flag": "sendrecv",
    "memcpy": "sendrecv",
    "process_vm": "get",
    "put_flag": "sendrecv",
    "put_flag_event": "event",
}
# The fields that a Spec shares.
_SPEC = (
    "size", "iterations", "warmup", "window", "blocks", "threads",
    "strided", "shared", "graph", "corrupt", "both", "offset",
)  # fmt: skip
_GIB = 2**30
# The default bounds of operations per row, and the bytes that they move.
_VOLUMES = {
    "latency": (10000, 20, _GIB),
    "bandwidth": (20000, 32, 4 * _GIB),
    "batch": (1000, 10, _GIB),
    "patterns": (2000, 50, 4 * _GIB),
    "setup": (100, 100, 0),
}
# Rows about kernels use two lanes, which are compared: every lane is as wide as the first.
_WIDE = {"ONEHOP_STREAM_SLAB": str(32 * 2**20)}
# NCCL with messages in memory from ncclMemAlloc, registered with its communicator.
REGISTERED = "nccl-registered"
NCCLS = ("nccl", REGISTERED)
# Comparisons follow onehop's rows.
_RANK = {"floor": 1, "nccl": 2, REGISTERED: 3}

Loops = _bench.Side | PythonSide
# Besides rows: reasons for omissions, and the identity of another host.
Found = Row | Note | Host


def corrupts() -> bool:
    """Return whether rows are to be corrupted."""
    return bool(os.environ.get(CORRUPT))


@dataclass(frozen=True)
class Job:
    """One row to be measured."""

    op: str  # latency, bandwidth, batch, patterns or setup
    # c or python; of GPU memory python-region, python-array or python-torch; device: a kernel of
    # the benchmark; floor: without a library; nccl or nccl-registered.
    api: str
    # sendrecv, event, put, get or put_signal, one of IN_STREAM; kernel, kernel_single or
    # kernel_put; for floors: flag, process_vm or memcpy, and for GPU memory memcpy, put_flag or
    # put_flag_event, stream, graph or kernel; for patterns see PATTERNS.
    mode: str
    size: int  # bytes of a message, a block, or the largest part of a pattern
    iterations: int = 0  # timed operations; 0: chosen by the size
    window: int = 1  # operations in flight; for set-up: links kept open to measure their memory
    blocks: int = 1  # per batch
    threads: int = 0  # per group of a kernel; 0: no kernel of the benchmark
    strided: bool = False  # the batch is described by strides, not by lists
    shared: bool = False  # buffers are shared blocks
    memory: tuple[str, ...] = HOST  # kind, of each side
    devices: tuple[str, ...] = NO_DEVICES  # of each side's endpoint; empty: host memory
    offset: int = 0  # offset of the messages in their allocation; not for host memory
    both: bool = False  # both directions at once; figures are per direction
    libraries: tuple[str, ...] = ()  # candidates for NCCL
    # Inline limit that the endpoints request (ONEHOP_MAX_INLINE); None: the configured one.
    inline: int | None = None
    corrupt: bool = field(default_factory=corrupts)

    def settled(self) -> Job:
        """Return the job with its number of iterations."""
        if self.iterations > 0:
            return self
        most, least, volume = _VOLUMES[self.op]
        if self.api.startswith("python"):
            most //= 2
        fitting = volume // max(1, self.moved)
        return replace(self, iterations=max(least, min(most, fitting)))

    @property
    def moved(self) -> int:
        """Bytes of an operation; of a pattern those of the rank that moves most, in or out."""
        if self.op == "patterns":
            return _bench.busiest(self.spec(0), len(self.devices))
        return self.size * self.blocks

    @property
    def in_order(self) -> bool:
        """Whether operations are ordered by a stream, so that only one is in flight at a time."""
        return self.mode.startswith(("stream", "graph", "kernel")) or self.mode in IN_STREAM

    @property
    def graph(self) -> bool:
        """Whether they are replayed as a graph."""
        return "graph" in self.mode

    @property
    def warmup(self) -> int:
        """Untimed operations before the timed ones; their bytes are checked, too."""
        return max(2, self.iterations // 10)

    def spec(self, number: int) -> _bench.Spec:
        """Return the job in the form that a side's loops take."""
        mode = _LIKE.get(self.mode) or self.mode.removesuffix("_graph")
        return _bench.Spec(
            op=_bench.Op["LATENCY" if self.op == "setup" else self.op.upper()],
            mode=_bench.Mode[mode.upper()],
            memory=MEMORY[self.memory[number]],
            stamped=self.memory == HOST,
            **{name: getattr(self, name) for name in _SPEC},
        )


@dataclass(frozen=True)
class Part:
    """One side's results for one row; sides that do not measure report only wrong bytes."""

    job: int  # number of the job
    mode: str  # step, if a job has several rows
    samples_us: list[float]
    seconds: float
    moved: float
    wrong: int
    path: str
    cpu: int  # CPU of the side at the end
    extras: dict[str, Any] = field(default_factory=dict)


def by_group(jobs: Sequence[Job], groups: Sequence[str] = ()) -> list[Job]:
    """Return the jobs in the order of measurement: kernels separately, for each group."""
    return [one for job in jobs for one in _by_group(job, groups)]


def _by_group(job: Job, groups: Sequence[str]) -> Iterator[Job]:
    if job.mode in IN_STREAM:
        yield replace(job, window=1)
    elif job.mode == "kernel":
        # Adjacent, since they are compared.
        for group in groups:
            of_group = replace(job, api="device", window=1, threads=GROUPS[group])
            yield of_group
            if job.op == "bandwidth" and group != "warp":
                yield replace(of_group, mode="kernel_single")
    elif job.mode == "kernel_put":
        yield replace(job, api="device", window=1)
    else:
        yield job


def nccl_modes(modes: Sequence[str]) -> list[str]:
    """Return the NCCL modes that correspond to these modes."""
    found = (_NCCL.get(mode, "sendrecv") for mode in modes if mode not in IN_KERNEL)
    return list(dict.fromkeys(found))


def line_floors(base: Job, modes: Sequence[str], groups: Sequence[str]) -> Iterator[Job]:
    """Yield the floors of messages by kernels; a cluster has none."""
    for mode in modes:
        if mode in ("stream", "graph"):
            yield replace(base, mode=mode)
        elif mode == "kernel":
            for group in groups:
                if group != "cluster":
                    yield replace(base, mode=mode, threads=GROUPS[group])


# ---- Roles of the sides


def link(side: Side, loops: Loops) -> None:
    """Connect side 0 to side 1."""
    if side.number == 1:
        side.tell(loops.address())
        loops.accept()
    else:
        loops.connect(side.hear())


def together(side: Side) -> None:
    """Return when the other side has called it, too."""
    side.tell("here")
    side.hear()


def unlink(side: Side, loops: Loops) -> None:
    """Close once the other side has finished, too, so that its operations are not cancelled."""
    together(side)
    loops.close()


def _report(side: Side, number: int, mode: str, found: _bench.Outcome, **extras: object) -> None:
    side.report(
        Part(
            number,
            mode,
            found.samples_us,
            found.seconds,
            found.bytes,
            found.wrong,
            found.path,
            current_cpu(),
            extras,
        )
    )


def bench_role(side: Side, jobs: Sequence[Job]) -> None:
    """Run all jobs over one link, or one for each API and inline limit, and report each part."""
    links: dict[tuple[str, int | None], Loops] = {}
    for job in jobs:
        if (job.api, job.inline) not in links:
            links[job.api, job.inline] = _loops(side, job)
    left_out: set[Job] = set()
    for loops in links.values():
        if jobs[0].api == "device" and len(left_out := _left_out(side, jobs, loops)) == len(jobs):
            return
        link(side, loops)
    for number, job in enumerate(jobs):
        if job in left_out:
            continue
        loops = links[job.api, job.inline]
        if job.op == "setup":
            _setup(side, loops, number, job)
            continue
        found = loops.run(job.spec(side.number))
        own: dict[str, object] = {}
        if found.post_us:
            own["post_us"] = percentile(found.post_us, 0.5)
        if job.inline is not None and isinstance(loops, _bench.Side):
            own |= {"asked_inline": job.inline, "max_inline": loops.max_inline}
        _report(side, number, job.mode, found, **own)
    for loops in links.values():
        unlink(side, loops)


BENCH = Play("bench", bench_role, list[Job], Part)


def _loops(side: Side, job: Job) -> Loops:
    device = job.devices[side.number]
    if job.api.startswith("python"):
        return PythonSide(side.number, device, job.api)
    return _bench.Side(side.number, device, job.inline)


def _left_out(side: Side, jobs: Sequence[Job], loops: Any) -> set[Job]:  # noqa: ANN401
    """Return the jobs whose kernels cannot run on one of the sides, and report why."""
    ours = {name: loops.why_no_kernel(name) for name in ("bench_put", "bench_lane_cluster")}
    side.tell(ours)
    theirs = side.hear()
    why_not = {name: ours[name] or theirs[name] for name in ours}
    found: defaultdict[str, list[Job]] = defaultdict(list)
    for job in jobs:
        if why := why_not["bench_put"]:
            found[f": {why}"].append(job)
        elif job.threads == GROUPS["cluster"] and (why := why_not["bench_lane_cluster"]):
            found[f" of a cluster: {why}"].append(job)
    for why, of_why in found.items():
        modes = ", ".join(dict.fromkeys(job.mode for job in of_why))
        if side.number == 0:
            side.report(Note(f"no rows of {jobs[0].api} {modes}{why}"))
    return {job for of_why in found.values() for job in of_why}


def _setup(side: Side, loops: Loops, number: int, job: Job) -> None:
    assert isinstance(loops, _bench.Side)
    found = loops.setup(job.spec(side.number))
    memory: dict[str, object] = {}
    created: dict[str, object] = {}
    if side.number == 0:
        names = ("rss_per_peer", "pss_per_peer", "device_per_peer")
        memory = {name: round(getattr(found, name)) for name in names}
        created = {"first_us": loops.created_us}
    _report(side, number, "endpoint", found.endpoint, **created)
    _report(side, number, "connect", found.connect, **memory)
    _report(side, number, "first", found.first)
    _report(side, number, "further", found.further)


def _nccl(side: _bench.Yardstick | _bench.PatternRank, job: Job) -> _bench.Nccl:
    return _bench.Nccl(side, list(job.libraries), job.api == REGISTERED)


def yardstick_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure the machine's limits without a library, or NCCL's send and receive."""
    yardstick = _bench.Yardstick(side.number, jobs[0].devices[side.number])
    of_nccl = jobs[0].api in NCCLS
    if not of_nccl and jobs[0].in_order and _left_out(side, jobs, yardstick):
        return
    side.tell(yardstick.place())
    yardstick.join(side.hear())
    extras: dict[str, object] = {}
    if of_nccl:
        nccl = _nccl(yardstick, jobs[0])
        if side.number == 0:
            extras = {
                "nccl": nccl.version,
                "init_ms": round(nccl.init_ms, 1),
                "first_ms": round(nccl.first_ms, 1),
                "device_per_peer": round(nccl.device_bytes),
            }
    for number, job in enumerate(jobs):
        spec = job.spec(side.number)
        found = nccl.run(spec) if of_nccl else yardstick.floor(spec, job.mode)
        _report(side, number, job.mode, found, **extras)
        extras = {}
    # The other side may still use this side's memory.
    together(side)


def pattern_role(unique_id: bytes, side: Side, jobs: Sequence[Job]) -> None:
    """Run one rank of all jobs, with onehop or NCCL."""
    devices = jobs[0].devices
    rank = _bench.PatternRank(side.number, len(devices), devices[side.number], unique_id)
    extras: dict[str, object] = {}
    run: Callable[[_bench.Spec], _bench.Outcome] = rank.run
    if jobs[0].api in NCCLS:
        nccl = _nccl(rank, jobs[0])
        extras, run = {"nccl": nccl.version}, nccl.run
    for number, job in enumerate(jobs):
        _report(side, number, job.mode, run(job.spec(side.number)), **extras)
    # No rank closes before all have connected.
    rank.sync()


# ---- Rows


def measure(jobs: Sequence[Job], placement: Placement) -> Iterator[Found]:
    """Run all jobs and yield their rows; several per set-up. Another host's identity comes first.

    Raises:
        SideError: a side failed, died, or hung.

    """
    if placement.connect:
        # Over one connection, whatever their API.
        settled = [job.settled() for job in jobs]
        yield from _rows(settled, run_between(BENCH, settled, placement), 2, apart=True)
        return
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_group(job), []).append(job.settled())
    for (api, kind), some in sorted(groups.items(), key=lambda group: _RANK.get(group[0][0], 0)):
        where = placement
        role: Role = yardstick_role if api in _RANK else bench_role
        if some[0].op == "patterns":
            # This process serves the rendezvous.
            role = partial(pattern_role, onehop.unique_id())
        if api in _RANK:
            # Bare kernels run where the messages do: on one GPU, processes would take turns.
            threads = kind == "within" or (kind == "kernels" and placement.within)
            where = replace(placement, within=threads)
        if api == "device":
            where = replace(placement, env={**_WIDE, **placement.env})
        try:
            yield from rows_of_sides(role, some, where)
        except SideError as failure:
            if api not in NCCLS:
                raise
            yield Note(f"not compared with {api.replace('nccl', 'NCCL')}: {failure}")


def _group(job: Job) -> tuple[str, str]:
    """Return the key of jobs that the same sides run."""
    if job.api != "floor":
        return job.api, ""
    if job.in_order:
        return job.api, "kernels"
    return job.api, "within" if job.mode == "memcpy" else "apart"


def rows_of_sides(role: Role, jobs: Sequence[Job], placement: Placement) -> Iterator[Found]:
    """Run jobs whose rows combine a part of each side; a side may report why it omits them."""
    yield from _rows(jobs, run_sides(role, jobs, placement), placement.count)


def _rows(
    jobs: Sequence[Job], reports: Iterator[tuple[int, Any]], sides: int, *, apart: bool = False
) -> Iterator[Found]:
    """Combine the sides' reports in rows; apart: they are on two hosts."""
    pending: dict[tuple[int, str], list[Part]] = {}
    for _, part in reports:
        if isinstance(part, Note | Host):
            yield part
            continue
        parts = pending.setdefault((part.job, part.mode), [])
        parts.append(part)
        if len(parts) == sides:
            yield _row(jobs[part.job], parts, apart=apart)


def _row(job: Job, parts: Sequence[Part], *, apart: bool) -> Row:
    """Combine all sides' results in a row: an operation ends when the last side has finished."""
    measured = [one for one in parts if one.samples_us] or parts
    samples_us = [max(each) for each in zip(*(one.samples_us for one in measured), strict=True)]
    p50 = percentile(samples_us, 0.5)
    paths = [one.path for one in (*measured, *parts) if one.path != "none"]
    extras = {key: value for one in parts for key, value in one.extras.items()}
    if job.op == "batch":
        extras |= {"blocks": job.blocks, "block_us": p50 / job.blocks}
    if job.op == "patterns":
        extras |= {"ranks": len(parts), "rank_bytes": job.moved}
    if job.op == "bandwidth" and not job.in_order:
        extras["window"] = job.window
    if job.threads:
        extras["group"] = _GROUP_NAMES[job.threads]
    if job.devices != NO_DEVICES:
        extras["devices"] = shown(job.devices)
    # The steps of a set-up wait for system calls and for the watcher.
    if not apart and job.op != "setup":
        extras["shared_cpu"] = shared_cpu([one.cpu for one in parts])
    return Row(
        op=job.op,
        api=job.api,
        mode=parts[0].mode + ("_strided" if job.strided else "") + ("_both" if job.both else ""),
        memory=",".join(dict.fromkeys(job.memory)),
        buffers="shared" if job.shared else "private",
        path=paths[0] if paths else "none",
        size=job.size,
        iters=job.iterations,
        p50_us=p50,
        p99_us=percentile(samples_us, 0.99),
        GBps=_rate(job, measured[0], p50),
        wrong=sum(one.wrong for one in parts),
        **extras,
    )


def _rate(job: Job, part: Part, p50: float) -> float:
    if job.op == "setup" or not p50 or math.isnan(p50):
        return 0.0
    if job.op == "bandwidth" and part.seconds > 0:
        return part.moved / part.seconds / 1e9
    return job.moved / p50 / 1e3
