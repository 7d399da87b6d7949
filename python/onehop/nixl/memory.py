# SPDX-License-Identifier: Apache-2.0
"""The endpoints and registrations of one agent."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import onehop
from onehop import Endpoint, Region
from onehop.addresses import bytes_at
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


class Registration:
    """Memory registered one or more times with the same address and length."""

    def __init__(
        self, number: int, memory: nixl_mem_t, device: int, address: int, size: int, owner: Owned
    ) -> None:
        self.number = number
        self.memory = memory
        self.device = device
        self.address = address
        self.size = size
        self.owner = owner
        self.count = 1
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
        """Whether it is still registered."""
        return self.count > 0


_Key = tuple[nixl_mem_t, int, int, int]


class Memory:
    """The registrations of one agent, and an endpoint for host memory and for each device used.

    Threading: any thread.
    """

    def __init__(self, name: str, inbox: Inbox) -> None:
        self._name = name
        self._inbox = inbox
        self._lock = threading.RLock()
        self._registrations: dict[_Key, Registration] = {}
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
        """Close all endpoints; transfers in flight are cancelled."""
        with self._lock:
            owned, self._owned = self._owned, {}
            for registration in self._registrations.values():
                registration.count = 0
            self._registrations.clear()
        for one in owned.values():
            one.endpoint.close()

    # ---- Registrations

    def register(self, descs: nixlRegDList) -> None:
        """Register all descriptors, or none if one fails."""
        memory = _transferable(descs.getType(), "register memory")
        keys = [_key(memory, row) for row in descs.rows.tolist()]
        with self._lock:
            done: list[_Key] = []
            try:
                for key in keys:
                    self._register(key)
                    done.append(key)
            except BaseException:
                self._drop(done)
                raise
            finally:
                self._changed()

    def _register(self, key: _Key) -> None:
        if known := self._registrations.get(key):
            known.count += 1
            return
        memory, device, address, size = key
        if address == 0 and size:
            msg = f"register {size} bytes at address 0: give the address of the memory"
            raise nixlBackendError(msg)
        owner = self.endpoint_on(HOST if memory == nixl_mem_t.DRAM_SEG else device)
        what = f"register {size} bytes at {address:#x} of {memory.name} device {device}"
        self._next += 1
        with translated(what):
            self._registrations[key] = Registration(
                self._next, memory, device, address, size, owner
            )

    def find(self, descs: nixlRegDList) -> list[Registration]:
        """Return the registrations of these descriptors; nixlNotFoundError: there is none."""
        memory = descs.getType()
        with self._lock:
            return [self._known(_key(memory, row)) for row in descs.rows.tolist()]

    def _known(self, key: _Key) -> Registration:
        found = self._registrations.get(key)
        if found is None:
            memory, device, address, size = key
            msg = (
                f"{size} bytes at {address:#x} of {memory.name} device {device} are not registered "
                f"with agent {self._name!r}: give the address and length of register_memory()"
            )
            raise nixlNotFoundError(msg)
        return found

    def last_uses(self, descs: nixlRegDList) -> list[Registration]:
        """Return the registrations whose last use these descriptors are."""
        counts: dict[int, int] = {}
        found = {}
        for registration in self.find(descs):
            counts[registration.number] = counts.get(registration.number, 0) + 1
            found[registration.number] = registration
        return [found[number] for number, count in counts.items() if found[number].count <= count]

    def deregister(self, descs: nixlRegDList) -> None:
        """Deregister; on return no peer accesses the memory."""
        memory = descs.getType()
        with self._lock:
            keys = [_key(memory, row) for row in descs.rows.tolist()]
            for key in keys:
                self._known(key)
            try:
                self._drop(keys)
            finally:
                self._changed()

    def _drop(self, keys: list[_Key]) -> None:
        for key in keys:
            registration = self._known(key)
            if registration.count == 1 and registration.region is not None:
                memory, device, address, size = key
                what = f"deregister {size} bytes at {address:#x} of {memory.name} device {device}"
                with translated(what), unless_closed():
                    registration.region.deregister()
            registration.count -= 1
            if not registration.live:
                del self._registrations[key]

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
                self._table = Table(list(self._registrations.values()))
            return self._table

    @property
    def empty(self) -> bool:
        """Whether nothing is registered."""
        return not self._registrations

    def records(self) -> tuple[int, list[EndpointRecord], list[RegionRecord]]:
        """Return the number of this state, the endpoints and the registrations, for others."""
        with self._lock:
            regions = [one.record for one in self._registrations.values()]
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
