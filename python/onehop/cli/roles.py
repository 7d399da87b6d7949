# SPDX-License-Identifier: Apache-2.0
"""What the sides of a benchmark do: the loops in C++, or the same loops written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onehop import _bench
from onehop.cli.gpus import HOST, MEMORY
from onehop.cli.jobs import Job, Note, Part
from onehop.cli.rows import percentile
from onehop.cli.sides import Side

_MODES = {
    "sendrecv": _bench.Mode.SENDRECV,
    "put": _bench.Mode.PUT,
    "get": _bench.Mode.GET,
    "put_signal": _bench.Mode.PUT_SIGNAL,
    "event": _bench.Mode.EVENT,
    "stream": _bench.Mode.STREAM,
    "graph": _bench.Mode.GRAPH,
    "stream_put": _bench.Mode.STREAM_PUT,
    "graph_put": _bench.Mode.GRAPH_PUT,
    "kernel": _bench.Mode.KERNEL,
    "kernel_single": _bench.Mode.KERNEL_SINGLE,
    "kernel_put": _bench.Mode.KERNEL_PUT,
    "put_prepared": _bench.Mode.PUT_PREPARED,
    "bulk": _bench.Mode.BULK,
    "get_prepared": _bench.Mode.GET_PREPARED,
    # Floors and NCCL are asked for the same.
    "memcpy": _bench.Mode.SENDRECV,
    "put_flag": _bench.Mode.SENDRECV,
    "put_flag_event": _bench.Mode.EVENT,
}


class Outcome(Protocol):
    """What a loop gives."""

    @property
    def samples_us(self) -> list[float]: ...  # noqa: D102
    @property
    def post_us(self) -> list[float]: ...  # noqa: D102
    @property
    def seconds(self) -> float: ...  # noqa: D102
    @property
    def bytes(self) -> float: ...  # noqa: D102
    @property
    def wrong(self) -> int: ...  # noqa: D102
    @property
    def path(self) -> str: ...  # noqa: D102


class Loops(Protocol):
    """A side's loops, in either language."""

    def address(self) -> bytes: ...  # noqa: D102
    def connect(self, address: bytes) -> None: ...  # noqa: D102
    def accept(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102
    def latency(self, spec: _bench.Spec) -> Outcome: ...  # noqa: D102
    def bandwidth(self, spec: _bench.Spec) -> Outcome: ...  # noqa: D102
    def batch(self, spec: _bench.Spec) -> Outcome: ...  # noqa: D102


def spec_of(job: Job, number: int) -> _bench.Spec:
    """Return a job as the loops of a side take it."""
    spec = _bench.Spec()
    spec.mode = _MODES[job.mode]
    spec.size = job.size
    spec.iterations = job.iterations
    spec.warmup = job.warmup
    spec.window = job.window
    spec.blocks = job.blocks
    spec.threads = job.threads
    spec.strided = job.strided
    spec.shared = job.shared
    spec.corrupt = job.corrupt
    spec.both = job.both
    spec.memory = MEMORY[job.memory[number]]
    spec.offset = job.offset
    spec.stamped = job.memory == HOST
    return spec


def link(side: Side, loops: Loops) -> None:
    """Connect side 0 to side 1."""
    if side.number == 1:
        side.tell(loops.address())
        loops.accept()
    else:
        loops.connect(side.hear())


def unlink(side: Side, loops: Loops) -> None:
    """Close when the other side has finished, too, so nothing it waits for is cancelled."""
    side.tell("done")
    side.hear()
    loops.close()


def bench_role(side: Side, jobs: Sequence[Job]) -> None:
    """Do all jobs over one link and report each part."""
    if jobs[0].api == "python":
        from onehop.cli.python_loops import PythonLoops

        loops: Loops = PythonLoops(side.number)
    elif jobs[0].api.startswith("python-"):
        from onehop.cli.python_gpu import PythonGpuLoops

        loops = PythonGpuLoops(side.number, jobs[0].devices[side.number], jobs[0].api)
    else:
        loops = _bench.Side(side.number, jobs[0].devices[side.number])
    if jobs[0].api == "device":
        assert isinstance(loops, _bench.Side)
        if left_out(side, jobs, loops.why_no_kernels()):
            return
    link(side, loops)
    for number, job in enumerate(jobs):
        if job.op == "setup":
            assert isinstance(loops, _bench.Side)
            _setup(side, loops, number, job)
            continue
        loop = {"latency": loops.latency, "bandwidth": loops.bandwidth, "batch": loops.batch}[
            job.op
        ]
        found = loop(spec_of(job, side.number))
        own = {"post_us": percentile(found.post_us, 0.5)} if found.post_us else {}
        side.report(part_of(number, job.mode, found, **own))
    unlink(side, loops)


def inline_role(side: Side, jobs: Sequence[Job]) -> None:
    """Do jobs in their order, each over the link that asks for its inline limit."""
    links = {job.inline: _bench.Side(side.number, max_inline=job.inline) for job in jobs}
    for loops in links.values():
        link(side, loops)
    for number, job in enumerate(jobs):
        loops = links[job.inline]
        found = loops.latency(spec_of(job, side.number))
        limits = {"asked_inline": job.inline, "max_inline": loops.max_inline}
        side.report(part_of(number, job.mode, found, **limits))
    for loops in links.values():
        unlink(side, loops)


def left_out(side: Side, jobs: Sequence[Job], why_not: str) -> bool:
    """Say why jobs are left out, if there is a reason; it is the same at both sides."""
    if why_not and side.number == 0:
        modes = ", ".join(dict.fromkeys(job.mode for job in jobs))
        side.report(Note(f"no rows of {jobs[0].api} {modes}: {why_not}"))
    return bool(why_not)


def part_of(number: int, mode: str, found: Outcome, **extras: object) -> Part:
    """Return what a side has to say of a row."""
    return Part(
        number, mode, found.samples_us, found.seconds, found.bytes, found.wrong, found.path, extras
    )


def _setup(side: Side, loops: _bench.Side, number: int, job: Job) -> None:
    found = loops.setup(spec_of(job, side.number))
    memory: dict[str, object] = {}
    created: dict[str, object] = {}
    if side.number == 0:
        memory = {
            "rss_per_peer": round(found.rss_per_peer),
            "pss_per_peer": round(found.pss_per_peer),
            "device_per_peer": round(found.device_per_peer),
        }
        created = {"first_us": loops.created_us}
    side.report(part_of(number, "endpoint", found.endpoint, **created))
    side.report(part_of(number, "connect", found.connect, **memory))
    side.report(part_of(number, "first", found.first))
    side.report(part_of(number, "further", found.further))


def floor_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure what the machine can do without any library."""
    floors = {
        "flag": _bench.floor_flag,
        "process_vm": _bench.floor_process_vm,
        "memcpy": _bench.floor_memcpy,
    }
    cpus = side.placement.cpus
    for number, job in enumerate(jobs):
        if job.memory != HOST:
            found = _bench.floor_gpu_memcpy(spec_of(job, 0), *job.devices)
            side.report(part_of(number, job.mode, found))
            continue
        spec = _bench.FloorSpec()
        spec.size = job.size
        spec.iterations = job.iterations
        spec.corrupt = job.corrupt
        if len(cpus) > 1:
            spec.partner_cpu = cpus[1]
        side.report(part_of(number, job.mode, floors[job.mode](spec)))
