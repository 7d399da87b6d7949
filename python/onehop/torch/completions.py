# SPDX-License-Identifier: Apache-2.0
"""Completions: a thread that sees works end which nobody waits for on the host."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from typing import TYPE_CHECKING

import onehop

if TYPE_CHECKING:
    from onehop.torch.work import Work

__all__ = ["Completions"]

_log = logging.getLogger("onehop")
_END_NOW = 1e-6  # seconds: at its deadline a request is ended by a wait that is over


class Completions:
    """Completes futures, ends works at their deadline, and logs what nobody asks for.

    The thread begins with the first work and sleeps on the endpoint's event descriptor.
    """

    def __init__(self, endpoint: onehop.Endpoint) -> None:
        self._event = endpoint.event_fd
        self._endpoint = endpoint  # the descriptor is its
        self._lock = threading.Lock()
        self._works: dict[Work, float] = {}
        self._wake = -1
        self._closed = False

    def watch(self, work: Work, timeout: float) -> None:
        """See to the work's end; at the latest in so many seconds it is ended."""
        with self._lock:
            if work in self._works:
                return
            self._works[work] = time.monotonic() + timeout
            if self._wake < 0 and not self._closed:
                self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
                threading.Thread(target=self._run, name="onehop-torch", daemon=True).start()
        if not self._closed:
            with contextlib.suppress(onehop.Error):  # closed meanwhile: it has ended
                work.request.arm()
            self._ring()
        else:
            self._look()

    def close(self) -> None:
        """After the communicator is closed, which ends all works: complete them, end the thread."""
        with self._lock:
            self._closed = True
        self._ring()

    def _ring(self) -> None:
        with self._lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._event, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            left = self._look()
            if left is None:
                return
            poll.poll(min(left, 3600.0) * 1000 + 1)
            # Cleared before the look, so that no end is missed.
            for descriptor in (self._event, self._wake):
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(descriptor)

    def _look(self) -> float | None:
        """Take those that have ended. Return the seconds to the next deadline; None: the end."""
        now = time.monotonic()
        with self._lock:
            works = list(self._works.items())
        for work, deadline in works:
            request = work.request
            if not request.done:
                if now < deadline:
                    continue
                with contextlib.suppress(onehop.Error):
                    request.wait(_END_NOW)
            with self._lock:
                self._works.pop(work, None)
            failure = work.tell()
            if failure is not None:
                _log.warning("%s", failure)
        with self._lock:
            if self._closed and not self._works:
                if self._wake >= 0:
                    os.close(self._wake)
                    self._wake = -1
                return None
            return max(0.0, min(self._works.values(), default=now + 3600.0) - now)
