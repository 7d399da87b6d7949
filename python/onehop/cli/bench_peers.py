# SPDX-License-Identifier: Apache-2.0
"""``onehop bench peers``: many endpoints linked to one, and the resources that each takes there."""

# ruff: noqa: ANN401 - click passes options as keywords; docstrings are its help texts

from __future__ import annotations

import resource
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import click
from rich.table import Table

import onehop
from onehop.cli import bench_options as options
from onehop.cli import plots
from onehop.cli.bench import bench, report
from onehop.cli.measure import corrupts
from onehop.cli.output import Column, figures
from onehop.cli.rows import WRONG, Row, figure, percentile
from onehop.cli.sides import Placement, Side, SideError, run_sides
from onehop.cli.sizes import SizeList

_BYTES = 8  # of a message
_CALLS = 20  # calls per sample
_SAMPLES = 25


@dataclass(frozen=True)
class Job:
    """One row: the number of peers of one endpoint, and whether to corrupt a byte."""

    peers: int
    corrupt: bool


@dataclass(frozen=True)
class Usage:
    """The resources of a process."""

    rss: float  # bytes
    pss: float
    descriptors: float

    @staticmethod
    def now() -> Usage:
        """Read them from /proc."""
        fields = {}
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
            name, kib, *_ = line.split()
            fields[name] = int(kib) * 1024
        # Excludes the descriptor of the listing itself.
        descriptors = sum(1 for _ in Path("/proc/self/fd").iterdir()) - 1
        return Usage(fields["Rss:"], fields["Pss:"], descriptors)

    def per_peer(self, before: Usage, peers: int) -> Usage:
        """Return the increase per peer."""
        mine, theirs = asdict(self), asdict(before)
        return Usage(**{name: (mine[name] - theirs[name]) / peers for name in mine})


# A side's results for a row: fields, and samples.
Found = dict[str, Any]


@bench.command(short_help="Measure what each of many peers takes.")
@click.option(
    "--counts",
    type=SizeList(),
    default="10,100,300,1000",
    show_default=True,
    help="Numbers of peers; each is measured in two new processes.",
)
@options.transport()
@options.cpus
@options.json_to
@plots.no_option("its rows are counts of peers, all of one size")
def peers(counts: Sequence[int], **common: Any) -> None:
    """Measure the memory, descriptors and time that each of many peers takes of one endpoint.

    One process has the measured endpoint, another has all the others, which connect in turn. The
    first link creates what all links share, and is not counted.
    """
    if 0 in counts:
        raise click.UsageError("--counts: there is at least one peer")
    placement = options.placement({**common, "processes": True})
    failures = []
    with report(
        common["json_to"], gpu=False, show=_table, about="peers", total=len(counts)
    ) as reported:
        for count in counts:
            try:
                reported.add(_measure(Job(count, corrupts()), placement))
            except SideError as failure:
                failures.append(f"{count} peers: {failure}")
    if failures:
        raise click.ClickException("; ".join(failures))


def _measure(job: Job, placement: Placement) -> Row:
    found = dict(run_sides(peers_role, job, placement))
    crowd, hub = found[0], found[1]
    linked_us = crowd.pop("linked_us")
    return Row(
        op="peers",
        api="python",
        mode="sendrecv",
        memory="host",
        buffers="private",
        size=_BYTES,
        iters=job.peers,
        p50_us=percentile(linked_us, 0.5),
        p99_us=percentile(linked_us, 0.99),
        GBps=0.0,
        wrong=hub.pop("wrong") + crowd.pop("wrong"),
        peers=job.peers,
        **hub,
        **crowd,
    )


def peers_role(side: Side, job: Job) -> None:
    """Run the endpoint in the middle (side 1), or all those around it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    side.report(_hub(side, job) if side.number == 1 else _crowd(side, job))


def _hub(side: Side, job: Job) -> Found:
    """Run the endpoint in the middle."""
    with onehop.Endpoint() as endpoint:
        side.tell(endpoint.address)
        wrong = 0
        links = []
        for number in range(1 + job.peers):
            if number == 1:
                before = Usage.now()
            peer = endpoint.accept()
            text = bytearray(_BYTES)
            peer.recv(text)
            peer.send(text)
            wrong += _difference(text, _text(number))
            links.append(peer)
        usage = Usage.now().per_peer(before, job.peers)
        # The other side is idle until it is told to continue.
        progress_us = _median_us(endpoint.progress)
        path = links[-1].info().path
        side.tell("measured")
        for _ in range(_SAMPLES * _CALLS):
            links[-1].recv(text)
            links[-1].send(text)
        side.hear()
        return {
            "path": path,
            "wrong": wrong,
            "progress_us": progress_us,
            "rss_per_peer": round(usage.rss),
            "pss_per_peer": round(usage.pss),
            "fds_per_peer": round(usage.descriptors, 2),
        }


def _crowd(side: Side, job: Job) -> Found:
    """Run the endpoints around the middle."""
    address = side.hear()
    wrong = 0
    linked_us = []
    links: list[tuple[onehop.Endpoint, onehop.Peer]] = []
    text = bytearray(_BYTES)
    for number in range(1 + job.peers):
        sent = bytearray(_text(number))
        sent[0] ^= job.corrupt and number == job.peers
        endpoint = onehop.Endpoint()
        start = perf_counter_ns()
        peer = endpoint.connect(address)
        peer.send(sent)
        peer.recv(text)
        linked_us.append((perf_counter_ns() - start) / 1e3)
        wrong += _difference(text, sent)
        links.append((endpoint, peer))
    side.hear()
    last = links[-1][1]

    def round_trip() -> None:
        last.send(text)
        last.recv(text)

    message_us = _median_us(round_trip) / 2
    side.tell("done")
    for endpoint, _ in links:
        endpoint.close()
    # linked: from connect to the reply to the first bytes; message: one way, with one of the peers.
    return {"linked_us": linked_us[1:], "message_us": message_us, "wrong": wrong}


def _median_us(call: Callable[[], object]) -> float:
    """Return the median time of a call over the samples."""
    samples = []
    for _ in range(_SAMPLES):
        start = perf_counter_ns()
        for _ in range(_CALLS):
            call()
        samples.append((perf_counter_ns() - start) / _CALLS / 1e3)
    return statistics.median(samples)


def _text(number: int) -> bytes:
    """Return the first message of a peer."""
    return (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(_BYTES, "little")


def _difference(found: bytearray, expected: bytes | bytearray) -> int:
    return sum(a != b for a, b in zip(found, expected, strict=True))


_COLUMNS: tuple[Column[Row], ...] = (
    Column("path", lambda row: row.path, "left"),
    Column("peers", lambda row: figure(row.peers, 0)),
    Column("RSS KiB each", lambda row: figure(row.rss_per_peer, 0, 1024)),
    Column("PSS KiB each", lambda row: figure(row.pss_per_peer, 0, 1024)),
    Column("fds each", lambda row: figure(row.fds_per_peer, 2)),
    Column("linked us p50", lambda row: figure(row.p50_us, 0)),
    Column("p99", lambda row: figure(row.p99_us, 0)),
    Column("progress us", lambda row: figure(row.progress_us, 2)),
    Column("ns each", lambda row: figure(row.progress_us, 1, (row.peers or 1) / 1e3)),
    Column("message us", lambda row: figure(row.message_us, 2)),
    WRONG,
)


def _table(rows: Sequence[Row]) -> Table:
    return figures(
        "onehop bench peers: of one endpoint",
        "each: what one peer adds to the endpoint's process; linked: from connect to the"
        " answer of the first 8 bytes; progress: one call, and its share of a peer; message: 8"
        " bytes between the endpoint and the last peer, one way, from Python",
        _COLUMNS,
        rows,
    )
