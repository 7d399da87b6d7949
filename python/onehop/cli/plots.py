# SPDX-License-Identifier: Apache-2.0
"""Pictures of a benchmark's rows: time and bandwidth over the size, drawn by matplotlib."""

from __future__ import annotations

import io
import math
import statistics
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onehop.cli.bench_options import Command
from onehop.cli.sizes import format_size

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

# In the format of --json.
Row = Mapping[str, Any]


@dataclass(frozen=True)
class _Panel:
    """A diagram over the size: the value of a row that it shows, and a second, dashed one."""

    axis: str
    key: str
    tail: str = ""


_TIME = _Panel("time, us (solid: p50, dashed: p99)", "p50_us", "p99_us")
_RATE = _Panel("bandwidth, GB/s", "GBps")
_PANELS = {
    "latency": (_TIME,),
    "bandwidth": (_RATE,),
    "batch": (_TIME, _RATE),
    "patterns": (_TIME, _RATE),
    "inline": (_TIME,),
    "torch": (_TIME, _RATE),
}

_NEEDED = {"memory", "path", "size", "p50_us", "p99_us", "GBps", "wrong"}

# Each combination of these is a line; its label names the mode and what else differs.
_KEYS: Mapping[str, str] = {
    "mode": "{}",
    "api": "{}",
    "memory": "{} memory",
    "buffers": "{} buffers",
    "devices": "devices {}",
    "group": "group {}",
    "blocks": "{} blocks",
    "ranks": "{} ranks",
    "asked_inline": "limit {}",
    "file": "{}",
}
# These vary along a line: they divide it only where they differ at one size.
_ALONG = ("window", "path")

# The colors of Okabe and Ito without yellow, which is too faint on white.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#000000", "#56b4e9", "#e69f00")
_MARKERS = "os^DvPX*"
# In inches: a diagram, and the legend's lines and letters. Letters per diagram width above it.
_WIDTH, _HEIGHT, _LINE, _LETTER = 7.5, 5.0, 0.2, 0.085
_LETTERS = 110
_TICKS = 10  # per diagram, at most


# ---- The option


class _Picture(click.ParamType[Path]):
    """A file that matplotlib can write; checked before anything is measured."""

    name = "file"

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        path = Path(value)
        try:
            from matplotlib.figure import Figure
        except ImportError as failure:
            self.fail(f"it needs matplotlib: pip install onehop[plot] ({failure})", param, ctx)
        try:
            Figure().savefig(io.BytesIO(), format=path.suffix[1:] or "none")
        except (ValueError, RuntimeError, OSError) as failure:
            self.fail(f"{path}: matplotlib does not draw '{path.suffix}': {failure}", param, ctx)
        try:
            path.open("ab").close()
        except OSError as failure:
            self.fail(f"{path}: {failure.strerror}", param, ctx)
        return path


picture = _Picture()
option = click.option(
    "--plot",
    type=picture,
    metavar="FILE",
    help="Draw the rows into a file: .svg, .png or another format of matplotlib.",
)


def no_option(why: str) -> Callable[[Command], Command]:
    """Add a --plot that is rejected, for rows that are no function of the size."""

    def refuse(_: click.Context, __: click.Parameter, value: str | None) -> None:
        if value is not None:
            raise click.UsageError(f"--plot: there is no picture of this benchmark: {why}")

    return click.option("--plot", hidden=True, expose_value=False, callback=refuse)


# ---- The picture


def draw(target: Path, rows: Iterable[Row]) -> None:
    """Draw rows into a file that `picture` has accepted.

    Rows with wrong bytes, and rows that do not depend on the size, are omitted.

    Raises:
        click.ClickException: no row is left, or the file cannot be written.

    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found: dict[str, list[Row]] = {}
    for row in filter(_is_drawn, rows):
        found.setdefault(row["op"], []).append(row)
    if not found:
        known = ", ".join(_PANELS)
        raise click.ClickException(
            f"{target}: there is no row to draw; pictures show rows of {known} without wrong bytes"
        )
    panels = [(op, panel) for op in found for panel in _PANELS[op]]
    lines = {op: list(_lines(of_op)) for op, of_op in found.items()}
    labels = list(dict.fromkeys(label for of_op in lines.values() for label, _ in of_op))
    columns = min(2, len(panels))
    height = math.ceil(len(panels) / columns)
    abreast = max(1, _WIDTH * columns // (_LETTER * max(map(len, labels)) + 0.5))
    # Texts stay texts in an SVG, and a $ in them does not begin a formula.
    with rc_context({"svg.fonttype": "none", "text.parse_math": False}):
        legend = _LINE * math.ceil(len(labels) / abreast)
        inches = (_WIDTH * columns, _HEIGHT * height + legend)
        figure = Figure(inches, dpi=150, layout="constrained")
        about = [row for of_op in found.values() for row in of_op]
        title = "\n".join(textwrap.fill(one, _LETTERS * columns) for one in _provenance(about))
        figure.suptitle(title, x=0.01, ha="left", fontsize=8, color="#444444")
        shown: dict[str, Artist] = {}
        for number, (op, panel) in enumerate(panels, 1):
            axes = figure.add_subplot(height, columns, number)
            for label, points in lines[op]:
                shown[label] = _draw_line(axes, panel, points, labels.index(label))
            memory = ", ".join(dict.fromkeys(row["memory"] for row in found[op]))
            axes.set_title(f"onehop bench {op}: {memory} memory")
            _draw_axes(axes, panel, {row["size"] for row in found[op]})
        place = "outside lower left"
        figure.legend(shown.values(), shown.keys(), loc=place, ncols=abreast, fontsize=9)
        try:
            figure.savefig(target)
        except OSError as failure:
            raise click.ClickException(f"{target}: {failure.strerror}") from failure


def _is_drawn(row: Row) -> bool:
    if row.get("op") not in _PANELS or not row.keys() >= _NEEDED or row["wrong"]:
        return False
    # Rows of torch without a rate do not depend on the size.
    return bool(row["op"] != "torch" or row["GBps"] > 0)


def _lines(rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the label and the rows of each line."""
    differ = [key for key in _KEYS if key == "mode" or len(_values(rows, key)) > 1]
    for group in _grouped(rows, *_KEYS):
        parts = list(_divided(group))
        for part in parts:
            values = {key: part[0].get(key) for key in differ}
            texts = [_KEYS[key].format(one) for key, one in values.items() if one is not None]
            windows = _values(part, "window")
            if len(parts) > 1 and len(windows) == 1 and windows[0]:
                texts.append(f"window {windows[0]}")
            in_order = sorted(part, key=lambda row: row["size"])
            paths = ", ".join(path for path in _values(in_order, "path") if path != "none")
            yield ", ".join(texts) + (f" ({paths})" if paths else ""), part


def _divided(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Divide a line that has several points at one size for a reason other than repeated runs."""
    for key in _ALONG:
        if len(_grouped(rows, key, "size")) > len(_grouped(rows, "size")):
            for part in _grouped(rows, key):
                yield from _divided(part)
            return
    yield rows


def _values(rows: Iterable[Row], key: str) -> list[Any]:
    return list(dict.fromkeys(row.get(key) for row in rows))


def _grouped(rows: Iterable[Row], *keys: str) -> list[list[Row]]:
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return list(groups.values())


def _provenance(rows: Iterable[Row]) -> Iterator[str]:
    """Yield a line for each file, or for the only run, with all its provenance."""
    for of_file in _grouped(rows, "file"):
        told = [row.get("provenance", {}) for row in of_file]
        keys = dict.fromkeys(key for one in told for key in one)
        texts = [f"{key} {', '.join(map(str, _values(told, key)))}" for key in keys]
        yield " | ".join(_values(of_file, "file") + texts if "file" in of_file[0] else texts)


def _draw_line(axes: Axes, panel: _Panel, rows: Sequence[Row], number: int) -> Artist:
    """Draw the medians of the runs at each size; return the legend's artist."""
    by_size = sorted(_grouped(rows, "size"), key=lambda runs: runs[0]["size"])
    sizes = [runs[0]["size"] for runs in by_size]

    def medians(key: str) -> list[float]:
        return [statistics.median(row[key] for row in runs) for runs in by_size]

    color = _COLORS[number % len(_COLORS)]
    if panel.tail:
        axes.plot(sizes, medians(panel.tail), "--", color=color, linewidth=0.9, alpha=0.7)
    marker = _MARKERS[number % len(_MARKERS)]
    (line,) = axes.plot(sizes, medians(panel.key), color=color, marker=marker, markersize=5)
    return line


def _draw_axes(axes: Axes, panel: _Panel, sizes: Collection[int]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_xlabel("size, bytes")
    axes.set_ylabel(panel.axis)
    axes.grid(alpha=0.3)
    if 0 in sizes:
        # The linear part lies left of the smallest size.
        axes.set_xscale("symlog", base=2, linthresh=min({*sizes, 1} - {0}))
    else:
        axes.set_xscale("log", base=2)
    ticks = _ticks(sizes)
    axes.set_xticks(ticks, [format_size(size) for size in ticks])
    axes.minorticks_off()
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _ticks(sizes: Collection[int]) -> list[int]:
    """Return few enough sizes that their labels do not overlap."""
    places = {size: math.log2(max(size, 0.5)) for size in sorted(sizes)}
    apart = (max(places.values()) - min(places.values())) / _TICKS
    chosen: list[int] = []
    for size, place in places.items():
        if not chosen or place - places[chosen[-1]] >= apart:
            chosen.append(size)
    return chosen
