# SPDX-License-Identifier: Apache-2.0
"""``onehop bench nixl``: NIXL's Python API on onehop, beside the real NIXL in the same run."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
from rich.table import Table

from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.bench import bench, report
from onehop.cli.gpus import HOST, NO_DEVICES, Pair, choose, shown
from onehop.cli.measure import corrupts
from onehop.cli.output import Column, figures
from onehop.cli.rows import WRONG, Row, figure, percentile, ratio, spread
from onehop.cli.sides import Placement, SideError, run_sides
from onehop.cli.sizes import SizeList, format_size

_MODES = ("agent", "first", "prep", "prep_strided", "write", "read", "idle")
_POSTED = ("write", "read")
_FIRST_POST = "_first"  # suffix of the mode of rows about first posts
FIRST = 2**20  # bytes of the first WRITE
ROW = 64  # bytes of the block that a row of a prepared list describes
PICKED = 1000  # rows of a prepared list that are written to, to check it
_LOG_LEVEL = "NIXL_LOG_LEVEL"


@dataclass(frozen=True)
class Job:
    """The work of both sides in a round, with one of the libraries."""

    library: str  # onehop or nixl (the real one)
    modes: tuple[str, ...]  # the modes to measure; others run only where these need them
    sizes: tuple[int, ...]  # bytes of a block of write and read
    blocks: int  # per transfer
    rows: int  # rows of a prepared list
    iterations: int  # timed handles of each size and direction
    posts: int  # posts of each handle
    idle_s: float  # how long idle agents are observed
    memory: Pair  # kind, of each side
    devices: Pair  # of each side; "" for host memory
    corrupt: bool = field(default_factory=corrupts)

    @property
    def places(self) -> int:
        """Number of block positions: large, so that few blocks of a transfer are adjacent."""
        return self.blocks + self.blocks // 4

    @property
    def row_count(self) -> int:
        """Return how many rows the job has."""
        return sum(2 * len(self.sizes) if mode in _POSTED else 1 for mode in self.modes)

    @property
    def nbytes(self) -> int:
        """Return the size of either side's memory."""
        return max(FIRST, self.rows * ROW, self.places * max(self.sizes))


@dataclass
class Found:
    """The results of both sides for one row of a round."""

    mode: str
    size: int = 0
    blocks: int | None = None
    samples_us: list[float] = field(default_factory=list)
    make_us: list[float] = field(default_factory=list)
    post_us: list[float] = field(default_factory=list)
    wrong: int = 0
    path: str = "none"

    @property
    def first_posts(self) -> Found:
        """Return the row for the first posts of this row's handles, empty so far."""
        return Found(self.mode + _FIRST_POST, self.size, self.blocks)

    @property
    def moves(self) -> bool:
        """Whether its time is that of a transfer of bytes."""
        return self.mode == "first" or self.mode.removesuffix(_FIRST_POST) in _POSTED

    def merge(self, other: Found) -> None:
        """Merge the results of the other side, or of another round."""
        for name in ("samples_us", "make_us", "post_us"):
            getattr(self, name).extend(getattr(other, name))
        self.wrong += other.wrong
        self.path = other.path if self.path == "none" else self.path


Round = dict[tuple[str, int], Found]  # by mode and size


@bench.command(short_help="Measure NIXL's Python API on onehop.")
@click.option("--vs", type=click.Choice(["nixl"]), help="Also measure the real NIXL, in turn.")
@options.modes(*_MODES, default=_MODES)
@click.option("--sizes", type=SizeList(), help="Block sizes. Default: 4K; for GPU memory 4K,32K.")
@click.option(
    "--blocks",
    type=click.IntRange(1),
    help="Blocks in a transfer. Default: 10000; for GPU memory 1024.",
)
@click.option(
    "--rows",
    type=click.IntRange(PICKED),
    default=1_000_000,
    show_default=True,
    help="Blocks in a prepared list.",
)
@click.option(
    "--iters", type=click.IntRange(1), default=5, show_default=True, help="Handles in a round."
)
@click.option(
    "--posts",
    type=click.IntRange(2),
    default=8,
    show_default=True,
    help="Posts of each handle; the first one has its own row.",
)
@options.rounds("Each round runs both libraries in turn, in new processes.")
@click.option(
    "--idle",
    type=click.FloatRange(0.01, 60),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds to measure the idle agents.",
)
@options.memory("host, or cuda by torch's allocator. Two values: one per side.")
@options.devices
@options.transport()
@options.cpus
@options.json_to
@plots.no_option("its rows are calls of NIXL, most of them of no size")
def nixl(vs: str | None, rounds: int, **common: Any) -> None:
    """Measure NIXL's Python API on onehop, and with --vs nixl on the real NIXL, by the same loops.

    agent: create one; first: from add_remote_agent to the end of the first WRITE of 1 MB; prep: a
    list of the other side's memory as an N x 3 array; prep_strided: as N x 5; write, read: blocks
    at random places, until done, in two rows: write_first, read_first are the first posts of a
    handle; idle: CPU time per second of a process with an idle agent.
    """
    jobs = _jobs(vs, common)
    placement = options.placement({**common, "processes": True})
    level = {_LOG_LEVEL: os.environ.get(_LOG_LEVEL, "WARN")}
    placement = replace(placement, env={**level, **placement.env})
    done: dict[Job, list[Round]] = {job: [] for job in jobs}
    total = len(jobs) * (rounds + jobs[0].row_count)
    with report(
        common["json_to"], gpu=jobs[0].memory != HOST, show=_table, about="nixl", total=total
    ) as reported:
        try:
            for number in range(rounds):
                turn = {}
                # The libraries take turns in being first.
                for job in jobs[:: -1 if number % 2 else 1]:
                    turn[job] = _measure(job, placement)
                    reported.step(f"{job.library}, round {number + 1}")
                for job, found in turn.items():
                    done[job].append(found)
        finally:
            # After Ctrl-C the complete rounds are reported.
            for row in _rows(done, _version() if vs else None):
                reported.add(row)


def _jobs(vs: str | None, common: dict[str, Any]) -> list[Job]:
    try:
        from onehop.nixl import real
    except ImportError as failure:
        raise click.ClickException(str(failure)) from failure
    memory: Pair = common["memory"]
    if set(memory) - {"host", "cuda"}:
        raise click.UsageError("--memory is host or cuda: that is what NIXL's users register")
    on_gpu = memory != HOST
    sizes = tuple(common["sizes"] or ([4096, 32768] if on_gpu else [4096]))
    if 0 in sizes:
        raise click.UsageError("--sizes: a block has at least one byte")
    devices = choose(memory, common["devices"])
    if on_gpu and importlib.util.find_spec("torch") is None:
        raise click.ClickException("--memory cuda needs torch with CUDA, which is not installed")
    if vs and real.load() is None:
        raise click.ClickException(
            "--vs nixl: the real NIXL is not installed here, or cannot be loaded: there is no"
            " module nixl_cu13._api or nixl_cu12._api. pip install nixl"
        )
    return [
        Job(
            library,
            tuple(dict.fromkeys(common["modes"])),
            tuple(dict.fromkeys(sizes)),
            common["blocks"] or (1024 if on_gpu else 10000),
            common["rows"],
            common["iters"],
            common["posts"],
            common["idle"],
            memory,
            devices,
        )
        for library in ("onehop", vs)
        if library
    ]


def _version() -> str:
    """Return the release of the real NIXL that is measured."""
    from onehop.nixl import real

    package = str(getattr(real.load(), "__name__", "")).partition(".")[0].replace("_", "-")
    return f"{package} {importlib.metadata.version(package)}"


def _measure(job: Job, placement: Placement) -> Round:
    from onehop.cli.nixl_loops import nixl_role  # needs numpy

    found: Round = {}
    try:
        for _, one in run_sides(nixl_role, job, placement):
            if (key := (one.mode, one.size)) in found:
                found[key].merge(one)
            else:
                found[key] = one
    except SideError as failure:
        raise SideError(f"{job.library}: {failure}") from failure
    return found


# ---- Rows


def _rows(done: dict[Job, list[Round]], version: str | None) -> Iterator[Row]:
    """Yield a row for each mode, size and library, of all rounds."""
    keys = {key for rounds in done.values() for one in rounds for key in one}
    for key in sorted(keys, key=_place):
        of_rounds = {job: [one[key] for one in rounds] for job, rounds in done.items()}
        medians = {
            job.library: [statistics.median(one.samples_us) for one in rounds]
            for job, rounds in of_rounds.items()
        }
        for job, rounds in of_rounds.items():
            of_nixl = None
            if job.library == "onehop" and "nixl" in medians:
                of_nixl = ratio(medians["onehop"], medians["nixl"])
            row = _row(job, rounds, medians[job.library])
            yield replace(row, of_nixl=of_nixl, nixl=version if job.library == "nixl" else None)


def _place(key: tuple[str, int]) -> tuple[int, int, bool]:
    """Return the sort key of a row: the order of --mode, first posts before the others."""
    mode = key[0].removesuffix(_FIRST_POST)
    return _MODES.index(mode), key[1], mode == key[0]


def _row(job: Job, rounds: Sequence[Found], medians: Sequence[float]) -> Row:
    found = Found(rounds[0].mode, rounds[0].size, rounds[0].blocks)
    for one in rounds:
        found.merge(one)
    p50 = statistics.median(found.samples_us)
    return Row(
        op="nixl",
        api=job.library,
        mode=found.mode,
        memory=",".join(dict.fromkeys(job.memory)),
        buffers="private",
        path=found.path,
        size=found.size,
        iters=len(found.samples_us),
        p50_us=p50,
        p99_us=percentile(found.samples_us, 0.99),
        GBps=found.size * (found.blocks or 1) / p50 / 1e3 if found.moves else 0.0,
        wrong=found.wrong,
        blocks=found.blocks,
        block_us=p50 / found.blocks if found.blocks else None,
        post_us=statistics.median(found.post_us) if found.post_us else None,
        make_us=statistics.median(found.make_us) if found.make_us else None,
        cpu_percent=p50 / 1e4 if found.mode == "idle" else None,
        low_us=min(medians),
        high_us=max(medians),
        devices=shown(job.devices) if job.devices != NO_DEVICES else None,
    )


def _what(row: Row) -> str:
    if row.blocks:
        return f"{row.mode} {row.blocks} x {format_size(row.size)}"
    return f"{row.mode} {format_size(row.size)}" if row.size else row.mode


_COLUMNS: tuple[Column[Row], ...] = (
    Column("what", _what, "left"),
    Column("library", lambda row: row.api, "left"),
    Column("path", lambda row: row.path, "left"),
    Column("p50 us", lambda row: figure(row.p50_us, 0)),
    Column("rounds", spread),
    Column("us/block", lambda row: figure(row.block_us, 3)),
    Column("make us", lambda row: figure(row.make_us, 0)),
    Column("post us", lambda row: figure(row.post_us, 0)),
    Column("GB/s", lambda row: figure(row.GBps or None, 2)),
    Column("CPU %", lambda row: figure(row.cpu_percent, 2)),
    Column("of NIXL", lambda row: figure(row.of_nixl, 3)),
    WRONG,
)


def _table(rows: Sequence[Row]) -> Table:
    versions = sorted({row.nixl for row in rows if row.nixl})
    return figures(
        ", ".join([f"onehop bench nixl: {rows[0].memory} memory", *versions]),
        "p50: of all rounds; rounds: the least and the greatest median of a round beside it; write,"
        " read: from the call of transfer() until done, the first post of a handle apart from the"
        " later ones; make, post: the calls of make_prepped_xfer() and transfer(); idle: CPU time"
        " in a second; of NIXL: by NIXL's in the same round, median of the rounds",
        _COLUMNS,
        rows,
    )
