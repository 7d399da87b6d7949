# SPDX-License-Identifier: Apache-2.0
"""The endpoints and registrations of one agent."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onehop
from onehop import Endpoint, Region
from onehop.addresses import bytes_at
from onehop.deadline import Deadline, Timeout
from onehop.nixl.descs import Array, nixlRegDList
from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import (
    nixlBackendError,
    nixlInvalidParamError,
    nixlNotFoundError,
    translated,
    unless_closed,
)
from onehop.nixl.inbox import Inbox
from onehop.nixl.metadata import EndpointRecord, RegionRecord
from onehop.nixl.places import Places, Table

__all__ = ["HOST", "Memory", "Owned", "Registration"]

HOST = -1  # stands for the device of host memory's endpoint
_DEVICE_MAX = 1 << 20


@dataclass
class Owned:
    """One local endpoint."""

    number: int
    device: int
    uuid: str
    endpoint: Endpoint


_Key = tuple[nixl_mem_t, int, int, int]


class Registration:
    """Memory registered one or more times with the same address and length."""

    def __init__(
        self, number: int, key: _Key, owner: Owned, former: Registration | None = None
    ) -> None:
        """Register. former: a registration of the same memory that was not deregistered fully."""
        memory, device, address, size = key
        self.number = number
        self.key = key
        self.memory = memory
        self.device = device
        self.address = address
        self.size = size
        self.owner = owner
        self.former = former
        self.ending = 0  # calls that are deregistering it
        self.retired = False  # refuses peers, one of which may still be inside
        self.region: Region | None = None  # None for 0 bytes
        if size:
            on_device = memory != nixl_mem_t.DRAM_SEG
            self.region = owner.endpoint.register(bytes_at(address, size, on_device=on_device))
        # The form in which metadata describes it.
        self.record = RegionRecord(
            number,
            memory,
            device,
            owner.number,
            address,
            size,
            self.region.descriptor if self.region else b"",
        )

    @property
    def live(self) -> bool:
        """Whether peers and new transfers may use it."""
        return not self.ending and not self.retired

    @property
    def all(self) -> list[Registration]:
        """Return it, and the former ones."""
        found = [self]
        while (former := found[-1].former) is not None:
            found.append(former)
        return found


class Memory:
    """The registrations of one agent, and an endpoint for host memory and for each device used.

    Threading: any thread.
    """

    def __init__(self, name: str, inbox: Inbox, timeout: float | None = None) -> None:
        """Set the timeout, in seconds, of deregistering; None: ONEHOP_TIMEOUT."""
        self._name = name
        self._inbox = inbox
        self._timeout: Timeout = ... if timeout is None else timeout
        # No call waits for a peer while it holds this.
        self._lock = threading.RLock()
        self._registrations: dict[_Key, Registration] = {}
        self._uses: Counter[_Key] = Counter()  # how often each is registered
        self._table: Table[Registration] | None = None
        self._next = 0
        self._sequence = 0
        self._owned: dict[int, Owned] = {}
        self.endpoint_on(HOST)

    # ---- Endpoints

    def endpoint_on(self, device: int) -> Owned:
        """Return the endpoint for a device, or for HOST; it is created on first use."""
        with self._lock:
            if device not in self._owned:
                what = "an endpoint for host memory"
                uuid = ""
                if device != HOST:
                    what = f"an endpoint on GPU {device}"
                    uuid = _uuid_of(device)
                with translated(f"{what} of agent {self._name!r}"):
                    endpoint = Endpoint(None if device == HOST else device)
                owned = Owned(len(self._owned), device, uuid, endpoint)
                self._inbox.watch(endpoint)
                self._owned[device] = owned
            return self._owned[device]

    def close(self) -> None:
        """Close all endpoints; transfers in flight are cancelled. No other call may be running.

        Takes no lock, as Inbox.close().
        """
        owned, self._owned = self._owned, {}
        for registration in self._registrations.values():
            registration.retired = True
        self._registrations.clear()
        self._uses.clear()
        for one in owned.values():
            one.endpoint.close()

    # ---- Registrations

    def register(self, descs: nixlRegDList) -> None:
        """Register all descriptors, or none if one fails."""
        memory = _transferable(descs.getType(), "register memory")
        keys = [_key(memory, row) for row in descs.rows.tolist()]
        with self._lock:
            done: list[tuple[_Key, Registration | None]] = []
            try:
                for key in keys:
                    done.append((key, self._register(key)))
            except BaseException:
                for key, made in reversed(done):
                    self._undo(key, made)
                raise
            finally:
                self._changed()

    def _register(self, key: _Key) -> Registration | None:
        """Register; return the registration if it is a new one."""
        made = None
        known = self._registrations.get(key)
        if known is None or not known.live:
            made = self._registrations[key] = self._make(key, known)
        self._uses[key] += 1
        return made

    def _make(self, key: _Key, former: Registration | None) -> Registration:
        memory, device, address, size = key
        if address == 0 and size:
            msg = f"register {size} bytes at address 0: give the address of the memory"
            raise nixlBackendError(msg)
        owner = self.endpoint_on(HOST if memory == nixl_mem_t.DRAM_SEG else device)
        self._next += 1
        with translated(f"register {_text(key)}"):
            return Registration(self._next, key, owner, former)

    def _undo(self, key: _Key, made: Registration | None) -> None:
        """Take back the last registration of this memory; no peer knows of a new one."""
        self._uses[key] -= 1
        if made is None:
            return
        made.retired = True
        if made.region is not None:
            with contextlib.suppress(onehop.Error):
                made.region.deregister(timeout=0)
        if made.former is not None:
            self._registrations[key] = made.former
        else:
            self._forget(made)

    def find(self, descs: nixlRegDList) -> list[Registration]:
        """Return the registrations of these descriptors; nixlNotFoundError: there is none."""
        memory = descs.getType()
        found = []
        with self._lock:
            for row in descs.rows.tolist():
                key = _key(memory, row)
                known = self._registrations.get(key)
                if known is None or not known.live:
                    raise self._not_found(key)
                found.append(known)
        return found

    def _not_found(self, key: _Key) -> nixlNotFoundError:
        return nixlNotFoundError(
            f"{_text(key)} are not registered with agent {self._name!r}: give the address and "
            "length of register_memory(), once for each registration"
        )

    @contextmanager
    def ending(self, descs: nixlRegDList) -> Iterator[list[Registration]]:
        """Take away a use of each of these descriptors; an error in the block gives them back.

        Yields the registrations without uses, for retire(). They are not live within the block.
        """
        uses = _uses(descs)
        with self._lock:
            for key, count in uses.items():
                if self._uses[key] < count:
                    raise self._not_found(key)
            known = {key: self._registrations[key] for key in uses}
            self._uses.subtract(uses)
            last = [known[key] for key in uses if not self._uses[key]]
            ended = [one for registration in last for one in registration.all]
            for one in ended:
                one.ending += 1
            self._changed()
        try:
            yield ended
        except BaseException:
            with self._lock:
                self._uses.update(uses)
                for key, registration in known.items():
                    # Another thread may have deregistered it meanwhile, or registered it again.
                    self._registrations.setdefault(key, registration)
            raise
        finally:
            with self._lock:
                for one in ended:
                    one.ending -= 1
                for registration in last:
                    self._forget(registration)
                self._changed()

    def retire(self, registrations: list[Registration]) -> None:
        """Refuse peers everywhere, and wait until none is inside; raise the first error.

        May be called again after an error.
        """
        deadline = Deadline(self._timeout)
        first: Exception | None = None
        for one in registrations:
            one.retired = True
            try:
                if one.region is not None:
                    with translated(f"deregister {_text(one.key)}"), unless_closed():
                        one.region.deregister(timeout=deadline.left)
            except Exception as failure:
                first = first or failure
        if first is not None:
            try:
                raise first
            finally:
                del first  # its traceback refers to this frame
        for one in registrations:
            one.former = None  # it was among them

    def _forget(self, registration: Registration) -> None:
        """Forget a registration if it is not used any more."""
        key = registration.key
        if not self._uses[key] and self._registrations.get(key) is registration:
            del self._registrations[key], self._uses[key]

    def _changed(self) -> None:
        self._table = None
        self._sequence += 1

    # ---- Look-ups

    def locate(self, memory: nixl_mem_t, rows: Array) -> Places[Registration]:
        """Return where descriptors lie."""
        return self._now().locate(memory, rows, f"agent {self._name!r}")

    def find_rows(self, rows: Array) -> Places[Registration]:
        """Return where rows of (address, length) lie, in memory of any kind and device."""
        return self._now().find(rows, f"agent {self._name!r}")

    def _now(self) -> Table[Registration]:
        with self._lock:
            if self._table is None:
                self._table = Table([one for one in self._registrations.values() if one.live])
            return self._table

    @property
    def empty(self) -> bool:
        """Whether nothing is registered."""
        return not self._registrations

    def records(self) -> tuple[int, list[EndpointRecord], list[RegionRecord]]:
        """Return the number of this state, the endpoints and the registrations, for others."""
        with self._lock:
            regions = [one.record for one in self._registrations.values() if one.live]
            return self._sequence, self.endpoint_records(), regions

    def endpoint_records(self) -> list[EndpointRecord]:
        """Return the endpoints, for others."""
        with self._lock:
            return [
                EndpointRecord(one.number, one.device, one.uuid, one.endpoint.address)
                for one in self._owned.values()
            ]


def _uuid_of(device: int) -> str:
    for gpu in onehop.topology().devices:
        if gpu.ordinal == device:
            return gpu.uuid
    return ""


def _transferable(memory: nixl_mem_t, tried: str) -> nixl_mem_t:
    if memory not in (nixl_mem_t.DRAM_SEG, nixl_mem_t.VRAM_SEG):
        msg = (
            f"{tried} of kind {memory.name}: onehop moves DRAM and VRAM; for storage create the "
            "backend of the real NIXL on an agent of its own"
        )
        raise nixlNotFoundError(msg)
    return memory


def _key(memory: nixl_mem_t, row: list[int]) -> _Key:
    address, size, device = row[:3]
    if address + size >= 1 << 64:
        msg = f"{size} bytes at {address:#x} reach over the end of the address space"
        raise nixlInvalidParamError(msg)
    if memory == nixl_mem_t.VRAM_SEG and device > _DEVICE_MAX:
        msg = f"device {device} of VRAM: give the number of a GPU that this process sees"
        raise nixlInvalidParamError(msg)
    return memory, device, address, size


def _text(key: _Key) -> str:
    memory, device, address, size = key
    return f"{size} bytes at {address:#x} of {memory.name} device {device}"


def _uses(descs: nixlRegDList) -> Counter[_Key]:
    """Return how often a list names each piece of memory."""
    memory = descs.getType()
    return Counter(_key(memory, row) for row in descs.rows.tolist())
