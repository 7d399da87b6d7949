# SPDX-License-Identifier: Apache-2.0
"""Notifications without a transfer, over one link."""

from __future__ import annotations

import threading
from collections import deque

import onehop
from onehop import Peer, Request, Status

__all__ = ["Outbox"]

# Unsent bytes above which a sender waits. A notification counts as at least what its request takes.
_UNSENT_MAX = 64 << 20
_LEAST = 1024


class Outbox:
    """Sends in order. Notifications for which the peer has no room wait here, not in the caller.

    Threading: any thread.
    """

    def __init__(self, peer: Peer) -> None:
        # A put of no blocks: posts a notification, which stays ordered after earlier puts.
        self._put = peer.prepare_put_regions([], [], None, [], None, [], [])
        self._lock = threading.Lock()
        self._unsent: deque[tuple[Request, int]] = deque()
        self._bytes = 0
        self._failed = 0

    def send(self, message: bytes, within: dict[str, float]) -> None:
        """Send it; waits for room within the timeout if too much is on its way."""
        charge = max(len(message), _LEAST)
        with self._lock:
            while not self._has_room(charge):
                onehop.wait_any([self._unsent[0][0]], **within)
            self._post(message, charge)

    def try_send(self, message: bytes) -> bool:
        """Send it if that needs no wait for room; returns whether it did."""
        charge = max(len(message), _LEAST)
        if not self._lock.acquire(blocking=False):  # another sender waits
            return False
        try:
            if not self._has_room(charge):
                return False
            self._post(message, charge)
            return True
        finally:
            self._lock.release()

    def _post(self, message: bytes, charge: int) -> None:
        request = self._put.post(message, after=None)
        if request.status == Status.IN_PROGRESS:
            self._unsent.append((request, charge))
            self._bytes += charge
        else:
            request.test()  # raises what it failed with

    def _has_room(self, charge: int) -> bool:
        while self._unsent and self._unsent[0][0].done:
            request, size = self._unsent.popleft()
            self._bytes -= size
            self._failed += request.status != Status.OK
        return not self._unsent or self._bytes + charge <= _UNSENT_MAX

    def unsent(self) -> int:
        """Return how many notifications the end of the link has left unsent."""
        return self._failed + sum(one.status != Status.OK for one, _ in list(self._unsent))

    @property
    def empty(self) -> bool:
        """Whether all have been sent, or have failed with the link."""
        # Without the lock, which a sender keeps while it waits for room.
        return all(request.done for request, _ in list(self._unsent))
