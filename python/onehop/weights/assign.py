# SPDX-License-Identifier: Apache-2.0
"""Who sends which part of what is wanted: the tables of the publishers against the wanted boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from onehop._core import Status
from onehop.errors import InvalidArgument
from onehop.weights.cover import Boxes, Cover, Fragmented, Hole
from onehop.weights.runs import Runs, runs_of
from onehop.weights.table import Table
from onehop.weights.tensors import Tensor

__all__ = ["Assignment", "Missing", "Want", "assign"]

I64 = npt.NDArray[np.int64]
Index = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Want:
    """A box of a whole tensor, and where it goes."""

    name: str
    tensor: Tensor
    start: tuple[int, ...] | None  # None: the whole tensor
    part: int

    def text(self) -> str:
        """Return its name and box for messages."""
        start = self.start or (0,) * len(self.tensor.shape)
        return f"tensor {self.name!r} {box_text(start, self.tensor.shape)}"


class Missing(InvalidArgument):
    """No publisher has a part of a wanted box."""


@dataclass(frozen=True)
class Assignment:
    """Piece i goes from row row[i] of the table of publisher[i] into want[i].

    low, high: (D, pieces), its place in the whole tensor. Pieces of one publisher lie side by side.
    """

    want: Index
    publisher: Index
    row: Index
    low: I64
    high: I64
    nbytes: I64
    runs: Runs


def box_text(start: Sequence[int], extent: Sequence[int]) -> str:
    """Return a box as slices: [0:4, 8:16]."""
    sides = (f"{at}:{at + size}" for at, size in zip(start, extent, strict=True))
    return f"[{', '.join(sides)}]"


def assign(wants: Sequence[Want], tables: Sequence[Table], subscriber: str) -> Assignment:
    """Divide what is wanted among the publishers.

    InvalidArgument names tensor and box: dtype or shape differ. Missing, which is one: a part is in
    no table.
    """
    return _Assigner(wants, tables, subscriber).run()


class _Assigner:
    """The columns of all tables beside each other, and the wanted boxes."""

    def __init__(self, wants: Sequence[Want], tables: Sequence[Table], subscriber: str) -> None:
        self.wants, self.tables, self.subscriber = wants, tables, subscriber
        self.dims = max([1, *(len(one.tensor.shape) for one in wants)])
        self.dims = max([self.dims, *(table.shape.shape[1] for table in tables)])
        self.itemsize = np.array([one.tensor.itemsize for one in wants], np.int64)
        self.extent = self._columns([one.tensor.shape for one in wants], 1)
        self.low = self._columns([one.start or (0,) * len(one.tensor.shape) for one in wants], 0)
        self.high = self.low + self.extent

    def _columns(self, rows: Sequence[Sequence[int]], fill: int) -> I64:
        padded = [(fill,) * (self.dims - len(row)) + tuple(row) for row in rows]
        flat = np.array(padded, np.int64).reshape(len(rows), self.dims)
        return np.ascontiguousarray(flat.T)

    def _stacked(self, which: str, fill: int) -> I64:
        """Return a column of D numbers of all tables, of shape (D, rows)."""
        total = sum(len(table.names) for table in self.tables)
        out = np.full((self.dims, total), fill, np.int64)
        at = 0
        for table in self.tables:
            own = getattr(table, which)
            out[self.dims - own.shape[1] :, at : at + len(own)] = own.T
            at += len(own)
        return out

    def run(self) -> Assignment:
        """Do it all."""
        rows = [len(table.names) for table in self.tables]
        first_row = np.cumsum([0, *rows])
        publisher = np.repeat(np.arange(len(self.tables)), rows)
        want, row = self._matched()
        shape = self._stacked("shape", 1)
        start = self._stacked("start", 0)
        extent = self._stacked("extent", 1)
        self._check(want, row, publisher, first_row, shape)
        if len(row) == len(publisher) and (row == np.arange(len(row))).all():
            box_low, box_high = start, start + extent
        else:
            box_low = start[:, row]
            box_high = box_low + extent[:, row]
        low = np.maximum(box_low, self.low[:, want])
        high = np.minimum(box_high, self.high[:, want])
        inside = (high > low).all(axis=0)
        if not inside.all():
            want, row = want[inside], row[inside]
            low, high = low[:, inside], high[:, inside]
        # Wants without elements need nobody.
        asked = np.flatnonzero((self.extent > 0).all(axis=0))
        rank = np.full(len(self.wants), -1)
        rank[asked] = np.arange(len(asked))
        boxes = Boxes(rank[want], publisher[row], low, high)
        cover = Cover(
            self.low[:, asked], self.high[:, asked], self.itemsize[asked], self.subscriber
        )
        try:
            pieces = cover.divide(boxes)
        except Hole as hole:
            raise self._missing(int(asked[hole.want]), hole) from None
        except Fragmented as why:
            one = self.wants[int(asked[why.want])]
            msg = f"{one.text()}: the boxes of its publishers overlap in too many parts"
            raise InvalidArgument(Status.INVALID, msg) from None
        want, row = want[pieces.box], row[pieces.box]
        order = np.argsort(publisher[row], kind="stable")
        want, row = want[order], row[order]
        low, high = pieces.low[:, order], pieces.high[:, order]
        size = high - low
        item = self.itemsize[want]
        runs = runs_of(
            size,
            (self.extent[:, want], low - self.low[:, want]),
            (extent[:, row], low - start[:, row]),
            item,
        )
        own = publisher[row]
        nbytes = np.prod(size, axis=0) * item
        return Assignment(want, own, row - first_row[own], low, high, nbytes, runs)

    def _matched(self) -> tuple[Index, Index]:
        """Return which rows of all tables, counted through, are of which wants."""
        numbers: dict[str, int] = {}
        name_of = np.array([numbers.setdefault(one.name, len(numbers)) for one in self.wants])
        known: dict[bytes, npt.NDArray[np.int64]] = {}
        found = []
        for table in self.tables:
            ids = known.get(table.name_bytes) if table.name_bytes else None
            if ids is None:
                get = numbers.get
                listed = [get(name, -1) for name in table.names]
                ids = known[table.name_bytes] = np.array(listed, np.int64)
            found.append(ids)
        name = np.concatenate([np.empty(0, np.int64), *found])
        row = np.flatnonzero(name >= 0)
        name = name[row]
        if len(numbers) == len(self.wants):
            return name, row
        # Several boxes of one tensor are wanted: each row once for each of them.
        order = np.argsort(name_of, kind="stable")
        count = np.bincount(name_of, minlength=len(numbers))
        begin = np.cumsum(count) - count
        times = count[name]
        row = np.repeat(row, times)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        return order[np.repeat(begin[name], times) + nth], row

    # ---- Checks

    def _check(
        self, want: Index, row: Index, publisher: Index, first_row: Index, shape: I64
    ) -> None:
        """Raise where a publisher's tensor is not what is wanted."""
        dtypes: dict[tuple[str, int], int] = {}

        def number(dtype: str, size: int) -> int:
            return dtypes.setdefault((dtype, size), len(dtypes))

        wanted = np.array([number(one.tensor.dtype, one.tensor.itemsize) for one in self.wants])
        offered: list[npt.NDArray[Any]] = [np.empty(0, np.int64)]
        for table in self.tables:
            of_table = np.array(
                [number(*one) for one in zip(table.dtypes, table.itemsizes.tolist(), strict=True)]
            )
            offered.append(of_table[table.dtype] if len(table.names) else offered[0])
        dtype = np.concatenate(offered)
        ndim = np.concatenate([np.empty(0, np.uint8), *(table.ndim for table in self.tables)])
        wanted_ndim = np.array([len(one.tensor.shape) for one in self.wants])
        # Of each want: the first row that it meets; all others have the same shape.
        first = np.full(len(self.wants), -1)
        first[want[::-1]] = row[::-1]
        whole = shape[:, np.maximum(first, 0)] if len(row) else self.high
        bad = (dtype[row] != wanted[want]) | (ndim[row] != wanted_ndim[want])
        for dim in range(self.dims):
            bad |= shape[dim][row] != whole[dim][want]
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise self._differs(int(want[at]), int(row[at]), int(first[want[at]]), first_row)
        met = first >= 0
        outside = met & ((self.high > whole) | (self.low < 0)).any(axis=0)
        is_whole = np.array([one.start is None for one in self.wants])
        outside |= met & is_whole & (self.extent != whole).any(axis=0)
        if outside.any():
            number_of = int(np.flatnonzero(outside)[0])
            one = self.wants[number_of]
            shape_there = self._tensor_at(int(first[number_of]), first_row)[1]
            msg = f"{one.text()} is wanted of a tensor of shape {shape_there}"
            hint = ": give start=, or the whole shape" if one.start is None else ""
            raise InvalidArgument(Status.INVALID, msg + hint)

    def _tensor_at(self, row: int, first_row: Index) -> tuple[str, tuple[int, ...], str, str]:
        """Return publisher, shape, dtype and box of a row."""
        number = int(np.searchsorted(first_row, row, "right")) - 1
        table, own = self.tables[number], row - int(first_row[number])
        there = slice(table.shape.shape[1] - int(table.ndim[own]), None)
        shape = tuple(table.shape[own, there].tolist())
        box = box_text(table.start[own, there].tolist(), table.extent[own, there].tolist())
        return table.publisher, shape, table.dtypes[int(table.dtype[own])], box

    def _differs(self, want: int, row: int, first: int, first_row: Index) -> InvalidArgument:
        one = self.wants[want]
        publisher, shape, dtype, box = self._tensor_at(row, first_row)
        if dtype != one.tensor.dtype or len(shape) != len(one.tensor.shape):
            msg = (
                f"{one.text()} is wanted as {one.tensor.dtype} in {len(one.tensor.shape)} "
                f"dimensions; publisher {publisher!r} has {box} of {dtype} {shape}"
            )
        else:
            other, other_shape, _, _ = self._tensor_at(first, first_row)
            msg = (
                f"{one.text()}: publisher {publisher!r} has {box} of a tensor of shape {shape}, "
                f"publisher {other!r} of one of {other_shape}"
            )
        return InvalidArgument(Status.INVALID, msg)

    def _missing(self, want: int, hole: Hole) -> Missing:
        one = self.wants[want]
        dims = len(one.tensor.shape)
        low = hole.low[self.dims - dims :]
        extent = [
            last - first for first, last in zip(low, hole.high[self.dims - dims :], strict=True)
        ]
        names = ", ".join(repr(table.publisher) for table in self.tables[:8]) or "none"
        more = ", ..." if len(self.tables) > 8 else ""
        msg = f"{one.text()}: no publisher ({names}{more}) has {box_text(low, extent)} of it"
        return Missing(Status.INVALID, msg)
