# SPDX-License-Identifier: Apache-2.0
"""The control messages of publishers and subscribers: notifications of their endpoints.

One thread for each endpoint sleeps until a notification arrives or a link ends, and passes it to
the publisher or subscriber concerned. So leases are granted and returned while the application
computes.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import onehop
from onehop import Endpoint, Peer, RemoteRegion, Request, Status
from onehop.deadline import Deadline
from onehop.errors import TimeoutError as OnehopTimeoutError

__all__ = ["Handler", "Hub", "Kind", "Link", "Message", "may_wait", "never_wait"]

_log = logging.getLogger("onehop.weights")

_LAYOUT = struct.Struct("<4sB3xQQQq")
_MAGIC = b"OHW\x01"
# This slot is never signalled: a request for it ends with the link, and never before.
_WATCHED_SLOT = 62
# The peer has room for the answers to all its questions: a send takes this long only if the peer is
# stopped.
_SEND_SECONDS = 1.0


_thread = threading.local()


def never_wait() -> None:
    """Mark this thread as one that others wait for: it must not wait for operations itself."""
    _thread.never_waits = True


def may_wait() -> bool:
    """Whether this thread may wait for operations. The garbage collector runs in any thread."""
    return not getattr(_thread, "never_waits", False)


class Kind(IntEnum):
    """The kind of a message. docs/integrations/weights.md describes the protocol."""

    LEASE = 1  # subscriber: request a lease of this version, or any (-1); text: its name
    GRANT = 2  # publisher: grants the lease of this version
    REFUSE = 3  # publisher: refuses; value is its version, -1 if none is readable
    CONFIRM = 4  # subscriber: all bytes were read; return the lease
    RELEASED = 5  # publisher: lease ended; value 1 if it was held throughout
    DROP = 6  # subscriber: return the lease after giving up
    WAIT = 7  # subscriber: notify me of a version not below this one; text: its name
    VERSION = 8  # publisher: this version is readable
    GONE = 9  # hub: this token has no publisher here any more


@dataclass(frozen=True)
class Message:
    """A control message.

    Attributes:
        target: token of the publisher or subscriber that receives it.
        sender: token of the one that sent it.
        request: number of the question; its answer has the same.

    """

    kind: Kind
    target: int
    sender: int
    request: int
    value: int = 0
    text: str = ""

    def pack(self) -> bytes:
        """Return the bytes that unpack() reads."""
        head = (int(self.kind), self.target, self.sender, self.request, self.value)
        return _LAYOUT.pack(_MAGIC, *head) + self.text.encode()


def unpack(data: bytes) -> Message | None:
    """Return the message in the bytes; None if they are not a control message."""
    if len(data) < _LAYOUT.size:
        return None
    magic, kind, target, sender, request, value = _LAYOUT.unpack_from(data)
    try:
        text = data[_LAYOUT.size :].decode()
        return (
            Message(Kind(kind), target, sender, request, value, text) if magic == _MAGIC else None
        )
    except ValueError:
        return None


class Link:
    """A connection to another endpoint. Threading: any thread."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.watch: Request = peer.signal_ready(_WATCHED_SLOT)
        self.attached: dict[bytes, RemoteRegion] = {}

    @property
    def lost(self) -> bool:
        """Whether the link has ended."""
        return self.watch.status != Status.IN_PROGRESS

    def send(self, message: Message) -> None:
        """Send a message. onehop.Error: the link has ended, or the other side is stopped."""
        self.peer.notify(message.pack(), timeout=_SEND_SECONDS)

    def attach(self, descriptor: bytes, deadline: Deadline) -> RemoteRegion:
        """Return a region of the other side. TimeoutError: the other side is stopped."""
        if descriptor not in self.attached:
            self.attached[descriptor] = self.peer.attach(descriptor, deadline.left)
        return self.attached[descriptor]


class Handler(Protocol):
    """A publisher or subscriber. The hub's thread calls it; the calls must not block."""

    def received(self, link: Link, message: Message) -> None:
        """Receive a message."""

    def link_ended(self, link: Link) -> None:
        """Handle the end of a link of the endpoint: no more messages arrive over it."""

    def hub_ended(self) -> None:
        """Handle the end of the endpoint: no more messages arrive."""


class Hub:
    """The notifications and links of one endpoint, shared by its publishers and subscribers.

    Threading: any thread. The hub lives until the last of them has left.
    """

    _lock = threading.Lock()
    _hubs: dict[int, Hub] = {}  # noqa: RUF012 - by id(endpoint), which the hub keeps alive

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._own = threading.RLock()  # never held during a wait
        self._connecting = threading.Lock()
        self._handlers: dict[int, Handler] = {}
        self._links: dict[int, Link] = {}  # by the number of the peer
        self._by_address: dict[bytes, Link] = {}
        self._ready: Request | None = None
        self._closed = False
        self._told_foreign = False
        self._thread = threading.Thread(target=self._run, name="onehop-weights", daemon=True)
        self._thread.start()

    @classmethod
    def join(cls, endpoint: Endpoint, token: int, handler: Handler) -> Hub:
        """Pass messages for this token to the handler from now on."""
        with cls._lock:
            hub = cls._hubs.get(id(endpoint))
            if hub is None or hub.closed:
                hub = cls._hubs[id(endpoint)] = Hub(endpoint)
            with hub._own:
                hub._handlers[token] = handler
            return hub

    def leave(self, token: int) -> None:
        """Stop passing messages to a handler. The last one to leave closes the links."""
        with self._lock:
            with self._own:
                self._handlers.pop(token, None)
                if self._handlers:
                    return
                self._closed = True
                self._accept()
                links, self._links = list(self._links.values()), {}
            if self._hubs.get(id(self.endpoint)) is self:
                del self._hubs[id(self.endpoint)]
            # Another hub of this endpoint may start only when this one receives nothing any more.
            self._wake()
            self._thread.join(2 * _SEND_SECONDS)
        for link in links:
            with contextlib.suppress(onehop.Error):
                link.watch.cancel()
                link.peer.close()

    @property
    def closed(self) -> bool:
        """Whether the hub has ended."""
        return self._closed

    def connect(self, address: bytes, deadline: Deadline) -> Link:
        """Return the link to the endpoint with this address. The first use connects."""
        with self._one_connects(deadline):
            known = self._by_address.get(address)
            if known is not None and not known.lost:
                return known
            link = Link(self.endpoint.connect(address, timeout=deadline.left))
            with self._own:
                self._by_address[address] = self._links[link.peer.id] = link
        self._wake()
        return link

    @contextlib.contextmanager
    def _one_connects(self, deadline: Deadline) -> Iterator[None]:
        if not self._connecting.acquire(timeout=-1 if deadline.left is None else deadline.left):
            msg = (
                f"a connect to a publisher waited {deadline.seconds:g} s for another connect of "
                "the same endpoint: is a publisher of another subscriber stopped?"
            )
            raise OnehopTimeoutError(Status.TIMEOUT, msg)
        try:
            yield
        finally:
            self._connecting.release()

    # ---- The thread

    def _wake(self) -> None:
        """Make the thread examine the links again."""
        ready = self._ready
        if ready is not None:
            with contextlib.suppress(onehop.Error):
                ready.cancel()

    def _run(self) -> None:
        never_wait()
        while not self._closed:
            try:
                self._ready = ready = self.endpoint.notification_ready()
                arrived = self.endpoint.accept_ready()
                with self._own:
                    watches = [link.watch for link in self._links.values()]
                if self._closed:
                    break
                onehop.wait_any([ready, arrived, *watches], timeout=None)
                if not self._closed:
                    self._collect()
            except onehop.Error as failure:
                # A closed endpoint is no failure: the interpreter's exit closes all endpoints.
                ended = failure.status in (Status.CANCELLED, Status.CLOSED)
                if not self._closed and not ended:
                    _log.warning("leases of an endpoint end, for its thread does: %s", failure)
                break
            except Exception:
                # Waiting callers get an error instead of hanging.
                _log.exception("leases of an endpoint end, for its thread fails")
                break
        self._closed = True
        for handler in self._all_handlers():
            handler.hub_ended()

    def _all_handlers(self) -> list[Handler]:
        with self._own:
            return list(self._handlers.values())

    def _collect(self) -> None:
        self._accept()
        # Ended links first, then notifications: those that arrived over an ended link are all
        # there.
        with self._own:
            ended = [(number, link) for number, link in self._links.items() if link.lost]
        for source, data in self.endpoint.notifications():
            self._sort(source, data)
        for number, link in ended:
            with self._own:
                self._links.pop(number, None)
                for address in [key for key, one in self._by_address.items() if one is link]:
                    del self._by_address[address]
            for handler in self._all_handlers():
                handler.link_ended(link)

    def _sort(self, source: int, data: bytes) -> None:
        message = unpack(data)
        link = self._link_of(source)
        if message is None:
            if not self._told_foreign:
                self._told_foreign = True
                _log.warning(
                    "a notification of %d bytes is none of onehop.weights': an endpoint of a "
                    "Publisher or Subscriber is for them alone",
                    len(data),
                )
            return
        if link is None:
            return  # the link has ended, so its sender does not wait any more
        with self._own:
            handler = self._handlers.get(message.target)
        if handler is not None:
            handler.received(link, message)
        elif message.kind in (Kind.LEASE, Kind.WAIT, Kind.CONFIRM):
            self.answer(link, Message(Kind.GONE, message.sender, message.target, message.request))

    def answer(self, link: Link, message: Message) -> None:
        """Send a message to a peer that may have ended."""
        try:
            link.send(message)
        except onehop.Error as failure:
            _log.info("no answer (%s) to %r: %s", message.kind.name, link.peer, failure)

    def _link_of(self, source: int) -> Link | None:
        """Return the link of a peer."""
        with self._own:
            if source not in self._links:
                self._accept()
            return self._links.get(source)

    def _accept(self) -> None:
        """Accept the links that have arrived."""
        with self._own, contextlib.suppress(onehop.Error):
            while True:  # until there are no more
                peer = self.endpoint.accept(timeout=0)
                self._links[peer.id] = Link(peer)
