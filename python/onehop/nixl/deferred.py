# SPDX-License-Identifier: Apache-2.0
"""Calls that may wait for another process: a thread makes them, so the caller does not wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["CallQueue", "NotYet"]

# Seconds that a caller waits for the first call in the queue, so that the caller itself gets the
# error if the other process answers soon.
_PROMPT = 0.1


class NotYet(Exception):
    """The call would have to wait for another process."""


class _Call:
    """One call. Its error goes to the caller that waits for it, else to `late`."""

    def __init__(self, call: Callable[[bool], None], late: Callable[[Exception], None]) -> None:
        self._call = call
        self._late = late
        self._changed = threading.Condition()
        self._awaited = True
        self._ended = False
        self._failure: Exception | None = None

    def run(self) -> None:
        failure: Exception | None = None
        try:
            self._call(True)
        except Exception as caught:
            failure = caught
        with self._changed:
            self._ended, self._failure = True, failure
            self._changed.notify()
            awaited = self._awaited
        if failure is not None and not awaited:
            self._late(failure)

    def wait(self, seconds: float) -> None:
        """Wait up to so many seconds for the end; raises the error of the call if it has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)
            self._awaited = self._ended
        if self._failure is not None:
            raise self._failure


class CallQueue:
    """A queue of calls, and a thread that runs while there are any.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Call] = deque()
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether all calls have ended."""
        return not self._busy

    def run(self, call: Callable[[bool], None], late: Callable[[Exception], None]) -> None:
        """Make a call after those in the queue; in this thread if there are none.

        call: its argument says whether it may wait for another process. If it may not and would
        have to, it raises NotYet and is queued. late: gets an error that run() did not raise.
        """
        first = self.idle
        if first:
            try:
                call(False)
            except NotYet:
                pass
            else:
                return
        queued = _Call(call, late)
        if not first:
            queued.wait(0)
        self._add(queued)
        if first:
            queued.wait(_PROMPT)

    def _add(self, queued: _Call) -> None:
        with self._lock:
            self._queue.append(queued)
            if self._busy:
                return
            self._busy = True
        try:
            threading.Thread(target=self._work, name="onehop-nixl-reach", daemon=True).start()
        except RuntimeError:  # the interpreter ends
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._busy = False
                    return
                queued = self._queue.popleft()
            queued.run()
            del queued  # it may hold the last reference to an agent
