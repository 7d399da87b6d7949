# SPDX-License-Identifier: Apache-2.0
"""``onehop bench compare``: the rows of two files, before and after."""

from __future__ import annotations

import json
import random
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from onehop.cli import bench_options as options
from onehop.cli.bench import bench
from onehop.cli.output import Column, figures, json_lines, make_console
from onehop.cli.rows import figure
from onehop.cli.sizes import format_size

# The keys that identify a row. All others were measured, or describe the machine.
_KEYS = (
    "op", "api", "mode", "memory", "buffers", "devices", "size", "window", "group", "blocks",
    "ranks", "peers", "asked_inline",
)  # fmt: skip
_RESAMPLES = 2000
_SHARE = 0.95  # of the resamples, that lie within the interval
_FEWEST = 5  # runs: with fewer, the interval is too narrow
_MACHINE = ("machine", "cpu", "kernel", "gpu", "driver")  # of the provenance

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Compared:
    """A row of both files.

    Attributes:
        row: the values that identify it, by name.
        before, after: median p50 in microseconds, and the number of runs.
        ratio: after / before.
        low, high: 95 % interval of the ratio; None: a file has fewer than five runs.
        path: of the bytes, before and after.

    """

    row: dict[str, Any]
    before_us: float
    after_us: float
    before_runs: int
    after_runs: int
    ratio: float
    low: float | None
    high: float | None
    path: str

    @property
    def differs(self) -> bool:
        """Whether the interval excludes 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high


@bench.command(short_help="Compare the rows of two files of --json.")
@click.argument("before", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("after", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--most",
    type=click.FloatRange(min=0, min_open=True),
    help="Fail if a ratio, and its interval if there is one, is above this.",
)
@options.json_to
def compare(before: Path, after: Path, most: float | None, json_to: str | None) -> None:
    """Compare the p50 of the rows that two files of --json have in common: AFTER / BEFORE.

    A file may hold several runs, one after the other (cat run1.json run2.json). Then their medians
    are compared. From five runs on, the 95 % interval of the ratio is shown.
    """
    first, second = runs(before), runs(after)
    common = [key for key in first if key in second]
    if not common:
        raise click.ClickException(f"{before} and {after} have no row in common")
    found = [_compared(key, first[key], second[key]) for key in common]
    with json_lines(json_to) as write:
        for one in found:
            write(json.dumps(asdict(one)))
    console = make_console(stderr=json_to == "-")
    console.print(
        figures(
            f"{after} / {before}",
            "p50 us: the median of the runs; ratio: after / before; interval: 95 %, by resampling"
            " five or more runs; bold: it leaves 1 out",
            _COLUMNS,
            found,
        )
    )
    for path, ours, theirs in ((before, first, second), (after, second, first)):
        if left := sum(key not in theirs for key in ours):
            console.print(f"only in {path}: {left}")
    for what in _MACHINE:
        here, there = (_told(what, rows) for rows in (first, second))
        if here != there:
            console.print(f"[yellow]the files differ in {what}: {here}; {there}[/]")
    if most is not None:
        _check(found, most)


def _told(what: str, rows: dict[Key, list[dict[str, Any]]]) -> str:
    known = {str(row.get("provenance", {}).get(what)) for runs in rows.values() for row in runs}
    return ", ".join(sorted(known))


def _check(found: Sequence[Compared], most: float) -> None:
    slow = [one for one in found if (one.ratio if one.low is None else one.low) > most]
    if slow:
        worst = max(slow, key=lambda one: one.ratio)
        raise click.ClickException(
            f"{len(slow)} of {len(found)} rows take more than {most:g} of the time before, the"
            f" worst {worst.ratio:.3f}: {_what(worst)}"
        )


def runs(path: Path) -> dict[Key, list[dict[str, Any]]]:
    """Return the rows of a file that have a p50, by their keys.

    Raises:
        click.ClickException: a line is no JSON, bytes were wrong, or no row has a p50.

    """
    found: dict[Key, list[dict[str, Any]]] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as failure:
            msg = f"{path}, line {number} is no JSON: {failure}; give files of --json"
            raise click.ClickException(msg) from failure
        if not isinstance(row, dict) or not isinstance(row.get("p50_us"), (int, float)):
            continue
        if row.get("wrong"):
            raise click.ClickException(f"{path}, line {number}: {row['wrong']} bytes were wrong")
        if row["p50_us"] > 0:
            found.setdefault(tuple(row.get(key) for key in _KEYS), []).append(row)
    if not found:
        raise click.ClickException(
            f"{path} has no row with a p50_us; a row of bench weights has none"
        )
    return found


def _compared(
    key: Key, before: Sequence[dict[str, Any]], after: Sequence[dict[str, Any]]
) -> Compared:
    ours, theirs = ([float(row["p50_us"]) for row in rows] for rows in (before, after))
    low, high = _interval(ours, theirs)
    paths = [str(rows[-1].get("path", "")) for rows in (before, after)]
    return Compared(
        {name: value for name, value in zip(_KEYS, key, strict=True) if value is not None},
        statistics.median(ours),
        statistics.median(theirs),
        len(ours),
        len(theirs),
        statistics.median(theirs) / statistics.median(ours),
        low,
        high,
        " to ".join(dict.fromkeys(paths)),
    )


def _interval(before: Sequence[float], after: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the bootstrap percentile interval of the ratio of the medians."""
    if min(len(before), len(after)) < _FEWEST:
        return None, None
    source = random.Random(0)  # a fixed seed: the same files give the same interval
    ratios = sorted(
        statistics.median(source.choices(after, k=len(after)))
        / statistics.median(source.choices(before, k=len(before)))
        for _ in range(_RESAMPLES)
    )
    cut = int(_RESAMPLES * (1 - _SHARE) / 2)
    return ratios[cut], ratios[-1 - cut]


def _what(one: Compared) -> str:
    row = dict(one.row)
    size = format_size(row.pop("size")) if "size" in row else ""
    counts = ("window", "blocks", "ranks", "peers", "asked_inline")
    rest = [f"{name} {row.pop(name)}" for name in counts if name in row]
    return " ".join([*(str(value) for value in row.values()), size, *rest]).strip()


def _ratio(one: Compared) -> str:
    text = f"{one.ratio:.3f}"
    return f"[bold]{text}[/]" if one.differs else text


def _shown_interval(one: Compared) -> str | None:
    return None if one.low is None or one.high is None else f"{one.low:.3f} {one.high:.3f}"


_COLUMNS: tuple[Column[Compared], ...] = (
    Column("row", _what, "left"),
    Column("path", lambda one: one.path, "left"),
    Column("runs", lambda one: f"{one.before_runs} {one.after_runs}"),
    Column("before, p50 us", lambda one: figure(one.before_us, 3)),
    Column("after, p50 us", lambda one: figure(one.after_us, 3)),
    Column("ratio", _ratio),
    Column("interval", _shown_interval),
)
