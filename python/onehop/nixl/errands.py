# SPDX-License-Identifier: Apache-2.0
"""Calls that wait for another process, made in a thread of their own, so that callers do not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

__all__ = ["Errands", "NotYet"]

# Seconds that a caller waits for the end of what is first in the queue: failures are told by the
# call itself then, where the other process answers at all.
_PROMPT = 0.1


class NotYet(Exception):
    """The call would wait for another process."""


class _Errand:
    """One call, and who is told that it failed: the caller that waits for it, or `late`."""

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
        """Wait for the end up to so long; raises what it failed with by then."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended, seconds)
            self._awaited = self._ended
        if self._failure is not None:
            raise self._failure


class Errands:
    """A queue of calls, and a thread that lives while there are any.

    Threading: any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: deque[_Errand] = deque()
        self._busy = False

    @property
    def idle(self) -> bool:
        """Whether all calls have ended."""
        return not self._busy

    def run(self, call: Callable[[bool], None], late: Callable[[Exception], None]) -> None:
        """Make a call behind those in the queue; here and now if there is none.

        The call gets whether it may wait for another process. One that may not, and would, raises
        NotYet, and goes to the queue. late: gets a failure that this did not raise.
        """
        first = self.idle
        if first:
            try:
                call(False)
            except NotYet:
                pass
            else:
                return
        errand = _Errand(call, late)
        if not first:
            errand.wait(0)
        self._add(errand)
        if first:
            errand.wait(_PROMPT)

    def _add(self, errand: _Errand) -> None:
        with self._lock:
            self._queue.append(errand)
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
                errand = self._queue.popleft()
            errand.run()
            del errand  # it may be the last to know an agent
