# SPDX-License-Identifier: Apache-2.0
"""What the sides of a benchmark do: the loops in C++, or the same loops written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from onehop import _bench
from onehop.cli.jobs import Job, Note, Part
from onehop.cli.rows import percentile
from onehop.cli.sides import Side


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


def run_job(loops: Loops, job: Job, number: int) -> Outcome:
    """Do a job by the loops of side `number`."""
    loop = {"latency": loops.latency, "bandwidth": loops.bandwidth, "batch": loops.batch}[job.op]
    return loop(job.spec(number))


def part_of(number: int, mode: str, found: Outcome, **extras: object) -> Part:
    """Return what a side has to say of a row."""
    return Part(
        number, mode, found.samples_us, found.seconds, found.bytes, found.wrong, found.path, extras
    )


def bench_role(side: Side, jobs: Sequence[Job]) -> None:
    """Do all jobs over one link and report each part."""
    device, api = jobs[0].devices[side.number], jobs[0].api
    loops: Loops
    if api.startswith("python"):
        from onehop.cli.python_loops import PythonLoops

        loops = PythonLoops(side.number, device, api)
    else:
        loops = _bench.Side(side.number, device)
        if api == "device" and _left_out(side, jobs, loops.why_no_kernels()):
            return
    link(side, loops)
    for number, job in enumerate(jobs):
        if job.op == "setup":
            assert isinstance(loops, _bench.Side)
            _setup(side, loops, number, job)
            continue
        found = run_job(loops, job, side.number)
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
        found = run_job(loops, job, side.number)
        limits = {"asked_inline": job.inline, "max_inline": loops.max_inline}
        side.report(part_of(number, job.mode, found, **limits))
    for loops in links.values():
        unlink(side, loops)


def _left_out(side: Side, jobs: Sequence[Job], why_not: str) -> bool:
    """Say why jobs are left out, if there is a reason; it is the same at both sides."""
    if why_not and side.number == 0:
        modes = ", ".join(dict.fromkeys(job.mode for job in jobs))
        side.report(Note(f"no rows of {jobs[0].api} {modes}: {why_not}"))
    return bool(why_not)


def _setup(side: Side, loops: _bench.Side, number: int, job: Job) -> None:
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
    if jobs[0].in_order and _left_out(side, jobs, yardstick.why_no_kernels()):
        return
    _join(side, yardstick)
    for number, job in enumerate(jobs):
        found = yardstick.floor(job.spec(side.number), job.mode, job.op == "bandwidth")
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
        loop = nccl.latency if job.op == "latency" else nccl.bandwidth
        side.report(part_of(number, job.mode, loop(job.spec(side.number)), **extras))
        extras = {}
    together(side)
