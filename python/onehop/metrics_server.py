# SPDX-License-Identifier: Apache-2.0
"""Serves the metrics of this process over HTTP if ONEHOP_METRICS is set.

The Python package serves them, not the library: a C or C++ program with a server of its own returns
oh_metrics_text() there, and linking onehop starts no thread and opens no port.
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
    """A host and a range of ports; the first free port is used."""

    host: str
    first: int
    last: int


def parse(text: str) -> Place:
    """Parse a value of ONEHOP_METRICS. Raises ValueError, which names the value and the form."""
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
        self.decided = threading.Event()  # set once it listens, or has failed to
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._run, name="onehop-metrics", daemon=True)

    def _run(self) -> None:
        # `import onehop` must wait neither for http.server nor for a name lookup.
        from onehop import metrics_http

        try:
            self.server = metrics_http.listen(self.place, self.stopped)
        except OSError as failure:
            value = os.environ.get(VARIABLE)
            logger.warning("%s=%s: metrics are not served: %s", VARIABLE, value, failure)
            return
        finally:
            self.decided.set()
        logger.info("metrics are served at http://%s/metrics", self.server.text)
        while not self.stopped.is_set():
            self.server.handle_request()
        self.server.server_close()

    def stop(self) -> None:
        self.stopped.set()
        if self.server is None:
            return
        with contextlib.suppress(OSError):  # closed already
            self.server.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self.thread.join(1.0)


_service: _Service | None = None


def start() -> None:
    """Serve /metrics if ONEHOP_METRICS is set. `import onehop` calls this.

    An invalid value, or a range without a free port, is a warning of the logger "onehop"; the
    program continues. A child of fork() serves nothing until it calls this.
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
    """Stop serving. Called at exit."""
    global _service
    if _service is not None:
        _service.stop()
        _service = None


def address(timeout: float = 10.0) -> str | None:
    """Return the address that serves the metrics, as "127.0.0.1:9400"; None: not served.

    timeout: seconds to wait for a server that is starting.
    """
    service = _service
    if service is None or not service.decided.wait(timeout) or service.server is None:
        return None
    return service.server.text


def _in_child() -> None:
    """Close the inherited socket: only the parent serves, and stop() would end its thread."""
    global _service
    if _service is not None and _service.server is not None:
        _service.server.socket.close()
    _service = None


os.register_at_fork(after_in_child=_in_child)
atexit.register(stop)
