# SPDX-License-Identifier: Apache-2.0
"""Rows of a benchmark: what was measured, as JSON lines and as a table."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from onehop.cli.output import Column, figures
from onehop.cli.sizes import format_size


@dataclass(frozen=True)
class Row:
    """One measurement; one-way figures. Its keys in JSON are those that are not None."""

    op: str  # latency, bandwidth, batch, patterns, setup, inline, peers, nixl or torch
    # c, python (for GPU memory: -region, -array or -torch, by the kind of buffer), device (within a
    # kernel), floor (no library), nccl or nccl-registered; for nixl: onehop or nixl, the agents'
    # library; for torch: the backend.
    api: str
    mode: str  # the verbs, or the floor's name, or the step of the set-up
    memory: str  # its kind
    buffers: str  # private memory or shared blocks (`onehop.empty`)
    path: str  # the path the bytes took
    size: int  # bytes of a message or a block
    iters: int  # timed operations
    p50_us: float  # time of an operation (latency: half of the round trip)
    p99_us: float
    # 1e9 bytes a second: size / p50 for latency and batch; rank_bytes / p50 for patterns; all bytes
    # / all time for bandwidth.
    GBps: float
    wrong: int  # bytes that were not what was sent, all sides together
    window: int | None = None  # operations in flight; 1 is blocking
    # Threads of a kernel's group: the size of a block; warp: a single warp; cluster: 4 x 512.
    group: str | None = None
    blocks: int | None = None  # of a batch
    block_us: float | None = None  # p50 / blocks
    ranks: int | None = None  # of a pattern
    rank_bytes: int | None = None  # the most that one rank sends to others or receives from them
    # For a prepared batch: p50 of posts of as many one-byte blocks; for nixl: p50 of the call of
    # transfer().
    post_us: float | None = None
    first_us: float | None = None  # for set-up: the time of the first one in the process
    rss_per_peer: int | None = None  # bytes of memory per additional peer
    pss_per_peer: int | None = None
    device_per_peer: int | None = None  # of the GPU of side 0
    devices: str | None = None  # number of each side's device
    shared_cpu: int | None = None  # the CPU that two sides shared at the end
    nccl: str | None = None  # its version, and the time of its set-up and first message
    init_ms: float | None = None
    first_ms: float | None = None
    asked_inline: int | None = None  # bytes asked for inside a control message, and granted
    max_inline: int | None = None
    # p50 divided by that of the limit in force in the same round; median of the rounds.
    of_default: float | None = None
    recommended: bool | None = None  # whether this limit is recommended
    peers: int | None = None  # peers of one endpoint, and descriptors per additional peer
    fds_per_peer: float | None = None
    progress_us: float | None = None  # the endpoint's call of progress
    message_us: float | None = None  # a message to one of the peers, one way
    make_us: float | None = None  # for nixl: p50 of the call of make_prepped_xfer()
    cpu_percent: float | None = None  # of one CPU, used by a process with an idle agent
    # For nixl and torch: the least and the greatest median of a round.
    low_us: float | None = None
    high_us: float | None = None
    # For nixl: onehop's median divided by NIXL's in the same round; median of the rounds.
    of_nixl: float | None = None
    nixl: str | None = None  # the real NIXL's package and version
    of_gloo: float | None = None  # for torch: the same relative to gloo and NCCL
    of_nccl: float | None = None
    torch: str | None = None  # its version

    def as_json(self, provenance: dict[str, str]) -> str:
        """Write the row as one line of JSON."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return json.dumps({**values, "provenance": provenance})


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of all samples do not exceed."""
    if not samples:
        return math.nan
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median over rounds of our median divided by theirs in the same round."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def figure(value: float | None, digits: int, unit: float = 1) -> str | None:
    """Write a figure in units, or None."""
    return None if value is None else f"{value / unit:,.{digits}f}"


# The last column of each table: bytes that were not what was sent.
WRONG: Column[Any] = Column("wrong", lambda row: f"[bold red]{row.wrong}[/]" if row.wrong else "0")


def spread(row: Row) -> str:
    """Write the least and the greatest median of a round beside the p50."""
    return " ".join(f"{(one or 0) / row.p50_us - 1:+.0%}" for one in (row.low_us, row.high_us))


def _time(us: float) -> str | None:
    return figure(us, 2 if us < 1000 else 0)


# A column without any text is omitted.
_COLUMNS: tuple[Column[Row], ...] = (
    Column("api", lambda row: row.api, "left"),
    Column("mode", lambda row: row.mode, "left"),
    Column("devices", lambda row: row.devices, "left"),
    Column("path", lambda row: row.path, "left"),
    Column("group", lambda row: row.group),
    Column("size", lambda row: format_size(row.size)),
    Column("blocks", lambda row: figure(row.blocks, 0)),
    Column("ranks", lambda row: figure(row.ranks, 0)),
    Column("a rank's", lambda row: format_size(row.rank_bytes) if row.rank_bytes else None),
    Column("window", lambda row: "blocking" if row.window == 1 else figure(row.window, 0)),
    Column("iters", lambda row: str(row.iters)),
    Column("p50 us", lambda row: _time(row.p50_us)),
    Column("p99 us", lambda row: _time(row.p99_us)),
    Column("us/block", lambda row: figure(row.block_us, 3)),
    Column("post us", lambda row: figure(row.post_us, 2)),
    Column("first us", lambda row: figure(row.first_us, 0)),
    Column("KiB/peer", lambda row: figure(row.rss_per_peer, 0, 1024)),
    Column("GPU KiB", lambda row: figure(row.device_per_peer, 0, 1024)),
    Column("init ms", lambda row: figure(row.init_ms, 1)),
    Column("GB/s", lambda row: figure(row.GBps or None, 2)),
    WRONG,
)

_FORMULAS = {
    "latency": "one way; sendrecv, event, put_signal: half of a round trip; stream, graph, kernel:"
    " of the mean of many in a row; put and get: until complete; GB/s = size / p50",
    "bandwidth": "per operation, mean of a window, on a stream of a tenth of them; GB/s = all bytes"
    " / all time, until the receiver has confirmed",
    "batch": "per batch; GB/s = blocks * size / p50; post: of as many blocks of one byte",
    "patterns": "per exchange, at the slowest rank, of the mean of up to 50 in a row; a rank's: the"
    " most bytes that one sends to the others or receives from them; GB/s = a rank's / p50; NCCL's"
    " dispatch moves whole parts, for it knows sizes on the host alone",
    "setup": "endpoint: create; connect: to a running endpoint; first: 8 bytes and their answer;"
    " further: connect and first of an endpoint that has had a link",
}


def table(op: str, rows: Sequence[Row]) -> Table:
    """Show rows of one kind; at least one."""
    about = f"{rows[0].memory} memory"
    if rows[0].devices is None:
        about += f", {rows[0].buffers} buffers"
    columns = [one for one in _COLUMNS if any(one.text(row) is not None for row in rows)]
    caption = _FORMULAS[op]
    if any(against_floor(row, rows) is not None for row in rows):
        caption += f"; of floor: {_RATIO[op]}"
        columns.append(Column("of floor", lambda row: figure(against_floor(row, rows), 2) or ""))
    return figures(f"onehop bench {op}: {about}", caption, columns, rows)


_RATIO = {
    "latency": "p50 / the floor's: put_flag for messages, memcpy for puts and gets, the same mode"
    " for stream, graph and kernel",
    "bandwidth": "GB/s / memcpy's",
}


def against_floor(row: Row, rows: Sequence[Row]) -> float | None:
    """Return the ratio to the floor of the same size on the same devices, if it was measured."""
    if row.devices is None or row.api == "floor" or row.op not in _RATIO:
        return None
    wanted = "memcpy" + ("_both" if row.mode.endswith("_both") else "")
    if row.op == "latency" and row.mode in ("sendrecv", "event"):
        wanted = "put_flag_event" if row.mode == "event" else "put_flag"
    if row.op == "latency" and row.mode in ("stream", "graph", "kernel"):
        wanted = row.mode
    for floor in rows:
        found = (floor.api, floor.mode, floor.size, floor.group)
        if found == ("floor", wanted, row.size, row.group):
            if row.op == "bandwidth":
                return row.GBps / floor.GBps if floor.GBps else None
            return row.p50_us / floor.p50_us
    return None
