# SPDX-License-Identifier: Apache-2.0
"""``onehop trace merge``: merges the files that ONEHOP_TRACE has written."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

_PERFETTO = "open it in https://ui.perfetto.dev"


@dataclass(frozen=True)
class Trace:
    """A file of ONEHOP_TRACE. Times are microseconds of its host's monotonic clock."""

    path: Path
    host: str
    boot: str
    epoch_offset: float
    overwritten: int
    events: list[dict[str, Any]] = field(repr=False)

    @property
    def clock(self) -> str:
        """Traces with equal values share a clock: those of one host since its boot."""
        return self.boot or f"{self.host} {self.path}"


def read_trace(path: Path) -> Trace:
    """Read a file of ONEHOP_TRACE. Raises ClickException if it is invalid."""
    try:
        content = json.loads(path.read_bytes())
        about, events = content["otherData"], content["traceEvents"]
        for event in events:
            if event["ph"] != "M":
                float(event["ts"])
            int(event["pid"])
        return Trace(
            path,
            str(about["host"]),
            str(about["boot"]),
            float(about["epoch_offset_us"]),
            int(about["overwritten"]),
            events,
        )
    except OSError as failure:
        raise click.ClickException(f"{path} cannot be read: {failure.strerror}") from failure
    except (ValueError, KeyError, TypeError) as failure:
        raise click.ClickException(
            f"{path} is no trace of ONEHOP_TRACE: {type(failure).__name__}: {failure}"
        ) from failure


def shifts(traces: Iterable[Trace], offsets: Mapping[str, float]) -> dict[str, float]:
    """Return each clock's offset, in microseconds, which converts its times to the first clock.

    Hosts are aligned by their wall clocks at the beginning of each host's first trace.
    """
    found: dict[str, float] = {}
    first: float | None = None
    for trace in traces:
        if trace.clock in found:
            continue
        if first is None:
            first = trace.epoch_offset
        found[trace.clock] = trace.epoch_offset - first + offsets.get(trace.host, 0.0)
    return found


def merge_traces(traces: list[Trace], offsets: Mapping[str, float]) -> dict[str, Any]:
    """Merge traces into one that begins at 0, ordered by time.

    If several processes have the same id, the first keeps it, and the others get new ones.
    """
    shift = shifts(traces, offsets)
    names: list[dict[str, Any]] = []
    timed: list[dict[str, Any]] = []
    used = {event["pid"] for trace in traces for event in trace.events}
    fresh = itertools.count(max(used, default=0) + 1)
    kept: set[int] = set()
    for trace in traces:
        own = {event["pid"] for event in trace.events}
        numbers = {pid: next(fresh) if pid in kept else pid for pid in sorted(own)}
        kept |= own
        for event in trace.events:
            moved = {**event, "pid": numbers[event["pid"]]}
            if moved["ph"] == "M":
                names.append(moved)
            else:
                moved["ts"] = event["ts"] + shift[trace.clock]
                timed.append(moved)
    timed.sort(key=lambda event: event["ts"])
    begin = timed[0]["ts"] if timed else 0.0
    for event in timed:
        event["ts"] = round(event["ts"] - begin, 3)
    about = {
        "shift_us": {trace.host: shift[trace.clock] for trace in traces},
        "overwritten": sum(trace.overwritten for trace in traces),
    }
    return {"displayTimeUnit": "ns", "otherData": about, "traceEvents": names + timed}


def _parse_offsets(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    offsets: dict[str, float] = {}
    for value in values:
        host, equals, number = value.rpartition("=")
        try:
            offsets[host] = float(number)
        except ValueError:
            equals = ""
        if not host or not equals:
            raise click.BadParameter(f"{value}: expected HOST=MICROSECONDS, as node7=-120.5")
    return offsets


@click.group()
def trace() -> None:
    """Process the files that ONEHOP_TRACE=FILE writes."""


@trace.command(short_help="Merge traces of several processes for Perfetto.")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="File to write."
)
@click.option(
    "--offset",
    "offsets",
    multiple=True,
    metavar="HOST=US",
    callback=_parse_offsets,
    help="Microseconds to add to the times of a host, in addition to its wall clock.",
)
def merge(files: tuple[Path, ...], output: Path, offsets: dict[str, float]) -> None:
    """Merge traces of several processes and hosts into one file for Perfetto.

    Processes of one host share a clock. Hosts are aligned by their wall clocks, which are as
    accurate as their synchronization; --offset corrects the rest.
    """
    traces = [read_trace(path) for path in files]
    hosts = {each.host for each in traces}
    if unknown := sorted(set(offsets) - hosts):
        raise click.UsageError(
            f"--offset {unknown[0]}: no such host in these files; there are "
            + ", ".join(sorted(hosts))
        )
    merged = merge_traces(traces, offsets)
    try:
        output.write_text(json.dumps(merged))
    except OSError as failure:
        raise click.ClickException(f"{output} cannot be written: {failure.strerror}") from failure
    clocks = len({each.clock for each in traces})
    click.echo(
        f"{len(merged['traceEvents'])} events of {len(traces)} processes on {clocks} hosts are in "
        f"{output}: {_PERFETTO}"
    )
    if lost := merged["otherData"]["overwritten"]:
        click.echo(f"{lost} older events were overwritten: raise ONEHOP_TRACE_EVENTS", err=True)
