# SPDX-License-Identifier: Apache-2.0
"""Conversion of arguments of NIXL's calls. Invalid ones raise NIXL's exceptions."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from onehop.nixl.errors import nixlInvalidParamError

__all__ = ["bytes_of", "indices_of", "tensors_of", "text_of"]


def text_of(name: str | bytes) -> str:
    """Return the name of an agent."""
    if isinstance(name, (bytes, bytearray)):
        return bytes(name).decode()
    if isinstance(name, str):
        return name
    msg = f"an agent's name is a {type(name).__name__}: give str or bytes"
    raise nixlInvalidParamError(msg)


def bytes_of(message: Any) -> bytes:  # noqa: ANN401
    """Return the bytes of a message."""
    if isinstance(message, str):
        return message.encode()
    if isinstance(message, (bytes, bytearray, memoryview)):
        return bytes(message)
    msg = f"a {type(message).__name__} where bytes are needed"
    raise nixlInvalidParamError(msg)


def tensors_of(descs: object) -> list[Any] | None:
    """Return the torch tensors of an argument, or None if it has none."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(descs, torch.Tensor):
        return [descs]
    if isinstance(descs, (list, tuple)) and descs and isinstance(descs[0], torch.Tensor):
        return list(descs)
    return None


def indices_of(indices: Any, blocks: int, what: str) -> npt.NDArray[np.int64]:  # noqa: ANN401
    """Return block indices as an array, after checking them."""
    try:
        array = np.asarray(indices)
    except (OverflowError, ValueError) as failure:
        msg = f"{what} cannot be read: {failure}"
        raise nixlInvalidParamError(msg) from None
    if array.ndim != 1:
        msg = f"{what} has {array.ndim} dimensions: give a list, or an array of one"
        raise ValueError(msg)
    if len(array) == 0:
        msg = f"{what} is empty: give one or more"
        raise nixlInvalidParamError(msg)
    if array.dtype.kind not in "iu":
        msg = f"{what} has dtype {array.dtype}: give integers"
        raise nixlInvalidParamError(msg)
    least, most = int(array.min()), int(array.max())
    if least < 0 or most >= blocks:
        bad = least if least < 0 else most
        msg = f"{what} has {bad}: the list has {blocks} blocks, from 0 to {blocks - 1}"
        raise nixlInvalidParamError(msg)
    return array.astype(np.int64, copy=False)
