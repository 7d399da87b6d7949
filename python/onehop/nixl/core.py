# SPDX-License-Identifier: Apache-2.0
"""The state of one agent; its handles keep it alive, too."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections import deque

from onehop.nixl.descs import nixlRegDList
from onehop.nixl.errors import nixlInvalidParamError, nixlNotFoundError
from onehop.nixl.inbox import Inbox
from onehop.nixl.memory import HOST, Memory
from onehop.nixl.metadata import NAME_MAX, Metadata, pack, parse
from onehop.nixl.remote import RemoteAgent
from onehop.nixl.transfers import Transfer, sweep

__all__ = ["Core"]

# Seconds. Short, since programs often connect from the thread that serves all their peers.
_PATIENCE = 30.0
_INSTANCE = 16


class Core:
    """Endpoints, registrations, other agents and transfers of one agent.

    Threading: any thread.
    """

    def __init__(self, name: str, timeout: float | None = None) -> None:
        """Set the name and the timeout, in seconds, of each wait for a peer.

        None: 30, or ONEHOP_TIMEOUT if it is set.
        """
        if not 0 < len(name.encode()) <= NAME_MAX:
            msg = f"an agent's name of {len(name.encode())} bytes: give 1 to {NAME_MAX}"
            raise nixlInvalidParamError(msg)
        self.name = name
        if timeout is None and not os.environ.get("ONEHOP_TIMEOUT"):
            timeout = _PATIENCE
        self._timeout = timeout
        self.instance = os.urandom(_INSTANCE)
        self.active: dict[int, Transfer] = {}  # posted, possibly still in flight
        self.orphans: deque[Transfer] = deque()  # those of them without a handle
        self.inbox = Inbox()
        self._retired: list[RemoteAgent] = []
        self._lock = threading.RLock()
        self._remotes: dict[str, RemoteAgent] = {}
        self.memory = Memory(name, self.inbox, timeout)

    def __del__(self) -> None:
        # When the interpreter exits, the endpoints are closed already.
        with contextlib.suppress(Exception):
            if not sys.is_finalizing():
                self.close()

    def close(self) -> None:
        """Close all endpoints, which cancels transfers in flight and invalidates handles.

        Takes no lock; no other call may be running.
        """
        self.inbox.close()
        self.memory.close()

    # ---- Metadata

    def metadata(self) -> bytes:
        """Return the metadata that other agents add."""
        sequence, endpoints, regions = self.memory.records()
        return pack(Metadata(self.name, self.instance, sequence, True, endpoints, regions))

    def partial_metadata(self, descs: nixlRegDList, with_endpoints: bool) -> bytes:
        """Return metadata with only these registrations."""
        regions = [one.record for one in self.memory.find(descs)]
        endpoints = self.memory.endpoint_records() if with_endpoints else []
        return pack(Metadata(self.name, self.instance, 0, False, endpoints, regions))

    def add(self, data: bytes) -> str:
        """Add another agent, or merge its newer registrations; return its name."""
        metadata = parse(data)
        if metadata.name == self.name:
            msg = f"metadata of an agent of our own name {self.name!r}: names must differ"
            raise nixlInvalidParamError(msg)
        with self._lock:
            known = self._remotes.get(metadata.name)
            if known is not None and known.instance == metadata.instance and not known.lost:
                known.merge(metadata)
                return metadata.name
            if not metadata.endpoints:
                msg = (
                    f"partial metadata of agent {metadata.name!r}, which is not known here: add "
                    "its full metadata, or a partial one with inc_conn_info=True"
                )
                raise nixlNotFoundError(msg)
            self._remotes[metadata.name] = RemoteAgent(self.name, metadata, self._timeout)
        self._retire(known)
        return metadata.name

    # ---- Other agents

    def remote(self, name: str) -> RemoteAgent:
        """Return another agent, or this one as its own peer; nixlNotFoundError: not known."""
        with self._lock:
            if name == self.name:
                return self._loopback()
            found = self._remotes.get(name)
            if found is None:
                known = ", ".join(map(repr, self._remotes)) or "none"
                msg = f"agent {name!r} is not known here ({known}): add its metadata first"
                raise nixlNotFoundError(msg)
            return found

    def _loopback(self) -> RemoteAgent:
        """Return this agent as its own peer, with its current registrations. Links stay."""
        metadata = parse(self.metadata())
        own = self._remotes.get(self.name)
        if own is None or own.lost:
            self._retire(own)
            own = self._remotes[self.name] = RemoteAgent(self.name, metadata, self._timeout)
        else:
            own.merge(metadata)
        return own

    def known(self, name: str) -> RemoteAgent | None:
        """Return another agent if it is known and its links are not lost."""
        if name == self.name:
            return self.remote(name)
        with self._lock:
            found = self._remotes.get(name)
        return found if found is not None and not found.lost else None

    def remove(self, name: str) -> None:
        """Remove another agent; its links close after the last transfer over them."""
        with self._lock:
            found = self._remotes.pop(name, None)
        self._retire(found)

    def _retire(self, remote: RemoteAgent | None) -> None:
        """Close the links of an agent once no transfer uses them."""
        if remote is not None:
            remote.removed = True
            self._retired.append(remote)
        self.sweep()

    def notify(self, name: str, message: bytes) -> None:
        """Send a notification."""
        self.remote(name).notify(self.memory.endpoint_on(HOST), message)

    # ---- Transfers

    def deregister(self, descs: nixlRegDList) -> None:
        """End the transfers that use these registrations, then deregister.

        On return nothing accesses the memory. After an error it can be called again.
        """
        with self.memory.ending(descs) as ended:
            numbers = {one.number for one in ended}
            # What is posted from here on fails: see Transfer.post().
            for transfer in list(self.active.values()):
                if any(one.number in numbers for one in transfer.registrations):
                    transfer.stop()
            self.memory.retire(ended)

    def sweep(self) -> None:
        """Release abandoned transfers that have ended, and the links of removed agents."""
        if self.orphans:
            sweep(self.orphans)
        for remote in list(self._retired):
            busy = (one.agent is remote and not one.quiet for one in list(self.active.values()))
            if not remote.sending and not any(busy):
                with contextlib.suppress(ValueError):  # another thread removed it first
                    self._retired.remove(remote)
                    remote.close()
