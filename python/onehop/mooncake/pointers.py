# SPDX-License-Identifier: Apache-2.0
"""The location of memory, from its address: Mooncake's callers pass nothing else."""

from __future__ import annotations

import ctypes
import os

import onehop
from onehop.mooncake.errors import Failure
from onehop.nixl.memory import HOST

__all__ = ["device_of"]

# Constants of the CUDA driver.
_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL = 2, 8, 9
_TYPE_DEVICE = 2
# Codes for: address unknown to any context, driver not initialized, driver shutting down, no
# context.
_NO_DEVICE_MEMORY = (1, 3, 4, 201)


def device_of(address: int) -> int:
    """Return the ordinal of the GPU that the memory belongs to, or HOST."""
    driver = _driver()
    if driver is None:
        return HOST
    attributes = (_MEMORY_TYPE, _IS_MANAGED, _DEVICE_ORDINAL)
    # One word for each attribute: the driver writes 1 or 4 bytes.
    words = [ctypes.c_uint64() for _ in attributes]
    places = (ctypes.c_void_p * len(words))(*map(ctypes.addressof, words))
    code = driver.cuPointerGetAttributes(
        ctypes.c_uint(len(words)),
        (ctypes.c_int * len(words))(*attributes),
        places,
        ctypes.c_uint64(address),
    )
    if code in _NO_DEVICE_MEMORY:
        return HOST
    if code:
        msg = f"the CUDA driver does not say where {address:#x} lies: error {code}"
        raise Failure(msg)
    kind, managed, device = (word.value for word in words)
    return device if kind == _TYPE_DEVICE or managed else HOST


def _driver() -> ctypes.CDLL | None:
    """Return the driver if this process has loaded it; without it there is no device memory."""
    name = next(one.value for one in onehop.config() if one.name == "ONEHOP_CUDA_LIBRARY")
    if name == "off":
        return None
    try:
        return ctypes.CDLL(name or "libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return None
