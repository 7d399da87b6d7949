# SPDX-License-Identifier: Apache-2.0
"""Lists of descriptors: (address, length, device), in arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import nixlInvalidParamError, nixlNotFoundError
from onehop.nixl.wire import Reader, Writer

# ruff: noqa: N801, N802 - the names are NIXL's

__all__ = ["Array", "deserialize", "nixlRegDList", "nixlRemoteDList", "nixlXferDList", "serialize"]

Array = npt.NDArray[np.uint64]
_MAGIC = b"OHNXDL"
PLAIN, STRIDED = 3, 5  # columns: address, length, device; and distance, count


def as_rows(rows: object, columns: Sequence[int]) -> Array:
    """Return an array of descriptors as uint64. ValueError: its shape or type does not fit."""
    if isinstance(rows, np.ndarray):
        if rows.ndim != 2 or rows.shape[1] not in columns:
            msg = f"descs has shape {rows.shape}: give N x {' or N x '.join(map(str, columns))}"
            raise ValueError(msg)
        if rows.dtype.kind not in "iu" or rows.dtype.itemsize != 8:
            msg = f"descs has dtype {rows.dtype}: give int64 or uint64"
            raise ValueError(msg)
        if not rows.flags.c_contiguous:
            msg = "descs is not C-contiguous: give numpy.ascontiguousarray(descs)"
            raise ValueError(msg)
        # Copied, so that the list does not change with the caller's array.
        return rows.astype(np.uint64)
    try:
        made = np.array(rows, dtype=np.uint64)
    except (OverflowError, TypeError, ValueError) as failure:
        msg = f"descriptors are integers from 0 to 2**64 - 1: {failure}"
        raise nixlInvalidParamError(msg) from None
    if made.size == 0:
        return made.reshape(0, columns[0])
    if made.ndim != 2 or made.shape[1] not in columns:
        msg = f"descriptors of shape {made.shape}: give tuples (address, length, device)"
        raise nixlInvalidParamError(msg)
    return made


class _DList:
    """Shared by the three kinds of lists."""

    kind: ClassVar[int]
    columns: ClassVar[tuple[int, ...]] = (PLAIN,)

    def __init__(self, type: nixl_mem_t, descs: Any = 0) -> None:  # noqa: A002, ANN401
        self._type = nixl_mem_t(type)
        self._tail: list[tuple[int, ...]] = []  # appended, but not in the array yet
        if isinstance(descs, (int, np.integer)):
            self._rows: Array = np.zeros((int(descs), PLAIN), np.uint64)
        else:
            self._rows = as_rows(descs, self.columns)

    @property
    def rows(self) -> Array:
        """The descriptors as an array, N x 3 or, strided, N x 5."""
        if self._tail:
            self._rows = np.concatenate([self._rows, as_rows(self._tail, (self._rows.shape[1],))])
            self._tail = []
        return self._rows

    def getType(self) -> nixl_mem_t:
        """Return the kind of memory."""
        return self._type

    def descCount(self) -> int:
        """Return the number of descriptors."""
        return len(self._rows) + len(self._tail)

    def isEmpty(self) -> bool:
        """Whether there are no descriptors."""
        return self.descCount() == 0

    def _checked(self, index: int) -> int:
        if not 0 <= index < self.descCount():
            msg = f"descriptor {index} of a list of {self.descCount()}"
            raise IndexError(msg)
        return index

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return tuple(self.rows[self._checked(index)].tolist())

    def __setitem__(self, index: int, desc: tuple[Any, ...]) -> None:
        self.rows[self._checked(index)] = as_rows([desc], (self._rows.shape[1],))[0]

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        """Add a descriptor at the end."""
        if self.descCount() == 0:
            self._rows = np.zeros((0, PLAIN), np.uint64)
        as_rows([desc], (self._rows.shape[1],))
        self._tail.append(desc)

    def append(self, desc: tuple[Any, ...]) -> None:
        """Add a descriptor at the end."""
        self.addDesc(desc)

    def remDesc(self, index: int) -> None:
        """Remove a descriptor."""
        self._rows = np.delete(self.rows, self._checked(index), axis=0)

    def index(self, desc: tuple[Any, ...]) -> int:
        """Return the place of a descriptor; nixlNotFoundError: it is not there."""
        for place in range(self.descCount()):
            if self[place] == tuple(desc):
                return place
        msg = f"no descriptor {tuple(desc)} in a list of {self.descCount()}"
        raise nixlNotFoundError(msg)

    def clear(self) -> None:
        """Remove all descriptors."""
        self._rows = self._rows[:0]
        self._tail = []

    def print(self) -> None:
        """Print the list."""
        print(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _DList) or type(other) is not type(self):
            return NotImplemented
        return self._type == other._type and np.array_equal(self.rows, other.rows)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        count = self.descCount()
        return f"<{type(self).__name__} of {count} descriptors in {self._type.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return (deserialize, (serialize(self),))


class nixlXferDList(_DList):
    """Memory to read from or write to: (address, length, device).

    From an N x 5 array (address, length, device, distance, count) it is strided: a row stands for
    `count` blocks, `distance` bytes from one to the next.
    """

    kind = 0
    columns = (PLAIN, STRIDED)

    def index(self, desc: tuple[Any, ...]) -> int:
        """Return the place of a descriptor; nixlNotFoundError: it is not there."""
        rows = self.rows
        wanted = as_rows([desc], (rows.shape[1],))
        found = np.flatnonzero((rows == wanted).all(axis=1))
        if len(found):
            return int(found[0])
        msg = f"no descriptor {tuple(desc)} in a list of {self.descCount()}"
        raise nixlNotFoundError(msg)


class _Tagged(_DList):
    """A list whose descriptors have a fourth element, which is not a number."""

    def __init__(self, type: nixl_mem_t, descs: Any = 0) -> None:  # noqa: A002, ANN401
        if isinstance(descs, (int, np.integer, np.ndarray)):
            super().__init__(type, descs)
            self._tags: list[Any] = [self._as_tag("")] * len(self._rows)
            return
        split = [self._split(desc) for desc in descs]
        super().__init__(type, [row for row, _ in split])
        self._tags = [tag for _, tag in split]

    def _as_tag(self, tag: object) -> Any:  # noqa: ANN401
        raise NotImplementedError

    def _split(self, desc: tuple[Any, ...]) -> tuple[tuple[int, ...], Any]:
        if len(desc) != PLAIN + 1:
            msg = f"a descriptor of {len(desc)} parts in a {type(self).__name__}: it takes 4"
            raise nixlInvalidParamError(msg)
        return tuple(desc[:PLAIN]), self._as_tag(desc[PLAIN])

    @property
    def tags(self) -> list[Any]:
        """The fourth elements."""
        return self._tags

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return (*super().__getitem__(index), self._tags[index])

    def __setitem__(self, index: int, desc: tuple[Any, ...]) -> None:
        row, tag = self._split(desc)
        super().__setitem__(index, row)
        self._tags[index] = tag

    def addDesc(self, desc: tuple[Any, ...]) -> None:
        """Add a descriptor at the end."""
        row, tag = self._split(desc)
        super().addDesc(row)
        self._tags.append(tag)

    def remDesc(self, index: int) -> None:
        """Remove a descriptor."""
        super().remDesc(index)
        del self._tags[index]

    def index(self, desc: tuple[Any, ...]) -> int:
        """Return the place of a descriptor; nixlNotFoundError: it is not there."""
        row, tag = self._split(desc)
        return super().index((*row, tag))

    def clear(self) -> None:
        """Remove all descriptors."""
        super().clear()
        self._tags = []

    def __eq__(self, other: object) -> bool:
        same = super().__eq__(other)
        if same is NotImplemented or not isinstance(other, _Tagged):
            return same
        return same and self._tags == other._tags

    __hash__ = None


class nixlRegDList(_Tagged):
    """Memory to register: (address, length, device, metadata)."""

    kind = 1

    def _as_tag(self, tag: object) -> bytes:
        if isinstance(tag, str):
            return tag.encode()
        if isinstance(tag, (bytes, bytearray)):
            return bytes(tag)
        msg = f"the metadata of a descriptor is {tag!r}: give str or bytes"
        raise nixlInvalidParamError(msg)

    def trim(self) -> nixlXferDList:
        """Return the descriptors without their metadata."""
        return nixlXferDList(self._type, self.rows)


class nixlRemoteDList(_Tagged):
    """Memory of several agents: (address, length, device, agent)."""

    kind = 2

    def _as_tag(self, tag: object) -> str:
        if isinstance(tag, str):
            return tag
        if isinstance(tag, (bytes, bytearray)):
            return bytes(tag).decode()
        msg = f"the agent of a descriptor is {tag!r}: give str or bytes"
        raise nixlInvalidParamError(msg)


def serialize(descs: _DList) -> bytes:
    """Return the bytes that deserialize() reads."""
    out = Writer()
    rows = descs.rows
    out.pack("BB", int(descs.getType()), rows.shape[1])
    out.blob(rows.astype("<u8").tobytes())
    if isinstance(descs, _Tagged):
        tags = [tag.encode() if isinstance(tag, str) else tag for tag in descs.tags]
        out.pack("I", len(tags))
        for tag in tags:
            out.blob(tag)
    return out.finish(_MAGIC, descs.kind)


def deserialize(data: bytes) -> nixlXferDList | nixlRegDList | nixlRemoteDList:
    """Return the list that serialize() wrote; nixlMismatchError for anything else."""
    reader = Reader(data, _MAGIC, "serialized descriptors")
    kinds = {made.kind: made for made in (nixlXferDList, nixlRegDList, nixlRemoteDList)}
    made = kinds.get(reader.kind)
    memory, columns = reader.unpack("BB")
    if made is None or memory not in list(nixl_mem_t) or columns not in made.columns:
        raise reader.mismatch(f"kind {reader.kind} of memory {memory} with {columns} columns")
    numbers = reader.blob()
    if len(numbers) % (8 * columns):
        raise reader.mismatch(f"{len(numbers)} bytes are no rows of {columns} numbers")
    rows = np.frombuffer(numbers, "<u8").reshape(-1, columns).astype(np.uint64)
    descs = made(nixl_mem_t(memory), rows)
    if isinstance(descs, _Tagged):
        count = len(reader.items(4))
        if count != len(rows):
            raise reader.mismatch(f"{len(rows)} descriptors with {count} tags")
        tag = reader.text if made is nixlRemoteDList else reader.blob
        descs._tags = [tag() for _ in range(count)]
    reader.end()
    return descs
