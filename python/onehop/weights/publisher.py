# SPDX-License-Identifier: Apache-2.0
"""Publisher: one trainer rank's tensors, which inference engines read."""

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
from onehop.devices import Stream
from onehop.errors import InvalidArgument
from onehop.weights import table
from onehop.weights.deadline import Deadline, Timeout
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

    It never calls a collective, and needs no other publisher. Subscribers read its memory when they
    like; the application says when it writes:

        publisher.begin(); optimizer.step(); publisher.commit(version)

    The endpoint belongs to publishers and subscribers alone: they take its links and its
    notifications. It is not closed by close(). Threading: add and seal by one thread, the others by
    any.
    """

    def __init__(self, endpoint: Endpoint, name: str, *, timeout: Timeout = ...) -> None:
        """Create one without tensors.

        endpoint: on the device that the tensors are on; its own, or that of other publishers and
        subscribers. name: of this rank, different from those of the others; at most 1,024 bytes.
        timeout: seconds, of begin() and close() where they are given none; None for ever; left out,
        ONEHOP_TIMEOUT. InvalidArgument: the name is empty or too long.
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
        """Publish a tensor, or this rank's box of one that is sharded.

        tensor: C-contiguous; anything that Endpoint.register takes. Its memory stays
            where it is until close().
        global_shape: of the whole tensor; left out, the tensor is whole.
        start: where in it the box begins, in elements; the box is start[d] to start[d] + shape[d].
        dtype: "bfloat16", "float8_e4m3fn", ... of elements that are given as bytes or unsigned
            integers.

        InvalidArgument: after seal(); the box is not within the tensor, overlaps another of this
        publisher, or differs from it in dtype or global shape.
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

        It has names, dtypes, boxes, descriptors and the endpoint's address, in a format of its own;
        pass it on by file, store or HTTP. Any holder may connect and read, and a hostile
        one also write: as descriptors of regions, it is passed on with care.
        The same bytes at each call. Errors as of Endpoint.register.
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
        """Give no more leases and wait until none is left; then the tensors may be written.

        Pulls that hold a lease go on to their end; others get VersionChanged. Returns at once if
        nothing was committed since the last begin().

        timeout: seconds; None for ever; left out, that of the publisher. stream: the GPU's stream
        that will write; commit() waits for it unless it is given another.

        TimeoutError names the subscribers that still hold a lease. Nothing has changed then: do not
        write; the version can still be read; call begin() again, or evict() who hangs.
        """
        deadline = Deadline(self._timeout if timeout is ... else timeout)
        self._book.begin(deadline)
        self._stream = stream

    def commit(self, version: int, *, stream: Stream | None = None) -> None:
        """Let subscribers read what the tensors have now, as this version.

        version: 0 or more, and greater than the last one. Ranks of one trainer commit the same
        versions. stream: of the GPU, whose work until now has written the tensors; left out, that
        of begin(). The call waits until that work has ended; without a stream it is over.

        InvalidArgument: no begin() since the last commit, or the version is not greater.
        TimeoutError: the stream's work goes on; the version is not there, call again.
        """
        self._book.check(version)
        stream = self._stream if stream is None else stream
        if stream is not None:
            self._wait_for(stream)
        self._stream = None
        self._book.commit(version)

    def _wait_for(self, stream: Stream) -> None:
        """Wait until a stream is through with what it has now: by a message to ourselves behind it.

        It is a byte of a tensor of the GPU's, for that is what does not wait while it is sent.
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
        """The version that was committed last, or None."""
        return self._book.version

    @property
    def leases(self) -> dict[str, int]:
        """The version that each subscriber holds now: those that pull."""
        return self._book.held()

    def evict(self, subscriber: str) -> bool:
        """End the leases of a subscriber that hangs, by its name; whether it held one.

        Its pull, should it go on, ends with VersionChanged: never with what is written meanwhile.
        """
        return self._book.evict(subscriber)

    # ---- The end

    def close(self, timeout: Timeout = ...) -> None:
        """End all leases and deregister the tensors; subscribers see a publisher that is gone.

        TimeoutError: a subscriber is stopped in the middle of reading. May be called again.
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
            # Where the endpoint was closed it has let go of everything.
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
