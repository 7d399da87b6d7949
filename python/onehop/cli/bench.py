# SPDX-License-Identifier: Apache-2.0
"""``onehop bench``: latency, bandwidth, batches, patterns and set-up, each with its bytes checked.

Other commands of the group are in bench_*.py.
"""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.between import ANY, PORT, Host, Place, serve
from onehop.cli.gpus import (
    HOST,
    check_numbers,
    choose,
    nccl_libraries,
    needed_facts,
    parse_devices,
    with_gpus,
)
from onehop.cli.measure import (
    BANDWIDTH_MODES,
    BATCHES_IN_STREAM,
    BENCH,
    IN_KERNEL,
    LATENCY_MODES,
    NCCLS,
    PATTERNS,
    Found,
    Job,
    by_group,
    line_floors,
    measure,
    nccl_modes,
)
from onehop.cli.output import growing, json_lines, listing, make_console, provenance, say_provenance
from onehop.cli.paths import DOCTOR
from onehop.cli.rows import Row, table
from onehop.cli.sides import Note, Placement
from onehop.cli.sizes import format_size

_FLAG_SIZE = 8
# Buffers of a row use at most this on each side, unless --window is given.
_MOST_IN_FLIGHT = 256 * 2**20
_DEFAULT_WINDOW = 16


@click.group(invoke_without_command=True)
@click.option(
    "--listen",
    is_flag=False,
    flag_value=f"{ANY}:{PORT}",
    metavar="[HOST[:PORT]]",
    callback=options.parse_place,
    help="Serve benchmarks and doctors of other hosts that run with --connect, until Ctrl-C."
    f" Default: all IPv4 addresses, port {PORT}.",
)
@click.option("--once", is_flag=True, help="With --listen: exit after one run.")
@click.pass_context
def bench(context: click.Context, listen: Place | None, once: bool) -> None:
    """Run a benchmark. Exits with 1 if a byte was wrong."""
    if listen and (context.invoked_subcommand or listen.host in bench.commands):
        raise click.UsageError("--listen: the connecting side says what is measured")
    if once and not listen:
        raise click.UsageError("--once goes with --listen")
    if listen:
        serve(listen, [BENCH, DOCTOR], once=once)
    elif not context.invoked_subcommand:
        click.echo(context.get_help(), err=True)
        context.exit(2)


@bench.command()
@options.sizes("8,1K,8K,64K,1M")
@options.modes("sendrecv", "put", "get", "put_signal", "event", *LATENCY_MODES)
@options.buffers
@options.groups
@options.versus("flag", "process_vm", "memcpy", "floor")
@options.common
@plots.option
def latency(**given: Any) -> None:
    """Measure the time of single messages, puts and gets.

    event: messages that wait for an event of a CUDA stream; stream: in the order of a stream, all
    enqueued at once; graph: the same as a graph of 50 round trips; kernel: within a kernel, by one
    thread group.
    """
    jobs = _jobs("latency", given)
    if given["memory"] != HOST and given["api"] == "python":
        if list(given["modes"]) != ["sendrecv"]:
            raise click.UsageError("--api python of GPU memory measures sendrecv")
        jobs = [replace(job, api=api) for api in _python_apis() for job in jobs]
    _run(jobs + _floors("latency", given), given)


@bench.command(short_help="Measure bytes per second, blocking or several at once.")
@options.sizes("4K,64K,1M,16M")
@options.modes("sendrecv", "put", "get", *BANDWIDTH_MODES)
@options.buffers
@click.option(
    "--window",
    type=click.IntRange(1, 4096),
    help="Operations in flight; 1: blocking. Default: 16, fewer for large sizes.",
)
@click.option(
    "--both", is_flag=True, help="Send in both directions at once; report the rate of one."
)
@options.groups
@options.versus("process_vm", "memcpy")
@options.common
@plots.option
def bandwidth(**given: Any) -> None:
    """Measure bytes per second, blocking or with several operations in flight, one way or both.

    stream, stream_put: in the order of a CUDA stream, by kernels or by the copy engine; graph_put:
    stream_put as a graph; kernel: messages within a kernel, by one thread group, with --both by one
    for each direction; kernel_put: puts by a kernel of 8 blocks.
    """
    if given["both"] and (
        not {"sendrecv", "kernel"}.issuperset(given["modes"]) or given["api"] != "c"
    ):
        raise click.UsageError("--both goes with --mode sendrecv or kernel, and --api c only")
    _run(_jobs("bandwidth", given) + _floors("bandwidth", given), given)


@bench.command()
@options.sizes("4K,16K,64K")
@options.modes("put", "get", "put_prepared", "get_prepared", "bulk", *BATCHES_IN_STREAM)
@options.buffers
@click.option(
    "--blocks", type=click.IntRange(1), default=1000, show_default=True, help="Blocks in a batch."
)
@click.option(
    "--strided", is_flag=True, help="Describe the blocks by strides, not by lists of offsets."
)
@options.common
@plots.option
def batch(**given: Any) -> None:
    """Measure calls that move many blocks.

    The blocks are not contiguous, and the gaps between them must not change. bulk: for comparison,
    gathered, sent as one message, and scattered; put_stream, get_stream: in the order of a CUDA
    stream; put_graph, get_graph: the same as a graph.
    """
    if "bulk" in given["modes"] and (given["api"] != "c" or given["memory"] != HOST):
        raise click.UsageError("--mode bulk is of host memory, with --api c only")
    _run(_jobs("batch", given), given)


@bench.command(short_help="Measure the time and memory of endpoints and links.")
@click.option(
    "--peers",
    type=click.IntRange(1, 1024),
    default=16,
    show_default=True,
    help="Links to keep open, to measure the memory of each.",
)
@options.common
@plots.no_option("its rows are steps of the set-up, all of one size")
def setup(peers: int, **given: Any) -> None:
    """Measure the time and memory of an endpoint, a link, and its first bytes."""
    if given["api"] != "c":
        raise click.UsageError("the set-up is measured with --api c only")
    _run(_jobs("setup", {**given, "modes": ["sendrecv"], "sizes": [8], "window": peers}), given)


def _jobs(op: str, given: dict[str, Any]) -> list[Job]:
    """Return the rows of onehop that the options select; `given` then has the devices."""
    memory, api, connect = given["memory"], given["api"], given["connect"]
    options.check_modes(given["modes"], memory)
    for mode in given["modes"]:
        if connect and mode in IN_KERNEL:
            raise click.UsageError(f"--mode {mode}: kernels do not reach another host")
    given["devices"] = choose(memory, given["devices"], apart=bool(connect))
    if memory != HOST and api == "python" and (op != "latency" or "host" in memory):
        raise click.UsageError("--api python of GPU memory is for latency, on both sides")
    for mode in given["modes"]:
        if 0 in given["sizes"] and mode != "sendrecv":
            raise click.UsageError(
                f"{mode} moves at least one byte: only sendrecv has messages of 0"
            )
    return by_group(
        [
            Job(
                op,
                api,
                mode,
                size,
                given["iters"] or 0,
                window=_window(op, given, size),
                blocks=given.get("blocks", 1),
                strided=given.get("strided", False),
                shared=given.get("buffers") == "shared",
                memory=memory,
                devices=given["devices"],
                both=given.get("both", False),
            )
            for mode in given["modes"]
            for size in given["sizes"]
        ],
        given.get("groups", ()),
    )


def _window(op: str, given: dict[str, Any], size: int) -> int:
    if op in ("latency", "batch"):
        return 1
    fitting = max(2, min(_DEFAULT_WINDOW, _MOST_IN_FLIGHT // max(1, size)))
    return given["window"] or fitting


def _floors(op: str, given: dict[str, Any]) -> list[Job]:
    """Return the rows without onehop that --vs selects."""
    names = set(given["floors"])
    if names and given["connect"]:
        raise click.UsageError("--vs compares with what one machine does: not with --connect")
    sizes = [size for size in given["sizes"] if size > 0]
    iterations = given["iters"] or 0
    if given["memory"] != HOST:
        for name in names - {"memcpy", "floors", "floor", *NCCLS}:
            raise click.UsageError(f"--vs {name} is a floor of host memory")
        if names and "" in given["devices"]:
            raise click.UsageError("--vs compares memory of GPUs, with --memory cuda or its kin")
        bases = [
            Job(
                op,
                "floor",
                "memcpy",
                size,
                iterations,
                window=_window(op, given, size),
                memory=("cuda", "cuda"),
                devices=given["devices"],
                both=given.get("both", False),
            )
            for size in sizes
        ]
        return [job for base in bases for job in _gpu_floors(base, names, given)]
    for name in {*NCCLS, "floor"} & names:
        raise click.UsageError(f"--vs {name} compares memory of GPUs: --memory cuda")
    wanted = [name for name in ("process_vm", "memcpy") if {name, "floors"} & names]
    jobs = [Job(op, "floor", name, size, iterations) for name in wanted for size in sizes]
    if op == "latency" and {"flag", "floors"} & names:
        jobs.insert(0, Job(op, "floor", "flag", _FLAG_SIZE, iterations))
    return jobs


def _gpu_floors(base: Job, names: set[str], given: dict[str, Any]) -> Iterator[Job]:
    """Yield the comparisons for rows of GPU memory: copy engines, bare kernels, and NCCL."""
    modes = given["modes"]
    if {"memcpy", "floors"} & names:
        yield base
        kinds = {"sendrecv": "put_flag", "event": "put_flag_event"}
        if base.op == "latency":
            yield from (replace(base, mode=kinds[mode]) for mode in modes if mode in kinds)
    if base.op == "latency" and {"floor", "floors"} & names:
        yield from line_floors(base, modes, given["groups"])
    for name in (name for name in NCCLS if name in names):
        of_nccl = replace(base, api=name, libraries=nccl_libraries(given["nccl"]))
        yield from by_group([replace(of_nccl, mode=mode) for mode in nccl_modes(modes)])


def _run(jobs: Sequence[Job], given: dict[str, Any]) -> None:
    """Measure jobs of one kind between two sides; show and write their rows."""
    placement = options.placement(given)
    if given["api"] == "python":
        _need_numpy()
    options.check_memory(jobs)
    _show(jobs, given, placement)


def _show(jobs: Sequence[Job], given: dict[str, Any], placement: Placement) -> None:
    op = jobs[0].op
    with report(
        given["json_to"],
        gpu=jobs[0].memory != HOST,
        show=lambda rows: table(op, rows),
        about=op,
        total=len(jobs) * (4 if op == "setup" else 1),
        plot=given.get("plot"),
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

    def add(self, found: Found) -> None:
        """Add a row; print a note, or the identity of the other side, to standard error."""
        if isinstance(found, Note):
            click.echo(found.text, err=True)
            return
        if isinstance(found, Host):
            others = {f"other_{name}": fact for name, fact in found.facts.items()}
            self._known = {**self._known, **others}
            click.echo(f"with {found}", err=True)
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
    plot: Path | None = None,
) -> Iterator[Report]:
    """Give a report of as many rows; `show` makes a table of those that there are, one at least.

    plot: a file to draw them into, at the end.

    Raises:
        click.ClickException: at the end, if bytes were wrong.

    """
    known = with_gpus(provenance()) if gpu else provenance()
    # With the rows on standard output, everything else goes to standard error.
    say_provenance(make_console(stderr=json_to == "-"), known)
    with json_lines(json_to) as write:
        made = Report(write, known)

        def shown() -> RenderableType:
            return show(made.rows) if made.rows else Text(end="")

        try:
            with growing(shown, about, total, hidden=json_to == "-") as made.step:
                yield made
        finally:
            if plot and any(not row.wrong for row in made.rows):
                plots.draw(plot, [json.loads(row.as_json(known)) for row in made.rows])
    options.warn_of_turns(made.rows, "rows")
    wrong = sum(row.wrong for row in made.rows)
    if wrong:
        raise click.ClickException(f"{wrong} bytes were not what was sent")


def _python_apis() -> list[str]:
    """Return the Python APIs available here, by the kind of object that names GPU memory."""
    torch = ["python-torch"] if importlib.util.find_spec("torch") else []
    return ["python-region", "python-array", *torch]


def _need_numpy() -> None:
    try:
        import numpy  # noqa: F401
    except ImportError as failure:
        raise click.UsageError("--api python needs numpy: pip install numpy") from failure


# ---- Among GPUs


@bench.command(short_help="Measure messages between all pairs of GPUs.")
@options.sizes("1K,64K,64M")
@options.gpu_memory
@options.how
@plots.no_option("its tables are pairs of GPUs, a table for each size")
def matrix(**given: Any) -> None:
    """Measure latency and bandwidth of blocking messages between all pairs of GPUs."""
    sizes, memory = given["sizes"], given["memory"]
    if "host" in memory:
        raise click.UsageError("the matrix is of GPUs: --memory cuda or its kin")
    if 0 in sizes:
        raise click.UsageError("the matrix has messages of at least one byte")
    names = [f"cuda:{number}" for number in range(len(needed_facts("no matrix").devices))]
    jobs = [
        Job(op, "c", "sendrecv", size, given["iters"] or 0, memory=memory, devices=(source, target))
        for source in names
        for target in names
        for op in ("latency", "bandwidth")
        for size in sizes
    ]
    tables = [(*kind, size) for kind in _MATRIX for size in sizes]

    def show(rows: Sequence[Row]) -> Group:
        return Group(*(_matrix(rows, len(names), *about) for about in tables))

    placement = options.placement(given)
    with report(given["json_to"], gpu=True, show=show, about="matrix", total=len(jobs)) as reported:
        # Each pair has its own link.
        for _, of_pair in itertools.groupby(jobs, key=lambda job: job.devices):
            for found in measure(list(of_pair), placement):
                reported.add(found)


_MATRIX = (("bandwidth", "GB/s", "GBps"), ("latency", "us one way, p50", "p50_us"))


def _matrix(rows: Sequence[Row], count: int, op: str, unit: str, figure: str, size: int) -> Table:
    shown = listing(f"{op} {format_size(size)}, {unit}", "from, to")
    for number in range(count):
        shown.add_column(str(number), justify="right")
    cells = {
        row.devices: f"{getattr(row, figure):,.2f}"
        for row in rows
        if (row.op, row.size) == (op, size)
    }
    for source in range(count):
        shown.add_row(
            str(source), *(cells.get(f"{source},{target}", "") for target in range(count))
        )
    return shown


@bench.command(short_help="Measure exchanges among ranks on their streams.")
@options.sizes("1K,64K,1M,16M")
@options.modes(*PATTERNS, default=PATTERNS)
@click.option("--ranks", type=click.IntRange(2, 64), help="Default: one per device, at least two.")
@click.option(
    "--devices",
    callback=parse_devices,
    metavar="A,B,...",
    help="Devices of the ranks, in turn. Default: all.",
)
@options.gpu_memory
@options.versus()
@options.how
@plots.option
def patterns(ranks: int | None, devices: Sequence[int], **given: Any) -> None:
    """Measure exchanges among ranks on their streams, launched or as graphs of up to 50.

    sendrecv: each rank to the next of a ring; send_many: rank 0 to all others; recv_many: all
    others to rank 0; all_to_all_v: all ranks to all, also to themselves, in parts of 1/4 to 4/4 of
    the size; dispatch: the same, but only the device knows the sizes.
    """
    kind, other = given["memory"]
    if kind != other or kind in ("host", "pinned", "cuda-managed"):
        raise click.UsageError("the patterns are of GPUs: --memory cuda or its kin, one for all")
    if 0 in given["sizes"]:
        raise click.UsageError("the patterns have parts of at least one byte")
    found = needed_facts("no patterns")
    check_numbers(devices, found)
    chosen = devices or range(len(found.devices))
    count = ranks or max(2, len(chosen))
    where = tuple(f"cuda:{chosen[rank % len(chosen)]}" for rank in range(count))
    jobs = [
        Job(
            "patterns",
            "c",
            mode,
            size,
            given["iters"] or 0,
            memory=(kind,) * count,
            devices=where,
        )
        for mode in given["modes"]
        for size in given["sizes"]
    ]
    if given["floors"]:
        libraries = nccl_libraries(given["nccl"])
        jobs += [
            replace(job, api=name, libraries=libraries)
            for name in NCCLS
            if name in given["floors"]
            for job in jobs
        ]
    _show(jobs, given, options.placement(given, count))
