# SPDX-License-Identifier: Apache-2.0
"""Buffers from an address and a size, as NIXL's descriptors and tensors give them."""

# ruff: noqa: ANN401 - arrays of any library

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["bytes_at"]


class _DeviceBytes:
    """Device memory at an address, with the CUDA array interface."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }


def bytes_at(address: int, size: int, *, on_device: bool) -> Any:
    """Return `size` bytes at an address as a buffer. It does not keep the memory alive."""
    if on_device:
        return _DeviceBytes(address, size)
    return (ctypes.c_ubyte * size).from_address(address)
