# SPDX-License-Identifier: Apache-2.0
"""Other agents: their metadata, and the links to them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import onehop
from onehop import Peer, RemoteRegion, Request, Status
from onehop.nixl.deferred import CallQueue, NotYet
from onehop.nixl.descs import Array
from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import (
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    translate,
    translated,
    unless_closed,
)
from onehop.nixl.inbox import HELLO, NOTE, watch_link
from onehop.nixl.memory import HOST, Owned
from onehop.nixl.metadata import EndpointRecord, Metadata, RegionRecord
from onehop.nixl.outbox import Outbox
from onehop.nixl.places import Places, Table

__all__ = ["Link", "RemoteAgent"]

_log = logging.getLogger("onehop.nixl")


@dataclass(eq=False)
class Link:
    """A link from a local endpoint to one of the other agent's."""

    owner: Owned
    target: EndpointRecord
    peer: Peer
    watch: Request  # ends with the link
    outbox: Outbox
    attached: dict[int, RemoteRegion]

    @property
    def lost(self) -> bool:
        """Whether the link has ended."""
        return self.watch.status != Status.IN_PROGRESS


class RemoteAgent:
    """Another agent, or this one as its own peer. Its links are created on first use.

    Threading: any thread.
    """

    def __init__(self, our_name: str, metadata: Metadata, timeout: float | None = None) -> None:
        """Set its metadata and the timeout, in seconds, of each step of connecting."""
        self.name = metadata.name
        self.instance = metadata.instance
        self.removed = False
        self._our_name = our_name
        self.within = {} if timeout is None else {"timeout": timeout}
        # Held while connecting or attaching, which may take as long as the peer needs; metadata can
        # be read and merged meanwhile.
        self._reaching = threading.Lock()
        # Calls that wait for a connection or an attach, in order.
        self.calls = CallQueue()
        self._lock = threading.RLock()
        self._sequence = -1
        self._endpoints: dict[int, EndpointRecord] = {}
        self._regions: dict[int, RegionRecord] = {}
        self._table: Table[RegionRecord] | None = None
        self._links: dict[tuple[int, int], Link] = {}
        self._lost = False
        self._told: set[tuple[str, str]] = set()
        self.merge(metadata)

    def merge(self, metadata: Metadata) -> None:
        """Merge newer metadata of the same instance; ignore older metadata."""
        with self._lock:
            for endpoint in metadata.endpoints:
                self._endpoints.setdefault(endpoint.number, endpoint)
            if metadata.full and metadata.sequence >= self._sequence:
                self._regions = {region.number: region for region in metadata.regions}
                self._sequence = metadata.sequence
            elif not metadata.full:
                for region in metadata.regions:
                    self._regions.setdefault(region.number, region)
            self._table = None

    @property
    def lost(self) -> bool:
        """Whether a link to it has ended; its metadata must then be added again."""
        if not self._lost and any(link.lost for link in list(self._links.values())):
            self._lost = True
            unsent = sum(link.outbox.unsent() for link in self.links())
            if unsent:
                _log.warning(
                    "%d notifications to agent %r were lost with its link", unsent, self.name
                )
        return self._lost

    def check(self) -> None:
        """Raise if the agent was removed or lost."""
        if self.removed:
            msg = (
                f"agent {self.name!r} was removed, or added again since: use handles that were "
                "prepared after that"
            )
            raise nixlNotFoundError(msg)
        if self.lost:
            msg = (
                f"agent {self.name!r} is gone: add the metadata of the agent that takes its place, "
                "and prepare its descriptors again"
            )
            raise nixlRemoteDisconnectError(msg)

    def locate(self, memory: nixl_mem_t, rows: Array) -> Places[RegionRecord]:
        """Return the places of descriptors in its registrations."""
        return self._now().locate(memory, rows, f"agent {self.name!r}")

    def find_rows(self, rows: Array) -> Places[RegionRecord]:
        """Return the places of rows of (address, length), in memory of any kind and device."""
        return self._now().find(rows, f"agent {self.name!r}")

    def _now(self) -> Table[RegionRecord]:
        with self._lock:
            if self._table is None:
                self._table = Table(list(self._regions.values()))
            return self._table

    def link(self, owner: Owned, target: int, wait: bool = True) -> Link:
        """Return the link from a local endpoint to one of its endpoints; the first use connects.

        NotYet: it is not connected, and wait is False.
        """
        self.check()
        known = self._links.get((owner.number, target))
        if known is not None:
            return known
        record = self._endpoints.get(target)
        if record is None:
            msg = (
                f"the metadata of agent {self.name!r} does not say how to reach it: add its "
                "full metadata, or a partial one with inc_conn_info=True"
            )
            raise nixlNotFoundError(msg)
        if not wait:
            raise NotYet
        with self._reaching:
            return self._links.get((owner.number, target)) or self._connect(owner, record)

    def _connect(self, owner: Owned, record: EndpointRecord) -> Link:
        with self._answering(f"connect agent {self._our_name!r} to {self.name!r}"):
            peer = owner.endpoint.connect(record.address, **self.within)
            try:
                peer.notify(HELLO + self._our_name.encode(), **self.within)
                made = Link(owner, record, peer, watch_link(peer), Outbox(peer), {})
            except onehop.Error:
                peer.close()
                raise
        with self._lock:
            removed = self.removed  # removed meanwhile: close() does not see this link any more
            if not removed:
                self._links[owner.number, record.number] = made
        if removed:
            with unless_closed():
                peer.close()
            self.check()
        return made

    @contextmanager
    def _answering(self, tried: str) -> Iterator[None]:
        """Translate errors. If the peer does not answer, calls that wait for it fail as well."""
        with translated(tried):
            try:
                yield
            except onehop.TimeoutError as failure:
                self.calls.fail_queued(partial(translate, failure, tried))
                raise

    def control(self, host: Owned, wait: bool = True) -> Link:
        """Return the link that carries notifications without a transfer; as link()."""
        targets = [number for number, one in self._endpoints.items() if one.device == HOST]
        return self.link(host, targets[0] if targets else 0, wait)

    def notify(self, host: Owned, message: bytes) -> None:
        """Send a notification behind what was posted to it before."""
        self.check()
        tried = f"send a notification of {len(message)} bytes to agent {self.name!r}"

        def send(wait: bool) -> None:
            link = self.control(host, wait)
            with translated(tried):
                link.outbox.send(NOTE + message, self.within)

        self.calls.run(send, lambda failure: _log.warning("%s failed: %s", tried, failure))

    @property
    def sending(self) -> bool:
        """Whether notifications to it are still to be sent."""
        return not self.calls.idle or not all(link.outbox.empty for link in self.links())

    def attach(self, link: Link, region: RegionRecord, wait: bool = True) -> RemoteRegion:
        """Return the attached remote region, for operations on this link; NotYet: as link()."""
        known = link.attached.get(region.number)
        if known is not None:
            return known
        if not self._reaching.acquire(blocking=wait):
            raise NotYet
        try:
            known = link.attached.get(region.number)
            if known is None:
                known = self._attach(link, region, wait)
                link.attached[region.number] = known
            return known
        finally:
            self._reaching.release()

    def _attach(self, link: Link, region: RegionRecord, wait: bool) -> RemoteRegion:
        tried = f"reach {region.size} bytes at {region.address:#x} of {self.name!r}"
        if wait:
            with self._answering(tried):
                return link.peer.attach(region.descriptor, **self.within)
        with translated(tried):
            try:
                return link.peer.attach(region.descriptor, timeout=0)
            except onehop.TimeoutError:
                raise NotYet from None

    def close(self) -> None:
        """Close all links."""
        with self._lock:
            links, self._links = list(self._links.values()), {}
        for link in links:
            with unless_closed():
                link.watch.cancel()
                link.peer.close()

    def links(self) -> list[Link]:
        """Return the existing links."""
        with self._lock:
            return list(self._links.values())

    def tell_path(self, link: Link, local: nixl_mem_t, remote: nixl_mem_t) -> None:
        """Log the path between two kinds of memory once."""
        kinds = (_kind_text(local, link.owner.device), _kind_text(remote, link.target.device))
        with self._lock:
            if kinds in self._told:
                return
            self._told.add(kinds)
        row = largest_row(onehop.paths(link.peer), local, remote)
        if row is None:
            return
        _log.info(
            "KV between %s here and %s of agent %r (%s) goes by %s because %s",
            *kinds,
            self.name,
            link.peer.info().label,
            row.path,
            row.why,
        )
        if row.path in _BY_HOST and (other := _neighbour(link)) is not None:
            _log.warning(
                "KV between %s here and %s of agent %r travels through the host (%s), though the "
                "GPUs reach each other (%s): %s",
                *kinds,
                self.name,
                row.path,
                other,
                row.why,
            )


# Paths of device memory that are staged through host memory.
_BY_HOST = frozenset({"relay", "socket", "ucx", "shm"})


def _kind_text(memory: nixl_mem_t, device: int) -> str:
    return "host memory" if memory == nixl_mem_t.DRAM_SEG else f"GPU {device}"


def largest_row(
    paths: onehop.Paths, local: nixl_mem_t, remote: nixl_mem_t
) -> onehop.PathRow | None:
    """Return the row of puts and gets for the largest blocks between two kinds of memory."""
    names = {nixl_mem_t.DRAM_SEG: "host", nixl_mem_t.VRAM_SEG: "device"}
    wanted = ("put/get", names[local], names[remote])
    rows = [row for row in paths if (row.operation, row.source, row.target) == wanted]
    return max(rows, key=lambda row: row.last, default=None)


def _neighbour(link: Link) -> str | None:
    """Return the connection between the two GPUs of a link, or None."""
    if link.owner.device == HOST or not link.target.uuid:
        return None
    machine = onehop.topology()
    for row, ours in enumerate(machine.devices):
        for column, theirs in enumerate(machine.devices):
            if ours.uuid == link.owner.uuid and theirs.uuid == link.target.uuid:
                joined = machine.links[row][column]
                return joined.text if joined.peer_access or row == column else None
    return None
