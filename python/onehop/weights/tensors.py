# SPDX-License-Identifier: Apache-2.0
"""Facts about a program's tensors: shape, dtype, and the place of their bytes.

It imports no array library but numpy. Facts about torch's tensors come from their methods.
"""

# ruff: noqa: ANN401 - tensors are of any library

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onehop._core import Status
from onehop.addresses import bytes_at
from onehop.errors import InvalidArgument, InvalidType

__all__ = ["Memory", "Tensor", "describe", "gather"]

# Sizes of dtypes that numpy lacks, by the names that torch and ml_dtypes share.
_SIZES = {
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


@dataclass(frozen=True)
class Tensor:
    """A C-contiguous tensor.

    Attributes:
        owner: the object that keeps the memory alive, as it was given.
        shape: elements in each dimension.
        dtype: its name in numpy or torch: "float32", "bfloat16".
        itemsize: bytes of an element.
        device: whether the memory is GPU memory.
        address: of the first byte; None: only onehop can determine it.
        storage: equal for tensors of one allocation, which are registered together.

    """

    owner: Any
    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    device: bool
    address: int | None
    storage: Hashable

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return math.prod(self.shape) * self.itemsize


def describe(name: str, tensor: Any, dtype: str | None = None) -> Tensor:
    """Return the facts about a tensor.

    dtype: the name of its elements' type, if `tensor` is an array of bytes or of unsigned integers
    of the same size; the shape stays. InvalidArgument: the tensor is not C-contiguous, or its dtype
    has no meaning outside of this process.
    """
    if hasattr(tensor, "data_ptr") and hasattr(tensor, "untyped_storage"):
        found = _torch(name, tensor)
    elif hasattr(tensor, "__cuda_array_interface__"):
        found = _cuda_array(name, tensor)
    elif isinstance(tensor, np.ndarray):
        found = _numpy(name, tensor, tensor)
    else:
        found = _other(name, tensor)
    if dtype is None:
        return found
    size = _SIZES.get(dtype) or _known(dtype)
    if size != found.itemsize:
        msg = (
            f"tensor {name!r} has elements of {found.itemsize} bytes ({found.dtype}), and dtype="
            f"{dtype!r} was given"
        )
        raise InvalidArgument(Status.INVALID, f"{msg}, whose size is {size or 'not known'}")
    return Tensor(found.owner, found.shape, dtype, size, found.device, found.address, found.storage)


def _known(dtype: str) -> int | None:
    try:
        return np.dtype(dtype).itemsize
    except TypeError:
        return None


def _torch(name: str, tensor: Any) -> Tensor:
    dtype = str(tensor.dtype).removeprefix("torch.")
    shape = tuple(int(length) for length in tensor.shape)
    kind = str(tensor.device.type)
    strided = str(tensor.layout) == "torch.strided"
    if not strided or kind not in ("cpu", "cuda") or tensor.is_quantized or _lazy(tensor):
        # Registration reports why it cannot use the tensor.
        return Tensor(tensor, shape, dtype, tensor.element_size(), kind == "cuda", None, id(tensor))
    if not tensor.is_contiguous():
        raise _not_contiguous(name)
    storage = ("torch", kind, tensor.untyped_storage().data_ptr())
    size, address = int(tensor.element_size()), int(tensor.data_ptr())
    return Tensor(tensor, shape, dtype, size, kind == "cuda", address, storage)


def _current_stream(tensor: Any) -> int | None:
    """Return the stream that torch works on now, on the device of one of its tensors."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    # 1 is the legacy default stream, which torch calls 0.
    return int(torch.cuda.current_stream(tensor.device).cuda_stream) or 1


def _lazy(tensor: Any) -> bool:
    return bool(tensor.is_conj() or tensor.is_neg())


def _cuda_array(name: str, array: Any) -> Tensor:
    told = array.__cuda_array_interface__
    kind = _numbers(name, np.dtype(told["typestr"]))
    dtype = str(getattr(array, "dtype", kind))
    if dtype not in _SIZES:
        dtype = kind.name
    # Registration checks strides, masks and the like.
    return Tensor(array, tuple(told["shape"]), dtype, kind.itemsize, True, None, id(array))


def _numpy(name: str, owner: Any, array: npt.NDArray[Any]) -> Tensor:
    kind = _numbers(name, array.dtype)
    if not array.flags.c_contiguous:
        raise _not_contiguous(name)
    base: Any = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    storage = ("numpy", id(base if base.base is None else base.base))
    address = array.ctypes.data if array.flags.writeable and type(array) is np.ndarray else None
    return Tensor(owner, array.shape, kind.name, kind.itemsize, False, address, storage)


def _other(name: str, tensor: Any) -> Tensor:
    try:
        view = memoryview(tensor)
    except TypeError:
        return _dlpack(name, tensor)
    if not view.c_contiguous:
        raise _not_contiguous(name)
    kind = _numbers(name, np.asarray(view).dtype)
    shape = tuple(view.shape or ())
    return Tensor(tensor, shape, kind.name, kind.itemsize, False, None, id(tensor))


def _dlpack(name: str, tensor: Any) -> Tensor:
    if not hasattr(tensor, "__dlpack__") or not hasattr(tensor, "shape"):
        msg = (
            f"tensor {name!r} is a {type(tensor).__name__}: give a numpy array, a torch tensor, or "
            "anything with the buffer protocol, __cuda_array_interface__ or __dlpack__"
        )
        raise InvalidType(Status.INVALID, msg)
    dtype = str(getattr(tensor, "dtype", ""))
    size = _SIZES.get(dtype) or _known(dtype)
    if not size:
        msg = f"tensor {name!r} has dtype {dtype!r}, whose size is not known"
        raise InvalidArgument(Status.INVALID, msg)
    kind = int(tensor.__dlpack_device__()[0]) if hasattr(tensor, "__dlpack_device__") else 1
    return Tensor(tensor, tuple(tensor.shape), dtype, size, kind != 1, None, id(tensor))


def _numbers(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.hasobject or dtype.names or not dtype.isnative:
        msg = (
            f"tensor {name!r} has dtype {dtype}: give numbers in this machine's byte order, not "
            "objects or records"
        )
        raise InvalidArgument(Status.INVALID, msg)
    return dtype


def _not_contiguous(name: str) -> InvalidArgument:
    return InvalidArgument(
        Status.INVALID,
        f"tensor {name!r} is not C-contiguous: copy it first, for its bytes are moved as they lie",
    )


@dataclass(frozen=True)
class Memory:
    """The memory of several tensors, one piece for each allocation.

    Tensor i lies in pieces[index[i]], offset[i] bytes after its start.
    """

    pieces: list[Any]
    index: npt.NDArray[np.uint32]
    offset: npt.NDArray[np.uint64]
    size: npt.NDArray[np.uint64]


def gather(tensors: Sequence[Tensor]) -> Memory:
    """Return the pieces of memory that contain these tensors: one piece for each allocation.

    A piece reaches from the start of its first tensor to the end of its last. Tensors of 0 bytes
    are in no piece.
    """
    index = np.zeros(len(tensors), np.uint32)
    offset = np.zeros(len(tensors), np.uint64)
    groups: dict[Hashable, list[int]] = {}
    for number, one in enumerate(tensors):
        if one.nbytes:
            key = (one.storage, one.device) if one.address is not None else (number,)
            groups.setdefault(key, []).append(number)
    pieces: list[Any] = []
    sizes: list[int] = []
    for members in groups.values():
        first = tensors[members[0]]
        index[members] = len(pieces)
        if len(members) == 1:
            pieces.append(first.owner)
            sizes.append(first.nbytes)
            continue
        places = [tensors[number].address or 0 for number in members]
        start = min(places)
        ends = (place + tensors[n].nbytes for place, n in zip(places, members, strict=True))
        size = max(ends) - start
        offset[members] = [place - start for place in places]
        stream = functools.partial(_current_stream, first.owner)
        shown = bytes_at(start, size, on_device=first.device, stream=stream)
        # The piece keeps its tensors alive, as does any request in flight on it.
        shown.owners = [tensors[number].owner for number in members]
        pieces.append(shown)
        sizes.append(size)
    return Memory(pieces, index, offset, np.array(sizes, np.uint64))
