# SPDX-License-Identifier: Apache-2.0
"""Output: results that grow, JSON lines, findings, and the provenance of figures."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Generic, Literal, TypeVar

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

import onehop

T = TypeVar("T")

# Columns of output to a file or a pipe.
_WIDTH = 120


def make_console(*, stderr: bool = False) -> Console:
    """Return a console; output to a file or pipe is COLUMNS wide, or else wide."""
    # emoji: without it ":1234:" in a host and port stays text.
    console = Console(stderr=stderr, emoji=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(stderr=stderr, emoji=False, width=_WIDTH)


def _one_line(title: str) -> Text | None:
    """Return a title that does not wrap in a narrow table."""
    return Text(title, style="table.title", no_wrap=True, overflow="ignore") if title else None


def listing(title: str, *headings: str) -> Table:
    """Return a table of texts, without rows so far."""
    shown = Table(title=_one_line(title), title_justify="left", box=SIMPLE_HEAD)
    for heading in headings:
        shown.add_column(heading, overflow="fold")
    return shown


def results(title: str, caption: str) -> Table:
    """Return a table of figures, without columns so far."""
    return Table(
        title=_one_line(title),
        caption=caption,
        title_justify="left",
        caption_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table of figures: returns a row's text, or None if it has none."""

    heading: str
    text: Callable[[T], str | None]
    justify: Literal["left", "right"] = "right"


def figures(title: str, caption: str, columns: Sequence[Column[T]], rows: Iterable[T]) -> Table:
    """Return a table of rows."""
    shown = results(title, caption)
    for column in columns:
        shown.add_column(column.heading, justify=column.justify, overflow="fold")
    for row in rows:
        texts = (column.text(row) for column in columns)
        shown.add_row(*("-" if text is None else text for text in texts))
    return shown


@contextlib.contextmanager
def growing(
    show: Callable[[], RenderableType], about: str, total: int | None, *, hidden: bool = False
) -> Iterator[Callable[[str], None]]:
    """Show a result while it grows, above a progress bar.

    The partial result stays after an error or Ctrl-C. A terminal shows it at each step, a file or
    pipe once at the end. `hidden`: only the progress is shown. The yielded function advances one
    step and takes the name of the next.
    """
    console, bar_console = make_console(), make_console(stderr=True)
    live = console.is_terminal and not hidden
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console if live else bar_console,
        transient=True,
    )
    task = bar.add_task(about, total=total)
    if live:
        with Live(Group(show(), bar), console=console) as screen:

            def redraw(text: str) -> None:
                bar.update(task, advance=1, description=text)
                screen.update(Group(show(), bar))

            try:
                yield redraw
            finally:
                screen.update(show())
        return
    try:
        with bar:
            yield lambda text: bar.update(task, advance=1, description=text)
    finally:
        if not hidden:
            console.print(show())


@contextlib.contextmanager
def json_lines(target: str | None, option: str = "--json") -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a line to a file, to standard output (``-``), or nowhere (None).

    Raises:
        click.UsageError: the file of `option` cannot be written.

    """
    if target is None:
        yield lambda _: None
        return
    if target == "-":
        yield lambda line: print(line, file=sys.stdout, flush=True)
        return
    try:
        file = open(target, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115 - closed below
    except OSError as failure:
        raise click.UsageError(f"{option} {target}: {failure.strerror}") from failure
    with file:
        yield lambda line: print(line, file=file, flush=True)


def cpu_model() -> str:
    """Return the CPU's name and how many this process may use."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str | None:
    """Return the commit of the source tree that contains the package, if there is one."""
    package = Path(onehop.__file__).resolve().parent
    top = package.parent.parent
    if not (top / "include" / "onehop" / "onehop.h").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(top), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def provenance() -> dict[str, str]:
    """Return the provenance that is printed with figures."""
    now = datetime.datetime.now(datetime.timezone.utc)
    facts = {
        "date": f"{now:%Y-%m-%d %H:%M} UTC",
        "machine": platform.node(),
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "onehop": onehop.__version__,
    }
    known = commit()
    if known:
        facts["commit"] = known
    return facts


def say_provenance(console: Console, known: Mapping[str, str]) -> None:
    """Show the provenance of the figures below."""
    line = " | ".join(f"{key} {value}" for key, value in known.items())
    console.print(line, style="dim", highlight=False)


# ---- Findings of the doctor

State = Literal["ok", "slow", "fault"]
STATES = ("ok", "slow", "fault")

_SHOWN = {"ok": "[green]OK[/]", "slow": "[yellow]slower[/]", "fault": "[bold red]FAULT[/]"}


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    place: str  # the environment, or the path
    check: str  # the check
    state: State  # slow: it works, but a faster way is unavailable; fault: it does not work
    detail: str = ""  # the observation
    remedy: str = ""  # the remedy, unless the state is ok
    p50_us: float | None = None  # median time of the operations
    # The CPU that both sides ended on and shared; in a side's own report: its CPU.
    shared_cpu: int | None = None

    def as_json(self) -> str:
        """Write it as one line of JSON."""
        return json.dumps({k: v for k, v in asdict(self).items() if v is not None})


def findings_table(findings: Sequence[Finding]) -> Table:
    """Show all findings."""
    shown = listing("onehop doctor", "where", "check", "state")
    shown.add_column("p50 us", justify="right")
    shown.add_column("what was seen, what to do", overflow="fold")
    place = ""
    for finding in findings:
        texts = [escape(finding.detail)]
        if finding.state != "ok" and finding.remedy:
            texts.append(f"[bold]{escape(finding.remedy)}[/]")
        time = "" if finding.p50_us is None else f"{finding.p50_us:,.2f}"
        where = finding.place if finding.place != place else ""
        place = finding.place
        shown.add_row(
            where, finding.check, _SHOWN[finding.state], time, "\n".join(filter(None, texts))
        )
    return shown
