# SPDX-License-Identifier: Apache-2.0
"""Memory that can be sent and received."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, TypeAlias, cast, overload

from onehop._core import Region, SharedBuffer, Status
from onehop.errors import InvalidArgument, InvalidType

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
    """An array in GPU memory, such as those of cupy and numba."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


# A C-contiguous buffer in host memory, or in that of the endpoint's GPU. Do not resize or
# reallocate it until the transfer has ended.
Buffer: TypeAlias = ByteLike | SupportsDLPack | SupportsCudaArray | Region
# Offsets or lengths in bytes: an array of int64 or uint64, which is not copied, or integers.
Offsets: TypeAlias = ByteLike | Iterable[SupportsIndex]


@overload
def empty(shape: SupportsIndex) -> memoryview: ...
@overload
def empty(
    shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike
) -> npt.NDArray[Any]: ...
def empty(
    shape: SupportsIndex | Iterable[SupportsIndex], dtype: npt.DTypeLike | None = None
) -> memoryview | npt.NDArray[Any]:
    """Allocate zeroed memory that peers can map: every transfer from or to it is a single copy.

    With a dtype, return a numpy array of that shape; without, a memoryview of `shape` bytes. The
    memory is freed with the last array or view of it. A GPU's engine that first copies from or to
    the memory registers all of it with CUDA.
    """
    if dtype is None:
        # Raises for everything that is not a number of bytes.
        return memoryview(SharedBuffer(cast("SupportsIndex", shape)))
    import numpy as np

    kind = np.dtype(dtype)
    if kind.hasobject:
        msg = f"dtype {kind} holds Python objects, which mean nothing elsewhere"
        raise InvalidType(Status.INVALID, msg)
    lengths = _lengths(shape)
    memory = SharedBuffer(math.prod(lengths) * kind.itemsize)
    array: npt.NDArray[Any] = np.ndarray(lengths, kind, buffer=memoryview(memory))
    return array


def _lengths(shape: object) -> tuple[int, ...]:
    """Return the lengths of an array's dimensions."""
    lengths: tuple[int, ...]
    try:
        lengths = (operator.index(cast("SupportsIndex", shape)),)
    except TypeError:
        try:
            lengths = tuple(map(operator.index, cast("Iterable[SupportsIndex]", shape)))
        except TypeError:
            msg = f"shape is {shape!r}: give an integer, or a sequence of integers"
            raise InvalidType(Status.INVALID, msg) from None
    if any(length < 0 for length in lengths):
        msg = f"shape is {shape!r}: lengths are 0 or more"
        raise InvalidArgument(Status.INVALID, msg)
    return lengths
