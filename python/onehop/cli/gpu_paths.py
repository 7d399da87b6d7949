# SPDX-License-Identifier: Apache-2.0
"""The doctor's drive over GPU memory: every kind, on every path, between processes and within one.

Each kind is driven by messages, puts, gets and a batch, from the beginning of an allocation and
from within it, and all bytes are checked; which path they took is told.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from onehop import _bench
from onehop.cli.findings import Finding, State
from onehop.cli.gpus import Pair, facts, version
from onehop.cli.jobs import Job
from onehop.cli.paths import REPORT, SILENCE
from onehop.cli.roles import link, run_job, unlink
from onehop.cli.rows import percentile
from onehop.cli.sides import Placement, Side, SideError, run_sides
from onehop.cli.sizes import format_size

_PLACE = "GPUs"
# Neither a multiple of a page nor of what a GPU copies at once.
_INTERIOR = 4096 + 24
# Many of the pieces in which bytes travel through the host.
_LARGE = 5 * 2**20 + 8
# More than one chunk of VMM memory, and none of its chunks whole.
_CHUNKS = 21 * 2**20 + 8
_SLOW = ("relay", "staged")


@dataclass(frozen=True)
class Kind:
    """One kind of memory at either side.

    Attributes:
        name: how it is shown.
        slow: why it is slow by nature; empty: a slow path is worth a word.

    """

    name: str
    memory: Pair
    slow: str = ""

    @property
    def large(self) -> int:
        """Return bytes of the large transfers: each is laid out and checked several times."""
        return _CHUNKS if "cuda-vmm" in self.memory else _LARGE


_NO_EXPORT = "this memory has no handle that another process could open"
_HOST = "the bytes have to cross to the host"

KINDS = (
    Kind("cudaMalloc", ("cuda", "cuda")),
    Kind("VMM, several chunks", ("cuda-vmm", "cuda-vmm")),
    Kind("exportable pool", ("cuda-pool", "cuda-pool")),
    Kind("cudaMallocAsync", ("cuda-async", "cuda-async"), _NO_EXPORT),
    Kind("managed", ("cuda-managed", "cuda-managed"), _NO_EXPORT),
    Kind("pinned host", ("pinned", "pinned"), _HOST),
    Kind("device to host", ("cuda", "host"), _HOST),
    Kind("host to device", ("host", "cuda"), _HOST),
    Kind("device to pinned", ("cuda", "pinned"), _HOST),
    Kind("cudaMalloc to VMM", ("cuda", "cuda-vmm")),
)


@dataclass(frozen=True)
class GpuCase:
    """Two endpoints, and the kinds of memory that are driven over their link."""

    name: str
    devices: Pair
    within: bool
    kinds: Sequence[Kind]


def driver() -> tuple[_bench.GpuFacts | None, Finding]:
    """Look for the driver; a machine without one is as good as any."""
    found = facts()
    check = "CUDA driver"
    if isinstance(found, str):
        named = os.environ.get("ONEHOP_CUDA_LIBRARY", "")
        state: State = "slow" if named not in ("", "off") else "ok"
        return None, Finding(
            _PLACE, check, state, f"host memory only: {found}", "correct ONEHOP_CUDA_LIBRARY"
        )
    count = len(found.devices)
    names = " + ".join(device.name for device in found.devices)
    apart = [
        f"{a} to {b}"
        for a, device in enumerate(found.devices)
        for b, reached in enumerate(device.peers)
        if not reached
    ]
    detail = f"{found.library}, {version(found)}, {count} devices: {names}"
    if apart:
        return found, Finding(
            _PLACE,
            check,
            "slow",
            f"{detail}; without peer access: {', '.join(apart)}",
            "look at nvidia-smi topo -p2p r; transfers between these go through host memory",
        )
    return found, Finding(_PLACE, check, "ok", detail)


def drive_gpus(count: int) -> Iterator[Finding]:
    """Drive all kinds of memory on one GPU, and between the first two if there are."""
    pairs = [("cuda:0", "cuda:0")] + ([("cuda:0", "cuda:1")] if count > 1 else [])
    for within in (False, True):
        for devices in pairs:
            where = "one GPU" if devices[0] == devices[1] else "two GPUs"
            name = f"{where}, {'one process' if within else 'two processes'}"
            yield from _drive(GpuCase(name, devices, within, KINDS))
    hosts = [kind for kind in KINDS if "host" in kind.memory]
    for kind in hosts:
        first, second = ("" if one == "host" else "cuda:0" for one in kind.memory)
        yield from _drive(GpuCase("endpoint of the host", (first, second), False, [kind]))


def _drive(case: GpuCase) -> Iterator[Finding]:
    """Drive the kinds of a case; after a kind that breaks the link, the rest on a new one."""
    left = list(case.kinds)
    while left:
        halves: dict[str, Finding] = {}
        placement = Placement(within=case.within, silence=SILENCE, env={"ONEHOP_LOG": "error"})
        try:
            for number, finding in run_sides(gpu_role, replace(case, kinds=left), placement):
                other = halves.pop(finding.check, None)
                if other is None:
                    halves[finding.check] = finding
                    continue
                left.pop(0)
                first, second = (finding, other) if number == 0 else (other, finding)
                # Side 1 speaks only of what it found wrong.
                yield second if second.state == "fault" else first
        except SideError as failure:
            broken = left.pop(0).name if left else "closing"
            yield Finding(case.name, broken, "fault", str(failure), REPORT)
        else:
            return


def gpu_role(side: Side, case: GpuCase) -> None:
    """Be one side of a case."""
    loops = _bench.Side(side.number, case.devices[side.number])
    link(side, loops)
    for kind in case.kinds:
        side.report(_drive_kind(loops, side.number, case, kind))
    unlink(side, loops)


def _jobs(kind: Kind) -> Iterator[Job]:
    base = Job("latency", "c", "sendrecv", 65536, 20, memory=kind.memory)
    interior = replace(base, offset=_INTERIOR)
    yield base
    yield replace(interior, size=1000)
    yield replace(interior, size=kind.large, iterations=2)
    for mode in ("put", "get"):
        yield replace(base, mode=mode)
        yield replace(interior, mode=mode, size=kind.large, iterations=2)
        yield replace(interior, op="batch", mode=mode, size=4096, blocks=64, iterations=4)
    if "host" not in kind.memory:
        yield replace(base, mode="event")


def _drive_kind(loops: _bench.Side, number: int, case: GpuCase, kind: Kind) -> Finding:
    paths: dict[str, None] = {}
    wrong: list[str] = []
    p50 = None
    for job in _jobs(kind):
        found = run_job(loops, job, number)
        if found.path != "none":
            paths[found.path] = None
        if found.wrong:
            what = f"{job.mode} {job.op} {format_size(job.size)}"
            wrong.append(f"{what} at offset {job.offset}: {found.wrong} bytes are wrong")
        if p50 is None and found.samples_us:
            p50 = percentile(found.samples_us, 0.5)
    if wrong:
        return Finding(case.name, kind.name, "fault", "; ".join(wrong), REPORT)
    detail = f"by {', '.join(paths)}"
    if any(path in _SLOW for path in paths):
        if kind.slow:
            return Finding(case.name, kind.name, "ok", f"{detail}: {kind.slow}", p50_us=p50)
        remedy = "see the library's warning: run with ONEHOP_LOG=warn"
        return Finding(case.name, kind.name, "slow", f"{detail}, through the host", remedy, p50)
    return Finding(case.name, kind.name, "ok", detail, p50_us=p50)
