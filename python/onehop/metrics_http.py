# SPDX-License-Identifier: Apache-2.0
"""The HTTP server of metrics_server, which imports it only where metrics are served."""

from __future__ import annotations

import errno
import logging
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING

from onehop import _core

if TYPE_CHECKING:
    from onehop.metrics_server import Place

__all__ = ["Server", "listen"]

# A reader that sends nothing is dropped after so many seconds.
READER_TIMEOUT = 10.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = logging.getLogger("onehop")


class Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD of /metrics, in a thread of its own."""

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
    """Listens at one port of the process."""

    allow_reuse_port = False  # else two ranks get the same one
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: socket.AddressFamily, host: str, port: int) -> None:
        self.address_family = family
        super().__init__((host, port), Handler)

    def server_bind(self) -> None:
        """Bind, without HTTPServer's question for the host's name, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.socket.getsockname()[:2]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say so in the log only: a reader that goes away is no error of this program."""
        logger.debug("a reader of metrics failed", exc_info=True)

    @property
    def text(self) -> str:
        """Where it listens, as HOST:PORT."""
        host = self.server_name
        return f"[{host}]:{self.server_port}" if ":" in host else f"{host}:{self.server_port}"


def listen(place: Place) -> Server:
    """Listen at the first free port. Raises OSError if there is none, or no such host."""
    found = socket.getaddrinfo(place.host, place.first, type=socket.SOCK_STREAM)
    family, _, _, _, address = found[0]
    for port in range(place.first, place.last + 1):
        try:
            return Server(family, str(address[0]), port)
        except OSError as failure:
            if failure.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, f"ports {place.first} to {place.last} are all in use")
