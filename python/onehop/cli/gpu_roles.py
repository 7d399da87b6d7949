# SPDX-License-Identifier: Apache-2.0
"""What two processes do to compare onehop with: the driver alone, and NCCL."""

from __future__ import annotations

from collections.abc import Sequence

from onehop import _bench
from onehop.cli.jobs import Job
from onehop.cli.roles import left_out, part_of, spec_of
from onehop.cli.sides import Side


def _meet(side: Side, pair: _bench.PutFlag | _bench.LineFloor | _bench.Nccl) -> None:
    side.tell(pair.hello())
    pair.meet(side.hear())


def _part(side: Side) -> None:
    """Return when the other side has finished, too: it may still use our memory."""
    side.tell("done")
    side.hear()


def put_flag_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure copies into mapped memory of the other process, and a flag."""
    device = jobs[0].devices[side.number]
    pair = _bench.PutFlag(side.number, device, max(job.size for job in jobs))
    _meet(side, pair)
    for number, job in enumerate(jobs):
        side.report(part_of(number, job.mode, pair.latency(spec_of(job, side.number))))
    _part(side)


def line_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure messages of bare lines by kernels: on a stream, as a graph, or within a kernel."""
    device = jobs[0].devices[side.number]
    pair = _bench.LineFloor(side.number, device, max(job.size for job in jobs))
    if left_out(side, jobs, pair.why_not()):
        return
    _meet(side, pair)
    for number, job in enumerate(jobs):
        side.report(part_of(number, job.mode, pair.latency(spec_of(job, side.number))))
    _part(side)


def nccl_role(side: Side, jobs: Sequence[Job]) -> None:
    """Measure NCCL's send and receive."""
    device = jobs[0].devices[side.number]
    largest = max(job.size * job.window for job in jobs)
    pair = _bench.Nccl(side.number, device, list(jobs[0].libraries), largest)
    _meet(side, pair)
    extras: dict[str, object] = {}
    if side.number == 0:
        extras = {
            "nccl": pair.version,
            "init_ms": round(pair.init_ms, 1),
            "first_ms": round(pair.first_ms, 1),
            "device_per_peer": round(pair.device_bytes),
        }
    for number, job in enumerate(jobs):
        loop = pair.latency if job.op == "latency" else pair.bandwidth
        side.report(part_of(number, job.mode, loop(spec_of(job, side.number)), **extras))
        extras = {}
    _part(side)
