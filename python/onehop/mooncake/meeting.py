# SPDX-License-Identifier: Apache-2.0
"""How an engine gets another's metadata, given only its session: host and port.

Both sides prove that they know the key, which is derived from ONEHOP_SECRET:

    asking engine                                   engine of the session

      magic 8, nonce 32                         -->
                                                <--  magic 8, nonce 32, MAC('S') 32
      MAC('R') 32                               -->
                                                <--  size 4, MAC('D') 32, metadata

    MAC(role) = HMAC-SHA256(key, role | magic and nonce | the reply's nonce | with 'D' metadata)
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import ipaddress
import logging
import os
import re
import secrets
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable

import onehop
from onehop.mooncake.errors import Code, Failure

__all__ = ["Server", "ask", "host_of", "parse_session"]

_log = logging.getLogger("onehop.mooncake")

_MAGIC = b"OHMOON\x00\x01"  # the last byte is the version
_NONCE = 32
_MAC = 32
_SIZE = struct.Struct("<I")
_MOST = 64 << 20  # bytes of metadata
_MOST_STRANGERS = 64  # concurrent connections; one more closes the oldest
_SESSION = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^:\[\]\s/]+)):(\d{1,5})", re.ASCII)


def parse_session(session: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[IPv6]:port"."""
    found = _SESSION.fullmatch(session)
    if found is None or not 0 < int(found[3]) < 1 << 16:
        msg = f"{session!r} is no session: give host:port, or [IPv6 address]:port"
        raise Failure(msg)
    return found[1] or found[2], int(found[3])


def host_of(hostname: str) -> str:
    """Return the host part of initialize()'s hostname; a port after it is ignored."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(hostname.strip("[]")))
    if found := _SESSION.fullmatch(hostname):
        return found[1] or found[2]
    if hostname and _SESSION.fullmatch(f"{hostname}:1"):
        return hostname
    msg = f"{hostname!r} is no host: give the name or address that peers reach this one by"
    raise Failure(msg)


def _setting(name: str) -> str:
    found = next(one for one in onehop.config() if one.name == name)
    return found.value or found.default


def _resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as failure:
        msg = f"the host {host!r} has no address: {failure}"
        raise Failure(msg, Code.DNS) from failure
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _key(address: str) -> bytes:
    """Return the key for an address: derived from the secret, or a public one on loopback."""
    secret = os.environ.get("ONEHOP_SECRET", "")
    if not secret and not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        msg = (
            f"{address} is not loopback and there is no secret: set ONEHOP_SECRET to the same text "
            "of at least 16 characters in all processes"
        )
        raise Failure(msg, Code.REJECTED)
    return hmac.digest(secret.encode(), b"onehop mooncake", hashlib.sha256)


class _Line:
    """One connection, with one deadline for the whole exchange."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self.sock = sock
        self._end = time.monotonic() + seconds

    def _left(self) -> float:
        left = self._end - time.monotonic()
        if left <= 0:
            msg = "the time is over"
            raise TimeoutError(msg)
        return left

    def send(self, data: bytes) -> None:
        self.sock.settimeout(self._left())
        self.sock.sendall(data)

    def receive(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            self.sock.settimeout(self._left())
            part = self.sock.recv(min(size - len(found), 1 << 16))
            if not part:
                msg = f"the other side hung up after {len(found)} of {size} bytes"
                raise ConnectionError(msg)
            found += part
        return bytes(found)


def _mac(key: bytes, role: bytes, *said: bytes) -> bytes:
    return hmac.digest(key, b"".join((role, *said)), hashlib.sha256)


class Server:
    """Listens on a port of the host, and passes the metadata to every client that knows the key.

    The port is a free one of ONEHOP_PORT_RANGE. Threading: any thread.
    """

    def __init__(self, host: str, describe: Callable[[], bytes]) -> None:
        """Listen. describe() returns the metadata; the server does not keep it alive."""
        self._describe = weakref.WeakMethod(describe)
        self._patience = float(_setting("ONEHOP_HELLO_TIMEOUT"))
        self._lock = threading.Lock()
        self._strangers: list[socket.socket] = []
        self._closed = False
        self._socket = _listen(host)
        address, port = self._socket.getsockname()[:2]
        self.port = int(port)
        try:
            self._key = _key(address)
        except Failure:
            self._socket.close()
            raise
        _servers.add(self)
        name = "onehop-mooncake"
        threading.Thread(target=self._serve, name=name, daemon=True).start()

    def close(self) -> None:
        """Stop listening; may be called again.

        Takes no lock. A finalizer calls it: in a thread that may hold the lock, or in a child of
        fork() whose parent had another thread that held it. The listening thread ends the
        connections.
        """
        self._closed = True
        _end(self._socket)
        self._socket.close()

    def forget(self) -> None:
        """Close the socket in a child of fork(); the parent continues to listen."""
        self._closed = True
        self._socket.close()

    def _serve(self) -> None:
        self._accept()
        with self._lock:
            for sock in self._strangers:
                _end(sock)

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, address = self._socket.accept()
            except OSError as failure:
                if not self._closed:
                    _log.warning("accept at port %d: %s", self.port, failure)
                    time.sleep(0.1)  # for example, no descriptor is free
                continue
            with self._lock:
                self._strangers.append(sock)
                if len(self._strangers) > _MOST_STRANGERS:
                    _end(self._strangers.pop(0))
            name = "onehop-mooncake-meeting"
            thread = threading.Thread(
                target=self._meet, args=(sock, address), name=name, daemon=True
            )
            try:
                thread.start()
            except RuntimeError as failure:
                _log.warning("no thread to answer at port %d: %s", self.port, failure)
                self._let_go(sock)

    def _let_go(self, sock: socket.socket) -> None:
        with self._lock, contextlib.suppress(ValueError):  # already removed as the oldest
            self._strangers.remove(sock)
        sock.close()

    def _meet(self, sock: socket.socket, address: tuple[str, int]) -> None:
        try:
            self._answer(_Line(sock, self._patience))
        except (OSError, Failure, onehop.Error) as failure:
            _log.info("%s did not get to know how to reach this engine: %s", address[0], failure)
        finally:
            self._let_go(sock)

    def _answer(self, line: _Line) -> None:
        hello = line.receive(len(_MAGIC) + _NONCE)
        if not hello.startswith(_MAGIC):
            msg = f"it began with {hello[:16]!r}: it is no onehop.mooncake of this version"
            raise Failure(msg)
        nonce = os.urandom(_NONCE)
        line.send(_MAGIC + nonce + _mac(self._key, b"S", hello, nonce))
        if not hmac.compare_digest(line.receive(_MAC), _mac(self._key, b"R", hello, nonce)):
            msg = "it does not know our ONEHOP_SECRET"
            raise Failure(msg)
        describe = self._describe()
        if describe is None:
            msg = "this engine has ended"
            raise Failure(msg)
        data = describe()
        if len(data) > _MOST:
            msg = f"{len(data)} bytes of metadata, more than {_MOST}: register fewer, larger pieces"
            raise Failure(msg)
        line.send(_SIZE.pack(len(data)) + _mac(self._key, b"D", hello, nonce, data) + data)


def _end(sock: socket.socket) -> None:
    """Shut the socket down, which wakes the thread that waits for it."""
    with contextlib.suppress(OSError):  # not connected any more
        sock.shutdown(socket.SHUT_RDWR)


def _listen(host: str) -> socket.socket:
    """Listen on the host's address, or on all addresses if this host lacks that one.

    The port is random: a restarted program most likely gets a different session, so peers that know
    the former session do not reach the new process by it.
    """
    first, _, last = _setting("ONEHOP_PORT_RANGE").partition("-")
    ports = range(int(first), int(last or first) + 1)
    begin = secrets.randbelow(len(ports))
    family, place = _resolve(host, 0)[0]
    why = ""  # not the exception: it would keep this frame and its callers alive until a collection
    for port in (*ports[begin:], *ports[:begin]):
        # A host behind NAT does not own its public address.
        for address in (place[0], "::" if family == socket.AF_INET6 else "0.0.0.0"):
            sock = socket.socket(family, socket.SOCK_STREAM)
            try:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                sock.bind((address, port, *place[2:]))
                sock.listen()
            except OSError as failure:
                sock.close()
                why = str(failure)
                if failure.errno != errno.EADDRNOTAVAIL:
                    break
            else:
                return sock
    msg = f"no port of ONEHOP_PORT_RANGE={first}-{last or first} is free at {host}: {why}"
    raise Failure(msg, Code.SOCKET)


def ask(session: str) -> bytes:
    """Return the current metadata of the engine of a session.

    Failure: the session is invalid, or no engine with the same key answers there within
    ONEHOP_HELLO_TIMEOUT.
    """
    host, port = parse_session(session)
    patience = float(_setting("ONEHOP_HELLO_TIMEOUT"))
    why = ""
    for family, address in _resolve(host, port):
        key = _key(address[0])
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            line = _Line(sock, patience)
            try:
                sock.settimeout(patience)
                sock.connect(address)
                return _ask(line, key, session)
            except OSError as failure:
                why = str(failure)
    msg = (
        f"nobody at {session} answers as an onehop.mooncake engine of this version within "
        f"{patience:g} s: {why}"
    )
    raise Failure(msg, Code.SOCKET)


def _ask(line: _Line, key: bytes, session: str) -> bytes:
    hello = _MAGIC + os.urandom(_NONCE)
    line.send(hello)
    if (answer := line.receive(len(_MAGIC))) != _MAGIC:
        msg = f"it says {answer!r}"
        raise ConnectionError(msg)
    nonce, mac = line.receive(_NONCE), line.receive(_MAC)
    if not hmac.compare_digest(mac, _mac(key, b"S", hello, nonce)):
        msg = f"{session} does not know our secret: set the same ONEHOP_SECRET in all processes"
        raise Failure(msg, Code.REJECTED)
    line.send(_mac(key, b"R", hello, nonce))
    (size,) = _SIZE.unpack(line.receive(_SIZE.size))
    if size > _MOST:
        msg = f"{session} tells of {size} bytes of metadata, more than {_MOST}"
        raise Failure(msg, Code.REJECTED)
    mac = line.receive(_MAC)
    data = line.receive(size)
    if not hmac.compare_digest(mac, _mac(key, b"D", hello, nonce, data)):
        msg = f"the metadata of {session} was altered on the way"
        raise Failure(msg, Code.REJECTED)
    return data


_servers: weakref.WeakSet[Server] = weakref.WeakSet()


def _in_child() -> None:
    for server in list(_servers):
        server.forget()


os.register_at_fork(after_in_child=_in_child)
