# SPDX-License-Identifier: Apache-2.0
"""Boxes as runs of blocks, in the fewest entries that their two layouts allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["MOST_BLOCKS", "Runs", "runs_of"]

I64 = npt.NDArray[np.int64]

# Blocks of one batch of the core.
MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class Runs:
    """Entry i is `count` blocks of `length` bytes, at `local` and `remote` and a stride apart.

    All values are bytes, except `piece`: the number of the entry's piece.
    """

    piece: npt.NDArray[np.intp]
    local: I64
    remote: I64
    length: I64
    count: I64
    local_stride: I64
    remote_stride: I64

    def take(self, rows: npt.NDArray[np.intp] | slice) -> Runs:
        """Return some of the entries."""
        return Runs(*(column[rows] for column in self._columns()))

    def _columns(self) -> tuple[npt.NDArray[np.int64], ...]:
        return (
            self.piece,
            self.local,
            self.remote,
            self.length,
            self.count,
            self.local_stride,
            self.remote_stride,
        )

    def batches(self) -> list[Runs]:
        """Divide the entries so that each batch has at most MOST_BLOCKS blocks."""
        if int(self.count.sum()) <= MOST_BLOCKS:
            return [self]
        whole = self._shortened()
        done = np.cumsum(whole.count)
        parts, first = [], 0
        while first < len(done):
            before = int(done[first - 1]) if first else 0
            last = int(np.searchsorted(done, before + MOST_BLOCKS, "right"))
            parts.append(whole.take(slice(first, last)))
            first = last
        return parts

    def _shortened(self) -> Runs:
        """Cut entries with more than MOST_BLOCKS blocks."""
        times = -(-self.count // MOST_BLOCKS)
        if (times == 1).all():
            return self
        row = np.repeat(np.arange(len(times)), times)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        found = self.take(row)
        skipped = nth * MOST_BLOCKS
        return Runs(
            found.piece,
            found.local + skipped * found.local_stride,
            found.remote + skipped * found.remote_stride,
            found.length,
            np.minimum(found.count - skipped, MOST_BLOCKS),
            found.local_stride,
            found.remote_stride,
        )


def runs_of(
    extent: I64,
    local: tuple[I64, I64],
    remote: tuple[I64, I64],
    itemsize: I64,
) -> Runs:
    """Return the runs of boxes that each lie in two C-contiguous arrays.

    extent: (D, n), elements of box i in each dimension, at least one.
    local, remote: (D, n), extent of the array that contains the box, and the box's start in it; in
        elements.
    """
    dims, boxes = extent.shape
    local_at, local_step = _walk(*local, itemsize)
    remote_at, remote_step = _walk(*remote, itemsize)
    length, count = itemsize.copy(), np.ones(boxes, np.int64)
    local_stride, remote_stride = np.zeros(boxes, np.int64), np.zeros(boxes, np.int64)
    # Of each box: 0 while the inner dimensions make up one block, 1 while blocks make up one run.
    phase = np.zeros(boxes, np.int8)
    outer = np.ones((dims, boxes), np.int64)
    for dim in range(dims - 1, -1, -1):
        size, ours, theirs = extent[dim], local_step[dim], remote_step[dim]
        many = size > 1
        joins = (phase == 0) & (ours == length) & (theirs == length)
        length = np.where(many & joins, length * size, length)
        many &= ~joins
        begins = many & (phase == 0)
        goes_on = (
            many & (phase == 1) & (ours == count * local_stride) & (theirs == count * remote_stride)
        )
        count = np.where(begins | goes_on, count * size, count)
        local_stride = np.where(begins, ours, local_stride)
        remote_stride = np.where(begins, theirs, remote_stride)
        phase = np.where(begins, np.int8(1), phase)
        over = many & ~begins & ~goes_on
        phase = np.where(over, np.int8(2), phase)
        outer[dim] = np.where(over, size, 1)
    single = Runs(np.arange(boxes), local_at, remote_at, length, count, local_stride, remote_stride)
    return _expanded(single, outer, local_step, remote_step)


def _walk(shape: I64, start: I64, itemsize: I64) -> tuple[I64, I64]:
    """Return where boxes start, and the bytes from one element to the next in each dimension."""
    step = np.empty_like(shape)
    size, at = itemsize, np.zeros_like(itemsize)
    for dim in range(len(shape) - 1, -1, -1):
        step[dim] = size
        at = at + start[dim] * size
        size = size * shape[dim]
    return at, step


def _expanded(runs: Runs, outer: I64, local_step: I64, remote_step: I64) -> Runs:
    """Repeat entries over the outer dimensions that a run cannot express."""
    for dim in range(len(outer) - 1, -1, -1):
        times = outer[dim][runs.piece]
        if (times == 1).all():
            continue
        row = np.repeat(np.arange(len(times)), times)
        nth = np.arange(len(row)) - np.repeat(np.cumsum(times) - times, times)
        found = runs.take(row)
        runs = Runs(
            found.piece,
            found.local + nth * local_step[dim][found.piece],
            found.remote + nth * remote_step[dim][found.piece],
            found.length,
            found.count,
            found.local_stride,
            found.remote_stride,
        )
    return runs
