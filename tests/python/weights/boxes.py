# SPDX-License-Identifier: Apache-2.0
"""Tables without publishers, and what an assignment of them moves, done by numpy."""

from __future__ import annotations

import math

import numpy as np
from onehop.weights.assign import Want, assign
from onehop.weights.table import Table
from onehop.weights.tensors import describe


def make_table(publisher, boxes, dtype="uint8", token=7):
    """Return a table and its memory; boxes are (name, whole array, start, extent)."""
    dims = max([1, *(array.ndim for _, array, _, _ in boxes)])
    parts, offsets, at = [], [], 0
    for _, array, start, extent in boxes:
        inside = tuple(slice(a, a + n) for a, n in zip(start, extent, strict=True))
        data = np.ascontiguousarray(array[inside]).tobytes()
        offsets.append(at)
        parts.append(data)
        at += len(data)

    def padded(rows, fill):
        rows = [(fill,) * (dims - len(row)) + tuple(row) for row in rows]
        return np.array(rows, np.uint64).reshape(len(rows), dims)

    made = Table(
        publisher,
        b"address",
        token,
        [b"descriptor"],
        np.array([at], np.uint64),
        [dtype],
        np.array([np.dtype(dtype).itemsize], np.uint64),
        [name for name, *_ in boxes],
        np.zeros(len(boxes), np.uint16),
        np.array([array.ndim for _, array, _, _ in boxes], np.uint8),
        np.zeros(len(boxes), np.uint32),
        np.array(offsets, np.uint64),
        padded([array.shape for _, array, _, _ in boxes], 1),
        padded([start for *_, start, _ in boxes], 0),
        padded([extent for *_, extent in boxes], 1),
        "\0".join(name for name, *_ in boxes).encode(),
    )
    return made, b"".join(parts)


def wanted(name, array, start=None):
    return Want(name, describe(name, array), start, 0)


def moved(wants, tables_and_memory, subscriber="s"):
    """Assign, and move the blocks; return the shares and how often each byte was written."""
    tables = [one for one, _ in tables_and_memory]
    shares = assign(wants, tables, subscriber)
    written = [np.zeros(want.tensor.nbytes, np.int64) for want in wants]
    for share in shares:
        table, source = tables_and_memory[share.publisher]
        runs = share.runs
        for i, piece in enumerate(runs.piece.tolist()):
            want, row = int(share.want[piece]), int(share.row[piece])
            target = wants[want].tensor.owner.reshape(-1).view(np.uint8)
            length = int(runs.length[i])
            for block in range(int(runs.count[i])):
                ours = int(runs.local[i] + block * runs.local_stride[i])
                theirs = int(runs.remote[i] + block * runs.remote_stride[i])
                theirs += int(table.offset[row])
                target[ours : ours + length] = np.frombuffer(source[theirs : theirs + length], "u1")
                written[want][ours : ours + length] += 1
    return shares, written


def whole(shape, dtype="uint8", seed=0):
    """Return an array of random bytes."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    data = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return data.view(dtype).reshape(shape)
