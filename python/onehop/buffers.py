# SPDX-License-Identifier: Apache-2.0
"""Memory that can be sent and received."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

from onehop._core import Region, SharedBuffer

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer as SupportsBuffer

    ByteLike: TypeAlias = SupportsBuffer
else:
    ByteLike = bytes | bytearray | memoryview

__all__ = ["Buffer", "Offsets", "SupportsCudaArray", "SupportsDLPack", "empty"]


class SupportsDLPack(Protocol):
    """A tensor that can be shared without a copy."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...  # noqa: ANN401


class SupportsCudaArray(Protocol):
    """An array in the memory of a GPU, as those of cupy and numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


# What has bytes: C-contiguous, in host memory, or in that of the endpoint's GPU. It stays as it is,
# neither resized nor given other memory, until the transfer has ended.
Buffer: TypeAlias = ByteLike | SupportsDLPack | SupportsCudaArray | Region
# Offsets or lengths in bytes: an array of int64 or uint64, or integers.
Offsets: TypeAlias = ByteLike | Sequence[int]


@overload
def empty(shape: int) -> memoryview: ...
@overload
def empty(shape: int | Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]: ...
def empty(
    shape: int | Sequence[int], dtype: npt.DTypeLike | None = None
) -> memoryview | npt.NDArray[Any]:
    """Zeroed memory that peers can map: all transfers from and to it are one copy.

    With a dtype, a numpy array of that shape; without, a memoryview of `shape` bytes. It is freed
    when the last array or view of it is gone.
    """
    if dtype is None:
        if not isinstance(shape, int):
            msg = "onehop.empty(shape) without a dtype takes a number of bytes"
            raise TypeError(msg)
        return memoryview(SharedBuffer(shape))
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        msg = f"dtype {kind} holds Python objects, which mean nothing elsewhere"
        raise TypeError(msg)
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    memory = SharedBuffer(math.prod(lengths) * kind.itemsize)
    array: npt.NDArray[Any] = np.ndarray(lengths, kind, buffer=memoryview(memory))
    return array
