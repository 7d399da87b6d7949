# SPDX-License-Identifier: Apache-2.0
"""Decides which publisher sends which part of each wanted box.

It processes all boxes together, as arrays with a row for each of the D dimensions: shape (D, n) for
n boxes. Loops run over dimensions, over sets of replicas, and over tensors whose boxes overlap
without being equal.
"""

from __future__ import annotations

import secrets
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Boxes", "Cover", "Fragmented", "Hole", "Pieces"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Index = npt.NDArray[np.intp]

# Bytes below which a replicated tensor is not divided among its publishers.
_SMALLEST = 1 << 16
# Limit of the cells of one tensor whose boxes overlap, cut at all publishers' edges.
_MOST_CELLS = 1 << 20


@dataclass(frozen=True)
class Boxes:
    """Publishers' boxes of wanted tensors, clipped to the wanted boxes.

    Attributes:
        want: number of the wanted box.
        publisher: number of the publisher.
        low, high: (D, n), first element and the one after the last, in each dimension of the
            whole tensor.

    """

    want: Index
    publisher: Index
    low: I64
    high: I64


@dataclass(frozen=True)
class Pieces:
    """The pieces to send: piece i is low[:, i] to high[:, i] of boxes[i], a box of Boxes."""

    box: Index
    low: I64
    high: I64


class Hole(Exception):
    """No publisher has this part of a wanted box."""

    def __init__(self, want: int, low: list[int], high: list[int]) -> None:
        super().__init__(want, low, high)
        self.want, self.low, self.high = want, low, high


class Fragmented(Exception):
    """The boxes of one tensor divide it into too many parts."""

    def __init__(self, want: int) -> None:
        super().__init__(want)
        self.want = want


class Cover:
    """Divides wanted boxes among publishers: add() the boxes of each, then divide() if needed."""

    def __init__(self, low: I64, high: I64, itemsize: I64, subscriber: str) -> None:
        """Set the wanted boxes.

        low, high: (D, wants), their places. itemsize: bytes of an element of each. subscriber: its
        name decides which of several replicas sends the first part, so that concurrent subscribers
        start at different publishers.
        """
        self.low, self.high, self.itemsize = low, high, itemsize
        self.subscriber = subscriber
        self._measure = _Measure(len(low))
        self._wanted = self._measure.of(low, high)
        self._found = np.zeros(len(self._wanted), np.uint64)

    def add(self, boxes: Boxes) -> None:
        """Add boxes of a publisher."""
        np.add.at(self._found, boxes.want, self._measure.of(boxes.low, boxes.high))

    @property
    def complete(self) -> bool:
        """Whether the added boxes are disjoint and cover all wanted boxes."""
        return bool((self._found == self._wanted).all())

    def divide(self, boxes: Boxes) -> Pieces:
        """Return disjoint pieces of the added boxes that together cover the wanted boxes.

        Boxes that several publishers have are divided so that the publishers send equal numbers of
        bytes, as far as possible. Hole: no publisher has a part.
        """
        measure, wanted, found = self._measure, self._wanted, self._found.copy()
        plain = found == wanted
        own = plain[boxes.want]
        rest = np.flatnonzero(~own)
        cells = _Cells(boxes.want, boxes.low, boxes.high, rest).grouped()
        # Equal boxes are one cell now: a remaining mismatch means holes or partial overlaps.
        found[:] = 0
        first = cells.first
        np.add.at(found, cells.want[first], measure.of(cells.low[:, first], cells.high[:, first]))
        odd = np.flatnonzero(~plain & (found != wanted))
        if len(odd):
            cells = self._refined(boxes, cells, odd)
        kept = np.flatnonzero(own)
        load = self._load(boxes, kept)
        shared = _shared(cells, boxes, self.itemsize, load, self.subscriber)
        return Pieces(
            np.concatenate([kept, shared.box]),
            np.concatenate([boxes.low[:, kept], shared.low], axis=1),
            np.concatenate([boxes.high[:, kept], shared.high], axis=1),
        )

    def _load(self, boxes: Boxes, rows: Index) -> I64:
        """Return the bytes that each publisher sends of these boxes."""
        publishers = int(boxes.publisher.max(initial=-1)) + 1
        size = np.prod(boxes.high[:, rows] - boxes.low[:, rows], axis=0)
        load = np.zeros(publishers, np.int64)
        np.add.at(load, boxes.publisher[rows], size * self.itemsize[boxes.want[rows]])
        return load

    def _refined(self, boxes: Boxes, cells: _Cells, odd: Index) -> _Cells:
        """Cut the boxes of some wants where they overlap, so that parts are equal or disjoint."""
        is_odd = np.zeros(self.low.shape[1], bool)
        is_odd[odd] = True
        keep = ~is_odd[cells.want]
        want, low, high = [cells.want[keep]], [cells.low[:, keep]], [cells.high[:, keep]]
        box = [cells.box[keep]]
        nobody = odd[~np.isin(odd, boxes.want)]
        if len(nobody):
            number = int(nobody[0])
            raise Hole(number, self.low[:, number].tolist(), self.high[:, number].tolist())
        for number in odd.tolist():
            rows = np.flatnonzero(boxes.want == number)
            parts = self._cut(number, boxes.low[:, rows], boxes.high[:, rows])
            want.append(np.full(len(parts[0]), number))
            box.append(rows[parts[0]])
            low.append(parts[1])
            high.append(parts[2])
        whole = _Cells(
            np.concatenate(want),
            np.concatenate(low, axis=1),
            np.concatenate(high, axis=1),
            None,
            np.concatenate(box),
        )
        return whole.grouped()

    def _cut(self, want: int, low: I64, high: I64) -> tuple[Index, I64, I64]:
        """Cut the boxes of one want at the edges of all; return each part's box and place."""
        edges = [np.unique(np.concatenate([low[d], high[d]])) for d in range(len(low))]
        for d, edge in enumerate(edges):
            edges[d] = np.unique(np.concatenate([edge, [self.low[d, want], self.high[d, want]]]))
        shape = tuple(len(edge) - 1 for edge in edges)
        if np.prod(shape, dtype=np.float64) * low.shape[1] > _MOST_CELLS * 64:
            raise Fragmented(want)
        covered = np.zeros(shape, bool)
        parts: list[list[Any]] = [[], []]
        for number in range(low.shape[1]):
            at = [
                slice(*np.searchsorted(edge, [low[d, number], high[d, number]]))
                for d, edge in enumerate(edges)
            ]
            covered[tuple(at)] = True
            inside = np.stack(
                [grid.ravel() for grid in np.meshgrid(*(np.arange(s.start, s.stop) for s in at))]
            )
            parts[0].append(np.full(inside.shape[1], number))
            parts[1].append(inside)
        if not covered.all():
            hole = np.argwhere(~covered)[0].tolist()
            raise Hole(
                want,
                [int(edge[at]) for edge, at in zip(edges, hole, strict=True)],
                [int(edge[at + 1]) for edge, at in zip(edges, hole, strict=True)],
            )
        place = np.concatenate(parts[1], axis=1)
        return (
            np.concatenate(parts[0]),
            np.stack([edge[at] for edge, at in zip(edges, place, strict=True)]),
            np.stack([edge[at + 1] for edge, at in zip(edges, place, strict=True)]),
        )


class _Measure:
    """An additive measure of boxes: that of disjoint boxes is that of their union.

    Each coordinate of each dimension has a random number r. The measure of a box is the product
    over the dimensions of r(end) - r(start), modulo 2**64. Boxes whose measures add up to that of
    the wanted box cover it exactly once: otherwise their indicator functions differ by a sum over
    corners, which is 0 for random r with a probability of about 2**-60. The numbers are drawn anew
    for each plan, so that a table cannot be crafted to match. It needs no sorting, which would take
    most of the time.
    """

    def __init__(self, dims: int) -> None:
        self._salts = [np.uint64(secrets.randbits(64)) for _ in range(dims)]

    def of(self, low: I64, high: I64) -> U64:
        """Return the measure of each box."""
        total = np.ones(low.shape[1], np.uint64)
        for salt, first, last in zip(self._salts, low, high, strict=True):
            total *= _random(last, salt) - _random(first, salt)
        return total


def _random(numbers: I64, salt: np.uint64) -> U64:
    """Return a random number for each input: the mixer of splitmix64 (Steele et al., 2014)."""
    mixed = numbers.astype(np.uint64)
    mixed += salt
    mixed *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed


class _Cells:
    """Parts of boxes. After grouped() equal parts are adjacent."""

    def __init__(
        self, want: Index, low: I64, high: I64, rows: Index | None, box: Index | None = None
    ) -> None:
        if rows is not None:
            want, low, high, box = want[rows], low[:, rows], high[:, rows], rows
        assert box is not None
        self.want, self.low, self.high, self.box = want, low, high, box
        self.first: Index = np.arange(0)  # of each group of equal parts

    def grouped(self) -> _Cells:
        """Sort by want and place."""
        key = _random(self.want.astype(np.int64), np.uint64(0))
        for side in (self.low, self.high):
            for row in side:
                key = _random((key ^ row.astype(np.uint64)).view(np.int64), np.uint64(1))
        # Wants in order; the parts of one want by a random key, equal for equal parts.
        order = np.lexsort((self.box, key, self.want))
        self.want, self.box = self.want[order], self.box[order]
        self.low, self.high = self.low[:, order], self.high[:, order]
        if len(order) == 0:
            return self
        differs = self.want[1:] != self.want[:-1]
        for side in (self.low, self.high):
            differs |= (side[:, 1:] != side[:, :-1]).any(axis=0)
        self.first = np.concatenate([[0], np.flatnonzero(differs) + 1])
        return self


def _shared(cells: _Cells, boxes: Boxes, itemsize: I64, load: I64, subscriber: str) -> Pieces:
    """Divide cells among the publishers that have them."""
    first = cells.first
    dims = len(boxes.low)
    if len(first) == 0:
        return Pieces(np.arange(0), np.empty((dims, 0), np.int64), np.empty((dims, 0), np.int64))
    count = np.diff(first, append=len(cells.want))
    publisher = boxes.publisher[cells.box]
    # Cells with the same publishers have the same sum of random numbers.
    who = np.add.reduceat(_random(publisher.astype(np.int64), np.uint64(2)), first)
    pieces: list[tuple[Index, I64, I64]] = []
    _, group, sizes = np.unique(who, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    members = np.split(order, np.cumsum(sizes)[:-1])
    # Cells with fewer publishers first: the others even out the load afterwards.
    members.sort(key=lambda some: int(count[some[0]]))
    for some in members:
        width = int(count[some[0]])
        table = first[some][:, None] + np.arange(width)[None, :]
        owners = publisher[table[0]]
        # A publisher with the same part twice counts once.
        owners, columns = np.unique(owners, return_index=True)
        turn = zlib.crc32(subscriber.encode()) % len(owners)
        owners, columns = np.roll(owners, -turn), np.roll(columns, -turn)
        low, high = cells.low[:, first[some]], cells.high[:, first[some]]
        size = np.prod(high - low, axis=0) * itemsize[cells.want[first[some]]]
        share = _level(load[owners], int(size.sum()))
        part, owner, low, high = _cut_by_bytes(low, high, size, share)
        pieces.append((cells.box[table[part, columns[owner]]], low, high))
        sent = np.prod(high - low, axis=0) * itemsize[cells.want[first[some]]][part]
        np.add.at(load, owners[owner], sent)
    return Pieces(
        np.concatenate([one[0] for one in pieces]),
        np.concatenate([one[1] for one in pieces], axis=1),
        np.concatenate([one[2] for one in pieces], axis=1),
    )


def _level(load: I64, total: int) -> I64:
    """Return how to divide `total` bytes so that the loads become as equal as possible."""
    order = np.argsort(load, kind="stable")
    ordered = load[order]
    # The bytes that raise the k least loaded publishers to the load of the next one.
    steps = np.append(ordered[1:], np.iinfo(np.int64).max)
    below = np.cumsum(ordered)
    level = int(ordered[0])
    for number, (limit, lower) in enumerate(zip(steps.tolist(), below.tolist(), strict=True), 1):
        level = -(-(total + lower) // number)
        if level <= limit:
            break
    return np.maximum(level - load, 0)


def _cut_by_bytes(low: I64, high: I64, size: I64, share: I64) -> tuple[Index, Index, I64, I64]:
    """Cut consecutive boxes where the shares end, along the first dimension.

    Returns for each part its box, the owner of the share, and its place.
    """
    extent = high - low
    along = np.argmax(extent > 1, axis=0)
    column = np.arange(low.shape[1])
    rows = extent[along, column]
    row_bytes = np.maximum(size // rows, 1)
    ends = np.cumsum(size)
    cuts = np.minimum(np.cumsum(share)[:-1], ends[-1])
    box = np.minimum(np.searchsorted(ends, cuts, "right"), len(size) - 1)
    into = np.rint((cuts - (ends - size)[box]) / row_bytes[box]).astype(np.int64)
    small = size[box] < 2 * _SMALLEST
    into = np.where(small, np.where(2 * into < rows[box], 0, rows[box]), into)
    row_start = np.cumsum(rows) - rows
    at = row_start[box] + np.clip(into, 0, rows[box])
    at = np.maximum.accumulate(at)
    edges = np.unique(np.concatenate([row_start, at, [int(rows.sum())]]))
    begin, end = edges[:-1], edges[1:]
    part = np.searchsorted(row_start, begin, "right") - 1
    owner = np.searchsorted(at, begin, "right")
    new_low, new_high = low[:, part].copy(), high[:, part].copy()
    column = np.arange(len(part))
    base = low[along[part], part] - row_start[part]
    new_low[along[part], column] = base + begin
    new_high[along[part], column] = base + end
    return part, owner, new_low, new_high
