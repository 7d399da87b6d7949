# SPDX-License-Identifier: Apache-2.0
"""Runs jobs: assigns their roles, and makes rows of what the sides report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from onehop.cli.gpus import NO_DEVICES
from onehop.cli.jobs import Job, Note, Part
from onehop.cli.roles import bench_role, floor_role, nccl_role
from onehop.cli.rows import Row, percentile
from onehop.cli.sides import Placement, Role, SideError, run_sides

# Rows of kernels use two lanes, which are compared: all are as wide as the first.
_WIDE = {"ONEHOP_STREAM_SLAB": str(32 * 2**20)}


def measure(jobs: Sequence[Job], placement: Placement) -> Iterator[Row | Note]:
    """Do all jobs and yield their rows; several per set-up.

    Raises:
        SideError: a side failed, died, or hung.

    """
    groups: dict[tuple[str, str], list[Job]] = {}
    for job in jobs:
        groups.setdefault(_group(job), []).append(job.settled())
    # What onehop is compared with comes last.
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


_RANK = {"floor": 1, "nccl": 2}


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
