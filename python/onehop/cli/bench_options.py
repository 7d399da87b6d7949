# SPDX-License-Identifier: Apache-2.0
"""Options that the benchmarks share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from onehop.cli.gpus import parse_devices, parse_memory
from onehop.cli.sides import Placement
from onehop.cli.sizes import SizeList

Command = Callable[..., None]

# What the transport is chosen by, in the processes of a benchmark.
TRANSPORT = "ONEHOP_TRANSPORT"


def _cpus(_: click.Context, __: click.Parameter, value: str | None) -> list[int]:
    if value is None:
        return []
    try:
        return [int(cpu) for cpu in value.split(",")]
    except ValueError as failure:
        raise click.BadParameter(f"'{value}' is no list of CPU numbers") from failure


def transport(default: str | None = None) -> Callable[[Command], Command]:
    """Add --transport; without a default the environment's."""
    return click.option(
        "--transport",
        type=click.Choice(["auto", "ucx", "socket"]),
        default=default,
        show_default=default or f"{TRANSPORT}, or auto",
        help=f"What links the processes, as {TRANSPORT} has it.",
    )


cpus = click.option("--cpus", callback=_cpus, metavar="A,B", help="Pin the sides to these CPUs.")
json_to = click.option("--json", "json_to", metavar="FILE|-", help="Write rows as lines of JSON.")
_HOW: tuple[Callable[[Command], Command], ...] = (
    click.option("--iters", type=click.IntRange(1), help="Operations; default: by the size."),
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
        help="The loop in C++, or the same loop in Python with numpy arrays.",
    ),
    click.option(
        "--memory",
        default="host",
        callback=parse_memory,
        show_default=True,
        metavar="KIND[,KIND]",
        help="host, pinned, cuda (cudaMalloc), cuda-vmm, cuda-pool, cuda-async or cuda-managed;"
        " two: of either side.",
    ),
    click.option(
        "--devices",
        callback=parse_devices,
        metavar="A,B",
        help="Device of either side; default: 0,1, or 0,0 where there is one.",
    ),
    transport(),
)


def gpu_memory(command: Command) -> Command:
    """Add the kind of memory of what is between GPUs alone."""
    return click.option(
        "--memory",
        default="cuda",
        callback=parse_memory,
        show_default=True,
        metavar="KIND",
        help="As with the other benchmarks.",
    )(command)


def how(command: Command) -> Command:
    """Add the options of everything that is measured."""
    for option in reversed(_HOW):
        command = option(command)
    return command


def common(command: Command) -> Command:
    """Add the options that all benchmarks but the matrix have."""
    for option in reversed((*_WHAT, *_HOW)):
        command = option(command)
    return command


def placement(common: Mapping[str, Any]) -> Placement:
    """Return where the sides run, and what is set for them.

    Raises:
        click.UsageError: a transport between processes was chosen for what does not go by it.

    """
    within = not common["processes"]
    chosen = common.get("transport")
    if chosen in ("ucx", "socket") and within:
        raise click.UsageError(f"--transport {chosen} links processes: not with --threads")
    env = {TRANSPORT: chosen} if chosen else {}
    if chosen == "socket" and "ONEHOP_LOG" not in os.environ:
        env["ONEHOP_LOG"] = "error"  # the warning that this path is slow would be no news
    return Placement(within=within, cpus=common["cpus"], env=env)


def sizes(default: str) -> Callable[[Command], Command]:
    """Add --sizes."""
    return click.option(
        "--sizes",
        type=SizeList(),
        default=default,
        show_default=True,
        help="As 8,1K,64K or 8:64M (doubling) or 8:64M:8 (eightfold).",
    )


def modes(*names: str, default: Sequence[str] = ()) -> Callable[[Command], Command]:
    """Add --mode; unless told otherwise the first is the default."""
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
    help="Private memory, or onehop.empty's shared blocks.",
)


def versus(*names: str) -> Callable[[Command], Command]:
    """Add --vs, which takes a list, and --nccl."""
    allowed = [*names, "nccl", "floors"] if names else ["nccl"]

    def parse(_: click.Context, __: click.Parameter, values: Sequence[str]) -> list[str]:
        found = [name for value in values for name in value.split(",")]
        for name in found:
            if name not in allowed:
                raise click.BadParameter(f"'{name}' is not one of {', '.join(allowed)}")
        return found

    def add(command: Command) -> Command:
        command = click.option(
            "--nccl", metavar="PATH", help="libnccl.so.2; default: the loader's, or torch's."
        )(command)
        return click.option(
            "--vs",
            "floors",
            multiple=True,
            callback=parse,
            metavar="NAME,...",
            help=f"Also measure what the machine does without onehop: {', '.join(allowed)}.",
        )(command)

    return add
