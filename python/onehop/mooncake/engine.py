# SPDX-License-Identifier: Apache-2.0
"""Mooncake's TransferEngine: its calls, their arguments, and integers as results."""

from __future__ import annotations

import contextlib
import enum
import logging
import operator
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import onehop
from onehop.mooncake.errors import Code, Failure
from onehop.mooncake.node import Node
from onehop.nixl import errors as nixl_errors
from onehop.nixl.descs import Array

__all__ = ["TransferEngine", "TransferOpcode"]

_log = logging.getLogger("onehop.mooncake")

_P2P = "P2PHANDSHAKE"
_NAMED = [getattr(nixl_errors, name) for name in nixl_errors.__all__ if name.endswith("Error")]
# Failures that a call returns as an integer; any other exception is a bug here, and is raised.
_FAILURES = (Failure, onehop.Error, OSError, *_NAMED)


class TransferOpcode(enum.IntEnum):
    """The direction of a transfer, from the side that makes it."""

    Read = 0
    Write = 1


class TransferEngine:
    """Registers memory, and moves bytes between it and that of other processes' engines.

    Calls return 0, or a negative integer and say why to the logger "onehop.mooncake". An argument
    of a type that cannot be used raises TypeError. Threading: any thread may make any call.
    """

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: Node | None = None

    def __del__(self) -> None:
        # When the interpreter exits, onehop has closed the endpoints already.
        with contextlib.suppress(Exception):
            if self._made is not None and not sys.is_finalizing():
                self._made.close()

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Begin: listen at a port of this host for others that want to reach this engine.

        local_hostname: the name or address that peers use; a port behind it does not count.
        metadata_server: "P2PHANDSHAKE". protocol and device_name: any; onehop chooses the path.
        """
        return _result(lambda: self._initialize(local_hostname, metadata_server), "initialize")

    def _initialize(self, hostname: str, metadata_server: str) -> None:
        if metadata_server != _P2P:
            msg = f"metadata_server is {metadata_server!r}: give {_P2P!r}, onehop needs no server"
            raise Failure(msg)
        with self._lock:
            if self._made is not None:
                msg = "this engine was initialized before: make another"
                raise Failure(msg)
            self._made = Node(hostname, _patience())

    def get_rpc_port(self) -> int:
        """Return the port of this engine: its session is the host, a colon and this."""
        try:
            return self._node.port
        except Failure as failure:
            _log.error("get_rpc_port: %s", failure)
            return int(failure.code)

    @property
    def _node(self) -> Node:
        if self._made is None:
            msg = "the engine was not initialized: call initialize() first"
            raise Failure(msg)
        return self._made

    # ---- Memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Register host or GPU memory, which others may read and write then.

        -1: of 0 bytes, or it cannot be registered; -7: it overlaps memory that is registered.
        """
        area = _number(buffer_addr, "buffer_addr"), _number(capacity, "capacity")
        return _result(lambda: self._node.register([area]), "register_memory")

    def unregister_memory(self, buffer_addr: int) -> int:
        """Deregister the memory at this address; when it returns nothing accesses it.

        -3: nothing is registered there.
        """
        address = _number(buffer_addr, "buffer_addr")
        return _result(lambda: self._node.deregister([address]), "unregister_memory")

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Register many pieces of memory: all of them, or none where one fails."""
        addresses = _numbers(buffer_addresses, "buffer_addresses").tolist()
        sizes = _numbers(capacities, "capacities").tolist()

        def register() -> None:
            if len(addresses) != len(sizes):
                msg = f"{len(addresses)} addresses and {len(sizes)} capacities: give as many"
                raise Failure(msg)
            self._node.register(list(zip(addresses, sizes, strict=True)))

        return _result(register, "batch_register_memory")

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Deregister many pieces; all are tried, and the first failure is the result."""
        addresses = _numbers(buffer_addresses, "buffer_addresses").tolist()
        return _result(lambda: self._node.deregister(addresses), "batch_unregister_memory")

    # ---- Transfers

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Write local memory into that of a session, and wait until it has arrived."""
        opcode = TransferOpcode.Write
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, opcode)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Read memory of a session into ours, and wait until it is here."""
        opcode = TransferOpcode.Read
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, opcode)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Write many blocks, and wait until all are there."""
        opcode = TransferOpcode.Write
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, opcode
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Read many blocks, and wait until all are here."""
        opcode = TransferOpcode.Read
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, opcode
        )

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: int,
        notify: None = None,
        transport_hint: str = "",
    ) -> int:
        """Move one block; opcode says where. -1: it failed, and may have moved in part."""
        one = [_number(buffer, "buffer")]
        other = [_number(peer_buffer_address, "peer_buffer_address")]
        size = [_number(length, "length")]
        return self.batch_transfer_sync(target_hostname, one, other, size, opcode, notify)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: int,
        notify: None = None,
        transport_hint: str = "",
    ) -> int:
        """Move many blocks; opcode says where. -1: it failed, and may have moved in part.

        Each block lies in one registered piece of memory at both sides. It ends after
        MC_TRANSFER_TIMEOUT seconds (30) and one more for each 10**9 bytes. notify: None.
        """
        put = TransferOpcode(opcode) == TransferOpcode.Write
        if notify is not None:
            msg = "onehop.mooncake has no notifications: leave notify out"
            raise TypeError(msg)
        ours = _numbers(buffers, "buffers")
        theirs = _numbers(peer_buffer_addresses, "peer_buffer_addresses")
        sizes = _numbers(lengths, "lengths")
        what = f"{'write to' if put else 'read from'} {target_hostname}"

        def move() -> None:
            self._node.transfer(put, target_hostname, ours, theirs, sizes)

        return 0 if _result(move, what) == 0 else int(Code.INVALID)

    def send_probe(self, peer_server_name: str) -> int:
        """Return 0 if an engine answers at this session now.

        -1: it is no session; -101: its host has no address; -102: no answer; -104: it has
        another ONEHOP_SECRET.
        """
        return _result(lambda: self._node.probe(peer_server_name), f"probe {peer_server_name}")


def _result(call: Callable[[], None], what: str) -> int:
    """Return 0, or the failure's integer result after logging it."""
    try:
        call()
    except _FAILURES as failure:
        _log.error("%s: %s", what, failure)
        return int(failure.code if isinstance(failure, Failure) else Code.INVALID)
    return 0


def _number(value: Any, what: str) -> int:  # noqa: ANN401
    number = operator.index(value)
    if not 0 <= number < 1 << 64:
        msg = f"{what} is {number}: give an address or a length, from 0 to 2**64 - 1"
        raise TypeError(msg)
    return number


def _numbers(values: Any, what: str) -> Array:  # noqa: ANN401
    array = np.asarray(values)
    if array.ndim == 1 and len(array) == 0:
        return np.empty(0, np.uint64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or int(array.min()) < 0:
        msg = f"{what} is no list of integers from 0 to 2**64 - 1"
        raise TypeError(msg)
    return array.astype(np.uint64, copy=False)


def _patience() -> float:
    """Return the seconds of MC_TRANSFER_TIMEOUT: 5 or more, 30 if it is not set."""
    text = os.environ.get("MC_TRANSFER_TIMEOUT")
    if not text:
        return 30.0
    try:
        return max(5.0, float(int(text)))
    except ValueError:
        msg = f"MC_TRANSFER_TIMEOUT={text}: give whole seconds"
        raise Failure(msg) from None
