# SPDX-License-Identifier: Apache-2.0
"""Memory by its address, for what describes its memory so: NIXL's descriptors, tensors."""

# ruff: noqa: ANN401 - arrays of any library

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["bytes_at"]


class _DeviceBytes:
    """Device memory by its address, as array libraries show it."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def bytes_at(address: int, size: int, *, on_device: bool) -> Any:
    """Return `size` bytes at an address as a buffer, which keeps nothing alive."""
    if on_device:
        return _DeviceBytes(address, size)
    return (ctypes.c_ubyte * size).from_address(address)
