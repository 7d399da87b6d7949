# SPDX-License-Identifier: Apache-2.0
"""Incoming messages of an agent: the names of its peers, and notifications."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque

import onehop
from onehop import Endpoint, Peer, Request, Status
from onehop.nixl.errors import translated, unless_closed

__all__ = ["HELLO", "NOTE", "Inbox", "watch_link"]

# The first byte of each onehop notification.
HELLO, NOTE = b"\x00", b"\x01"

# Limit, in bytes, of notifications that arrive before their sender's name. The name is the first
# message on each link.
_UNNAMED_MAX = 1 << 20

_log = logging.getLogger("onehop.nixl")
_WATCHED_SLOT = 63


def watch_link(peer: Peer) -> Request:
    """Return a request that ends with the link, and never before: agents do not use signals."""
    return peer.signal_ready(_WATCHED_SLOT)


class Inbox:
    """Collects messages from the endpoints of one agent, with a thread for each endpoint.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._endpoints: list[Endpoint] = []
        self._names: dict[int, str] = {}
        self._links: dict[int, tuple[Endpoint, Peer, Request]] = {}
        self._unnamed: dict[int, list[bytes]] = {}
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._look_again: dict[int, float] = {}  # by id() of the endpoint
        self.closed = False

    def watch(self, endpoint: Endpoint) -> None:
        """Collect from this endpoint until it is closed."""
        with self._lock:
            self._endpoints.append(endpoint)
        name = "onehop-nixl"
        threading.Thread(target=self._listen, args=(endpoint,), name=name, daemon=True).start()

    def take(self) -> list[tuple[str, bytes]]:
        """Return the messages received since the last call: the sender's name and the bytes."""
        with self._lock, translated("collect notifications"):
            if self.closed:
                self._drop()
            for endpoint in self._endpoints:
                self._collect(endpoint)
            found = list(self._arrived)
            self._arrived.clear()
        return found

    def close(self) -> None:
        """Stop the threads; the owner closes the endpoints.

        Takes no lock. A finalizer calls it: in a thread that may hold the lock, or in a child of
        fork() whose parent had another thread that held it.
        """
        self.closed = True

    def _drop(self) -> None:
        self._endpoints.clear()
        self._links.clear()

    def _listen(self, endpoint: Endpoint) -> None:
        """Sleep until a notification arrives, collect all, repeat. Makes progress, too."""
        while not self.closed:
            try:
                endpoint.notification_ready().wait(timeout=None)
            except onehop.Error as failure:
                if self.closed:
                    break
                # A closed endpoint is no failure: the interpreter's exit closes all endpoints.
                if failure.status not in (Status.CANCELLED, Status.CLOSED):
                    _log.warning("notifications are only seen when they are asked for: %s", failure)
                return
            with self._lock, contextlib.suppress(onehop.Error):
                if not self.closed:
                    self._collect(endpoint)
        with self._lock:
            self._drop()

    def _collect(self, endpoint: Endpoint) -> None:
        # Ended links first: all notifications that arrived over them are collected below.
        ended = self._ended(endpoint)
        for source, data in endpoint.notifications():
            self._sort(endpoint, source, data)
        for number in ended:
            # Closed explicitly: a thread that waits on the endpoint may keep another reference.
            _, peer, _ = self._links.pop(number)
            with unless_closed():
                peer.close()
            self._names.pop(number, None)
            self._unnamed.pop(number, None)

    def _ended(self, endpoint: Endpoint) -> list[int]:
        """Return the links of an endpoint that have ended; checks them once a second."""
        now = time.monotonic()
        if now < self._look_again.get(id(endpoint), 0.0):
            return []
        self._look_again[id(endpoint)] = now + 1
        return [
            number
            for number, (of, _, watch) in self._links.items()
            if of is endpoint and watch.status != Status.IN_PROGRESS
        ]

    def _sort(self, endpoint: Endpoint, source: int, data: bytes) -> None:
        kind, rest = data[:1], data[1:]
        if kind == NOTE:
            if source in self._names:
                self._arrived.append((self._names[source], rest))
                return
            waiting = self._unnamed.setdefault(source, [])
            if sum(map(len, waiting)) + len(rest) <= _UNNAMED_MAX:
                waiting.append(rest)
        elif kind == HELLO:
            name = rest.decode(errors="replace")
            self._names[source] = name
            self._arrived.extend((name, note) for note in self._unnamed.pop(source, []))
            self._accept(endpoint)

    def _accept(self, endpoint: Endpoint) -> None:
        """Accept the links that have arrived."""
        try:
            while True:
                peer = endpoint.accept(timeout=0)
                self._links[peer.id] = (endpoint, peer, watch_link(peer))
        except onehop.Error:
            return  # there are no more
