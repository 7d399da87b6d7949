# SPDX-License-Identifier: Apache-2.0
"""Facts that onehop reports, as plain records."""

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
    hidden: bool  # its value is a secret

    @property
    def value(self) -> str | None:
        """What the environment sets it to, or None; secrets are not shown."""
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
    numa_node: int | None  # of the host; None: not known


@dataclass(frozen=True)
class GpuLink:
    """How one GPU is joined to another."""

    kind: str  # "same", "nvlink", "pcie_" and "switch", "bridge", "node" or "system", "unknown"
    nvlinks: int  # that join them; 0: none, or not known
    nvlink_bandwidth: int  # bytes/s of each, one way; 0: not known
    peer_access: bool  # the one reaches the other's memory
    native_atomics: bool  # also with atomic operations
    text: str  # in words; where the link is not known, why


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node of this host, with lists of CPUs as "0-15,64-79"."""

    node: int
    cpus: str
    usable: str  # those of them that the calling thread may use


@dataclass(frozen=True)
class Topology:
    """The machine: GPUs, how each is joined to each, and NUMA nodes."""

    devices: list[Gpu]
    links: list[list[GpuLink]]  # from, to
    nodes: list[NumaNode]
    why_no_devices: str  # empty if there are some


@dataclass(frozen=True)
class PeerInfo:
    """What is known of a link."""

    id: int  # of the peer, unique in the process
    label: str  # "host:pid" of the other process
    rank: int | None  # in the communicator
    path: str  # of everything that is not inline
    max_inline: int  # bytes, granted
    eager_max: int  # bytes
    eager_credit: int  # bytes that the peer grants us
    single_copy: bool  # we reach the peer's memory
    target_progress: bool  # our puts and gets need the peer's progress
    unresponsive: float  # seconds since it stopped answering, or 0; asks, so ask twice


@dataclass(frozen=True)
class Counter:
    """What has travelled on one path."""

    operations: int
    bytes: int


@dataclass(frozen=True)
class PeerStats:
    """Counters of a link; the first two by path: what ended well, at the side that posted it.

    What calls have given to streams counts as "nvlink": a send with the most it may be, a receive
    with its capacity, a put as the copy engine's. Captured calls, replays and kernels are seen in
    stream_put and stream_staged only.
    """

    sent: dict[str, Counter]
    received: dict[str, Counter]
    unexpected: int  # messages that came before their receive
    out_of_credit: int  # small messages that had to ask first
    rtrs_used: int  # sends that went straight into a posted receive
    back_pressure: int  # sends refused with Status.AGAIN
    timeouts: int
    cancelled: int
    stream_put: int  # long messages of streams and kernels, straight into their receive
    stream_staged: int  # through chunks, slower: the receive's memory was not mapped here (yet)
    packed: int  # blocks and the like that UCX got in buffers for several, also those alone
    deferred: int  # times that something waited for room: for a buffer, or in UCX


@dataclass(frozen=True)
class PoolStats:
    """Counters of a pool of buffers that transfers with other hosts take turns with."""

    buffer_size: int  # bytes
    limit: int  # buffers that may be made
    buffers: int  # made so far
    in_use: int  # now
    peak: int  # most that were in use at once
    shortages: int  # times that a link or a message had to wait for one


@dataclass(frozen=True)
class StreamInfo:
    """What streams and kernels can expect of a peer."""

    ready: bool  # the lanes are connected
    path: str  # "nvlink" or "proxy"; "none": not viable
    small_max: int  # bytes of a message that lies in the ring
    stream_buffered: int  # bytes of a message on lane 0 that does not wait for its receive
    device_memory: int  # bytes of it that this peer takes
    why_not: str  # empty if it is viable
    why_no_kernels: str  # empty if kernels carry it, or it is not known yet


@dataclass(frozen=True)
class PathRow:
    """The path of one range of sizes, and why.

    A "pending message" is a send whose memory waits for earlier work (`after=`) that is not done
    when its receive is posted behind it; where there is no such row, "message" holds. While the
    kernel of a row "worker" is not there, the next row of the same operation and kinds holds.
    """

    operation: str  # "message", "pending message", "put/get" or "stream"
    source: str  # kind of memory: "host", "shared", "device", "device-private"
    target: str
    first: int  # bytes
    last: int
    path: str
    method: str
    why: str

    @property
    def sizes(self) -> str:
        """The range of sizes, for reading."""
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
    """Return the path that each kind of memory and each size takes to a peer, and why.

    Raises:
        InvalidType: it is no Peer.

    """
    if not isinstance(peer, _core.Peer):
        text = f"peer is of type {type(peer).__name__}: give a Peer, such as comm.peer(rank)"
        raise InvalidType(Status.INVALID, text)
    return Paths(peer.paths())


def info() -> Info:
    """Return what this build can do on this machine."""
    return Info(_core.version(), _core.kernel_image_size(), _core.transports())


def topology() -> Topology:
    """Return the GPUs that this process sees, how they are joined, and the NUMA nodes."""
    try:
        devices = _core.devices()
    except OperationError as failure:
        if failure.status != Status.NOT_VIABLE:
            raise
        return Topology([], [], _core.numa_nodes(), str(failure))
    links = [_core.links_from(place) for place in range(len(devices))]
    return Topology(devices, links, _core.numa_nodes(), "")
