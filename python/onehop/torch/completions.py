# SPDX-License-Identifier: Apache-2.0
"""Completions: a thread that handles the end of works for which no host thread waits."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import threading
import time
import weakref
from typing import TYPE_CHECKING

import onehop

if TYPE_CHECKING:
    from onehop.torch.work import Work

__all__ = ["Completions"]

_log = logging.getLogger("onehop")
_END_NOW = 1e-6  # seconds: the wait that ends a request at its deadline
_LONGEST = 3600.0  # longest sleep, in seconds
_PAUSE = 0.0002  # seconds between two polls of works that end soon
# Seconds between two polls of works that only devices wait for: waking at the end of each would
# take the interpreter lock from the program.
_GLANCE = 0.01
_CALLBACK_SECONDS = 5.0  # limit of the wait for a future's callback at the thread's end

_living: weakref.WeakSet[Completions] = weakref.WeakSet()


class Completions:
    """Completes futures, ends works at their deadline, and logs errors that no caller requests.

    The thread starts with the first work and sleeps on the endpoint's event descriptor. It ends
    before the interpreter does: a thread in a future's callback would then abort the process.
    """

    def __init__(self, endpoint: onehop.Endpoint) -> None:
        self._event = endpoint.event_fd
        self._endpoint = endpoint  # keeps the event descriptor open
        self._lock = threading.Lock()
        self._works: dict[Work, float] = {}  # with their deadlines
        self._wake: int | None = None  # eventfd of the thread, which closes it
        self._thread: threading.Thread | None = None
        self._sleeps_until = 0.0
        self._closed = False
        self._abandoned = False  # the process exits: works are not waited for
        _living.add(self)

    def watch(self, work: Work, timeout: float, *, announced: bool = True) -> None:
        """Handle the work's end; after `timeout` seconds the work is ended.

        announced: False: its end is noticed some milliseconds late, as no caller waits for it.
        onehop.Error: its end cannot be announced, since progress threads are forbidden.
        """
        now = time.monotonic()
        deadline = now + timeout
        with self._lock:
            closed = self._closed
            known = work in self._works
            if not closed:
                if self._wake is None:
                    self._start()  # it polls the works before it sleeps
                elif not announced and self._sleeps_until - now > _GLANCE:
                    os.eventfd_write(self._wake, 1)
                self._works.setdefault(work, deadline)
        if closed:
            if work.request.done:
                _tell(work)
            return
        if not announced:
            return
        try:
            work.request.arm()
        except onehop.Error:
            if not work.request.done:
                if not known:
                    with self._lock:
                        self._works.pop(work, None)
                raise
        with self._lock:
            # The work's end wakes the thread. An earlier deadline, or an end before arm(), does
            # not.
            if self._wake is not None and (deadline < self._sleeps_until or work.request.done):
                os.eventfd_write(self._wake, 1)

    def settle(self) -> None:
        """Wait for the ends of works that only devices wait for; each has its deadline."""
        while True:
            with self._lock:
                works = [work for work in self._works if work.is_enqueued]
            if all(work.request.done for work in works):
                return
            time.sleep(_PAUSE)

    def close(self) -> None:
        """Complete all works and end the thread. The communicator must be closed before."""
        self._end(abandon=False)

    def abandon(self) -> None:
        """End the thread without waiting for works: the process exits."""
        self._end(abandon=True)

    def _end(self, *, abandon: bool) -> None:
        with self._lock:
            self._closed = True
            self._abandoned = self._abandoned or abandon
            thread = self._thread
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)
        if thread is None or thread is threading.current_thread():
            return
        thread.join(_CALLBACK_SECONDS)
        if thread.is_alive():
            _log.warning(
                "onehop: the thread that completes futures has not ended for %g s: "
                "does a callback of one wait?",
                _CALLBACK_SECONDS,
            )

    def _start(self) -> None:
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        thread = threading.Thread(target=self._run, args=(wake,), name="onehop-torch", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            os.close(wake)
            raise
        self._wake, self._thread = wake, thread

    def _run(self, wake: int) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while (left := self._look()) is not None:
            poll.poll(left * 1000 + 1)
            # Cleared before the check, so that no end is missed.
            for descriptor in (self._event, wake):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)
        os.close(wake)

    def _look(self) -> float | None:
        """Handle ended works. Return the seconds to the next deadline; None: end the thread."""
        now = time.monotonic()
        with self._lock:
            works = list(self._works.items())
        for work, deadline in works:
            if self._abandoned:
                break
            request = work.request
            if not request.done:
                if now < deadline:
                    continue
                with contextlib.suppress(onehop.Error):
                    request.wait(_END_NOW)
            with self._lock:
                taken = self._works.pop(work, None)
            if taken is not None:
                _tell(work)
        with self._lock:
            if self._abandoned or (self._closed and not self._works):
                self._wake = None
                return None
            left = max(0.0, min(self._works.values(), default=now + _LONGEST) - now)
            # Works of this kind come in series: after one has ended, poll again before a long
            # sleep.
            glances = any(work.is_enqueued for work in (*self._works, *(one for one, _ in works)))
            left = min(left, _GLANCE if glances else _LONGEST)
            self._sleeps_until = now + left
            return left


def _tell(work: Work) -> None:
    """Complete the future of a work that has ended, and log its failure."""
    try:
        failure = work.tell()
    except Exception:  # from a future's callback; the remaining works must still be handled
        _log.exception("onehop: a future of a finished operation could not be completed")
        return
    if failure is not None:
        _log.warning("%s", failure)


def _abandon_all() -> None:
    for completions in list(_living):
        completions.abandon()


# A child of fork() has none of the threads, and its descriptors may be other files.
os.register_at_fork(after_in_child=_living.clear)
# Runs before onehop's handler, after which calls of other threads do not return.
atexit.register(_abandon_all)
