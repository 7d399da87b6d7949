# SPDX-License-Identifier: Apache-2.0
"""``onehop bench``: latency, bandwidth, batches and set-up, each row with its bytes checked."""

# ruff: noqa: ANN401, D401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onehop.cli import bench_options as options
from onehop.cli.gpus import HOST, Pair, choose, facts, nccl_libraries, version
from onehop.cli.measure import (
    BANDWIDTH_MODES,
    LATENCY_MODES,
    Job,
    Note,
    by_group,
    line_floors,
    measure,
    nccl_modes,
)
from onehop.cli.output import growing, json_lines, listing, make_console, provenance
from onehop.cli.rows import Row, table
from onehop.cli.sides import Placement
from onehop.cli.sizes import format_size

_FLAG_SIZE = 8
# Buffers of a windowed row take no more than this on each side, unless a window is asked for.
_MOST_IN_FLIGHT = 256 * 2**20
_DEFAULT_WINDOW = 16


@click.group()
def bench() -> None:
    """Measure; exits with 1 if a byte was wrong."""


@bench.command()
@options.sizes("8,1K,8K,64K,1M")
@options.modes("sendrecv", "put", "get", "put_signal", "event", *LATENCY_MODES)
@options.buffers
@options.versus("flag", "process_vm", "memcpy", "floor")
@options.common
def latency(
    sizes: Sequence[int], modes: Sequence[str], buffers: str, floors: Sequence[str], **common: Any
) -> None:
    """Time of single messages, puts and gets.

    event: messages behind an event of a GPU's stream; stream: in the order of one, all enqueued at
    once; graph: the same as a graph of 50 round trips; kernel: within a kernel, by a warp or block.
    """
    options.check_modes(modes, common["memory"])
    jobs = by_group(
        [
            _job("latency", common, mode, size, shared=buffers == "shared")
            for mode in modes
            for size in sizes
        ]
    )
    if common["memory"] != HOST and common["api"] == "python":
        if list(modes) != ["sendrecv"]:
            raise click.UsageError("--api python of GPU memory measures sendrecv")
        jobs = [replace(job, api=api) for api in _python_apis() for job in jobs]
    if common["memory"] != HOST:
        jobs += _gpu_floors("latency", common, floors, sizes, modes=modes)
    else:
        if {"flag", "floors"} & set(floors):
            jobs.append(_floor("latency", common, "flag", _FLAG_SIZE))
        jobs += _size_floors("latency", common, floors, sizes)
    run(jobs, common)


@bench.command()
@options.sizes("4K,64K,1M,16M")
@options.modes("sendrecv", "put", "get", *BANDWIDTH_MODES)
@options.buffers
@click.option(
    "--window",
    type=click.IntRange(1, 4096),
    help="Operations in flight; 1: blocking. Default: 16, fewer of large ones.",
)
@click.option("--both", is_flag=True, help="Messages in both directions at once; each way's rate.")
@options.versus("process_vm", "memcpy")
@options.common
def bandwidth(
    sizes: Sequence[int],
    modes: Sequence[str],
    buffers: str,
    window: int | None,
    both: bool,
    floors: Sequence[str],
    **common: Any,
) -> None:
    """Bytes a second, with several operations in flight or blocking, one way or both at once.

    stream, stream_put: all in the order of a GPU's stream, by kernels or by the copy engine;
    graph_put: the latter as a graph; kernel_put: by a kernel of 8 blocks.
    """
    options.check_modes(modes, common["memory"])
    if both and (list(modes) != ["sendrecv"] or common["api"] != "c"):
        raise click.UsageError("--both goes with --mode sendrecv and --api c only")
    jobs = by_group(
        [
            _job(
                "bandwidth",
                common,
                mode,
                size,
                shared=buffers == "shared",
                window=window or _window(size),
                both=both,
            )
            for mode in modes
            for size in sizes
        ]
    )
    if common["memory"] != HOST:
        jobs += _gpu_floors(
            "bandwidth", common, floors, sizes, modes=modes, window=window, both=both
        )
    else:
        jobs += _size_floors("bandwidth", common, floors, sizes)
    run(jobs, common)


@bench.command()
@options.sizes("4K,16K,64K")
@options.modes("put", "get", "put_prepared", "get_prepared", "bulk")
@options.buffers
@click.option(
    "--blocks", type=click.IntRange(1), default=1000, show_default=True, help="Blocks of a batch."
)
@click.option("--strided", is_flag=True, help="Described by strides; else by lists of offsets.")
@options.common
def batch(
    sizes: Sequence[int],
    modes: Sequence[str],
    buffers: str,
    blocks: int,
    strided: bool,
    **common: Any,
) -> None:
    """Many blocks by one call; they are not contiguous, and the gaps must not change.

    bulk: what they are compared with: gathered, sent as one message, and scattered.
    """
    if "bulk" in modes and (common["api"] != "c" or common["memory"] != HOST):
        raise click.UsageError("--mode bulk is of host memory, with --api c only")
    run(
        [
            _job(
                "batch",
                common,
                mode,
                size,
                shared=buffers == "shared",
                blocks=blocks,
                strided=strided,
            )
            for mode in modes
            for size in sizes
        ],
        common,
    )


@bench.command()
@click.option(
    "--peers",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    help="Links that are kept, to see what memory they take.",
)
@options.common
def setup(peers: int, **common: Any) -> None:
    """What an endpoint, a link, and its first bytes take, in time and memory."""
    if common["api"] != "c":
        raise click.UsageError("the set-up is measured with --api c only")
    run([_job("setup", common, "sendrecv", 8, window=peers)], common)


def _window(size: int) -> int:
    return max(2, min(_DEFAULT_WINDOW, _MOST_IN_FLIGHT // max(1, size)))


def _job(op: str, common: dict[str, Any], mode: str, size: int, **more: Any) -> Job:
    if "devices_of" not in common:
        common["devices_of"] = choose(common["memory"], common["devices"])
        gpu_from_python = common["memory"] != HOST and common["api"] == "python"
        if gpu_from_python and (op != "latency" or "host" in common["memory"]):
            raise click.UsageError("--api python of GPU memory is for latency, on both sides")
    if size == 0 and mode != "sendrecv":
        raise click.UsageError(f"{mode} moves at least one byte: only sendrecv has messages of 0")
    return Job(
        op=op,
        api=common["api"],
        mode=mode,
        size=size,
        iterations=common["iters"] or 0,
        memory=common["memory"],
        devices=common["devices_of"],
        **more,
    )


def _gpu_floors(
    op: str,
    common: dict[str, Any],
    floors: Sequence[str],
    sizes: Sequence[int],
    *,
    modes: Sequence[str],
    window: int | None = None,
    both: bool = False,
) -> list[Job]:
    """Return what rows of GPU memory are compared with: copy engines, bare kernels, and NCCL."""
    for name in set(floors) - {"memcpy", "nccl", "floors", "floor"}:
        raise click.UsageError(f"--vs {name} is a floor of host memory")
    if floors and "" in common["devices_of"]:
        raise click.UsageError("--vs compares memory of GPUs, with --memory cuda or its kin")
    jobs = []
    for size in sizes:
        if size == 0:
            continue
        iterations = common["iters"] or 0
        base = Job(op, "floor", "memcpy", size, iterations, devices=common["devices_of"])
        base = replace(base, memory=("cuda", "cuda"), both=both)
        if op == "bandwidth":
            base = replace(base, window=window or _window(size))
        if {"memcpy", "floors"} & set(floors):
            jobs.append(base)
            kinds = {"sendrecv": "put_flag", "event": "put_flag_event"}
            if op == "latency":
                jobs += [replace(base, mode=kinds[mode]) for mode in modes if mode in kinds]
        if op == "latency" and {"floor", "floors"} & set(floors):
            jobs += line_floors(base, modes)
        if "nccl" in floors:
            of_nccl = replace(base, api="nccl", libraries=tuple(nccl_libraries(common["nccl"])))
            of_modes = [replace(of_nccl, mode=mode) for mode in nccl_modes(modes)]
            jobs += by_group(of_modes)
    return jobs


def _floor(op: str, common: dict[str, Any], name: str, size: int) -> Job:
    return Job(op=op, api="floor", mode=name, size=size, iterations=common["iters"] or 0)


def _size_floors(
    op: str, common: dict[str, Any], floors: Sequence[str], sizes: Sequence[int]
) -> list[Job]:
    for name in {"nccl", "floor"} & set(floors):
        raise click.UsageError(f"--vs {name} compares memory of GPUs: --memory cuda")
    wanted = [name for name in ("process_vm", "memcpy") if {name, "floors"} & set(floors)]
    return [_floor(op, common, name, size) for name in wanted for size in sizes if size > 0]


def run(jobs: list[Job], common: dict[str, Any]) -> None:
    """Measure all jobs; show and write their rows."""
    placement = options.placement(common)
    if common["api"] == "python":
        _need_numpy()
    options.check_memory(jobs)
    op = jobs[0].op
    with report(
        common["json_to"],
        gpu=jobs[0].memory != HOST,
        show=lambda rows: table(op, rows),
        about=op,
        total=rows_of(jobs),
    ) as reported:
        for found in measure(jobs, placement):
            reported.add(found)


class Report:
    """Rows as they are measured: shown in a table that grows, and written as JSON."""

    def __init__(self, write: Callable[[str], None], known: dict[str, str]) -> None:
        self.rows: list[Row] = []
        self.step: Callable[[str], None] = lambda _: None
        self._write = write
        self._known = known

    def add(self, found: Row | Note) -> None:
        """Take a row; a note goes to standard error."""
        if isinstance(found, Note):
            click.echo(found.text, err=True)
            return
        self.rows.append(found)
        self._write(found.as_json(self._known))
        self.step(f"{found.op} {format_size(found.size)}")


@contextlib.contextmanager
def report(
    json_to: str | None,
    *,
    gpu: bool,
    show: Callable[[Sequence[Row]], RenderableType],
    about: str,
    total: int,
) -> Iterator[Report]:
    """Give a report of as many rows; `show` makes a table of those that there are, one at least.

    Raises:
        click.ClickException: at the end, if bytes were wrong.

    """
    known = provenance()
    devices = facts() if gpu else ""
    if not isinstance(devices, str):
        known["gpu"] = " + ".join(device.name for device in devices.devices)
        known["driver"] = version(devices)
    # With the rows on standard output, everything else goes to standard error.
    make_console(stderr=json_to == "-").print(
        " | ".join(f"{key} {value}" for key, value in known.items()), style="dim", highlight=False
    )
    with json_lines(json_to) as write:
        made = Report(write, known)

        def shown() -> RenderableType:
            return show(made.rows) if made.rows else Text(end="")

        with growing(shown, about, total, hidden=json_to == "-") as made.step:
            yield made
    wrong = sum(row.wrong for row in made.rows)
    if wrong:
        raise click.ClickException(f"{wrong} bytes were not what was sent")


def rows_of(jobs: Sequence[Job]) -> int:
    """Return how many rows jobs have, all of one kind."""
    return len(jobs) * (4 if jobs[0].op == "setup" else 1)


def _python_apis() -> list[str]:
    """Return what may be sent from Python: the ways of naming memory of a GPU that are here."""
    torch = ["python-torch"] if importlib.util.find_spec("torch") else []
    return ["python-region", "python-array", *torch]


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as failure:
        raise click.UsageError("--api python needs numpy: pip install numpy") from failure


# ---- Every device to every device


@bench.command()
@options.sizes("1K,64K,64M")
@options.gpu_memory
@options.how
def matrix(sizes: Sequence[int], memory: Pair, **common: Any) -> None:
    """Latency and bandwidth of messages between all pairs of GPUs, blocking."""
    if "host" in memory:
        raise click.UsageError("the matrix is of GPUs: --memory cuda or its kin")
    if 0 in sizes:
        raise click.UsageError("the matrix has messages of at least one byte")
    found = facts()
    if isinstance(found, str):
        raise click.ClickException(f"no matrix: {found}")
    names = [f"cuda:{number}" for number in range(len(found.devices))]
    cpus = options.sides_on(common["cpus"], 2)
    placement = Placement(within=not common["processes"], cpus=cpus)

    def show(rows: Sequence[Row]) -> Group:
        return Group(
            *(
                _matrix_table(
                    f"{op} {format_size(size)}, {unit}",
                    [row for row in rows if (row.op, row.size) == (op, size)],
                    len(names),
                )
                for op, unit in (("bandwidth", "GB/s"), ("latency", "us one way, p50"))
                for size in sizes
            )
        )

    total = len(names) ** 2 * 2 * len(sizes)
    with report(
        common["json_to"], gpu=memory != HOST, show=show, about="matrix", total=total
    ) as reported:
        for row in _measure_pairs(names, sizes, memory, placement, common["iters"] or 0):
            reported.add(row)


def _measure_pairs(
    names: Sequence[str], sizes: Sequence[int], memory: Pair, placement: Placement, iterations: int
) -> Iterator[Row | Note]:
    for source in names:
        for target in names:
            jobs = [
                Job(op, "c", "sendrecv", size, iterations, memory=memory, devices=(source, target))
                for op in ("latency", "bandwidth")
                for size in sizes
            ]
            yield from measure(jobs, placement)


def _matrix_table(title: str, rows: Sequence[Row], count: int) -> Table:
    shown = listing(title, "from, to")
    for number in range(count):
        shown.add_column(str(number), justify="right")
    by_pair = {row.devices: row for row in rows}
    for source in range(count):
        cells = [by_pair.get(f"{source},{target}") for target in range(count)]
        shown.add_row(str(source), *map(_cell, cells))
    return shown


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{row.GBps if row.op == 'bandwidth' else row.p50_us:,.2f}"
