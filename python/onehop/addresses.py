# SPDX-License-Identifier: Apache-2.0
"""Buffers from an address and a size, the form that NIXL's descriptors and tensors use."""

# ruff: noqa: ANN401 - arrays of any library

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bytes_at"]


class _DeviceBytes:
    """Device memory at an address, with the CUDA array interface."""

    def __init__(self, address: int, size: int, stream: Callable[[], int | None]) -> None:
        self._address = address
        self._size = size
        self._stream = stream

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self._size,),
            "typestr": "|u1",
            "data": (self._address, False),
            "strides": None,
            "stream": self._stream(),
            "version": 3,
        }


def _no_stream() -> None:
    return None


def bytes_at(
    address: int, size: int, *, on_device: bool, stream: Callable[[], int | None] = _no_stream
) -> Any:
    """Return `size` bytes at an address as a buffer. It does not keep the memory alive.

    stream: called at each use; returns the stream whose work uses the bytes, as numbered by
    __cuda_array_interface__, or None.
    """
    if on_device:
        return _DeviceBytes(address, size, stream)
    return (ctypes.c_ubyte * size).from_address(address)
