# SPDX-License-Identifier: Apache-2.0
"""Calls that may wait for another process: a thread makes them, so the caller does not wait."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

__all__ = ["CallQueue", "NotYet"]

# Seconds that a caller waits for the first call in the queue, so that the caller itself gets the
# error if the other process answers soon.
_PROMPT = 0.1

_log = logging.getLogger("onehop.nixl")


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
        try:
            self._call(True)
        except Exception as failure:
            self.end(failure)
        else:
            self.end(None)

    def end(self, failure: Exception | None) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
            if self._awaited:
                self._failure = failure
                return
        if failure is None:
            return
        try:
            self._late(failure)
        except Exception:
            _log.exception("the error of a deferred call was not reported: %s", failure)

    def wait(self, seconds: float) -> None:
        """Wait up to so many seconds for the end; raises the error of the call if it has failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)
            self._awaited = False
            failure, self._failure = self._failure, None
        try:
            if failure is not None:
                raise failure
        finally:
            del failure  # its traceback refers to this frame


class CallQueue:
    """A queue of calls, and a thread that runs while there are any.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Call] = deque()
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether all calls have ended."""
        thread = self._thread
        return thread is None or not thread.is_alive()  # a child of fork() does not have the thread

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

    def fail_queued(self, failure: Callable[[], Exception]) -> None:
        """End all calls in the queue with an error each; the call that runs goes on."""
        with self._lock:
            calls = list(self._queue)
            self._queue.clear()
        for one in calls:
            one.end(failure())

    def _add(self, queued: _Call) -> None:
        with self._lock:
            self._queue.append(queued)
            if not self.idle:
                return
            thread = threading.Thread(target=self._work, name="onehop-nixl-reach", daemon=True)
            try:
                thread.start()  # the thread needs the lock first
            except RuntimeError:  # the interpreter exits
                pass
            else:
                self._thread = thread
                return
        self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                queued = self._queue.popleft()
            queued.run()
            del queued  # it may hold the last reference to an agent
