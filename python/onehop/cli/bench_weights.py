# SPDX-License-Identifier: Apache-2.0
"""``onehop bench weights``: one trainer to inference engines, beside plain copies and gloo."""

# ruff: noqa: ANN401 - options come by name; docstrings are help texts

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.bench import bench
from onehop.cli.gpus import HOST, NO_DEVICES, Pair, choose, parse_devices, shown, with_gpus
from onehop.cli.output import (
    Column,
    figures,
    json_lines,
    make_console,
    provenance,
    say_provenance,
)
from onehop.cli.rows import WRONG, figure, ratio
from onehop.cli.sizes import SizeList, format_size
from onehop.cli.weights_loops import Engine, Planner, Process, Trainer, Trainers, together


@dataclass
class Figure:
    """One row.

    Attributes:
        what: pull, copies, gloo or nccl; prepare.
        engines: number of engines.
        tensors, publishers, nbytes: the size; nbytes per engine.
        seconds: of each round.
        wrong: bytes that differ from the trainer's.
        cpu_seconds: seconds of CPU time of each round, of prepare.
        devices: of trainer and engines; empty: host memory.
        of_copies, of_gloo, of_nccl: for pull: the other's time divided by the pull's, median.

    """

    what: str
    engines: int
    tensors: int
    publishers: int
    nbytes: int
    devices: str = ""
    path: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    of_copies: float | None = None
    of_gloo: float | None = None
    of_nccl: float | None = None

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)


@bench.command(short_help="Measure onehop.weights, and plain broadcasts.")
@click.option(
    "--vs",
    type=click.Choice(["gloo", "nccl"]),
    help="Also measure torch's broadcast, in turn: gloo for host memory, NCCL for GPU tensors.",
)
@click.option(
    "--size", type=SizeList(), default="1G", show_default=True, help="Total bytes of the tensors."
)
@click.option("--tensors", type=click.IntRange(1), default=300, show_default=True)
@click.option(
    "--engines",
    default="1,3",
    show_default=True,
    metavar="N,N",
    help="Numbers of engines that pull at once; one row each.",
)
@click.option(
    "--prepare",
    default="10000,64",
    show_default=True,
    metavar="TENSORS,PUBLISHERS",
    help="Size of the measured plan: each tensor has one row per publisher. 0,0: no plan.",
)
@options.memory("host, or cuda (torch tensors).", metavar="KIND")
@click.option(
    "--devices",
    callback=parse_devices,
    metavar="A,B",
    help="Device of the trainer, and of all engines. Default: 0,1; with one GPU 0,0.",
)
@options.rounds()
@options.json_to
@plots.no_option("its rows are ways of moving tensors, all of one size")
def weights(vs: str | None, engines: str, prepare: str, json_to: str | None, **given: Any) -> None:
    """Measure onehop.weights from a trainer to engines, and plain copies in the same processes.

    pull: all engines at once, leases included, until the last one has all tensors; copies: the same
    bytes by process_vm_readv, or for GPU memory by torch through CUDA IPC, one engine after the
    other; gloo, nccl: a broadcast of each tensor; prepare: a plan for host memory, over existing
    links.
    """
    memory: Pair = given["memory"]
    if memory not in (HOST, ("cuda", "cuda")):
        raise click.UsageError("--memory is host or cuda, of all processes")
    if vs and (vs == "nccl") == (memory == HOST):
        raise click.UsageError(f"--vs {vs} goes with --memory {'cuda' if vs == 'nccl' else 'host'}")
    for package in ("numpy", *(["torch"] if vs or memory != HOST else [])):
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(f"{package} is not installed: pip install {package}")
    devices = choose(memory, given["devices"])
    if vs == "nccl" and (devices[0] == devices[1] or max(_numbers("--engines", engines)) > 1):
        raise click.UsageError(
            "--vs nccl needs --engines 1 and two GPUs: it refuses ranks that share one"
        )
    console = make_console(stderr=json_to == "-")
    known = provenance()
    if memory != HOST:
        known = with_gpus(known) | {"torch": importlib.import_module("torch").__version__}
    say_provenance(console, known)
    found: list[Figure] = []
    with json_lines(json_to) as write:
        for count in _numbers("--engines", engines):
            found += _pulls(vs, given, count, devices)
        many, publishers = _numbers("--prepare", prepare, 2)
        if many and publishers:
            found += _prepares(many, publishers, given["rounds"])
        for one in found:
            write(json.dumps({**asdict(one), **known}))
    console.print(_table(found))
    if wrong := sum(one.wrong for one in found):
        raise click.ClickException(f"{wrong} bytes were not what the trainer had")


def _numbers(option: str, text: str, count: int | None = None) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0 or (count is not None and len(found) != count):
        raise click.UsageError(f"{option} {text}: give {count or 'some'} integers, with commas")
    return found


# ---- Pulls


def _pulls(vs: str | None, given: dict[str, Any], engines: int, devices: Pair) -> Iterator[Figure]:
    size, tensors, ranks = given["size"][0], given["tensors"], engines + 1
    trainer = Process(Trainer, size, tensors, ranks, devices[0])
    others = [Process(Engine, size, tensors, n + 1, ranks, devices[1]) for n in range(engines)]
    # NCCL's ranks meet in the store at the first broadcast.
    folder = tempfile.TemporaryDirectory(prefix="onehop-bench-")
    try:
        together(others, "prepare", *trainer.call("describe"))
        ways = ["pull", "copies", *([vs] if vs else [])]
        if vs:
            together([trainer, *others], "join", vs, str(Path(folder.name) / "store"))
        nbytes = trainer.call("nbytes")
        places = shown(devices) if devices != NO_DEVICES else ""
        told = {way: Figure(way, engines, tensors, 1, nbytes, places) for way in ways}
        # The first round touches memory and connects: it is not counted.
        for number in range(given["rounds"] + 1):
            for turn, way in enumerate(ways[:: -1 if number % 2 else 1]):
                version = number * len(ways) + turn + 1
                trainer.call("publish", version)
                together(others, "clear")
                seconds = _seconds(way, trainer, others)
                told[way].wrong += sum(together(others, "wrong", version))
                if number:
                    told[way].seconds.append(seconds)
        told["pull"].path = others[0].call("path")
    finally:
        for process in (trainer, *others):
            process.end()
        folder.cleanup()
    pull = told["pull"]
    for way in ways[1:]:
        setattr(pull, f"of_{way}", ratio(told[way].seconds, pull.seconds))
    yield from told.values()


def _seconds(way: str, trainer: Process, engines: Sequence[Process]) -> float:
    """Let all engines get the tensors; return the time."""
    if way == "copies":
        in_turn: list[tuple[float, float]] = [engine.call("copy") for engine in engines]
        return sum(end - start for start, end in in_turn)
    if way != "pull":
        trainer.start("broadcast")
    spans: list[tuple[float, float]]
    spans = together(engines, "pull" if way == "pull" else "broadcast")
    if way != "pull":
        spans.append(trainer.result())
    return max(end for _, end in spans) - min(start for start, _ in spans)


# ---- Plans


def _prepares(tensors: int, publishers: int, rounds: int) -> Iterator[Figure]:
    trainers = Process(Trainers, tensors, publishers)
    planner = Process(Planner, tensors, publishers)
    try:
        planner.call("begin", trainers.call("tables"))
        prepare = Figure("prepare", 1, tensors, publishers, tensors * publishers * Trainers.ROW)
        planner.call("plan")  # connects the links
        for _ in range(rounds):
            wall, cpu = planner.call("plan")
            prepare.seconds.append(wall)
            prepare.cpu_seconds.append(cpu)
        trainers.call("publish", 1)
        pull = Figure("pull of it", 1, tensors, publishers, prepare.nbytes)
        pull.seconds = [planner.call("pull") for _ in range(rounds)]
        pull.wrong = planner.call("wrong")
        yield prepare
        yield pull
    finally:
        trainers.end()
        planner.end()


# ---- Rows


def _spread(one: Figure) -> str:
    return " ".join(f"{of(one.seconds) / one.median - 1:+.0%}" for of in (min, max))


def _cpu(one: Figure) -> str | None:
    return figure(statistics.median(one.cpu_seconds) * 1e3, 1) if one.cpu_seconds else None


def _rate(one: Figure) -> str | None:
    moved = one.what != "prepare"
    return figure(one.engines * one.nbytes / one.median / 1e9, 2) if moved else None


_SHOWN: tuple[Column[Figure], ...] = (
    Column("what", lambda one: one.what, "left"),
    Column("engines", lambda one: str(one.engines), "left"),
    Column("tensors", lambda one: str(one.tensors), "left"),
    Column("publishers", lambda one: str(one.publishers), "left"),
    Column("size", lambda one: format_size(one.nbytes), "left"),
    Column("devices", lambda one: one.devices or "host", "left"),
    Column("path", lambda one: one.path, "left"),
    Column("ms", lambda one: figure(one.median * 1e3, 1)),
    Column("rounds", _spread),
    Column("CPU ms", _cpu),
    Column("GB/s", _rate),
    Column("by copies", lambda one: figure(one.of_copies, 2)),
    Column("by gloo", lambda one: figure(one.of_gloo, 2)),
    Column("by NCCL", lambda one: figure(one.of_nccl, 2)),
    WRONG,
)


def _table(found: Sequence[Figure]) -> Table:
    return figures(
        "onehop bench weights",
        "ms: median of the rounds, the least and the greatest beside it; GB/s: bytes of all engines"
        " by the median; by copies, gloo, NCCL: their time by the pull's in the same round, median",
        _SHOWN,
        found,
    )
