# SPDX-License-Identifier: Apache-2.0
"""Publisher: the tensors of one trainer rank, which inference engines read."""

# ruff: noqa: ANN401 - tensors and streams are of any library

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import onehop
from onehop import Endpoint, Region, Status
from onehop.deadline import Deadline, Timeout
from onehop.devices import Stream
from onehop.errors import InvalidArgument
from onehop.weights import table
from onehop.weights.hub import Hub
from onehop.weights.leases import LeaseBook
from onehop.weights.tensors import Tensor, describe, gather

__all__ = ["Publisher"]


@dataclass(frozen=True)
class _Box:
    name: str
    tensor: Tensor
    shape: tuple[int, ...]
    start: tuple[int, ...]

    def overlaps(self, other: _Box) -> bool:
        """Whether an element is in both."""
        sides = zip(self.start, self.tensor.shape, other.start, other.tensor.shape, strict=True)
        return all(max(a, b) < min(a + m, b + n) for a, m, b, n in sides)


class Publisher:
    """The tensors of one trainer rank, or its boxes of sharded ones, for any number of subscribers.

    A publisher never calls a collective, and needs no other publisher. Subscribers read its memory
    at any time between commit() and begin(); the application says when it writes:

        publisher.begin(); optimizer.step(); publisher.commit(version)

    Use the endpoint for publishers and subscribers only: they accept its links and take its
    notifications. close() does not close it. Threading: call add and seal from one thread, the
    others from any.
    """

    def __init__(self, endpoint: Endpoint, name: str, *, timeout: Timeout = ...) -> None:
        """Create a publisher without tensors.

        endpoint: on the device of the tensors; its own, or shared with other publishers and
        subscribers. name: of this rank, unique among publishers; at most 1,024 bytes. timeout:
        seconds, the default of begin() and close(); None: no limit; omitted: ONEHOP_TIMEOUT.
        InvalidArgument: the name is empty or too long.
        """
        if not 0 < len(name.encode()) <= table.NAME_MAX or "\0" in name:
            msg = f"a publisher's name of {len(name.encode())} bytes: give 1 to {table.NAME_MAX}"
            raise InvalidArgument(Status.INVALID, f"{msg}, without NUL")
        self.name = name
        self._endpoint = endpoint
        self._timeout = timeout
        self._boxes: list[_Box] = []
        self._by_name: dict[str, list[_Box]] = {}
        self._regions: list[Region] = []
        self._table: bytes | None = None
        self._stream: Stream | None = None
        self._mark: Region | None = None
        self._token = secrets.randbits(64)
        self._book = LeaseBook(name, self._token)
        self._loop: onehop.Peer | None = None
        self._hub = Hub.join(endpoint, self._token, self._book)
        self._book.hub = self._hub

    def add(
        self,
        name: str,
        tensor: Any,
        *,
        global_shape: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Publish a tensor, or this rank's box of a sharded one.

        tensor: C-contiguous; anything that Endpoint.register takes. Do not move or free its
            memory before close().
        global_shape: of the whole tensor; omitted: `tensor` is the whole.
        start: the box's start in the whole tensor, in elements; the box is start[d] to
            start[d] + shape[d].
        dtype: "bfloat16", "float8_e4m3fn", ... of elements that are given as bytes or unsigned
            integers.

        InvalidArgument: seal() was called; or the box is not within the tensor, overlaps another
        box of this publisher, or differs from one in dtype or global shape.
        """
        if self._table is not None:
            msg = f"add({name!r}) after seal(): subscribers have the table already"
            raise InvalidArgument(Status.INVALID, msg)
        if not name or "\0" in name:
            raise InvalidArgument(Status.INVALID, f"tensor name {name!r}: empty, or with NUL")
        found = describe(name, tensor, dtype)
        shape = tuple(map(int, global_shape)) if global_shape is not None else found.shape
        at = tuple(map(int, start)) if start is not None else (0,) * len(found.shape)
        box = _Box(name, found, shape, at)
        _check_box(box, global_shape is not None)
        for other in self._by_name.get(name, ()):
            if (other.shape, other.tensor.dtype) != (shape, found.dtype):
                msg = (
                    f"tensor {name!r} is of {found.dtype} {shape} here, and of "
                    f"{other.tensor.dtype} {other.shape} in an earlier add()"
                )
                raise InvalidArgument(Status.INVALID, msg)
            if box.overlaps(other):
                msg = (
                    f"tensor {name!r}: the box at {at} of {found.shape} overlaps the one at "
                    f"{other.start} of {other.tensor.shape}"
                )
                raise InvalidArgument(Status.INVALID, msg)
        self._by_name.setdefault(name, []).append(box)
        self._boxes.append(box)

    def seal(self) -> bytes:
        """Register all tensors and return the table that subscribers need.

        The table contains names, dtypes, boxes, descriptors and the endpoint's address, in a format
        of its own. Pass it on by file, store or HTTP. Treat it as a secret, like descriptors of
        regions: any holder may connect and read, and a hostile one may also write. Every call
        returns the same bytes. Errors are those of Endpoint.register.
        """
        if self._table is None:
            memory = gather([box.tensor for box in self._boxes])
            try:
                for piece in memory.pieces:
                    self._regions.append(self._endpoint.register(piece, access="r"))
            except BaseException:
                self._deregister()
                raise
            self._table = table.pack(self._rows(memory.index, memory.offset, memory.size))
            on_gpu = [
                i for i, box in enumerate(self._boxes) if box.tensor.device and box.tensor.nbytes
            ]
            if on_gpu:
                self._mark = self._regions[int(memory.index[on_gpu[0]])][0:1]
        return self._table

    def _rows(self, region: Any, offset: Any, sizes: Any) -> table.Table:
        boxes = self._boxes
        dims = max((len(box.shape) for box in boxes), default=1) or 1
        dtypes = {box.tensor.dtype: box.tensor.itemsize for box in boxes}
        number = {dtype: index for index, dtype in enumerate(dtypes)}

        def padded(numbers: list[tuple[int, ...]], fill: int) -> Any:
            rows = [(fill,) * (dims - len(row)) + tuple(row) for row in numbers]
            return np.array(rows, np.uint64).reshape(len(rows), dims)

        return table.Table(
            self.name,
            self._endpoint.address,
            self._token,
            [one.descriptor for one in self._regions],
            sizes,
            list(dtypes),
            np.array(list(dtypes.values()), np.uint64),
            [box.name for box in boxes],
            np.array([number[box.tensor.dtype] for box in boxes], np.uint16),
            np.array([len(box.shape) for box in boxes], np.uint8),
            region,
            offset,
            padded([box.shape for box in boxes], 1),
            padded([box.start for box in boxes], 0),
            padded([box.tensor.shape for box in boxes], 1),
        )

    # ---- Versions

    def begin(self, timeout: Timeout = ..., *, stream: Stream | None = None) -> None:
        """Grant no more leases and wait until none is held. Then the tensors may be written.

        Pulls that hold a lease continue to their end; others get VersionChanged. Returns at once if
        nothing was committed since the last begin().

        timeout: seconds; None: no limit; omitted: that of the publisher. stream: the CUDA stream
        that will write; commit() waits for it unless it gets another one.

        TimeoutError names the subscribers that still hold a lease. Nothing has changed then: do not
        write; the version stays readable. Call begin() again, or evict() the subscriber that hangs.
        """
        deadline = Deadline(self._timeout if timeout is ... else timeout)
        self._book.begin(deadline)
        self._stream = stream

    def commit(self, version: int, *, stream: Stream | None = None) -> None:
        """Let subscribers read the present content of the tensors, as this version.

        version: 0 or more, and greater than the last one. Ranks of one trainer commit the same
        versions. stream: the CUDA stream whose work so far has written the tensors; omitted: that
        of begin(). The call waits until that work has ended. Without a stream the work must already
        have ended.

        InvalidArgument: no begin() since the last commit, or the version is not greater.
        TimeoutError: the stream's work continues and the version is not committed; call again.
        """
        self._book.check(version)
        stream = self._stream if stream is None else stream
        if stream is not None:
            self._wait_for(stream)
        self._stream = None
        self._book.commit(version)

    def _wait_for(self, stream: Stream) -> None:
        """Wait until a stream has finished its present work, by a message to itself.

        The message is one byte of a GPU tensor: a message of GPU memory waits for the stream's
        earlier work.
        """
        if self._loop is None:
            self._loop = self._endpoint.connect(self._endpoint.address)
        mark: Any = self._mark if self._mark is not None else bytearray(1)
        deadline = Deadline(self._timeout)
        sent = self._loop.isend(mark, after=stream)
        self._loop.recv(bytearray(1), timeout=deadline.left, after=None)
        sent.wait(deadline.left)

    @property
    def version(self) -> int | None:
        """The last committed version, or None."""
        return self._book.version

    @property
    def leases(self) -> dict[str, int]:
        """The version that each subscriber holds now, while it pulls."""
        return self._book.held()

    def evict(self, subscriber: str) -> bool:
        """End the leases of a subscriber that hangs, by its name. Return whether it held one.

        If its pull continues, the pull ends with VersionChanged, never with bytes that are written
        meanwhile.
        """
        return self._book.evict(subscriber)

    # ---- The end

    def close(self, timeout: Timeout = ...) -> None:
        """End all leases and deregister the tensors. Subscribers see a lost publisher.

        TimeoutError: a subscriber is stopped during a read. May be called again.
        """
        self._book.close()
        deadline = Deadline(self._timeout if timeout is ... else timeout)
        self._deregister(deadline)
        if self._loop is not None:
            with contextlib.suppress(onehop.Error):
                self._loop.close()
            self._loop = None
        self._hub.leave(self._token)

    def _deregister(self, deadline: Deadline | None = None) -> None:
        deadline = deadline or Deadline(self._timeout)
        self._mark = None
        while self._regions:
            # A closed endpoint has released everything already.
            with contextlib.suppress(onehop.EndpointError):
                self._regions[-1].deregister(deadline.left)
            self._regions.pop()

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *args: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Publisher {self.name!r}: {len(self._boxes)} boxes, version {self.version}, "
            f"{len(self.leases)} leases>"
        )


def _check_box(box: _Box, sharded: bool) -> None:
    here, whole, start = box.tensor.shape, box.shape, box.start
    fits = len(here) == len(whole) == len(start) and all(
        at >= 0 and at + size <= all_of_it
        for at, size, all_of_it in zip(start, here, whole, strict=True)
    )
    if not fits or (not sharded and any(start)):
        msg = f"tensor {box.name!r}: a box of {here} at {start} is not within global_shape {whole}"
        raise InvalidArgument(Status.INVALID, msg)
    if len(whole) > table.MOST_DIMENSIONS:
        msg = f"tensor {box.name!r} has {len(whole)} dimensions: {table.MOST_DIMENSIONS} at most"
        raise InvalidArgument(Status.INVALID, msg)
