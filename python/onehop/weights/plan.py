# SPDX-License-Identifier: Apache-2.0
"""Plan: a subscriber's prepared batches, one or more for each publisher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import onehop
from onehop import PreparedBatch
from onehop.deadline import Deadline
from onehop.used_regions import used_regions
from onehop.weights.assign import Share, Want, box_text
from onehop.weights.hub import Link
from onehop.weights.inquiry import gone_if_ended
from onehop.weights.runs import Runs
from onehop.weights.table import Table
from onehop.weights.tensors import Memory

__all__ = ["Plan", "Source"]

# Pieces that explain() lists for each publisher.
_SHOWN = 8


@dataclass
class Source:
    """A publisher that sends: its share, and the batches of each part of the pull."""

    table: Table
    share: Share
    link: Link
    blocks: int
    batches: dict[int, list[PreparedBatch]] = field(default_factory=dict)

    @property
    def publisher(self) -> str:
        """The publisher's name."""
        return self.table.publisher


class Plan:
    """The division of a pull among publishers. Create it with Subscriber.prepare.

    Attributes:
        bytes: of all tensors that a pull fills.
        blocks: contiguous pieces of these bytes, on both sides.
        publishers: names of the publishers that send, in the order of the tables.
        parts: the numbers of the parts, in order.
        on_gpu: whether a tensor is in GPU memory.

    """

    def __init__(
        self, wants: Sequence[Want], tables: Sequence[Table], shares: Sequence[Share]
    ) -> None:
        self._wants = list(wants)
        self._shares = [(tables[share.publisher], share) for share in shares]
        self.sources: list[Source] = []
        self.bytes = sum(int(share.nbytes.sum()) for share in shares)
        self.blocks = sum(int(share.runs.count.sum()) for share in shares)
        self.publishers = [table.publisher for table, _ in self._shares]
        self.parts = sorted({want.part for want in self._wants})
        self.on_gpu = any(want.tensor.device for want in self._wants)

    def __repr__(self) -> str:
        who = f"{len(self.publishers)} publishers"
        return f"<Plan: {self.bytes} bytes, {self.blocks} blocks of {who}>"

    @property
    def tables(self) -> list[Table]:
        """The tables of the publishers that send."""
        return [table for table, _ in self._shares]

    def prepare(
        self, links: dict[str, Link], memory: Memory, locals_: Sequence[Any], deadline: Deadline
    ) -> None:
        """Prepare the batches over these links, into these pieces of local memory.

        Gone names a publisher that has ended. TimeoutError: one is stopped.
        """
        part_of = np.array([want.part for want in self._wants])
        for table, share in self._shares:
            blocks = int(share.runs.count.sum())
            source = Source(table, share, links[table.publisher], blocks)
            self.sources.append(source)
            for part in self.parts:
                runs = share.runs
                if len(self.parts) > 1:
                    own = part_of[share.want[runs.piece]] == part
                    runs = runs.take(np.flatnonzero(own))
                if len(runs.piece):
                    with gone_if_ended(source.publisher):
                        source.batches[part] = [
                            _batch(source, batch, memory, locals_, deadline)
                            for batch in runs.batches()
                        ]

    def close(self) -> None:
        """Release the batches. Operations in flight complete."""
        for source in self.sources:
            for batches in source.batches.values():
                for batch in batches:
                    batch.close()
        self.sources.clear()

    def explain(self) -> str:
        """Return, as text, which publisher sends what, by which path and why."""
        lines = [
            f"{self.bytes} bytes in {self.blocks} blocks, of {len(self.publishers)} publishers"
        ]
        for source in self.sources:
            path, why = self._path(source.link)
            size, share = int(source.share.nbytes.sum()), source.share
            lines.append(
                f"{source.publisher}: {size} bytes in {source.blocks} blocks by {path}, "
                f"because {why}"
            )
            lines += [f"  {self._piece_text(share, n)}" for n in range(len(share.row))[:_SHOWN]]
            if len(share.row) > _SHOWN:
                lines.append(f"  and {len(share.row) - _SHOWN} boxes more")
        return "\n".join(lines)

    def _piece_text(self, share: Share, number: int) -> str:
        want = self._wants[int(share.want[number])]
        low, high = share.low[:, number], share.high[:, number]
        there = slice(len(low) - len(want.tensor.shape), None)
        box = box_text(low[there].tolist(), (high - low)[there].tolist())
        return f"{want.name} {box}"

    def _path(self, link: Link) -> tuple[str, str]:
        """Return the path between a publisher's memory and that of this process, and why."""
        kind = "device" if self.on_gpu else "host"
        rows = [
            row
            for row in onehop.paths(link.peer)
            if row.operation == "put/get" and row.target == kind
        ]
        best = max(rows, key=lambda row: (row.source == kind, row.last), default=None)
        return (best.path, best.why) if best else ("no path", "the peer has none")


def _batch(
    source: Source, runs: Runs, memory: Memory, locals_: Sequence[Any], deadline: Deadline
) -> PreparedBatch:
    table = source.table
    want, row = source.share.want[runs.piece], source.share.row[runs.piece]
    ours, local_index = used_regions(memory.index[want], len(locals_))
    theirs, remote_index = used_regions(table.region[row], len(table.descriptors))
    strided = bool((runs.count > 1).any())
    return source.link.peer.prepare_get_regions(
        [locals_[number] for number in ours],
        [source.link.attach(table.descriptors[number], deadline) for number in theirs],
        local_index,
        runs.local + memory.offset[want].astype(np.int64),
        remote_index,
        runs.remote + table.offset[row].astype(np.int64),
        runs.length,
        runs.count if strided else None,
        runs.local_stride if strided else None,
        runs.remote_stride if strided else None,
    )
