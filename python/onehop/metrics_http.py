# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of metrics_server, which imports it only if metrics are served."""

from __future__ import annotations

import errno
import logging
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING, Any

from onehop import _core

if TYPE_CHECKING:
    from onehop.metrics_server import Place

__all__ = ["Server", "listen"]

# A client that sends nothing is dropped after this many seconds.
READER_TIMEOUT = 10.0
# Seconds without accept after one that failed, for example because no descriptor is free: the
# connection remains pending, so the next one would fail at once.
ACCEPT_PAUSE = 0.1
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("onehop")


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics, in a thread for each connection."""

    timeout = READER_TIMEOUT
    server_version = "onehop"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "there is only /metrics")
            return
        body = _core.prometheus().encode()
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        logger.debug(format, *arguments)


class Server(ThreadingHTTPServer):
    """Listens on one port of the process."""

    allow_reuse_port = False  # otherwise two ranks get the same port
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, family: socket.AddressFamily, host: str, port: int, stopped: threading.Event
    ) -> None:
        self.address_family = family
        self.stopped = stopped
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind without HTTPServer's lookup of the host's name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. After a failure pause, unless it is stop() that ended accept."""
        try:
            return super().get_request()
        except OSError as failure:
            if not self.stopped.is_set():
                logger.debug("accept of a reader of metrics at %s: %s", self.text, failure)
                self.stopped.wait(ACCEPT_PAUSE)
            raise

    def handle_error(self, request: object, client_address: object) -> None:
        """Log it at debug level only: a client that disconnects is not an error of the program."""
        logger.debug("a reader of metrics failed", exc_info=True)

    @property
    def text(self) -> str:
        """The address, as HOST:PORT."""
        host = self.server_name
        return f"[{host}]:{self.server_port}" if ":" in host else f"{host}:{self.server_port}"


def listen(place: Place, stopped: threading.Event) -> Server:
    """Listen on the first free port. Raises OSError if none is free, or the host is unknown.

    stopped: set before the socket is shut down.
    """
    found = socket.getaddrinfo(place.host, place.first, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    for port in range(place.first, place.last + 1):
        try:
            return Server(family, str(address[0]), port, stopped)
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {place.first} to {place.last} are all in use")
