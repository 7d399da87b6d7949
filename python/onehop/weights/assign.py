# SPDX-License-Identifier: Apache-2.0
"""Assigns each part of the wanted boxes to a publisher, from the publishers' tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onehop._core import Status
from onehop.errors import InvalidArgument
from onehop.weights.cover import Boxes, Cover, Fragmented, Hole
from onehop.weights.runs import Runs, runs_of
from onehop.weights.table import Table
from onehop.weights.tensors import Tensor

__all__ = ["Missing", "Share", "Want", "assign", "box_text"]

I64 = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Want:
    """A wanted box of a whole tensor, and its destination."""

    name: str
    tensor: Tensor
    start: tuple[int, ...] | None  # None: the whole tensor
    part: int

    def text(self) -> str:
        """Return the tensor's name and box, for messages."""
        start = self.start or (0,) * len(self.tensor.shape)
        return f"tensor {self.name!r} {box_text(start, self.tensor.shape)}"


class Missing(InvalidArgument):
    """No publisher has this part of a wanted box."""


@dataclass(frozen=True)
class Share:
    """The pieces that one publisher sends: piece i is of row row[i] of its table, for want[i].

    Attributes:
        publisher: number of the table.
        low, high: (D, pieces), the place of each piece in the whole tensor.
        nbytes: of each piece.
        runs: of all pieces, in their order.

    """

    publisher: int
    want: Index
    row: Index
    low: I64
    high: I64
    nbytes: I64
    runs: Runs


def box_text(start: Sequence[int], extent: Sequence[int]) -> str:
    """Return a box as slices: [0:4, 8:16]."""
    sides = (f"{at}:{at + size}" for at, size in zip(start, extent, strict=True))
    return f"[{', '.join(sides)}]"


def assign(wants: Sequence[Want], tables: Sequence[Table], subscriber: str) -> list[Share]:
    """Divide the wanted boxes among the publishers; omit publishers that send nothing.

    InvalidArgument names the tensor and box: dtype or shape differ. Missing (an InvalidArgument):
    no table has a part.
    """
    return _Assigner(wants, tables, subscriber).run()


@dataclass(frozen=True)
class _Offer:
    """The wanted boxes that one table has. Arrays of one table are small enough for the cache."""

    boxes: Boxes
    row: Index


class _Assigner:
    """Compares the wanted boxes with the tables, one table after the other."""

    def __init__(self, wants: Sequence[Want], tables: Sequence[Table], subscriber: str) -> None:
        self.wants, self.tables = wants, tables
        self.dims = max([1, *(len(one.tensor.shape) for one in wants)])
        self.dims = max([self.dims, *(table.shape.shape[1] for table in tables)])
        self.itemsize = np.array([one.tensor.itemsize for one in wants], np.int64)
        self.extent = self._columns([one.tensor.shape for one in wants], 1)
        self.low = self._columns([one.start or (0,) * len(one.tensor.shape) for one in wants], 0)
        self.high = self.low + self.extent
        self.ndim = np.array([len(one.tensor.shape) for one in wants])
        self._dtypes: dict[tuple[str, int], int] = {}
        self.dtypes = np.array(
            [self._dtype(one.tensor.dtype, one.tensor.itemsize) for one in wants]
        )
        # Wants without elements need no publisher.
        self.asked = np.flatnonzero((self.extent > 0).all(axis=0))
        self.cover = Cover(
            self.low[:, self.asked], self.high[:, self.asked], self.itemsize[self.asked], subscriber
        )
        self.numbers: dict[str, int] = {}
        self.name_of = np.array(
            [self.numbers.setdefault(one.name, len(self.numbers)) for one in wants], np.int64
        )
        self.known: dict[bytes, tuple[Index, Index]] = {}
        # The shape of each want's tensor, from the first publisher that has it.
        self.whole = self.high.copy()
        self.first = np.full((2, len(wants)), -1)  # number of the table, and of the row

    def _dtype(self, name: str, size: int) -> int:
        """Return a number for a dtype."""
        return self._dtypes.setdefault((name, size), len(self._dtypes))

    def _columns(self, rows: Sequence[Sequence[int]], fill: int) -> I64:
        padded = [(fill,) * (self.dims - len(row)) + tuple(row) for row in rows]
        flat = np.array(padded, np.int64).reshape(len(rows), self.dims)
        return np.ascontiguousarray(flat.T)

    def _of_table(self, rows: npt.NDArray[np.uint64], fill: int) -> I64:
        """Return a table's numbers as (D, rows)."""
        out = np.empty((self.dims, len(rows)), np.int64)
        pad = self.dims - rows.shape[1]
        out[:pad] = fill
        out[pad:] = rows.T
        return out

    def run(self) -> list[Share]:
        """Assign all boxes."""
        offers = [self._offer(number) for number in range(len(self.tables))]
        self._check_wants()
        if not self.cover.complete:
            offers = self._divided(offers)
        return [self._share(number, one) for number, one in enumerate(offers) if len(one.row)]

    def _offer(self, number: int) -> _Offer:
        """Return the parts of the wanted boxes that a table has, and record them as its offers."""
        table = self.tables[number]
        want, row = self._matched(table)
        shape = self._of_table(table.shape, 1)
        low, extent = self._of_table(table.start, 0), self._of_table(table.extent, 1)
        self._check(number, want, row, shape)
        low, high = low[:, row], (low + extent)[:, row]
        np.maximum(low, self.low[:, want], out=low)
        np.minimum(high, self.high[:, want], out=high)
        inside = (high > low).all(axis=0)
        if not inside.all():
            want, row = want[inside], row[inside]
            low, high = low[:, inside], high[:, inside]
        # Only boxes with elements are requested, and only they have offers.
        rank = np.searchsorted(self.asked, want)
        boxes = Boxes(rank, np.full(len(rank), number), low, high)
        self.cover.add(boxes)
        return _Offer(boxes, row)

    def _divided(self, offers: Sequence[_Offer]) -> list[_Offer]:
        """Divide boxes that several publishers have among them."""
        if not offers:
            number = int(self.asked[0])
            raise self._missing(
                number, Hole(0, self.low[:, number].tolist(), self.high[:, number].tolist())
            )
        boxes = Boxes(
            np.concatenate([one.boxes.want for one in offers]),
            np.concatenate([one.boxes.publisher for one in offers]),
            np.concatenate([one.boxes.low for one in offers], axis=1),
            np.concatenate([one.boxes.high for one in offers], axis=1),
        )
        try:
            pieces = self.cover.divide(boxes)
        except Hole as hole:
            raise self._missing(int(self.asked[hole.want]), hole) from None
        except Fragmented as why:
            one = self.wants[int(self.asked[why.want])]
            msg = f"{one.text()}: the boxes of its publishers overlap in too many parts"
            raise InvalidArgument(Status.INVALID, msg) from None
        row = np.concatenate([one.row for one in offers])[pieces.box]
        want, publisher = boxes.want[pieces.box], boxes.publisher[pieces.box]
        found = []
        for number in range(len(offers)):
            own = np.flatnonzero(publisher == number)
            of_it = Boxes(want[own], publisher[own], pieces.low[:, own], pieces.high[:, own])
            found.append(_Offer(of_it, row[own]))
        return found

    def _share(self, number: int, offer: _Offer) -> Share:
        table, boxes = self.tables[number], offer.boxes
        want, row = self.asked[boxes.want], offer.row
        start, extent = self._of_table(table.start, 0), self._of_table(table.extent, 1)
        size, item = boxes.high - boxes.low, self.itemsize[want]
        runs = runs_of(
            size,
            (self.extent[:, want], boxes.low - self.low[:, want]),
            (extent[:, row], boxes.low - start[:, row]),
            item,
        )
        nbytes = np.prod(size, axis=0) * item
        return Share(number, want, row, boxes.low, boxes.high, nbytes, runs)

    def _matched(self, table: Table) -> tuple[Index, Index]:
        """Return which rows of a table overlap which wants."""
        if table.name_bytes and table.name_bytes in self.known:
            return self.known[table.name_bytes]
        get = self.numbers.get
        name = np.array([get(one, -1) for one in table.names], np.int64)
        row = np.flatnonzero(name >= 0)
        want = name[row]
        if len(self.numbers) < len(self.wants):
            # Several boxes of one tensor are wanted: each row is needed once for each of them.
            order = np.argsort(self.name_of, kind="stable")
            count = np.bincount(self.name_of, minlength=len(self.numbers))
            begin, times = np.cumsum(count) - count, count[want]
            nth = np.arange(int(times.sum())) - np.repeat(np.cumsum(times) - times, times)
            row, want = np.repeat(row, times), order[np.repeat(begin[want], times) + nth]
        self.known[table.name_bytes] = want, row
        return want, row

    # ---- Checks

    def _check(self, number: int, want: Index, row: Index, shape: I64) -> None:
        """Raise if a publisher's tensor differs from the wanted one, or from that of another."""
        table = self.tables[number]
        new = self.first[0][want] < 0
        if new.any():
            # Of several rows of one tensor the last one is kept; all are compared with it.
            self.whole[:, want[new]] = shape[:, row[new]]
            self.first[0][want[new]] = number
            self.first[1][want[new]] = row[new]
        sizes = table.itemsizes.tolist()
        known = [self._dtype(*one) for one in zip(table.dtypes, sizes, strict=True)]
        dtype = np.array(known, np.int64)[table.dtype[row]] if len(row) else row
        bad = (dtype != self.dtypes[want]) | (table.ndim[row] != self.ndim[want])
        bad |= (shape[:, row] != self.whole[:, want]).any(axis=0)
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise self._differs(int(want[at]), number, int(row[at]))

    def _check_wants(self) -> None:
        """Raise if a box is not within its tensor, or lacks a start and is not the whole tensor."""
        met = self.first[0] >= 0
        outside = met & ((self.high > self.whole) | (self.low < 0)).any(axis=0)
        all_of_it = np.array([one.start is None for one in self.wants], bool)
        outside |= met & all_of_it & (self.extent != self.whole).any(axis=0)
        if outside.any():
            number = int(np.flatnonzero(outside)[0])
            one = self.wants[number]
            _, shape, _, _ = self._tensor_at(*self.first[:, number].tolist())
            msg = f"{one.text()} is wanted of a tensor of shape {shape}"
            hint = ": give start=, or the whole shape" if one.start is None else ""
            raise InvalidArgument(Status.INVALID, msg + hint)

    def _tensor_at(self, number: int, row: int) -> tuple[str, tuple[int, ...], str, str]:
        """Return publisher, shape, dtype and box of a row."""
        table = self.tables[number]
        there = slice(table.shape.shape[1] - int(table.ndim[row]), None)
        shape = tuple(table.shape[row, there].tolist())
        box = box_text(table.start[row, there].tolist(), table.extent[row, there].tolist())
        return table.publisher, shape, table.dtypes[int(table.dtype[row])], box

    def _differs(self, want: int, number: int, row: int) -> InvalidArgument:
        one = self.wants[want]
        publisher, shape, dtype, box = self._tensor_at(number, row)
        if dtype != one.tensor.dtype or len(shape) != len(one.tensor.shape):
            msg = (
                f"{one.text()} is wanted as {one.tensor.dtype} in {len(one.tensor.shape)} "
                f"dimensions; publisher {publisher!r} has {box} of {dtype} {shape}"
            )
        else:
            other, other_shape, _, _ = self._tensor_at(*self.first[:, want].tolist())
            msg = (
                f"{one.text()}: publisher {publisher!r} has {box} of a tensor of shape {shape}, "
                f"publisher {other!r} of one of {other_shape}"
            )
        return InvalidArgument(Status.INVALID, msg)

    def _missing(self, want: int, hole: Hole) -> Missing:
        one = self.wants[want]
        there = slice(self.dims - len(one.tensor.shape), None)
        low = hole.low[there]
        extent = [last - first for first, last in zip(low, hole.high[there], strict=True)]
        names = ", ".join(repr(table.publisher) for table in self.tables[:8]) or "none"
        more = ", ..." if len(self.tables) > 8 else ""
        msg = f"{one.text()}: no publisher ({names}{more}) has {box_text(low, extent)} of it"
        return Missing(Status.INVALID, msg)
