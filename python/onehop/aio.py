# SPDX-License-Identifier: Apache-2.0
"""Awaiting requests: while a task waits, each endpoint has one reader in each event loop.

The coroutines behind the methods whose names end in _async are here, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeVar

from onehop.deadline import Timeout, default_timeout
from onehop.errors import TimeoutError as OnehopTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from onehop._core import Endpoint, Message, Peer, Request
    from onehop.buffers import Buffer

T = TypeVar("T")

# Readers by the descriptors that announce completions; usually one each.
_readers: dict[int, list[_Reader]] = {}
_lock = threading.Lock()


class _Reader:
    """Requests of one endpoint that tasks of one loop wait for; used only by the loop's thread."""

    def __init__(self, fd: int, loop: asyncio.AbstractEventLoop) -> None:
        self.fd = fd
        self.loop = loop
        # By the requests' keys. Several tasks may wait for one request.
        self.waiting: dict[int, dict[asyncio.Future[None], Request]] = {}

    def wake(self, keys: list[int]) -> None:
        """Wake the tasks whose requests have ended."""
        for key in keys:
            for future, request in self.waiting.get(key, {}).items():
                # A key from another thread may belong to an earlier request: keys are reused.
                if request.done and not future.done():
                    future.set_result(None)

    def on_event(self) -> None:
        """Wake the tasks whose requests have ended, in all loops."""
        requests = next(iter(self.waiting.values()), None)
        if requests is None:
            return
        keys = next(iter(requests.values())).take_ended()
        self.wake(keys)
        with _lock:
            others = [reader for reader in _readers.get(self.fd, []) if reader is not self]
        for other in others:
            # A loop that was closed meanwhile must not prevent waking the remaining loops.
            with contextlib.suppress(RuntimeError):
                other.loop.call_soon_threadsafe(other.wake, keys)


def _enter(future: asyncio.Future[None], request: Request) -> _Reader:
    fd = request.ended_fd
    loop = future.get_loop()
    with _lock:
        readers = _readers.setdefault(fd, [])
        # A closed loop does not remove its readers: remove them here.
        readers[:] = [reader for reader in readers if not reader.loop.is_closed()]
        for reader in readers:
            if reader.loop is loop:
                break
        else:
            reader = _Reader(fd, loop)
            readers.append(reader)
            loop.add_reader(fd, reader.on_event)
    reader.waiting.setdefault(request.key, {})[future] = request
    return reader


def _leave(reader: _Reader, future: asyncio.Future[None], request: Request) -> None:
    futures = reader.waiting[request.key]
    del futures[future]
    if not futures:
        del reader.waiting[request.key]
    # A loop that was closed with waiting tasks has removed its readers already.
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
        reader = _enter(future, request)
        try:
            request.arm_listed()
            yield from future
        except asyncio.CancelledError:
            request.cancel()
            raise
        finally:
            _leave(reader, future, request)
    request.test()
    return request.message


def _look_last(take: Callable[[], T], seconds: float) -> T:
    """Call `take`; raise the error that the blocking call would have raised after this time."""
    try:
        return take()
    except OnehopTimeoutError as failure:
        text = failure.text.replace("after 0.000 s", f"after {seconds:.3f} s", 1)
        raise OnehopTimeoutError(failure.status, text) from None


async def _take(ready: Callable[[], Request], take: Callable[[], T], timeout: Timeout) -> T:
    """Call `take` once `ready` completes; it raises TimeoutError if another task took the item."""
    seconds = default_timeout() if isinstance(timeout, EllipsisType) else timeout
    now = asyncio.get_running_loop().time
    deadline = None if seconds is None else now() + seconds
    left = seconds
    while left is None or left > 0:
        with contextlib.suppress(OnehopTimeoutError):
            return take()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(ready(), left)
        if deadline is not None:
            left = deadline - now()
    return _look_last(take, seconds or 0.0)


async def accept(endpoint: Endpoint, timeout: Timeout) -> Peer:
    """Endpoint.accept_async."""
    return await _take(endpoint.accept_ready, lambda: endpoint.accept(0), timeout)


async def wait_notification(endpoint: Endpoint, timeout: Timeout) -> tuple[int, bytes]:
    """Endpoint.wait_notification_async."""
    return await _take(endpoint.notification_ready, lambda: endpoint.wait_notification(0), timeout)


async def probe(peer: Peer, tag: int, timeout: Timeout) -> Message:
    """Peer.probe_async."""
    return await _take(lambda: peer.message_ready(tag), lambda: peer.probe(tag, 0), timeout)


async def wait_signal(peer: Peer, slot: int, n: int, timeout: Timeout) -> None:
    """Peer.wait_signal_async."""
    await _take(
        lambda: peer.signal_ready(slot, n), lambda: peer.wait_signal(slot, n, timeout=0), timeout
    )


async def connect(endpoint: Endpoint, address: Buffer, timeout: Timeout) -> Peer:
    """Endpoint.connect_async: by a thread that ends at the deadline, also after cancellation."""
    loop = asyncio.get_running_loop()
    connected: asyncio.Future[Peer] = loop.create_future()

    def deliver(peer: Peer | None, error: BaseException | None) -> None:
        if connected.done():  # cancelled: close a link that arrives too late
            if peer is not None:
                peer.close()
        elif peer is not None:
            connected.set_result(peer)
        elif error is not None:
            connected.set_exception(error)

    def attempt() -> None:
        peer = error = None
        try:
            # An omitted timeout is not passed on, so that the library's default applies.
            limit = () if isinstance(timeout, EllipsisType) else (timeout,)
            peer = endpoint.connect(address, *limit)
        except BaseException as failure:  # the task raises it
            error = failure
        try:
            loop.call_soon_threadsafe(deliver, peer, error)
        except RuntimeError:  # the loop was closed meanwhile
            if peer is not None:
                peer.close()

    threading.Thread(target=attempt, name="onehop-connect", daemon=True).start()
    return await connected
