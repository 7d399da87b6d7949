# SPDX-License-Identifier: Apache-2.0
"""The names of NIXL's module `_utils`: access to memory by address, for tests."""

from __future__ import annotations

import ctypes

__all__ = ["ba_buf", "free_passthru", "malloc_passthru", "verify_transfer"]

_libc = ctypes.CDLL(None)
_libc.malloc.restype = ctypes.c_void_p
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]
_libc.free.restype = None


def malloc_passthru(size: int) -> int:
    """Return the address of new memory; give it back with free_passthru."""
    address: int | None = _libc.malloc(size)
    if not address:
        msg = f"malloc of {size} bytes failed"
        raise MemoryError(msg)
    return address


def free_passthru(address: int) -> None:
    """Give memory of malloc_passthru back."""
    _libc.free(address)


def ba_buf(address: int, size: int) -> None:
    """Fill memory with the bytes 0xba."""
    ctypes.memset(address, 0xBA, size)


def verify_transfer(address: int, other: int, size: int) -> None:
    """Raise RuntimeError if two pieces of memory differ."""
    first, second = ctypes.string_at(address, size), ctypes.string_at(other, size)
    if first != second:
        place = next(i for i in range(size) if first[i] != second[i])
        msg = f"{size} bytes at {address:#x} and {other:#x} differ at byte {place}"
        raise RuntimeError(msg)
