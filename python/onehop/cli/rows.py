# SPDX-License-Identifier: Apache-2.0
"""Rows of a benchmark: what was measured, as JSON lines and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from rich.table import Table

from onehop.cli.output import results
from onehop.cli.sizes import format_size


@dataclass(frozen=True)
class Row:
    """One measurement; one-way figures.

    Attributes:
        op: latency, bandwidth, batch, patterns, setup, inline, peers or nixl.
        api: c, python (of GPU memory: -region, -array or -torch, by what is sent), device (within
            a kernel), floor (no library), or nccl; of nixl: onehop or nixl, whose agents they are.
        mode: the verbs, or the floor's name, or the step of the set-up.
        memory: kind of memory.
        buffers: private memory or shared blocks (`onehop.empty`).
        path: the path the bytes took.
        size: bytes of a message or a block.
        iters: timed operations.
        window: operations in flight; 1 is blocking.
        p50_us, p99_us: time of an operation (latency: half of the round trip).
        GBps: 1e9 bytes a second: size / p50 for latency and batch; rank_bytes / p50 for patterns;
            all bytes / all time for bandwidth.
        wrong: bytes that were not what was sent, both sides together.
        group: threads of a kernel's group; warp: 32 that are no block.
        blocks, block_us: of a batch: how many, and p50 / blocks.
        ranks, rank_bytes: of a pattern: how many, and the most bytes that one of them sends to the
            others or receives from them.
        post_us: of a prepared batch: p50 of posts of as many blocks of one byte; of nixl: p50 of
            the call of transfer().
        first_us: of a set-up: what the first one of the process took.
        rss_per_peer, pss_per_peer: bytes of memory that one more peer takes.
        device_per_peer: the same of the GPU of side 0.
        devices: number of either side's device.
        nccl, init_ms, first_ms: NCCL's version, and what its set-up and first message took.
        asked_inline, max_inline: bytes asked for inside a control message, and granted.
        of_default: p50 of that of the limit in force, in the same round; median of the rounds.
        recommended: whether this is the limit that was found best.
        peers, fds_per_peer: of one endpoint, and descriptors that one more takes.
        progress_us, message_us: its call of progress, and a message to one of them, one way.
        make_us: of nixl: p50 of the call of make_prepped_xfer().
        cpu_percent: of nixl: CPU time of a process with an idle agent, of one CPU.
        low_us, high_us: of nixl: the least and the greatest median of a round.
        of_nixl: of onehop: its median by NIXL's in the same round, median of the rounds.
        nixl: the real NIXL's package and version.

    """

    op: str
    api: str
    mode: str
    memory: str
    buffers: str
    path: str
    size: int
    iters: int
    p50_us: float
    p99_us: float
    GBps: float
    wrong: int
    window: int | None = None
    group: str | None = None
    blocks: int | None = None
    block_us: float | None = None
    ranks: int | None = None
    rank_bytes: int | None = None
    post_us: float | None = None
    first_us: float | None = None
    rss_per_peer: int | None = None
    pss_per_peer: int | None = None
    device_per_peer: int | None = None
    devices: str | None = None
    nccl: str | None = None
    init_ms: float | None = None
    first_ms: float | None = None
    asked_inline: int | None = None
    max_inline: int | None = None
    of_default: float | None = None
    recommended: bool | None = None
    peers: int | None = None
    fds_per_peer: float | None = None
    progress_us: float | None = None
    message_us: float | None = None
    make_us: float | None = None
    cpu_percent: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    of_nixl: float | None = None
    nixl: str | None = None

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


# Heading, text and justification of each column; one without any text is left out.
_COLUMNS: tuple[tuple[str, Callable[[Row], str | None], Literal["left", "right"]], ...] = (
    ("api", lambda row: row.api, "left"),
    ("mode", lambda row: row.mode, "left"),
    ("devices", lambda row: row.devices, "left"),
    ("path", lambda row: row.path, "left"),
    ("group", lambda row: row.group, "right"),
    ("size", lambda row: format_size(row.size), "right"),
    ("blocks", lambda row: _number(row.blocks, 0), "right"),
    ("ranks", lambda row: _number(row.ranks, 0), "right"),
    ("a rank's", lambda row: _size(row.rank_bytes), "right"),
    ("window", lambda row: "blocking" if row.window == 1 else _number(row.window, 0), "right"),
    ("iters", lambda row: str(row.iters), "right"),
    ("p50 us", lambda row: _time(row.p50_us), "right"),
    ("p99 us", lambda row: _time(row.p99_us), "right"),
    ("us/block", lambda row: _number(row.block_us, 3), "right"),
    ("post us", lambda row: _number(row.post_us, 2), "right"),
    ("first us", lambda row: _number(row.first_us, 0), "right"),
    ("KiB/peer", lambda row: _number(_kib(row.rss_per_peer), 0), "right"),
    ("GPU KiB", lambda row: _number(_kib(row.device_per_peer), 0), "right"),
    ("init ms", lambda row: _number(row.init_ms, 1), "right"),
    ("GB/s", lambda row: _number(row.GBps, 2) if row.GBps else None, "right"),
    ("wrong", lambda row: f"[bold red]{row.wrong}[/]" if row.wrong else "0", "right"),
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


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"


def _kib(size: int | None) -> float | None:
    return None if size is None else size / 1024


def _size(size: int | None) -> str | None:
    return None if size is None else format_size(size)


def _time(us: float) -> str | None:
    return _number(us, 2 if us < 1000 else 0)


def table(op: str, rows: Sequence[Row]) -> Table:
    """Show rows of one kind; at least one."""
    about = f"{rows[0].memory} memory"
    if rows[0].devices is None:
        about += f", {rows[0].buffers} buffers"
    shown = results(f"onehop bench {op}: {about}", _FORMULAS[op])
    columns = [column for column in _COLUMNS if any(column[1](row) is not None for row in rows)]
    for heading, _, justify in columns:
        shown.add_column(heading, justify=justify, overflow="fold")
    ratios = [against_floor(row, rows) for row in rows]
    if any(ratio is not None for ratio in ratios):
        shown.add_column("of floor", justify="right")
        shown.caption = f"{_FORMULAS[op]}; of floor: {_RATIO[op]}"
    for row, ratio in zip(rows, ratios, strict=True):
        cells = [text(row) or "-" for _, text, _ in columns]
        shown.add_row(*cells, _number(ratio, 2) or "")
    return shown


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
    if row.op == "latency" and row.mode in ("stream", "graph", "kernel", "kernel_single"):
        wanted = row.mode.removesuffix("_single")
    for floor in rows:
        found = (floor.api, floor.mode, floor.size, floor.group)
        if found == ("floor", wanted, row.size, row.group):
            if row.op == "bandwidth":
                return row.GBps / floor.GBps if floor.GBps else None
            return row.p50_us / floor.p50_us
    return None
