# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of this process over HTTP where ONEHOP_METRICS says so.

Python does it, not the library: a C or C++ program that has a server hands out oh_metrics_text() by
that, and one that has none gets neither a thread nor an open port by linking onehop.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from onehop.metrics_http import Server

__all__ = ["Place", "address", "parse", "start", "stop"]

VARIABLE = "ONEHOP_METRICS"
FORM = "HOST:PORT or HOST:FIRST-LAST (127.0.0.1:9400-9407, [::1]:9400; without HOST: 127.0.0.1)"
LOCAL = "127.0.0.1"
_PLACE = re.compile(r"(?:(\[[^\[\]]+\]|[^:\[\]\s]*):)?(\d{1,5})(?:-(\d{1,5}))?", re.ASCII)

logger = logging.getLogger("onehop")


class Place(NamedTuple):
    """A host, and the ports of which the first free one is taken."""

    host: str
    first: int
    last: int


def parse(text: str) -> Place:
    """Read a value of ONEHOP_METRICS. Raises ValueError, which names the value and the form."""
    if match := _PLACE.fullmatch(text):
        host, first, last = match.groups()
        place = Place((host or LOCAL).strip("[]"), int(first), int(last or first))
        if 1 <= place.first <= place.last <= 65535:
            return place
    raise ValueError(f"{VARIABLE}={text}: expected {FORM}; ports are 1 to 65535, ascending")


class _Service:
    """The server of this process, in a thread of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.server: Server | None = None
        self.decided = threading.Event()  # it listens, or never will
        self.stopped = False
        self.thread = threading.Thread(target=self._run, name="onehop-metrics", daemon=True)

    def _run(self) -> None:
        # The import of onehop waits neither for http.server nor for the resolution of a name.
        from onehop import metrics_http

        try:
            self.server = metrics_http.listen(self.place)
        except OSError as failure:
            value = os.environ.get(VARIABLE)
            logger.warning("%s=%s: metrics are not served: %s", VARIABLE, value, failure)
            return
        finally:
            self.decided.set()
        logger.info("metrics are served at http://%s/metrics", self.server.text)
        while not self.stopped:
            self.server.handle_request()
        self.server.server_close()

    def stop(self) -> None:
        self.stopped = True
        if self.server is None:
            return
        with contextlib.suppress(OSError):  # closed already
            self.server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.thread.join(1.0)


_service: _Service | None = None


def start() -> None:
    """Serve /metrics if ONEHOP_METRICS is set; the import of onehop has called it.

    A value of another form is a warning of the logger "onehop", and so is a range without a free
    port: neither stops a program. A child of fork() serves nothing until it calls this.
    """
    global _service
    text = os.environ.get(VARIABLE)
    if not text or _service is not None:
        return
    try:
        place = parse(text)
    except ValueError as failure:
        logger.warning("%s; metrics are not served", failure)
        return
    _service = _Service(place)
    _service.thread.start()


def stop() -> None:
    """Serve no more. Called at exit."""
    global _service
    if _service is not None:
        _service.stop()
        _service = None


def address(timeout: float = 10.0) -> str | None:
    """Where the metrics are served, as "127.0.0.1:9400"; None: nowhere.

    timeout: seconds to wait for a server that is about to start.
    """
    service = _service
    if service is None or not service.decided.wait(timeout) or service.server is None:
        return None
    return service.server.text


def _in_child() -> None:
    """Let the parent's socket go: the thread that serves is not here, and stop() would end it."""
    global _service
    if _service is not None and _service.server is not None:
        _service.server.socket.close()
    _service = None


os.register_at_fork(after_in_child=_in_child)
atexit.register(stop)
