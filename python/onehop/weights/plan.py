# SPDX-License-Identifier: Apache-2.0
"""Plan: the prepared batches of a subscriber, one or more for each publisher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import onehop
from onehop import PreparedBatch
from onehop.weights.assign import Assignment, Want, box_text
from onehop.weights.hub import Link
from onehop.weights.runs import Runs
from onehop.weights.table import Table
from onehop.weights.tensors import Memory

__all__ = ["Plan", "Share"]

# Pieces that explain() lists of each publisher.
_SHOWN = 8


@dataclass
class Share:
    """What one publisher sends.

    Attributes:
        publisher: its name.
        nbytes, blocks: of all parts.
        batches: by part.

    """

    publisher: str
    token: int
    link: Link
    nbytes: int
    blocks: int
    pieces: slice  # of the assignment
    batches: dict[int, list[PreparedBatch]] = field(default_factory=dict)
    part_bytes: dict[int, int] = field(default_factory=dict)


class Plan:
    """Who sends what. Create it with Subscriber.prepare.

    Attributes:
        bytes: of all tensors that a pull fills.
        blocks: contiguous pieces that they consist of, on both sides.
        publishers: names of those that send, in the order of the tables.

    """

    def __init__(
        self, wants: Sequence[Want], tables: Sequence[Table], assignment: Assignment
    ) -> None:
        self._wants, self._tables, self._pieces = list(wants), list(tables), assignment
        self.shares: list[Share] = []
        self.bytes = int(assignment.nbytes.sum())
        self.blocks = int(assignment.runs.count.sum())
        used = np.flatnonzero(np.bincount(assignment.publisher, minlength=len(tables)))
        self._used = used.tolist()
        self.publishers = [tables[number].publisher for number in self._used]

    def __repr__(self) -> str:
        return (
            f"<Plan: {self.bytes} bytes, {self.blocks} blocks of {len(self.publishers)} publishers>"
        )

    @property
    def sources(self) -> list[Table]:
        """The tables of those that send."""
        return [self._tables[number] for number in self._used]

    @property
    def parts(self) -> list[int]:
        """The numbers of the parts, in order."""
        return sorted({want.part for want in self._wants})

    def prepare(self, links: dict[str, Link], memory: Memory, locals_: Sequence[Any]) -> None:
        """Prepare the batches over these links, into these pieces of local memory."""
        pieces, runs = self._pieces, self._pieces.runs
        part_of = np.array([want.part for want in self._wants])
        # Rows of the runs by publisher: pieces are sorted by it, and runs by pieces.
        owner = pieces.publisher[runs.piece]
        for number in self._used:
            table = self._tables[number]
            own = slice(*np.searchsorted(owner, [number, number + 1]).tolist())
            mine = slice(*np.searchsorted(pieces.publisher, [number, number + 1]).tolist())
            taken = runs.take(own)
            share = Share(
                table.publisher,
                table.token,
                links[table.publisher],
                int(pieces.nbytes[mine].sum()),
                int(taken.count.sum()),
                mine,
            )
            part = part_of[pieces.want[taken.piece]]
            for one in np.unique(part).tolist():
                some = taken if (part == one).all() else taken.take(np.flatnonzero(part == one))
                share.part_bytes[one] = int((some.length * some.count).sum())
                share.batches[one] = [
                    self._batch(share.link, table, batch, memory, locals_)
                    for batch in some.batches()
                ]
            self.shares.append(share)

    def _batch(
        self, link: Link, table: Table, runs: Runs, memory: Memory, locals_: Sequence[Any]
    ) -> PreparedBatch:
        want, row = self._pieces.want[runs.piece], self._pieces.row[runs.piece]
        ours, local_index = _dense(memory.index[want], len(locals_))
        theirs, remote_index = _dense(table.region[row], len(table.descriptors))
        strided = bool((runs.count > 1).any())
        return link.peer.prepare_get_regions(
            [locals_[number] for number in ours],
            [link.attach(table.descriptors[number]) for number in theirs],
            local_index,
            runs.local + memory.offset[want].astype(np.int64),
            remote_index,
            runs.remote + table.offset[row].astype(np.int64),
            runs.length,
            runs.count if strided else None,
            runs.local_stride if strided else None,
            runs.remote_stride if strided else None,
        )

    def close(self) -> None:
        """Let go of the batches; what is under way ends."""
        for share in self.shares:
            for batches in share.batches.values():
                for batch in batches:
                    batch.close()
        self.shares.clear()

    def explain(self) -> str:
        """Return who sends what, by which path and why, as text for people."""
        lines = [
            f"{self.bytes} bytes in {self.blocks} blocks, of {len(self.publishers)} publishers"
        ]
        for share in self.shares:
            path, why = self._path(share)
            lines.append(
                f"{share.publisher}: {share.nbytes} bytes in {share.blocks} blocks by {path}, "
                f"because {why}"
            )
            numbers = range(share.pieces.start, share.pieces.stop)
            lines += [f"  {self._piece_text(number)}" for number in numbers[:_SHOWN]]
            if len(numbers) > _SHOWN:
                lines.append(f"  and {len(numbers) - _SHOWN} boxes more")
        return "\n".join(lines)

    def _piece_text(self, number: int) -> str:
        want = self._wants[int(self._pieces.want[number])]
        dims = len(want.tensor.shape)
        low, high = self._pieces.low[:, number], self._pieces.high[:, number]
        there = slice(len(low) - dims, None)
        box = box_text(low[there].tolist(), (high - low)[there].tolist())
        return f"{want.name} {box}"

    def _path(self, share: Share) -> tuple[str, str]:
        """Return the path between a publisher's memory and ours, and why."""
        device = any(want.tensor.device for want in self._wants)
        kind = "device" if device else "host"
        rows = [
            row
            for row in onehop.paths(share.link.peer)
            if row.operation == "put/get" and row.target == kind
        ]
        best = max(rows, key=lambda row: (row.source == kind, row.last), default=None)
        return (best.path, best.why) if best else ("no path", "the peer has none")


def _dense(index: npt.NDArray[np.uint32], regions: int) -> tuple[list[int], npt.NDArray[np.uint32]]:
    """Return the regions that are used, and the index into them."""
    used = np.zeros(regions, bool)
    used[index] = True
    if used.all():
        return list(range(regions)), np.ascontiguousarray(index)
    place = (np.cumsum(used) - 1).astype(np.uint32)
    return np.flatnonzero(used).tolist(), place[index]
