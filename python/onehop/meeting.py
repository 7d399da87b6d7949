# SPDX-License-Identifier: Apache-2.0
"""Passes one unique id to the ranks of a Communicator, through a store or an MPI communicator."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, cast

from onehop._core import Status, unique_id
from onehop.deadline import Deadline, Timeout
from onehop.errors import Error, InvalidArgument, InvalidType, LinkError, TimeoutError  # noqa: A004

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MpiComm", "MpiRequest", "Store"]

_POLL = 0.001  # seconds between two polls, if the store cannot wait
_LONGEST = 365 * 86400.0  # seconds; used as "no limit" in a store
_BOX = 16384  # bytes of the MPI broadcast; an id is always shorter
_ID = "id "
_FAILURE = "failure "


class Store(Protocol):
    """torch.distributed.Store, or any object with its set and get.

    With `add`, one store serves any number of communicators of the same ranks, one after the other;
    without, it serves one. With `wait`, onehop waits by that; without, it calls get again while get
    returns None or raises KeyError.
    """

    def set(self, key: str, value: str, /) -> object: ...  # noqa: D102
    def get(self, key: str, /) -> bytes | str | None: ...  # noqa: D102


class MpiRequest(Protocol):
    """mpi4py.MPI.Request."""

    def Test(self) -> bool: ...  # noqa: D102, N802


class MpiComm(Protocol):
    """mpi4py.MPI.Comm, such as MPI.COMM_WORLD."""

    def Get_rank(self) -> int: ...  # noqa: D102, N802
    def Get_size(self) -> int: ...  # noqa: D102, N802
    def Ibcast(self, buf: bytearray, root: int = 0) -> MpiRequest: ...  # noqa: D102, N802


# Abandoned broadcasts: MPI cannot cancel one, and it may still write.
_abandoned: list[tuple[MpiRequest, bytearray]] = []


class _Deadline(Deadline):
    """The deadline of a wait, and the subject of the wait for messages."""

    def __init__(self, timeout: Timeout, waiting: str) -> None:
        super().__init__(timeout)
        self._waiting = waiting

    def error(self, found: str) -> TimeoutError:
        text = f"{self._waiting} waited {self.seconds:g} s for the unique id to pass"
        text = f"{text} from rank 0: {found}. Are all ranks running?"
        return TimeoutError(Status.TIMEOUT, text)


def meet(
    rank: int | None,
    size: int | None,
    store: Store | None,
    comm: MpiComm | None,
    timeout: Timeout,
) -> tuple[int, int, bytes | None, float | None]:
    """Return rank, size, the unique id (None for one rank), and the remaining seconds."""
    if store is not None and comm is not None:
        raise InvalidArgument(Status.INVALID, "store and comm: give one of them")
    if comm is not None:
        rank, size = _ranks_of(comm, rank, size)
    if rank is None or size is None:
        raise InvalidArgument(Status.INVALID, "store: give rank and size too")
    deadline = _Deadline(timeout, f"rank {rank} of {size}")
    identity = None
    if 0 <= rank < size > 1:
        if comm is not None:
            identity = _by_mpi(comm, rank, deadline)
        else:
            identity = _by_store(cast("Store", store), rank, deadline)
    return rank, size, identity, deadline.left


def _ranks_of(comm: MpiComm, rank: int | None, size: int | None) -> tuple[int, int]:
    _needs(comm, "comm", "Get_rank", "Get_size", "Ibcast")
    found = (comm.Get_rank(), comm.Get_size())
    for given, theirs, name in ((rank, found[0], "rank"), (size, found[1], "size")):
        if given is not None and given != theirs:
            text = f"{name} is {given}, but {theirs} in comm: leave it out"
            raise InvalidArgument(Status.INVALID, text)
    return found


def _needs(what: object, name: str, *methods: str) -> None:
    missing = [method for method in methods if not callable(getattr(what, method, None))]
    if missing:
        text = f"{name} is of type {type(what).__name__}, which has no {' and no '.join(missing)}"
        raise InvalidType(Status.INVALID, text)


def _publish(tell: Callable[[str], object]) -> bytes:
    """Create the id and pass it to all ranks; on failure, pass the failure on instead."""
    try:
        identity = unique_id()
    except Error as failure:
        tell(_FAILURE + str(failure))
        raise
    tell(_ID + identity.hex())
    return identity


def _understand(told: str) -> bytes:
    if told.startswith(_FAILURE):
        text = f"rank 0 could make no unique id: {told.removeprefix(_FAILURE)}"
        raise LinkError(Status.REFUSED, text)
    try:
        return bytes.fromhex(told.removeprefix(_ID))
    except ValueError:
        text = f"what stands for the unique id is none: {told[:40]!r}"
        raise LinkError(Status.PROTOCOL, text) from None


# ---- Stores


def _by_store(store: Store, rank: int, deadline: _Deadline) -> bytes:
    _needs(store, "store", "set", "get")
    kind = type(store).__name__
    # Counted in the store, so that a restarted process finds the right number too.
    number = 1
    if add := getattr(store, "add", None):
        number = _call(lambda: add(f"onehop/rank_{rank}/communicators", 1), f"add in {kind}")
    key = f"onehop/communicator_{number}/unique_id"
    if rank == 0:
        return _publish(lambda told: _call(lambda: store.set(key, told), f"set of {key} in {kind}"))
    told = _wait_for(store, key, deadline)
    return _understand(told.decode(errors="replace") if isinstance(told, bytes) else told)


def _call(function: Callable[[], Any], what: str) -> Any:  # noqa: ANN401
    try:
        return function()
    except Exception as failure:
        text = f"{what} failed: {type(failure).__name__}: {failure}"
        raise LinkError(Status.UNREACHABLE, text) from failure


def _wait_for(store: Store, key: str, deadline: _Deadline) -> bytes | str:
    """Return the value of a key, once it is set."""
    place = f"{key} in {type(store).__name__}"
    if wait := getattr(store, "wait", None):
        left = deadline.left
        try:
            wait([key], timedelta(seconds=_LONGEST if left is None else min(left, _LONGEST)))
        except Exception as failure:
            why = f"{place}: {type(failure).__name__}: {failure}"
            # Stores raise different exceptions at their timeout.
            if deadline.passed:
                raise deadline.error(why) from failure
            raise LinkError(Status.UNREACHABLE, f"waiting for {why}") from failure
    while True:
        told = _call(lambda: _get(store, key), f"get of {place}")
        if told is not None:
            return cast("bytes | str", told)
        if deadline.passed:
            raise deadline.error(f"{place}: it is not there")
        time.sleep(_POLL)


def _get(store: Store, key: str) -> bytes | str | None:
    try:
        return store.get(key)
    except KeyError:
        return None


# ---- MPI


def _by_mpi(comm: MpiComm, rank: int, deadline: _Deadline) -> bytes:
    if rank == 0:
        return _publish(lambda told: _broadcast(comm, told, deadline))
    return _understand(_broadcast(comm, "", deadline))


def _broadcast(comm: MpiComm, told: str, deadline: _Deadline) -> str:
    """Return the text of rank 0. Ibcast is polled: a blocking broadcast has no deadline."""
    box = bytearray(told.encode()[:_BOX].ljust(_BOX, b"\0"))
    request = comm.Ibcast(box, root=0)
    while not request.Test():
        if deadline.passed:
            _abandoned.append((request, box))
            raise deadline.error("Ibcast has not ended")
        time.sleep(_POLL)
    return box.rstrip(b"\0").decode(errors="replace")
