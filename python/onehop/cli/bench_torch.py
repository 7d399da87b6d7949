# SPDX-License-Identifier: Apache-2.0
"""``onehop bench torch``: the backend of torch.distributed, beside gloo and NCCL."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import importlib
import importlib.util
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
from rich.table import Table

from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.bench import bench, report
from onehop.cli.gpus import HOST, NO_DEVICES, Pair, choose, facts, shown
from onehop.cli.measure import corrupts
from onehop.cli.output import Column, figures
from onehop.cli.rows import WRONG, Row, figure, percentile, ratio, spread
from onehop.cli.sides import run_sides
from onehop.cli.sizes import format_size

_MODES = ("init", "first", "post", "sendrecv", "window", "batch")
_SIZED = ("sendrecv", "window", "batch")  # the other modes use messages of SMALL bytes, or none
SMALL = 8  # bytes
_CUDA: Pair = ("cuda", "cuda")
# The default bounds of operations per row, and the bytes that they move.
_MOST, _LEAST, _VOLUME = 1000, 5, 256 * 2**20
_WINDOW = 16  # operations in flight at most


@dataclass(frozen=True)
class Job:
    """The work of both sides in all rounds."""

    backends: tuple[str, ...]
    modes: tuple[str, ...]
    sizes: tuple[int, ...]  # bytes of a message
    rounds: int
    asked: int  # timed operations; 0: chosen by the size
    devices: Pair  # of each side's tensors; "" for host memory
    corrupt: bool = field(default_factory=corrupts)

    def iterations(self, size: int) -> int:
        """Return how many operations of a size are timed in a round."""
        return self.asked or max(_LEAST, min(_MOST, _VOLUME // size))

    @staticmethod
    def window(size: int) -> int:
        """Return how many operations are in flight."""
        return max(2, min(_WINDOW, _VOLUME // size))

    @property
    def on_gpus(self) -> bool:
        """Whether the tensors are in GPU memory."""
        return self.devices != NO_DEVICES

    @property
    def kinds(self) -> list[tuple[str, int]]:
        """Return the mode and size of each row of a backend."""
        return [
            (mode, size)
            for mode in self.modes
            for size in (self.sizes if mode in _SIZED else (0 if mode == "init" else SMALL,))
        ]


@dataclass(frozen=True)
class Turn:
    """A side's results for one row of a round."""

    number: int  # number of the round
    backend: str
    mode: str
    size: int
    samples_us: list[float]
    wrong: int
    path: str
    torch: str  # version of torch


@bench.command(short_help="Measure torch.distributed's send and recv.")
@click.option(
    "--vs",
    multiple=True,
    callback=options.one_of(("gloo", "nccl")),
    metavar="NAME,...",
    help="Also measure these backends, in turn: gloo for host memory, nccl for CUDA tensors.",
)
@options.sizes("8,1K,64K,1M,16M,64M")
@options.modes(*_MODES, default=_MODES)
@click.option(
    "--iters", type=click.IntRange(1), help="Operations in a round. Default: depends on the size."
)
@options.rounds()
@options.memory("host or cuda. Default: host, and cuda if torch has it.", None, "KIND")
@options.devices
@options.transport()
@options.cpus
@options.json_to
@plots.option
def torch(vs: Sequence[str], **given: Any) -> None:
    """Measure torch.distributed's send and recv between two processes, with all backends in turn.

    init: init_process_group with an existing store; first: a message and its answer in a new
    group; post: until isend returns; sendrecv: a message, one way; window: up to 16 isend until
    received; batch: batch_isend_irecv of one message each way, until both have arrived.
    """
    if importlib.util.find_spec("torch") is None:
        raise click.ClickException("torch is not installed: pip install torch")
    if 0 in given["sizes"]:
        raise click.UsageError("--sizes: a message has at least one byte here")
    if given["plot"] and not {*given["modes"]} & {*_SIZED}:
        raise click.UsageError(f"--plot draws --mode {', '.join(_SIZED)}: add one of them")
    placement = options.placement({**given, "processes": True})
    jobs = [_job(memory, vs, given) for memory in _memories(vs, given["memory"], given["devices"])]
    total = sum(job.rounds * len(job.backends) * len(job.kinds) for job in jobs)
    gpu = any(job.on_gpus for job in jobs)
    with report(
        given["json_to"], gpu=gpu, show=_table, about="torch", total=total, plot=given["plot"]
    ) as reported:
        from onehop.cli.torch_loops import torch_role

        for job in jobs:
            turns: list[Turn] = []
            try:
                for side, turn in run_sides(torch_role, job, placement):
                    turns.append(turn)
                    if side == 0:
                        reported.step(f"{turn.backend}, round {turn.number + 1}")
            finally:
                # After Ctrl-C the complete rounds are reported.
                for row in _rows(job, turns):
                    reported.add(row)


def _memories(vs: Sequence[str], memory: Pair | None, devices: Sequence[int]) -> list[Pair]:
    """Return the kinds of memory to measure."""
    if memory is not None and memory not in (HOST, _CUDA):
        raise click.UsageError("--memory is host or cuda, of both sides: that is what tensors have")
    if memory == HOST and "nccl" in vs:
        raise click.UsageError("--vs nccl moves no host memory: leave --memory host out")
    if memory == HOST and devices:
        raise click.UsageError("--devices are of CUDA tensors: leave --memory host out")
    if memory == _CUDA and "gloo" in vs:
        raise click.UsageError("--vs gloo is measured on host memory: leave --memory cuda out")
    wanted = memory == _CUDA or bool(devices) or "nccl" in vs
    if not wanted and (memory == HOST or isinstance(facts(), str)):
        return [HOST]
    there = importlib.import_module("torch")
    if there.cuda.is_available():
        return [memory] if memory else [HOST, _CUDA]
    if not wanted:
        return [HOST]
    asked = "--memory cuda" if memory == _CUDA else "--vs nccl" if "nccl" in vs else "--devices"
    raise click.ClickException(
        f"{asked} needs torch with CUDA: torch {there.__version__} is here, and"
        " torch.cuda.is_available() is False"
    )


def _job(memory: Pair, vs: Sequence[str], given: dict[str, Any]) -> Job:
    other = "gloo" if memory == HOST else "nccl"
    devices = choose(memory, given["devices"] if memory != HOST else [])
    if memory != HOST and "nccl" in vs and devices[0] == devices[1]:
        raise click.ClickException(
            f"--vs nccl needs two GPUs: NCCL refuses two ranks on {devices[0]}; name --devices A,B"
        )
    return Job(
        ("onehop", *([other] if other in vs else [])),
        tuple(mode for mode in _MODES if mode in given["modes"]),
        tuple(dict.fromkeys(given["sizes"])),
        given["rounds"],
        given["iters"] or 0,
        devices,
    )


# ---- Rows


def _rows(job: Job, turns: Sequence[Turn]) -> Iterator[Row]:
    """Yield a row for each mode, size and backend, over the complete rounds."""
    told: dict[tuple[int, str, str, int], list[Turn]] = {}
    for one in turns:
        told.setdefault((one.number, one.backend, one.mode, one.size), []).append(one)
    for mode, size in job.kinds:
        rounds = []
        for number in range(job.rounds):
            sides = [told.get((number, backend, mode, size), []) for backend in job.backends]
            if all(len(both) == 2 for both in sides):
                rounds.append(dict(zip(job.backends, sides, strict=True)))
        if not rounds:
            continue
        medians = {
            backend: [statistics.median(_samples(one[backend])) for one in rounds]
            for backend in job.backends
        }
        for backend in job.backends:
            of_others: dict[str, float] = {}
            if backend == "onehop":
                of_others = {
                    other: ratio(medians[backend], medians[other]) for other in job.backends[1:]
                }
            row = _row(job, [turn for one in rounds for turn in one[backend]], medians[backend])
            yield replace(row, of_gloo=of_others.get("gloo"), of_nccl=of_others.get("nccl"))


def _samples(turns: Sequence[Turn]) -> list[float]:
    return [sample for turn in turns for sample in turn.samples_us]


def _row(job: Job, turns: Sequence[Turn], medians: Sequence[float]) -> Row:
    turn, samples = turns[0], _samples(turns)
    p50 = statistics.median(samples)
    return Row(
        op="torch",
        api=turn.backend,
        mode=turn.mode,
        memory="cuda" if job.on_gpus else "host",
        buffers="private",
        path=turn.path,
        size=turn.size,
        iters=len(samples),
        p50_us=p50,
        p99_us=percentile(samples, 0.99),
        GBps=turn.size / p50 / 1e3 if turn.mode in _SIZED else 0.0,
        wrong=sum(one.wrong for one in turns),
        window=job.window(turn.size) if turn.mode == "window" else None,
        low_us=min(medians),
        high_us=max(medians),
        devices=shown(job.devices) if job.on_gpus else None,
        torch=turn.torch,
    )


_COLUMNS: tuple[Column[Row], ...] = (
    Column(
        "what", lambda row: f"{row.mode} {format_size(row.size)}" if row.size else row.mode, "left"
    ),
    Column("memory", lambda row: row.memory, "left"),
    Column("backend", lambda row: row.api, "left"),
    Column("path", lambda row: row.path, "left"),
    Column("window", lambda row: figure(row.window, 0)),
    Column("p50 us", lambda row: figure(row.p50_us, 1)),
    Column("rounds", spread),
    Column("p99 us", lambda row: figure(row.p99_us, 1)),
    Column("GB/s", lambda row: figure(row.GBps or None, 2)),
    Column("of gloo", lambda row: figure(row.of_gloo, 3)),
    Column("of NCCL", lambda row: figure(row.of_nccl, 3)),
    WRONG,
)


def _table(rows: Sequence[Row]) -> Table:
    return figures(
        f"onehop bench torch: torch {rows[0].torch}",
        "p50: of all rounds; rounds: the least and the greatest median of a round beside it; GB/s:"
        " size / p50, of batch each way's; of gloo, of NCCL: p50 by theirs in the same round,"
        " median of the rounds",
        [one for one in _COLUMNS if any(one.text(row) is not None for row in rows)],
        rows,
    )
