# SPDX-License-Identifier: Apache-2.0
"""Records of the facts that onehop reports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onehop import _core
from onehop._core import Status
from onehop.errors import InvalidType, OperationError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from onehop._core import Peer

__all__ = [
    "Counter",
    "Gpu",
    "GpuLink",
    "Info",
    "NumaNode",
    "PathRow",
    "Paths",
    "PeerInfo",
    "PeerStats",
    "PoolStats",
    "StreamInfo",
    "Topology",
    "Transport",
    "Variable",
    "info",
    "paths",
    "topology",
]


@dataclass(frozen=True)
class Transport:
    """A transport of this build: viable here, or why not."""

    name: str
    viable: bool
    why: str


@dataclass(frozen=True)
class Variable:
    """One ONEHOP_* variable."""

    name: str
    type: str
    allowed: str
    default: str
    meaning: str
    hidden: bool  # the value is a secret

    @property
    def value(self) -> str | None:
        """The value in the environment, or None. Secrets are shown as "(hidden)"."""
        value = os.environ.get(self.name) or None
        return "(hidden)" if value and self.hidden else value


@dataclass(frozen=True)
class Info:
    """What this build can do on this machine."""

    version: str
    kernel_bytes: int  # of the embedded CUDA kernels; 0: built without
    transports: list[Transport]


@dataclass(frozen=True)
class Gpu:
    """A GPU that this process sees."""

    ordinal: int  # "cuda:N"
    name: str
    uuid: str
    pci: str
    major: int  # compute capability
    minor: int
    numa_node: int | None  # of the host; None: unknown


@dataclass(frozen=True)
class GpuLink:
    """The connection from one GPU to another."""

    kind: str  # "same", "nvlink", "pcie_" and "switch", "bridge", "node" or "system", "unknown"
    nvlinks: int  # number of NVLinks between them; 0: none, or unknown
    nvlink_bandwidth: int  # bytes/s of each NVLink, one way; 0: unknown
    peer_access: bool  # the first can access the other's memory
    native_atomics: bool  # also by atomic operations
    text: str  # in words; if the link is unknown, why


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node of this host, with lists of CPUs as "0-15,64-79"."""

    node: int
    cpus: str
    usable: str  # those that the calling thread may use


@dataclass(frozen=True)
class Topology:
    """The machine: GPUs, the links between them, and NUMA nodes."""

    devices: list[Gpu]
    links: list[list[GpuLink]]  # [from][to], by the index in `devices`
    nodes: list[NumaNode]
    why_no_devices: str  # empty if there are any


@dataclass(frozen=True)
class PeerInfo:
    """Facts about a link."""

    id: int  # of the peer; unique in the process
    label: str  # "host:pid" of the other process
    rank: int | None  # in the communicator
    path: str  # of all that is not inline
    max_inline: int  # bytes granted by the transport
    eager_max: int  # bytes
    eager_credit: int  # bytes that the peer grants us
    single_copy: bool  # this side can access the peer's memory
    target_progress: bool  # this side's puts and gets need the peer's progress
    unresponsive: float  # seconds; age of an unanswered probe, or 0; it probes, so read it twice


@dataclass(frozen=True)
class Counter:
    """Operations and bytes that used one path."""

    operations: int
    bytes: int


@dataclass(frozen=True)
class PeerStats:
    """Counters of a link. `sent` and `received` count successes by path, at the side that posted.

    Puts and sends count as sent, gets and receives as received. Stream calls count as "nvlink": a
    send with its maximal size, a receive with its capacity. A stream put counts as the copy
    engine's. Captured calls, graph replays and user kernels appear in stream_put and stream_staged
    only.
    """

    sent: dict[str, Counter]
    received: dict[str, Counter]
    unexpected: int  # messages that arrived before their receive was posted
    out_of_credit: int  # small messages that had to ask first
    rtrs_used: int  # sends that went straight into a posted receive
    back_pressure: int  # sends refused with Status.AGAIN
    timeouts: int
    cancelled: int
    stream_put: int  # long messages of streams and kernels, straight into their receive
    stream_staged: int  # in chunks, slower: the receive's memory was not mapped here yet
    packed: int  # frames sent to UCX in shared buffers, also those alone in a buffer
    deferred: int  # waits for room: for a buffer, or in UCX


@dataclass(frozen=True)
class PoolStats:
    """Counters of a pool of buffers for transfers to and from other hosts."""

    buffer_size: int  # bytes
    limit: int  # most buffers that the pool may allocate
    buffers: int  # allocated so far
    in_use: int  # now
    peak: int  # most in use at once
    shortages: int  # times that a link or a message had to wait for a buffer


@dataclass(frozen=True)
class StreamInfo:
    """The stream domain of a peer: its path, limits and memory."""

    ready: bool  # the lanes are connected
    path: str  # "nvlink" or "proxy"; "none": not viable
    small_max: int  # bytes of the largest message that lies in the ring
    stream_buffered: int  # bytes of the largest message, on lane 0, that waits for no receive
    device_memory: int  # bytes of device memory that this peer uses
    why_not: str  # empty if viable
    why_no_kernels: str  # empty if kernels carry it, or if not known yet


@dataclass(frozen=True)
class PathRow:
    """The path of one range of sizes, and why.

    A "pending message" is a send whose memory still waits for earlier work (`after=`) when its
    receive is posted; without such a row, "message" applies. While the kernel of a "worker" row
    does not run, the next row of the same operation and kinds applies.
    """

    operation: str  # "message", "pending message", "put/get", "atomic" or "stream"
    source: str  # kind of memory: "host", "shared", "pinned", "device", "device-private"
    target: str
    first: int  # bytes, both inclusive
    last: int
    path: str
    method: str
    why: str

    @property
    def sizes(self) -> str:
        """The range of sizes as text."""
        if self.first == self.last:
            return f"{self.first} B"
        if self.last >= 2**63 - 1:
            return f"{self.first} B and more"
        return f"{self.first} to {self.last} B"


class Paths(tuple[PathRow, ...]):
    """Rows that print as a table."""

    __slots__ = ()

    def __str__(self) -> str:
        header = ("operation", "memory", "sizes", "path", "method", "why")
        rows = [
            (
                row.operation,
                f"{row.source} -> {row.target}",
                row.sizes,
                row.path,
                row.method,
                row.why,
            )
            for row in self
        ]
        return "\n".join(_table([header, *rows]))


def _table(rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def paths(peer: Peer) -> Paths:
    """Return the path to a peer for each kind of memory and each size, and why.

    Raises:
        InvalidType: `peer` is not a Peer.

    """
    if not isinstance(peer, _core.Peer):
        text = f"peer is of type {type(peer).__name__}: give a Peer, such as comm.peer(rank)"
        raise InvalidType(Status.INVALID, text)
    return Paths(peer.paths())


def info() -> Info:
    """Return what this build can do on this machine."""
    return Info(_core.version(), _core.kernel_image_size(), _core.transports())


def topology() -> Topology:
    """Return the GPUs that this process sees, the links between them, and the NUMA nodes."""
    try:
        devices = _core.devices()
    except OperationError as failure:
        if failure.status != Status.NOT_VIABLE:
            raise
        return Topology([], [], _core.numa_nodes(), str(failure))
    links = [_core.links_from(place) for place in range(len(devices))]
    return Topology(devices, links, _core.numa_nodes(), "")
