# SPDX-License-Identifier: Apache-2.0
"""The publisher's side of the protocol: the subscribers that may read, and their version."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass

from onehop._core import Status
from onehop.deadline import Deadline
from onehop.errors import EndpointError, InvalidArgument
from onehop.errors import TimeoutError as OnehopTimeoutError
from onehop.weights.hub import Hub, Kind, Link, Message
from onehop.weights.table import NAME_MAX

__all__ = ["ANY", "NONE", "LeaseBook"]

ANY = -1  # a lease of the current version, whatever it is
NONE = -1  # no readable version
_Key = tuple[Link, int, int]  # link, subscriber's token, request


@dataclass
class _Lease:
    subscriber: str
    version: int


@dataclass(frozen=True)
class _Waiter:
    at_least: int
    message: Message


class LeaseBook:
    """The state of one publisher: OPEN, where it grants leases, or WRITING, where it grants none.

        WRITING --commit(version)--> OPEN --begin: no new leases, wait for the end of all--> WRITING
                                      ^----------------- deadline -----------------'

    A lease ends with CONFIRM or DROP of its subscriber, with its link, or by evict(). All state
    changes under one lock. Threading: any thread.
    """

    def __init__(self, name: str, token: int) -> None:
        self._name = name
        self._token = token
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leases: dict[_Key, _Lease] = {}
        self._waiters: dict[_Key, _Waiter] = {}
        self._version = NONE
        self._open = False
        self._writing = True
        self._ended = False
        self.hub: Hub | None = None

    # ---- The publisher's calls

    @property
    def version(self) -> int | None:
        """The last committed version, or None."""
        with self._lock:
            return None if self._version == NONE else self._version

    def held(self) -> dict[str, int]:
        """Return the version that each subscriber holds."""
        with self._lock:
            return {lease.subscriber: lease.version for lease in self._leases.values()}

    def begin(self, deadline: Deadline) -> None:
        """Grant no more leases and wait until none is held: see Publisher.begin."""
        with self._changed:
            if self._writing:
                return
            self._open = False
            while self._leases and not self._ended and not deadline.passed:
                self._changed.wait(deadline.left)
            if self._ended:
                raise _closed(self._name)
            if self._leases:
                self._open = True
                text = self._holders(deadline)
            else:
                self._writing = True
                return
        # Subscribers that were refused meanwhile may wait for a version.
        self._tell()
        raise OnehopTimeoutError(Status.TIMEOUT, text)

    def _holders(self, deadline: Deadline) -> str:
        holders = sorted(
            f"{one.subscriber!r} (version {one.version})" for one in self._leases.values()
        )
        return (
            f"begin() of publisher {self._name!r} waited {deadline.seconds:g} s for the leases of "
            f"{', '.join(holders)}; version {self._version} can still be read. Call begin() again, "
            "or evict() those that hang"
        )

    def commit(self, version: int) -> None:
        """Make this version readable."""
        with self._lock:
            self.check(version)
            self._version, self._open, self._writing = version, True, False
        self._tell()

    def check(self, version: int) -> None:
        """Raise if this version cannot be committed now."""
        if self._ended:
            raise _closed(self._name)
        if not self._writing:
            msg = f"commit({version}) of publisher {self._name!r} without begin(): call that first"
            raise InvalidArgument(Status.INVALID, msg)
        if not self._version < version < 1 << 63:
            msg = (
                f"commit({version}) of publisher {self._name!r}, whose last version is "
                f"{self._version}: versions are integers from 0 on, each greater than the last"
            )
            raise InvalidArgument(Status.INVALID, msg)

    def evict(self, subscriber: str) -> bool:
        """End the leases of a subscriber. Return whether it held any."""
        with self._changed:
            found = [key for key, one in self._leases.items() if one.subscriber == subscriber]
            for key in found:
                del self._leases[key]
            self._changed.notify_all()
        return bool(found)

    # ---- The hub's calls

    def received(self, link: Link, message: Message) -> None:
        """Answer a subscriber."""
        key = (link, message.sender, message.request)
        answer: tuple[Kind, int] | None = None
        with self._changed:
            if message.kind == Kind.LEASE:
                answer = self._lease(key, message)
            elif message.kind in (Kind.CONFIRM, Kind.DROP):
                held = self._leases.pop(key, None) is not None
                self._waiters.pop(key, None)
                self._changed.notify_all()
                if message.kind == Kind.CONFIRM:
                    answer = Kind.RELEASED, int(held)
            elif message.kind == Kind.WAIT:
                self._waiters[key] = _Waiter(message.value, message)
        if answer is not None:
            self._answer(link, message, *answer)
        elif message.kind == Kind.WAIT:
            self._tell()

    def _lease(self, key: _Key, message: Message) -> tuple[Kind, int]:
        if not self._open or message.value not in (ANY, self._version):
            return Kind.REFUSE, self._version if self._open else NONE
        self._leases[key] = _Lease(message.text[:NAME_MAX], self._version)
        return Kind.GRANT, self._version

    def link_ended(self, link: Link) -> None:
        """End the leases of a lost subscriber."""
        with self._changed:
            for kept in (self._leases, self._waiters):
                for key in [key for key in kept if key[0] is link]:
                    del kept[key]
            self._changed.notify_all()

    def hub_ended(self) -> None:
        """End all waits: the endpoint was closed."""
        with self._changed:
            self._ended = True
            self._leases.clear()
            self._changed.notify_all()

    def _tell(self) -> None:
        """Answer the subscribers that wait for a version which now exists."""
        with self._lock:
            if not self._open:
                return
            version = self._version
            ready = [(key, one) for key, one in self._waiters.items() if one.at_least <= version]
            for key, _ in ready:
                del self._waiters[key]
        for (link, _, _), waiter in ready:
            self._answer(link, waiter.message, Kind.VERSION, version)

    def _answer(self, link: Link, message: Message, kind: Kind, value: int) -> None:
        if self.hub is not None:
            back = Message(kind, message.sender, self._token, message.request, value)
            self.hub.answer(link, back)

    def close(self) -> None:
        """Grant no more leases."""
        with contextlib.suppress(RuntimeError):
            self.hub_ended()


def _closed(name: str) -> EndpointError:
    return EndpointError(
        Status.CLOSED, f"publisher {name!r} or its endpoint was closed: create another"
    )
