# SPDX-License-Identifier: Apache-2.0
"""One batch over many local and many remote regions.

The core has batches of one local buffer and one remote region. Here a batch over many is a prepared
batch for each pair of them; it ends when all have ended, and its notification goes then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import onehop
from onehop import OperationError, Peer, PreparedBatch, Region, RemoteRegion, Request, Status

__all__ = ["Posted", "RegionsBatch", "prepare_regions"]

_MOST_BLOCKS = 1 << 20  # of one batch of the core

Array = npt.NDArray[np.uint64]
Index = npt.NDArray[np.uint32]


class Posted:
    """A batch in flight."""

    def __init__(self, peer: Peer, notify: bytes | None) -> None:
        self._peer = peer
        self._notify = notify
        self.requests: list[Request] = []
        self._left = self.requests
        self._failed: onehop.Error | None = None

    @property
    def done(self) -> bool:
        """Whether all parts have ended, and the notification was sent. Never raises."""
        self._left = [request for request in self._left if not request.done]
        if self._left:
            return False
        if self._notify is None or self.failure() is not None:
            return True
        try:
            self._peer.notify(self._notify, timeout=0)
        except onehop.TimeoutError:
            return False  # no room at the peer now
        except onehop.Error as failure:
            self._failed = failure
        self._notify = None
        return True

    def failure(self) -> onehop.Error | None:
        """Return what the first part that failed ended with."""
        if self._failed is None:
            for request in self.requests:
                if request.status not in (Status.OK, Status.IN_PROGRESS):
                    try:
                        request.test()
                    except onehop.Error as failure:
                        self._failed = failure
                        break
        return self._failed

    def cancel(self) -> None:
        """End all parts that can be ended; the others end by themselves."""
        self._notify = None
        for request in self._left:
            request.cancel()

    def wait(self, timeout: float) -> None:
        """Wait for the end of all parts, for so many seconds at most. Never raises."""
        with contextlib.suppress(onehop.Error):
            onehop.wait_all(self._left, timeout=timeout)

    @property
    def buffer_released(self) -> bool:
        """Whether no byte is read or written any more."""
        return all(request.buffer_released for request in self.requests)

    @property
    def paths(self) -> set[str]:
        """How the bytes travelled, once all parts have ended well."""
        return {request.message.path for request in self.requests}


class RegionsBatch:
    """Blocks between many regions, to be posted any number of times, one post at a time."""

    def __init__(self, peer: Peer, parts: list[PreparedBatch], put: bool) -> None:
        self._peer = peer
        self._parts = parts
        self._put = put

    def post(self, notify: bytes | None = None) -> Posted:
        """Move the blocks; `notify` comes after all of them. Raises if no part could be posted."""
        inside = self._put and len(self._parts) == 1
        posted = Posted(self._peer, None if inside else notify)
        for part in self._parts:
            try:
                posted.requests.append(part.post(notify=notify if inside else None, after=None))
            except OperationError as failure:
                if not posted.requests:
                    raise
                posted._failed = failure
                posted.cancel()
                break
        posted._left = posted.requests
        return posted

    def close(self) -> None:
        """Let go of all that the parts hold."""
        for part in self._parts:
            part.close()


def prepare_regions(
    peer: Peer,
    put: bool,
    locals_: Sequence[Region],
    remotes: Sequence[RemoteRegion],
    local_index: Index,
    local_offset: Array,
    remote_index: Index,
    remote_offset: Array,
    lengths: Array,
) -> RegionsBatch:
    """Prepare blocks: lengths[i] bytes between locals_[local_index[i]] and remotes[...]."""
    prepare = peer.prepare_put if put else peer.prepare_get
    parts: list[PreparedBatch] = []
    for rows in _pairs(local_index, remote_index, len(remotes)):
        local = locals_[int(local_index[rows[0]])]
        remote = remotes[int(remote_index[rows[0]])]
        for first in range(0, len(rows), _MOST_BLOCKS):
            some = rows[first : first + _MOST_BLOCKS]
            blocks = local_offset[some], remote_offset[some], lengths[some]
            parts.append(prepare(local, remote, *blocks))
    return RegionsBatch(peer, parts, put)


def _pairs(local_index: Index, remote_index: Index, remotes: int) -> list[npt.NDArray[np.intp]]:
    """Return the numbers of the blocks of each pair of regions."""
    if len(local_index) == 0:
        return []
    pair = local_index.astype(np.uint64) * np.uint64(remotes) + remote_index
    if (pair == pair[0]).all():
        return [np.arange(len(pair))]
    order = np.argsort(pair, kind="stable")
    cuts = np.flatnonzero(np.diff(pair[order])) + 1
    return np.split(order, cuts)
