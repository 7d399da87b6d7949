# SPDX-License-Identifier: Apache-2.0
"""Turns: one call at a time uses a subscriber."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from onehop._core import Status
from onehop.deadline import Deadline
from onehop.errors import EndpointError, InvalidArgument
from onehop.errors import TimeoutError as OnehopTimeoutError
from onehop.weights.inquiry import Lease

__all__ = ["Turn", "Turns"]


class Turn:
    """The exclusive use of a subscriber by one call or iteration. It belongs to no thread.

    Attributes:
        what: the call, for messages.
        lease: that the call holds.

    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.lease: Lease | None = None
        # While the caller of an iteration has a part: the thread that took it.
        self.paused_by: threading.Thread | None = None


class Turns:
    """Gives turns of a subscriber. Threading: any thread; one may end what another has begun."""

    def __init__(self, name: str) -> None:
        self._name = name
        # Reentrant: the garbage collector may end an iteration in a thread that is in here.
        self._changed = threading.Condition()
        self._current: Turn | None = None
        self._closed = False

    @contextlib.contextmanager
    def take(self, what: str, deadline: Deadline) -> Iterator[Turn]:
        """Wait for the end of other calls, and take a turn for the block.

        InvalidArgument: the turn is that of an iteration which this thread advanced last, so it
        would wait for itself. TimeoutError. EndpointError with Status.CLOSED: after last().
        """
        turn = Turn(what)
        with self._changed:
            while True:
                self.refuse_if_closed()
                if self._current is None:
                    break
                if self._current.paused_by is threading.current_thread():
                    msg = (
                        f"{what} of subscriber {self._name!r} between two parts of "
                        f"{self._current.what}: first advance that to its end, or close() it"
                    )
                    raise InvalidArgument(Status.INVALID, msg)
                self._wait(turn, self._current, deadline)
            self._current = turn
        with self._given_back(turn):
            yield turn

    @contextlib.contextmanager
    def last(self, what: str, deadline: Deadline) -> Iterator[Turn | None]:
        """Refuse further turns, wait for the end of a call, and take a turn for the block.

        Yields the turn of an iteration that was paused and must be cleaned up; it ends with
        EndpointError when it is advanced. TimeoutError. May be called again.
        """
        turn = Turn(what)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while (other := self._current) is not None and other.paused_by is None:
                self._wait(turn, other, deadline)
            self._current = turn
        with self._given_back(turn):
            yield other

    @contextlib.contextmanager
    def paused(self, turn: Turn) -> Iterator[None]:
        """Mark the turn of an iteration while its caller has a part.

        EndpointError with Status.CLOSED: after last().
        """
        with self._changed:
            turn.paused_by = threading.current_thread()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                turn.paused_by = None
        self.refuse_if_closed()

    def _wait(self, turn: Turn, other: Turn, deadline: Deadline) -> None:
        if deadline.passed:
            msg = (
                f"{turn.what} of subscriber {self._name!r} waited {deadline.seconds:g} s for the "
                f"end of {other.what}"
            )
            if other.paused_by is not None:
                msg += ", which was not advanced: advance it to its end, or close() it"
            raise OnehopTimeoutError(Status.TIMEOUT, msg)
        self._changed.wait(deadline.left)

    @contextlib.contextmanager
    def _given_back(self, turn: Turn) -> Iterator[None]:
        try:
            yield
        finally:
            with self._changed:
                if self._current is turn:
                    self._current = None
                    self._changed.notify_all()

    def refuse_if_closed(self) -> None:
        """EndpointError with Status.CLOSED: after last()."""
        if self._closed:
            msg = f"subscriber {self._name!r} was closed: create another"
            raise EndpointError(Status.CLOSED, msg)
