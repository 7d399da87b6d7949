# SPDX-License-Identifier: Apache-2.0
"""Exchanges between the ranks of a communicator, in the order of a CUDA stream.

Each is one group and so one launch, in which nothing waits for its neighbour; it enqueues and
returns. All ranks of a pattern call it on the same lane (0 to 15). `timeout`: seconds that the GPU
waits; None for ever; left out, ONEHOP_TIMEOUT. They may be captured into a graph once the ranks
are warmed up, our own among them: comm.warmup(range(comm.size)).

Buffers are memory of the endpoint's GPU; `stream` is whatever Communicator.on takes. An empty part
is a message too, so no rank has to know that another has nothing for it. Errors are those of
OnStream.send and recv; what fails later is told by async_error of the peer that it was with. A
pattern has at most 128 sends and receives.
"""

from __future__ import annotations

from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from onehop._core import Communicator, Status, group
from onehop.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onehop.buffers import Buffer
    from onehop.devices import Stream

__all__ = ["Parts", "Sliceable", "all_to_all_v", "dispatch", "recv_many", "send_many", "sendrecv"]

Timeout: TypeAlias = float | EllipsisType | None


class Sliceable(Protocol):
    """What has parts that are buffers: a Region, in bytes; an array or a tensor, in its rows."""

    def __getitem__(self, key: slice, /) -> Any: ...  # noqa: ANN401


class Parts(Protocol):
    """A buffer for each rank: a sequence of them, or a tensor with the ranks as first dimension."""

    def __getitem__(self, key: int, /) -> Any: ...  # noqa: ANN401


def _given(lane: int, timeout: Timeout) -> dict[str, Any]:
    return {"lane": lane, "timeout": timeout}


def sendrecv(
    comm: Communicator,
    stream: Stream,
    out: Buffer,
    into: Buffer,
    rank: int,
    *,
    source: int | None = None,
    lane: int = 0,
    timeout: Timeout = ...,
) -> None:
    """Send `out` to a rank and receive `into` from it, or from the rank `source`.

    `into` has room for at least what comes. With `source` each passes something on.
    """
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        on.send(out, rank, **given)
        on.recv(into, rank if source is None else source, **given)


def send_many(
    comm: Communicator,
    stream: Stream,
    outs: Mapping[int, Buffer],
    *,
    lane: int = 0,
    timeout: Timeout = ...,
) -> None:
    """Send to many ranks, {rank: buffer}; each of them receives, by recv_many or comm.on().recv."""
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        for rank, out in outs.items():
            on.send(out, rank, **given)


def recv_many(
    comm: Communicator,
    stream: Stream,
    intos: Mapping[int, Buffer],
    *,
    lane: int = 0,
    timeout: Timeout = ...,
) -> None:
    """Receive from many ranks, {rank: buffer}; each of them sends at most its buffer's bytes."""
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        for rank, into in intos.items():
            on.recv(into, rank, **given)


def all_to_all_v(
    comm: Communicator,
    stream: Stream,
    out: Sliceable,
    out_offsets: Sequence[int],
    out_counts: Sequence[int],
    into: Sliceable,
    into_offsets: Sequence[int],
    into_counts: Sequence[int],
    *,
    lane: int = 0,
    timeout: Timeout = ...,
) -> None:
    """Exchange parts between all ranks, each of a size of its own that the host knows.

    Rank r gets out[out_offsets[r] : out_offsets[r] + out_counts[r]], and what it sends to us comes
    into the same slice of `into`; into_counts may be more than comes. Offsets and counts, one of
    each for every rank, ours too, are what the buffer's slices are in: rows of a tensor of shape
    [rows, ...], bytes of a Region. InvalidArgument: not one for every rank.
    """
    for name, numbers in (
        ("out_offsets", out_offsets),
        ("out_counts", out_counts),
        ("into_offsets", into_offsets),
        ("into_counts", into_counts),
    ):
        if len(numbers) != comm.size:
            msg = f"{len(numbers)} {name}: give one for each of {comm.size} ranks"
            raise InvalidArgument(Status.INVALID, msg)
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        for rank in range(comm.size):
            first, count = out_offsets[rank], out_counts[rank]
            on.send(out[first : first + count], rank, **given)
            first, count = into_offsets[rank], into_counts[rank]
            on.recv(into[first : first + count], rank, **given)


def dispatch(
    comm: Communicator,
    stream: Stream,
    out: Parts,
    out_bytes: Parts,
    into: Parts,
    into_bytes: Parts,
    *,
    lane: int = 0,
    timeout: Timeout = ...,
) -> None:
    """Exchange rows between all ranks, as many as only the GPU knows: as experts get their tokens.

    Tensors out [ranks, capacity, ...] and into [ranks, capacity, ...], or buffers in a sequence:
    part r is for rank r, or from it. Of each as many bytes count (rows times the bytes of a row) as
    out_bytes says, 64-bit integers of shape [ranks] in GPU memory, read when the exchange runs;
    into_bytes gets what came. More than the capacity is told by async_error: of the sender, which
    sends as much as its part has, or of the receiver with Status.TRUNCATED.
    """
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        for rank in range(comm.size):
            on.send(out[rank], rank, **given, size_from=out_bytes[rank])
            on.recv(into[rank], rank, **given, size_to=into_bytes[rank])
