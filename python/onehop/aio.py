# SPDX-License-Identifier: Apache-2.0
"""How requests are awaited: one reader per endpoint and event loop, while somebody waits."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator

    from onehop._core import Message, Request

# Readers by event descriptor; usually one each.
_readers: dict[int, list[_Reader]] = {}
_lock = threading.Lock()


class _Reader:
    """Requests of one endpoint that tasks of one loop wait for; its thread alone touches them."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self.fd = fd
        self.loop = loop
        self.waiting: dict[asyncio.Future[None], Request] = {}

    def look(self) -> None:
        """Wake the tasks whose requests have ended."""
        for future, request in list(self.waiting.items()):
            if request.done and not future.done():
                future.set_result(None)

    def on_event(self) -> None:
        """Look again: a request of the endpoint has ended, maybe one of another loop."""
        request = next(iter(self.waiting.values()), None)
        if request is None:
            return
        # First cleared, then looked: what ends in between makes it readable again.
        request.clear_event()
        self.look()
        with _lock:
            others = [reader for reader in _readers.get(self.fd, []) if reader is not self]
        for other in others:
            if not other.loop.is_closed():
                other.loop.call_soon_threadsafe(other.look)


def _enter(fd: int, future: asyncio.Future[None], request: Request) -> _Reader:
    loop = future.get_loop()
    with _lock:
        readers = _readers.setdefault(fd, [])
        # Those of closed loops do not take themselves away.
        readers[:] = [reader for reader in readers if not reader.loop.is_closed()]
        for reader in readers:
            if reader.loop is loop:
                break
        else:
            reader = _Reader(fd, loop)
            readers.append(reader)
            loop.add_reader(fd, reader.on_event)
    reader.waiting[future] = request
    return reader


def _leave(reader: _Reader, future: asyncio.Future[None]) -> None:
    del reader.waiting[future]
    # A loop that was closed with tasks in it has let go of all its readers.
    if reader.waiting or reader.loop.is_closed():
        return
    with _lock:
        readers = _readers[reader.fd]
        readers.remove(reader)
        if not readers:
            del _readers[reader.fd]
    reader.loop.remove_reader(reader.fd)


def wait(request: Request) -> Generator[Any, None, Message]:
    """Wait for a request within a task; `await request` runs it."""
    if not request.done:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reader = _enter(request.event_fd, future, request)
        try:
            request.arm()
            yield from future
        except asyncio.CancelledError:
            request.cancel()
            raise
        finally:
            _leave(reader, future)
    request.test()
    return request.message
