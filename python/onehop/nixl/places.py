# SPDX-License-Identifier: Apache-2.0
"""Finds the registration that each descriptor lies in, for all descriptors at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from onehop.nixl.descs import STRIDED, Array
from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import nixlInvalidParamError, nixlNotFoundError

__all__ = ["Numbers", "Places", "Registered", "Table", "distinct", "paired"]

Index = npt.NDArray[np.uint32]
# Rows that are processed together: their temporary arrays stay in the cache.
_CHUNK = 1 << 14


class Registered(Protocol):
    """A registration, local or remote."""

    @property
    def memory(self) -> nixl_mem_t: ...  # noqa: D102
    @property
    def device(self) -> int: ...  # noqa: D102
    @property
    def address(self) -> int: ...  # noqa: D102
    @property
    def size(self) -> int: ...  # noqa: D102


R = TypeVar("R", bound=Registered)


@dataclass(frozen=True)
class Places(Generic[R]):
    """The places of a list's blocks: `offset` bytes into regions[index], `length` bytes each.

    Each row of a strided list stands for `counts` blocks, `strides` bytes apart.
    """

    regions: list[R]
    index: Index
    offset: Array
    length: Array
    strides: Array | None = None
    counts: Array | None = None

    @cached_property
    def blocks(self) -> int:
        """The number of blocks."""
        return len(self.index) if self.counts is None else int(self.counts.sum())

    @cached_property
    def bytes(self) -> int:
        """The bytes of all blocks."""
        each = self.length if self.counts is None else self.length * self.counts
        return int(each.sum(dtype=np.uint64))

    @cached_property
    def _starts(self) -> Array:
        """The index of the first block of each row of a strided list."""
        assert self.counts is not None
        return np.cumsum(self.counts, dtype=np.uint64) - self.counts

    def rows(self, chosen: npt.NDArray[np.intp] | slice) -> Places[R]:
        """Return these rows."""
        parts = (self.index, self.offset, self.length, self.strides, self.counts)
        return Places(self.regions, *(one if one is None else one[chosen] for one in parts))  # type: ignore[arg-type]

    def take(self, chosen: npt.NDArray[np.int64]) -> Places[R]:
        """Return the blocks with these indices, one per row."""
        if self.strides is None:
            return self.rows(chosen)
        row = np.searchsorted(self._starts, chosen.astype(np.uint64), "right") - 1
        nth = chosen.astype(np.uint64) - self._starts[row]
        offset = self.offset[row] + nth * self.strides[row]
        return Places(self.regions, self.index[row], offset, self.length[row])

    def expanded(self) -> Places[R]:
        """Return all blocks, one per row."""
        if self.counts is None:
            return self
        return self.take(np.arange(self.blocks, dtype=np.int64))

    def run(self, chosen: npt.NDArray[np.int64]) -> Places[R] | None:
        """Return the rows of a strided list that cover exactly these blocks, if there are any."""
        first, end = int(chosen[0]), int(chosen[0]) + len(chosen)
        if self.counts is None or chosen[-1] != end - 1 or (np.diff(chosen) != 1).any():
            return None
        rows = slice(*np.searchsorted(self._starts, np.array([first, end], np.uint64)).tolist())
        found = self.rows(rows)
        whole = rows.start < rows.stop and self._starts[rows.start] == first
        return found if whole and found.blocks == len(chosen) else None


Q = TypeVar("Q", bound=Registered)
Numbers = npt.NDArray[np.int64]


def paired(
    local: Places[R], remote: Places[Q], numbers: tuple[Numbers, Numbers] | None, most: int
) -> tuple[Places[R], Places[Q]]:
    """Return the blocks of these numbers (None: all) of both sides, row by row.

    They stay strided where the rows of both sides stand for the same blocks, at most `most`.
    """
    if numbers is None:
        here, there = local, remote
    else:
        ours, theirs = local.run(numbers[0]), remote.run(numbers[1])
        if ours is None or theirs is None:
            return local.take(numbers[0]), remote.take(numbers[1])
        here, there = ours, theirs
    if here.counts is None and there.counts is None:
        return here, there
    fit = here.blocks <= most and all(
        one is not None and other is not None and np.array_equal(one, other)
        for one, other in ((here.counts, there.counts), (here.length, there.length))
    )
    return (here, there) if fit else (here.expanded(), there.expanded())


@dataclass
class _Kind(Generic[R]):
    """The registrations of one kind of memory on one device, by their start."""

    start: Array
    size: Array
    best: Array  # of those that start no later than the i-th, the one that ends last
    regions: list[R]

    def find(
        self, address: Array, span: Array, index: Index, offset: Array
    ) -> npt.NDArray[np.bool_]:
        """Write the places of the descriptors; return a mask of those outside all registrations."""
        place = np.searchsorted(self.start, address, "right")
        before = place == 0
        place -= 1
        place[before] = 0
        best = self.best[place]
        index[:] = best
        np.subtract(address, self.start[best], out=offset)
        size = self.size[best]
        outside: npt.NDArray[np.bool_] = before | (offset > size) | (span > size - offset)
        return outside


# A kind of memory and a device; None: all of them.
_Key = tuple[nixl_mem_t, int] | None


class Table(Generic[R]):
    """A fixed set of registrations."""

    def __init__(self, regions: Sequence[R]) -> None:
        self._kinds: dict[_Key, _Kind[R]] = {}
        sorted_regions = sorted(regions, key=lambda region: region.address)
        for key in {(region.memory, region.device) for region in regions}:
            own = [region for region in sorted_regions if (region.memory, region.device) == key]
            self._kinds[key] = _kind(own)
        self._sorted = sorted_regions

    def find(self, rows: Array, whose: str) -> Places[R]:
        """Return the places of rows of (address, length), in memory of any kind and device.

        Kinds and devices share one address space, so an address lies in at most one registration.
        nixlNotFoundError names the first row outside all of them.
        """
        if self._sorted and None not in self._kinds:
            self._kinds[None] = _kind(self._sorted)
        regions: list[R] = []
        index, offset = self._find(None, rows[:, 0], rows[:, 1], regions, whose, None)
        return Places(regions, index, offset, np.ascontiguousarray(rows[:, 1]))

    def locate(self, memory: nixl_mem_t, rows: Array, whose: str) -> Places[R]:
        """Return the places of descriptors. nixlNotFoundError names the first that has none."""
        if len(rows) == 0:
            msg = f"the list of descriptors of {whose} is empty: give one or more"
            raise nixlInvalidParamError(msg)
        strided = rows.shape[1] == STRIDED
        span = _span(rows) if strided else rows[:, 1]
        devices = rows[:, 2]
        first = int(devices[0])
        regions: list[R] = []
        if (devices == first).all():
            key = memory, first
            index, offset = self._find(key, rows[:, 0], span, regions, whose, None)
        else:
            index = np.empty(len(rows), np.uint32)
            offset = np.empty(len(rows), np.uint64)
            for device in distinct(devices):
                there = np.flatnonzero(devices == device)
                key = memory, device
                found = self._find(key, rows[there, 0], span[there], regions, whose, there)
                index[there], offset[there] = found
        length = np.ascontiguousarray(rows[:, 1])
        if not strided:
            return Places(regions, index, offset, length)
        strides, counts = np.ascontiguousarray(rows[:, 3]), np.ascontiguousarray(rows[:, 4])
        return Places(regions, index, offset, length, strides, counts)

    def _find(
        self,
        key: _Key,
        address: Array,
        span: Array,
        regions: list[R],
        whose: str,
        there: npt.NDArray[np.intp] | None,
    ) -> tuple[Index, Array]:
        """Locate descriptors of one kind; append its known regions."""
        kind = self._kinds.get(key)
        if kind is None:
            row = int(there[0]) if there is not None else 0
            raise _not_found(key, int(address[0]), int(span[0]), row, whose)
        index = np.empty(len(address), np.uint32)
        offset = np.empty(len(address), np.uint64)
        for first in range(0, len(address), _CHUNK):
            part = slice(first, first + _CHUNK)
            outside = kind.find(address[part], span[part], index[part], offset[part])
            if outside.any():
                bad = first + int(np.flatnonzero(outside)[0])
                row = int(there[bad]) if there is not None else bad
                raise _not_found(key, int(address[bad]), int(span[bad]), row, whose)
        if regions:
            index += np.uint32(len(regions))
        regions.extend(kind.regions)
        return index, offset


def distinct(numbers: npt.NDArray[Any]) -> list[int]:
    """Return the different values in order. numpy.unique takes 10 ms to import modules."""
    ordered = np.sort(numbers)
    first: list[int] = ordered[:1].tolist() + ordered[1:][np.diff(ordered) != 0].tolist()
    return first


def _kind(regions: list[R]) -> _Kind[R]:
    start = np.array([region.address for region in regions], np.uint64)
    size = np.array([region.size for region in regions], np.uint64)
    end = start + size
    furthest = np.maximum.accumulate(end)
    order = np.arange(len(regions))
    best = np.maximum.accumulate(np.where(end >= furthest, order, 0)).astype(np.intp)
    return _Kind(start, size, best, regions)  # type: ignore[arg-type]


def _span(rows: Array) -> Array:
    """Return the extent in bytes of each strided row."""
    length, stride, count = rows[:, 1], rows[:, 3], rows[:, 4]
    if (count == 0).any():
        row = int(np.flatnonzero(count == 0)[0])
        msg = f"row {row} of a strided list has 0 blocks: give one or more"
        raise nixlInvalidParamError(msg)
    steps = count - np.uint64(1)
    room = np.uint64(2**64 - 1) - length
    # A product that exceeds 64 bits cannot lie in any registration.
    too_far = (stride != 0) & (steps > room // np.maximum(stride, np.uint64(1)))
    span: Array = length + steps * stride
    span[too_far] = np.uint64(2**64 - 1)
    return span


def _not_found(key: _Key, address: int, span: int, row: int, whose: str) -> nixlNotFoundError:
    kind = f" of {key[0].name} device {key[1]}" if key else ""
    return nixlNotFoundError(
        f"descriptor {row}: {span} bytes at {address:#x}{kind} lie in no registration of {whose}: "
        "register the memory, or add the newer metadata of its agent"
    )
