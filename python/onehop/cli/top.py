# SPDX-License-Identifier: Apache-2.0
"""``onehop top``: the traffic of processes with ONEHOP_TOP=on, from the pages that they write."""

from __future__ import annotations

import json
import os
import pwd
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from onehop.cli.info import setting
from onehop.cli.output import Column, figures, make_console

_PREFIX = "onehop-top."
_SUFFIX_OF_NEW = ".new"
_VERSION = 1
# A page is written four times a second: an older one has no live writer.
_SILENT = 2.0
_LARGEST_PAGE = 64 << 20


class ForeignPage(Exception):
    """The page belongs to another user."""


@dataclass(frozen=True)
class Page:
    """The last statistics that an endpoint of a process wrote."""

    path: Path
    pid: int
    process: str
    state: str  # "running"; "silent": alive, but it does not write; "gone"
    age: float  # seconds since it was written
    time: float  # seconds on the process's clock
    peers: list[dict[str, Any]]


@dataclass(frozen=True)
class Row:
    """One peer of one process. Rates are None until there are two pages."""

    pid: int
    process: str
    state: str
    age_s: float
    peer: str
    rank: int | None
    link: str  # "open", "lost", "closed"
    path: str
    sent_bytes: int
    received_bytes: int
    sent_gb_s: float | None
    received_gb_s: float | None
    ops_s: float | None
    in_flight: int
    oldest_s: float


class _Process(NamedTuple):
    """A process, as described in /proc."""

    start_ticks: int
    state: str


def _process(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # from the third field on; a name may contain blanks
    return _Process(int(fields[19]), fields[0])


def _state(content: Mapping[str, Any], age: float) -> str:
    """Return the state of the process that wrote a page."""
    try:
        same_names = os.stat("/proc/self/ns/pid").st_ino == content["pid_namespace"]
    except OSError:
        same_names = False
    if same_names:
        found = _process(content["pid"])
        if not found or found.start_ticks != content["start_ticks"] or found.state in "ZX":
            return "gone"
    return "running" if age < _SILENT else "silent"


def read_page(path: Path) -> Page:
    """Read one page. Raises ForeignPage, FileNotFoundError, or ClickException if it is invalid."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as failure:
        raise ForeignPage(path) from failure
    with open(file, "rb") as opened:
        status = os.fstat(file)
        if os.geteuid() not in (0, status.st_uid):
            raise ForeignPage(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_PAGE:
            raise click.ClickException(f"{path} is no page of ONEHOP_TOP=on")
        text = opened.read(_LARGEST_PAGE)
    try:
        content = json.loads(text)
        if content["version"] != _VERSION:
            raise ValueError(f"version {content['version']}, this is version {_VERSION}")
        age = max(0.0, time.time() - status.st_mtime)
        return Page(
            path,
            content["pid"],
            content["process"],
            _state(content, age),
            age,
            content["time_us"] / 1e6,
            content["peers"],
        )
    except (ValueError, KeyError, TypeError) as failure:
        raise click.ClickException(f"{path} is no page of ONEHOP_TOP=on: {failure}") from failure


def find_pages(folder: Path, pid: int | None) -> list[Page]:
    """Read the pages of this user's processes, or of one process.

    Raises ClickException if there is none, or if the process belongs to another user.
    """
    pages: list[Page] = []
    foreign: list[Path] = []
    for path in sorted(folder.glob(f"{_PREFIX}{pid or '*'}.*")):
        if path.name.endswith(_SUFFIX_OF_NEW):
            continue
        try:
            pages.append(read_page(path))
        except ForeignPage:
            foreign.append(path)
        except FileNotFoundError:  # the process has just ended
            continue
    if pages:
        return pages
    if pid is not None and foreign:
        raise click.ClickException(
            f"process {pid} belongs to user {_owner(foreign[0])}: only that user and root may read "
            "its page"
        )
    raise click.ClickException(_why_none(folder, pid))


def _owner(path: Path) -> str:
    try:
        number = path.lstat().st_uid
    except OSError:
        return "unknown"
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _why_none(folder: Path, pid: int | None) -> str:
    advice = (
        "start it with ONEHOP_TOP=on, and if it has another ONEHOP_SOCKET_DIR, name that by "
        "--folder; it needs an open endpoint"
    )
    if pid is None:
        return f"no process of this user has a page in {folder}: {advice}"
    if _process(pid) is None:
        return f"there is no process {pid}, and it has left no page in {folder}"
    return f"process {pid} has no page in {folder}: {advice}"


def _moved(peer: Mapping[str, Any] | None, way: str, number: int) -> int:
    """Sum operations (0) or bytes (1) that a peer has "sent" or "received" over all paths."""
    return sum(counts[way][number] for counts in peer["paths"].values()) if peer else 0


def _busiest(peer: Mapping[str, Any], before: Mapping[str, Any] | None) -> str:
    """Return the path that moved most bytes since then; if none moved, the link's path."""
    moved: dict[str, int] = {}
    for path, counts in peer["paths"].items():
        former = before["paths"].get(path) if before else None
        moved[path] = sum(counts[way][1] for way in ("sent", "received"))
        moved[path] -= sum(former[way][1] for way in ("sent", "received")) if former else 0
    path = max(moved, key=lambda name: moved[name], default="")
    return path if path and moved[path] > 0 else str(peer["path"])


def _row(page: Page, former: Page | None, peer: Mapping[str, Any]) -> Row:
    before = None
    if former is not None:
        before = next((each for each in former.peers if each["id"] == peer["id"]), None)
    seconds = page.time - former.time if former is not None else 0.0

    def rate(number: int, *ways: str) -> float | None:
        if seconds <= 0 or page.state == "gone":
            return None
        moved = sum(_moved(peer, way, number) - _moved(before, way, number) for way in ways)
        return moved / seconds

    sent, received = rate(1, "sent"), rate(1, "received")
    return Row(
        pid=page.pid,
        process=page.process,
        state=page.state,
        age_s=round(page.age, 3),
        peer=peer["name"],
        rank=None if peer["rank"] < 0 else peer["rank"],
        link=peer["state"],
        path=_busiest(peer, before),
        sent_bytes=_moved(peer, "sent", 1),
        received_bytes=_moved(peer, "received", 1),
        sent_gb_s=None if sent is None else sent / 1e9,
        received_gb_s=None if received is None else received / 1e9,
        ops_s=rate(0, "sent", "received"),
        in_flight=peer["in_flight"],
        oldest_s=peer["oldest_us"] / 1e6,
    )


def rows_of(pages: Sequence[Page], former: Sequence[Page]) -> list[Row]:
    """Return a row for each peer; rates are those since the previous pages."""
    before = {page.path: page for page in former}
    return [_row(page, before.get(page.path), peer) for page in pages for peer in page.peers]


def _rate(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


_COLUMNS: list[Column[Row]] = [
    Column("process", lambda row: escape(row.process), "left"),
    Column("peer", lambda row: escape(row.peer), "left"),
    Column("link", lambda row: row.link, "left"),
    Column("path", lambda row: row.path, "left"),
    Column("GB/s out", lambda row: _rate(row.sent_gb_s, 3)),
    Column("GB/s in", lambda row: _rate(row.received_gb_s, 3)),
    Column("ops/s", lambda row: _rate(row.ops_s, 0)),
    Column("in flight", lambda row: str(row.in_flight)),
    Column("oldest, s", lambda row: f"{row.oldest_s:.3f}" if row.in_flight else None),
]


def _table(pages: Sequence[Page], rows: Sequence[Row]) -> Table:
    lines = []
    for page in pages:
        if page.state == "gone":
            lines.append(f"process {page.pid} ({page.process}) is gone: its last page is shown")
        elif page.state == "silent":
            lines.append(
                f"process {page.pid} ({page.process}) has written no page for {page.age:.0f} s: "
                "it is stopped, or in another PID namespace and gone"
            )
        if not page.peers:
            lines.append(f"process {page.pid} ({page.process}) has no peers")
    return figures("", escape("\n".join(dict.fromkeys(lines))), _COLUMNS, rows)


def _as_json(pages: Sequence[Page], rows: Sequence[Row]) -> str:
    processes = {
        page.pid: {"pid": page.pid, "process": page.process, "state": page.state} for page in pages
    }
    return json.dumps(
        {"processes": list(processes.values()), "peers": [asdict(row) for row in rows]}
    )


def _samples(
    folder: Path, pid: int | None, interval: float
) -> Iterator[tuple[list[Page], list[Row]]]:
    """Yield pages and rows, at once and after each interval; end when the process has ended."""
    former: list[Page] = []
    while True:
        pages = find_pages(folder, pid)
        yield pages, rows_of(pages, former)
        if pid is not None and all(page.state == "gone" for page in pages):
            return
        former = pages
        time.sleep(interval)


@click.command(short_help="Show what processes move now.")
@click.argument("pid", type=click.IntRange(min=1), required=False)
@click.option("--once", is_flag=True, help="Measure for one interval, print, and exit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line for each interval.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3600),
    default=1.0,
    show_default=True,
    help="Seconds between two measurements.",
)
@click.option(
    "--folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="ONEHOP_SOCKET_DIR of the processes. Default: that of this command.",
)
def top(pid: int | None, once: bool, as_json: bool, interval: float, folder: Path | None) -> None:
    """Show what processes move now: all of this user's, or the one with this PID.

    A process writes statistics if it was started with ONEHOP_TOP=on. If PID has ended without
    closing its endpoints, its last statistics are shown, and the exit code is 1.
    """
    samples = _samples(folder or Path(setting("ONEHOP_SOCKET_DIR")), pid, interval)
    pages, rows = next(samples)
    if once:
        pages, rows = next(samples, (pages, rows))
        _show_once(pages, rows, as_json)
    elif as_json or not make_console().is_terminal:
        for pages, rows in samples:
            _show_once(pages, rows, as_json)
    else:
        with Live(_table(pages, rows), console=make_console(), auto_refresh=False) as screen:
            for pages, rows in samples:
                screen.update(_table(pages, rows), refresh=True)
    if pid is not None and all(page.state == "gone" for page in pages):
        raise click.exceptions.Exit(1)


def _show_once(pages: Sequence[Page], rows: Sequence[Row], as_json: bool) -> None:
    if as_json:
        click.echo(_as_json(pages, rows))
    else:
        make_console().print(_table(pages, rows))
