# SPDX-License-Identifier: Apache-2.0
"""The parts of an initialized engine: endpoints, registrations, peers, and its port."""

from __future__ import annotations

import bisect
import contextlib
import os
import threading
import time
from collections.abc import Sequence

import numpy as np

from onehop.mooncake import meeting
from onehop.mooncake.errors import Code, Failure
from onehop.mooncake.peers import Peers
from onehop.mooncake.pointers import device_of
from onehop.nixl.core import Core
from onehop.nixl.descs import Array, nixlRegDList
from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import nixlNotFoundError, nixlRemoteDisconnectError
from onehop.nixl.memory import HOST
from onehop.nixl.remote import RemoteAgent
from onehop.nixl.transfers import Local, Remote, Transfer, nixl_xfer_handle

__all__ = ["Node"]


class Node:
    """One engine. Its calls raise Failure, the exceptions of onehop.nixl or those of onehop.

    Threading: any thread.
    """

    def __init__(self, hostname: str, patience: float) -> None:
        """Listen on the host. patience: seconds allowed for a transfer, plus 1 s per GB."""
        host = meeting.host_of(hostname)
        self._patience = patience
        # The random suffix makes a later engine at the same session a different agent.
        self._core = Core(f"{host} {os.urandom(8).hex()}", patience)
        try:
            self._server = meeting.Server(host, self._core.metadata)
        except BaseException:
            self._core.close()
            raise
        self._peers = Peers(self._core)
        self._lock = threading.Lock()
        self._starts: list[int] = []  # sorted addresses of the registrations
        self._registered: dict[int, nixlRegDList] = {}

    @property
    def port(self) -> int:
        """The port on which other engines request the metadata of this one."""
        return self._server.port

    def close(self) -> None:
        """Close the engine; transfers in flight are cancelled."""
        self._server.close()
        self._core.close()

    # ---- Memory

    def register(self, areas: Sequence[tuple[int, int]]) -> None:
        """Register memory by (address, length), all of it or none on an error."""
        with self._lock:
            done: list[int] = []
            try:
                for address, size in areas:
                    self._register(address, size)
                    done.append(address)
            except BaseException:
                for address in done:
                    self._deregister(address)
                raise

    def _register(self, address: int, size: int) -> None:
        tried = f"register {size} bytes at {address:#x}"
        if size == 0:
            msg = f"{tried}: give one byte or more"
            raise Failure(msg)
        place = bisect.bisect(self._starts, address)
        for near in self._starts[max(place - 1, 0) : place + 1]:
            length = int(self._registered[near].rows[0, 1])
            if near < address + size and address < near + length:
                msg = f"{tried}: {length} bytes at {near:#x} are registered already, and overlap"
                raise Failure(msg, Code.OVERLAPPED)
        device = device_of(address)
        kind = nixl_mem_t.DRAM_SEG if device == HOST else nixl_mem_t.VRAM_SEG
        descs = nixlRegDList(kind, [(address, size, max(device, 0), "")])
        self._core.memory.register(descs)
        self._starts.insert(place, address)
        self._registered[address] = descs

    def deregister(self, addresses: Sequence[int]) -> None:
        """Deregister; on return no peer accesses the memory. Raises the first failure."""
        first: Exception | None = None
        with self._lock:
            for address in addresses:
                try:
                    self._deregister(address)
                except Exception as failure:
                    first = first or failure
        try:
            if first is not None:
                raise first
        finally:
            first = None  # the exception would keep this frame alive

    def _deregister(self, address: int) -> None:
        descs = self._registered.get(address)
        if descs is None:
            msg = f"deregister {address:#x}: no registered memory begins there"
            raise Failure(msg, Code.NOT_REGISTERED)
        self._core.deregister(descs)
        del self._registered[address]
        self._starts.remove(address)

    # ---- Transfers

    def transfer(
        self, put: bool, session: str, local: Array, remote: Array, lengths: Array
    ) -> None:
        """Move blocks, and return when all of them have arrived."""
        if not len(local) == len(remote) == len(lengths):
            msg = (
                f"{len(local)} local and {len(remote)} remote addresses, {len(lengths)} lengths: "
                "give as many"
            )
            raise Failure(msg)
        end = time.monotonic() + self._patience + int(lengths.sum(dtype=np.uint64)) * 1e-9
        agent = self._peers.find(session)
        if len(lengths) == 0:
            return
        ours = Local(self._core.memory.find_rows(np.column_stack((local, lengths))))
        rows = np.column_stack((remote, lengths))
        try:
            try:
                self._move(put, ours, agent, rows, end)
            except nixlNotFoundError:
                # The peer may have registered the memory since, or again.
                agent = self._peers.ask(session)
                self._move(put, ours, agent, rows, end)
        except Exception as failure:
            if agent.lost or isinstance(failure, nixlRemoteDisconnectError):
                self._peers.drop(session, agent)
            raise

    def _move(self, put: bool, ours: Local, agent: RemoteAgent, rows: Array, end: float) -> None:
        theirs = Remote(agent.find_rows(rows), agent)
        self._core.sweep()
        # If the transfer cannot be ended, the core keeps it after the handle is destroyed.
        transfer = Transfer(self._core, put, ours, theirs, None, None)
        transfer.prepare()
        handle = nixl_xfer_handle(self._core, transfer)
        try:
            handle.transfer.post(None)
            handle.transfer.wait(max(end - time.monotonic(), 0.0))
        finally:
            with contextlib.suppress(Exception):
                handle.release()

    def probe(self, session: str) -> None:
        """Return if an engine answers at this session now."""
        meeting.ask(session)
