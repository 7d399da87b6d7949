# SPDX-License-Identifier: Apache-2.0
"""``onehop bench patterns``: exchanges among ranks, each a process on a device of its own."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click

import onehop
from onehop import _bench
from onehop.cli import bench_options as options
from onehop.cli.bench import bench, report
from onehop.cli.gpus import (
    MEMORY,
    Pair,
    check_numbers,
    facts,
    nccl_libraries,
    parse_devices,
)
from onehop.cli.measure import Note, Part, corrupts, part_of
from onehop.cli.rows import Row, percentile, table
from onehop.cli.sides import Placement, Side, SideError, run_sides

_PATTERNS = ("sendrecv", "send_many", "recv_many", "all_to_all_v", "dispatch")
_GRAPH = "_graph"
_MODES = tuple(name + how for name in _PATTERNS for how in ("", _GRAPH))
_VOLUME = 4 * 2**30  # of a row, in bytes of the busiest rank


@dataclass(frozen=True)
class Job:
    """One row.

    Attributes:
        mode: the pattern, as a graph with _graph behind it.
        size: bytes of the largest part that one rank sends to another.
        iterations: timed exchanges; 0: chosen by the size.
        devices: of each rank.
        memory: its kind.

    """

    mode: str
    size: int
    iterations: int
    devices: tuple[str, ...]
    memory: str
    corrupt: bool = field(default_factory=corrupts)

    def spec(self) -> _bench.PatternSpec:
        """Return the job as the loop of a rank takes it."""
        return _bench.PatternSpec(
            pattern=_bench.Pattern[self.mode.removesuffix(_GRAPH).upper()],
            size=self.size,
            iterations=self.iterations,
            warmup=max(2, self.iterations // 10),
            graph=self.mode.endswith(_GRAPH),
            memory=MEMORY[self.memory],
            corrupt=self.corrupt,
        )

    def busiest(self) -> int:
        """Return the most bytes that one rank sends to the others, or receives from them."""
        return self.spec().busiest(len(self.devices))

    def settled(self) -> Job:
        """Return the job with its number of iterations."""
        fitting = max(50, min(2000, _VOLUME // self.busiest()))
        return replace(self, iterations=self.iterations or fitting)


@bench.command()
@options.sizes("1K,64K,1M,16M")
@options.modes(*_MODES, default=_MODES)
@click.option("--ranks", type=click.IntRange(2, 64), help="Default: one a device, at least two.")
@click.option(
    "--devices",
    callback=parse_devices,
    metavar="A,B,...",
    help="Devices of the ranks, in turn; default: all there are.",
)
@options.gpu_memory
@options.versus()
@options.how
def patterns(
    sizes: Sequence[int],
    modes: Sequence[str],
    ranks: int | None,
    devices: Sequence[int],
    memory: Pair,
    floors: Sequence[str],
    **common: Any,
) -> None:
    """Exchanges among ranks in the order of their streams, launched or as graphs of up to 50.

    sendrecv: each to the next of a ring; send_many: rank 0 to all others; recv_many: all others to
    rank 0; all_to_all_v: all to all and to themselves, parts of 1/4 to 4/4 of the size; dispatch:
    the same, and only the device knows of how much.
    """
    if memory[0] != memory[1] or memory[0] in ("host", "pinned", "cuda-managed"):
        raise click.UsageError("the patterns are of GPUs: --memory cuda or its kin, one for all")
    if 0 in sizes:
        raise click.UsageError("the patterns have parts of at least one byte")
    where = _devices_of(ranks, devices)
    jobs = [
        Job(mode, size, common["iters"] or 0, where, memory[0]).settled()
        for mode in modes
        for size in sizes
    ]
    cpus = options.sides_on(common["cpus"], len(where))
    placement = Placement(count=len(where), within=not common["processes"], cpus=cpus)
    libraries = nccl_libraries(common["nccl"]) if floors else []
    with report(
        common["json_to"],
        gpu=True,
        show=lambda rows: table("patterns", rows),
        about="patterns",
        total=len(jobs) * (2 if libraries else 1),
    ) as reported:
        for found in _measure(jobs, placement, libraries):
            reported.add(found)


def _devices_of(ranks: int | None, numbers: Sequence[int]) -> tuple[str, ...]:
    found = facts()
    if isinstance(found, str):
        raise click.ClickException(f"no patterns: {found}")
    check_numbers(numbers, found)
    chosen = list(numbers) or list(range(len(found.devices)))
    size = ranks or max(2, len(chosen))
    return tuple(f"cuda:{chosen[rank % len(chosen)]}" for rank in range(size))


def _measure(
    jobs: Sequence[Job], placement: Placement, libraries: Sequence[str]
) -> Iterator[Row | Note]:
    yield from _rows("c", pattern_role, jobs, placement, [])
    if libraries:
        apart = replace(placement, within=False)
        try:
            yield from _rows("nccl", nccl_pattern_role, jobs, apart, libraries)
        except SideError as failure:
            yield Note(f"not compared with NCCL: {failure}")


def _rows(
    api: str, role: Any, jobs: Sequence[Job], placement: Placement, libraries: Sequence[str]
) -> Iterator[Row]:
    # This process serves the rendezvous.
    given = (onehop.unique_id(), jobs, libraries)
    of_job: dict[int, list[Part]] = {}
    for _, found in run_sides(role, given, placement):
        parts = of_job.setdefault(found.job, [])
        parts.append(found)
        if len(parts) == placement.count:
            yield _row(api, jobs[found.job], parts)


def _row(api: str, job: Job, parts: Sequence[Part]) -> Row:
    # An exchange is over when the last rank is through.
    slowest = [max(of_ranks) for of_ranks in zip(*(part.samples_us for part in parts), strict=True)]
    p50 = percentile(slowest, 0.5)
    return Row(
        op="patterns",
        api=api,
        mode=job.mode,
        memory=job.memory,
        buffers="private",
        path=parts[0].path,
        size=job.size,
        iters=job.iterations,
        p50_us=p50,
        p99_us=percentile(slowest, 0.99),
        GBps=job.busiest() / p50 / 1e3,
        wrong=sum(part.wrong for part in parts),
        ranks=len(parts),
        rank_bytes=job.busiest(),
        devices=",".join(name.removeprefix("cuda:") for name in job.devices),
        **parts[0].extras,
    )


Given = tuple[bytes, Sequence[Job], Sequence[str]]


def pattern_role(side: Side, given: Given) -> None:
    """Be one rank of all jobs."""
    unique_id, jobs, _ = given
    _run(side, jobs, _rank(side, unique_id, jobs))


def nccl_pattern_role(side: Side, given: Given) -> None:
    """Be one rank of all jobs, by NCCL."""
    unique_id, jobs, libraries = given
    rank = _rank(side, unique_id, jobs)
    _run(side, jobs, rank, _bench.NcclRank(rank, list(libraries)))


def _rank(side: Side, unique_id: bytes, jobs: Sequence[Job]) -> _bench.PatternRank:
    devices = jobs[0].devices
    return _bench.PatternRank(side.number, len(devices), devices[side.number], unique_id)


def _run(
    side: Side,
    jobs: Sequence[Job],
    rank: _bench.PatternRank,
    nccl: _bench.NcclRank | None = None,
) -> None:
    for number, job in enumerate(jobs):
        found = (nccl or rank).run(job.spec())
        of_nccl = {"nccl": nccl.version} if nccl else {}
        side.report(part_of(number, job.mode, found, **of_nccl))
    # None closes while another still looks for it.
    rank.barrier()
