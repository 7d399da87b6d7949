# SPDX-License-Identifier: Apache-2.0
"""``onehop bench matrix``: every device to every device, at every size."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click
from rich.console import Group
from rich.table import Table

from onehop.cli import bench_options as options
from onehop.cli.bench import bench, report
from onehop.cli.gpus import HOST, Pair, facts
from onehop.cli.jobs import Job, Note
from onehop.cli.measure import measure
from onehop.cli.output import listing
from onehop.cli.rows import Row
from onehop.cli.sides import Placement
from onehop.cli.sizes import format_size


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
                _table(
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
        for row in _measure(names, sizes, memory, placement, common["iters"] or 0):
            reported.add(row)


def _measure(
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


def _table(title: str, rows: Sequence[Row], count: int) -> Table:
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
