# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from onehop.cli.between import Place
from onehop.cli.gpus import HOST, Pair, parse_devices, parse_memory, parse_numbers
from onehop.cli.measure import GROUPS, IN_KERNEL, IN_STREAM, NCCLS, Job
from onehop.cli.output import Finding
from onehop.cli.rows import Row
from onehop.cli.sides import Placement
from onehop.cli.sizes import SizeList, format_size

Command = Callable[..., None]

# The variable that selects the transport in the processes of a benchmark.
TRANSPORT = "ONEHOP_TRANSPORT"


def _cpus(_: click.Context, __: click.Parameter, value: str | None) -> list[int]:
    numbers = parse_numbers(value, "CPU")
    for cpu in numbers:
        if not _may_run_on(cpu):
            usable = ", ".join(str(n) for n in range(os.cpu_count() or 1) if _may_run_on(n))
            raise click.BadParameter(f"CPU {cpu} is not usable here; there are: {usable}")
    return numbers


def _may_run_on(cpu: int) -> bool:
    """Try it: the current affinity does not show which other CPUs may be selected."""
    former = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {cpu})
    except (OSError, ValueError, OverflowError):
        return False
    os.sched_setaffinity(0, former)
    return True


def sides_on(cpus: Sequence[int], count: int) -> Sequence[int]:
    """Return the CPUs of `count` sides; warn if some of them share one.

    Raises:
        click.UsageError: there are more CPUs than sides.

    """
    if len(cpus) > count:
        raise click.UsageError(f"--cpus names {len(cpus)} CPUs, and there are {count} sides")
    places = {cpus[side % len(cpus)] for side in range(count)} if cpus else os.sched_getaffinity(0)
    if len(places) < count:
        named = ",".join(str(cpu) for cpu in sorted(places))
        click.echo(
            f"warning: {count} sides share CPU {named} and take turns on it, so that times are"
            " those of the scheduler: give each side a CPU of its own (--cpus 0,1; taskset and"
            " container limits must allow them)",
            err=True,
        )
    return cpus


def warn_of_turns(found: Sequence[Row] | Sequence[Finding], what: str) -> None:
    """Warn if the scheduler ran two sides on one CPU, unless there is only one."""
    shared = sum(one.shared_cpu is not None for one in found)
    if shared and len(os.sched_getaffinity(0)) > 1:
        timed = sum(one.p50_us is not None for one in found)
        click.echo(
            f"warning: in {shared} of {timed} {what} two sides were on one CPU: where they took"
            " turns on it, times are those of the scheduler; onehop bench --cpus 0,1 gives each"
            " side a CPU of its own",
            err=True,
        )


def check_modes(modes: Sequence[str], memory: Pair) -> None:
    """Reject modes for GPUs with host memory.

    Raises:
        click.UsageError: naming the mode.

    """
    for mode in modes:
        if mode in ("event", *IN_STREAM, *IN_KERNEL) and "host" in memory:
            raise click.UsageError(f"--mode {mode} is for memory of a GPU on both sides")


def check_memory(jobs: Sequence[Job]) -> None:
    """Reject sizes whose buffers do not fit into this host's memory.

    Raises:
        click.UsageError: naming the size, and the free memory.

    """
    free = _free_memory()
    for job in jobs:
        if job.memory != HOST:
            continue
        buffers = {"latency": 4, "bandwidth": 2 * job.window, "batch": 2 * job.blocks}.get(job.op)
        needed = (buffers or 0) * job.size
        if needed > free:
            raise click.UsageError(
                f"--sizes {format_size(job.size)}: the buffers of both sides take"
                f" {needed / 2**30:,.1f} GiB, and {free / 2**30:,.1f} GiB of memory are free here"
            )


def _free_memory() -> int:
    """Return the bytes that the kernel could give to a program now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return sys.maxsize


def transport(default: str | None = None) -> Callable[[Command], Command]:
    """Add --transport; without a default, the environment's applies."""
    return click.option(
        "--transport",
        type=click.Choice(["auto", "ucx", "socket"]),
        default=default,
        show_default=default or f"{TRANSPORT}, or auto",
        help=f"Transport between the processes: see {TRANSPORT}.",
    )


def memory(
    text: str, default: str | None = "host", metavar: str = "KIND[,KIND]"
) -> Callable[[Command], Command]:
    """Add --memory with a help text."""
    return click.option(
        "--memory",
        default=default,
        callback=parse_memory,
        show_default=default is not None,
        metavar=metavar,
        help=text,
    )


def rounds(text: str | None = None, default: int = 5) -> Callable[[Command], Command]:
    """Add --rounds with a help text."""
    return click.option(
        "--rounds", type=click.IntRange(1), default=default, show_default=True, help=text
    )


def parse_place(_: click.Context, __: click.Parameter, value: str | None) -> Place | None:
    """Parse the meeting point of the listening side."""
    if value is None:
        return None
    try:
        return Place.parse(value)
    except ValueError as failure:
        raise click.BadParameter(str(failure)) from failure


connect = click.option(
    "--connect",
    metavar="HOST[:PORT]",
    callback=parse_place,
    help="Measure between this host and another one, where `onehop bench --listen` runs.",
)
devices = click.option(
    "--devices",
    callback=parse_devices,
    metavar="A,B",
    help="Device of each side. Default: 0,1; with one GPU 0,0.",
)
cpus = click.option("--cpus", callback=_cpus, metavar="A,B", help="Pin the sides to these CPUs.")
json_to = click.option("--json", "json_to", metavar="FILE|-", help="Write the rows as JSON lines.")
_HOW: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--iters",
        type=click.IntRange(1),
        help="Number of operations. Default: depends on the size.",
    ),
    click.option(
        "--processes/--threads",
        " /--within",
        "processes",
        default=True,
        help="Two processes (default), or two threads of one.",
    ),
    cpus,
    json_to,
)

_WHAT: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--api",
        type=click.Choice(["c", "python"]),
        default="c",
        show_default=True,
        help="Time the C++ calls, or the Python calls with numpy arrays.",
    ),
    memory(
        "host, pinned, cuda (cudaMalloc), cuda-vmm, cuda-pool, cuda-async or cuda-managed. Two"
        " values: one per side."
    ),
    devices,
    transport(),
    connect,
)


# For measurements between GPUs only.
gpu_memory = memory("As with the other benchmarks.", "cuda", "KIND")


def how(command: Command) -> Command:
    """Add the options that all measurements share."""
    for option in reversed(_HOW):
        command = option(command)
    return command


def common(command: Command) -> Command:
    """Add the options of all benchmarks except the matrix."""
    for option in reversed((*_WHAT, *_HOW)):
        command = option(command)
    return command


def placement(common: Mapping[str, Any], count: int = 2) -> Placement:
    """Return the processes, CPUs and variables of the sides.

    Raises:
        click.UsageError: a transport between processes was selected for threads of one.

    """
    within = not common["processes"]
    chosen = common.get("transport")
    place: Place | None = common.get("connect")
    if place and within:
        raise click.UsageError("--connect links processes: not with --threads")
    if chosen in ("ucx", "socket") and within:
        raise click.UsageError(f"--transport {chosen} links processes: not with --threads")
    env = {TRANSPORT: chosen} if chosen else {}
    if chosen == "socket" and "ONEHOP_LOG" not in os.environ:
        env["ONEHOP_LOG"] = "error"  # suppresses the warning that this path is slow
    cpus = sides_on(common["cpus"], 1 if place else count)
    return Placement(
        count=count, within=within, cpus=cpus, env=env, connect=str(place) if place else ""
    )


def sizes(default: str) -> Callable[[Command], Command]:
    """Add --sizes."""
    return click.option(
        "--sizes",
        type=SizeList(),
        default=default,
        show_default=True,
        help="For example 8,1K,64K, or 8:64M (doubling), or 8:64M:8 (factor 8).",
    )


def modes(*names: str, default: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Add --mode; by default the first one."""
    return click.option(
        "--mode",
        "modes",
        type=click.Choice(names),
        multiple=True,
        default=default or [names[0]],
        show_default=not default or "all",
        help="May be given several times.",
    )


buffers = click.option(
    "--buffers",
    type=click.Choice(["private", "shared"]),
    default="private",
    show_default=True,
    help="Private memory, or shared memory of onehop.empty.",
)


def one_of(allowed: Sequence[str]) -> Callable[..., list[str]]:
    """Return a callback for an option that takes lists of names and may be repeated."""

    def parse(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str]:
        found = [name for value in values for name in value.split(",")]
        for name in found:
            if name not in allowed:
                raise click.BadParameter(f"'{name}' is not one of {', '.join(allowed)}")
        return found

    return parse


groups = click.option(
    "--groups",
    multiple=True,
    default=[",".join(GROUPS)],
    callback=one_of(list(GROUPS)),
    metavar="NAME,...",
    help=f"Thread groups that move messages within a kernel: {', '.join(GROUPS)}: a warp, blocks of"
    " that many threads, a cluster of 4 blocks of 512. Default: all.",
)


def versus(*names: str) -> Callable[[Command], Command]:
    """Add --vs, which takes a list, and --nccl."""
    allowed = [*names, *NCCLS, "floors"] if names else list(NCCLS)

    def add(command: Command) -> Command:
        command = click.option(
            "--nccl",
            metavar="PATH",
            help="Path of libnccl.so.2. Default: the loader's, or torch's.",
        )(command)
        return click.option(
            "--vs",
            "floors",
            multiple=True,
            callback=one_of(allowed),
            metavar="NAME,...",
            help=f"Also measure other implementations: {', '.join(allowed)}.",
        )(command)

    return add
