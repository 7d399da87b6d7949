# SPDX-License-Identifier: Apache-2.0
"""The memory of the soak's messages and regions: host memory, or a GPU's.

GPU memory comes directly from the CUDA driver that onehop uses. A process has one device, one
stream and a pool. A buffer returns to the pool when its last reference is gone, and onehop keeps a
reference while an operation may access it: a reference released too early shows as bytes of another
message. Now and then the pool frees memory and allocates again, mostly at the same address.

       address (at any alignment)                               size of the allocation
          |  room: what onehop may access |  guard, 64 bytes  |
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import defaultdict, deque
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import TYPE_CHECKING, Any

import onehop
from soak_ledger import GUARD, WrongBytesError

if TYPE_CHECKING:
    import random

ON_DEVICE = 0.75  # share of the buffers of a process that has a device
FRESH = 0.05  # share of buffers for which memory is freed and newly allocated
SMALLEST = 12  # log2 of the smallest allocation in bytes
STARTS = (0, 0, 1, 16, 256)  # offset of a buffer in its allocation
SLACK = max(STARTS) + len(GUARD)
UNWRITTEN = 0xEE  # initial bytes of a receive buffer
NON_BLOCKING = 1  # stream flag: the legacy default stream does not wait for it
OUT_OF_MEMORY = 2


class DriverError(Exception):
    """A call of the CUDA driver failed."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} failed with CUDA error {code}")
        self.code = code


class Driver:
    """The CUDA driver, with the primary context of a device. Any thread."""

    def __init__(self, device: int) -> None:
        self.library = ctypes.CDLL(os.environ.get("ONEHOP_CUDA_LIBRARY") or "libcuda.so.1")
        self.context = c_void_p()
        handle = c_int()
        self._check("cuInit", 0)
        self._check("cuDeviceGet", byref(handle), device)
        self._check("cuDevicePrimaryCtxRetain", byref(self.context), handle)

    def _check(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        if code := getattr(self.library, name)(*arguments):
            raise DriverError(name, code)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """Call the driver with the context current on this thread."""
        self._check("cuCtxPushCurrent_v2", self.context)
        try:
            self._check(name, *arguments)
        finally:
            self._check("cuCtxPopCurrent_v2", byref(c_void_p()))

    def free_bytes(self) -> int:
        """Return the free bytes of the device."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value


def free_memory(devices: int) -> list[int]:
    """Return the free bytes of each device. The contexts that this creates end with the process."""
    drivers = [Driver(device) for device in range(devices)]  # all contexts before measuring
    return [driver.free_bytes() for driver in drivers]


class Pool:
    """Reusable device memory. Any thread; give() also during garbage collection."""

    def __init__(self, device: int, rng: random.Random) -> None:
        self.driver, self.rng = Driver(device), rng
        self.idle: dict[int, deque[int]] = defaultdict(deque)  # addresses by capacity
        self.lock = threading.Lock()
        self.allocated = 0
        made = c_void_p()
        self.driver.call("cuStreamCreate", byref(made), NON_BLOCKING)
        self.stream = made.value or 0

    def take(self, size: int) -> tuple[int, int]:
        """Return the address of memory for a buffer, and its capacity."""
        capacity = 1 << max(SMALLEST, (size - 1).bit_length())
        idle = self.idle[capacity]
        try:
            if self.rng.random() >= FRESH:
                return (idle.pop() if self.rng.random() < 0.5 else idle.popleft()), capacity
            self._free(idle.popleft(), capacity)
        except IndexError:
            pass  # none is idle
        try:
            return self._allocate(capacity), capacity
        except DriverError as failure:
            if failure.code != OUT_OF_MEMORY:
                raise
        self.trim()
        return self._allocate(capacity), capacity

    def give(self, address: int, capacity: int) -> None:
        """Return memory to the pool. Takes no lock and does not call the driver."""
        self.idle[capacity].append(address)

    def trim(self) -> None:
        """Free all memory that is not in use."""
        for capacity, idle in list(self.idle.items()):
            while idle:
                self._free(idle.pop(), capacity)

    def copy(self, to: int, source: int, size: int) -> None:
        """Enqueue a copy; host memory that it reads may be reused at once."""
        stream = c_void_p(self.stream)
        self.driver.call("cuMemcpyAsync", c_uint64(to), c_uint64(source), c_size_t(size), stream)

    def fill(self, to: int, value: int, size: int) -> None:
        """Enqueue a fill with one value."""
        arguments = (c_uint64(to), ctypes.c_ubyte(value), c_size_t(size))
        self.driver.call("cuMemsetD8Async", *arguments, c_void_p(self.stream))

    def synchronize(self) -> None:
        """Wait for all enqueued work."""
        self.driver.call("cuStreamSynchronize", c_void_p(self.stream))

    def _allocate(self, capacity: int) -> int:
        address = c_uint64()
        self.driver.call("cuMemAlloc_v2", byref(address), c_size_t(capacity + SLACK))
        with self.lock:
            self.allocated += capacity
        return address.value

    def _free(self, address: int, capacity: int) -> None:
        self.synchronize()  # work of its last user that onehop was not told to wait for
        self.driver.call("cuMemFree_v2", c_uint64(address))
        with self.lock:
            self.allocated -= capacity


class DeviceBuffer:
    """Bytes of device memory, with the CUDA array interface."""

    def __init__(self, pool: Pool, size: int) -> None:
        self.base, self.capacity = pool.take(size)
        self.pool, self.size = pool, size
        self.address = self.base + pool.rng.choice(STARTS)
        self.stream: int | None = None  # the stream that still writes it

    def __del__(self) -> None:
        if hasattr(self, "pool"):
            self.pool.give(self.base, self.capacity)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shown = {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False)}
        return {**shown, "version": 3, "strides": None, "stream": self.stream}

    @property
    def room(self) -> DeviceBuffer:
        """The part that onehop may write."""
        return self

    def write(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Enqueue writing bytes."""
        source = (ctypes.c_char * len(data)).from_buffer_copy(data)
        if data:
            self.pool.copy(self.address + at, ctypes.addressof(source), len(data))

    def clear(self) -> None:
        """Enqueue a fill with a value that no message has, and write the guard."""
        if self.size:
            self.pool.fill(self.address, UNWRITTEN, self.size)
        self.write(GUARD, self.size)

    def hand_over(self) -> None:
        """Wait for the enqueued work, or let onehop wait for it."""
        if self.pool.rng.random() < 0.5:
            self.stream = self.pool.stream
        else:
            self.pool.synchronize()

    def read(self, size: int, at: int = 0) -> bytearray:
        """Return some of its bytes."""
        got = bytearray(size)
        if size:
            target = (ctypes.c_char * size).from_buffer(got)
            self.pool.copy(ctypes.addressof(target), self.address + at, size)
            self.pool.synchronize()
        return got

    def guard(self) -> bytes:
        """Return the guard's bytes."""
        return bytes(self.read(len(GUARD), self.size))


class HostBuffer:
    """Bytes of private host memory."""

    def __init__(self, size: int) -> None:
        self.size, self._bytes = size, bytearray(size) + GUARD
        self.room = memoryview(self._bytes)[:size]

    def read(self, _size: int) -> bytearray:
        """Return at least its first bytes, without a copy."""
        return self._bytes

    def guard(self) -> bytes:
        """Return the guard's bytes."""
        return bytes(self._bytes[self.size :])


class SharedBuffer:
    """Bytes of shared host memory, which peers map."""

    def __init__(self, size: int) -> None:
        self.size, self._bytes = size, onehop.empty(size + len(GUARD))
        self.room = self._bytes[:size]
        self.write(GUARD, size)

    def write(self, data: bytes | bytearray | memoryview, at: int = 0) -> None:
        """Write bytes."""
        self._bytes[at : at + len(data)] = data

    def read(self, size: int, at: int = 0) -> bytearray:
        """Return a copy of some of its bytes."""
        return bytearray(self._bytes[at : at + size])

    def guard(self) -> bytes:
        """Return the guard's bytes."""
        return bytes(self._bytes[self.size :])


class Memory:
    """Allocates the buffers of a process."""

    def __init__(self, device: int | None, rng: random.Random) -> None:
        self.rng = rng
        self.pool = None if device is None else Pool(device, rng)
        self.resting = False

    def _next_pool(self) -> Pool | None:
        on_device = self.pool and not self.resting and self.rng.random() < ON_DEVICE
        return self.pool if on_device else None

    def payload(self, made: bytearray, *, on_device: bool = False) -> bytearray | DeviceBuffer:
        """Return a message in the memory from which it will be sent."""
        pool = self.pool if on_device else self._next_pool()
        if pool is None:
            return made
        buffer = DeviceBuffer(pool, len(made))
        buffer.write(made)
        buffer.hand_over()
        return buffer

    def receive(self, size: int) -> HostBuffer | DeviceBuffer:
        """Return a receive buffer with a guard behind it."""
        if (pool := self._next_pool()) is None:
            return HostBuffer(size)
        buffer = DeviceBuffer(pool, size)
        buffer.clear()
        buffer.hand_over()
        return buffer

    def region(self, size: int, begin: memoryview) -> SharedBuffer | DeviceBuffer:
        """Return memory for a region that begins with these bytes, with a guard behind it."""
        pool = self._next_pool()
        if (pool := self._next_pool()) is None:
            shared = SharedBuffer(size)
            shared.write(begin)
            return shared
        buffer = DeviceBuffer(pool, size)
        buffer.clear()
        buffer.write(begin)
        pool.synchronize()
        return buffer

    def rest(self) -> None:
        """Free device memory, and allocate no more."""
        self.resting = True
        if self.pool:
            self.pool.trim()

    def handles(self) -> dict[str, int]:
        """Return this process's allocations of device memory."""
        return {"bytes of device memory": self.pool.allocated} if self.pool else {}


def check_guard(buffer: HostBuffer | SharedBuffer | DeviceBuffer) -> None:
    """Raise if the guard was overwritten."""
    if (found := buffer.guard()) != GUARD:
        msg = f"bytes behind a buffer of {buffer.size} were written: {found.hex()}"
        raise WrongBytesError(msg)
