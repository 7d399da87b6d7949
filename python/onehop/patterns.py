# SPDX-License-Identifier: Apache-2.0
"""Exchanges between the ranks of a communicator, in the order of a CUDA stream.

Each pattern is one group, so one launch, and its operations do not wait for each other. A call
enqueues and returns. All ranks of a pattern call it on the same lane (0 to 15). Once the ranks are
warmed up, also the own (comm.warmup(range(comm.size))), patterns may be captured into a graph.

stream: whatever Communicator.on takes. Buffers: memory of the endpoint's GPU. timeout: seconds that
the GPU waits; None: no limit; omitted: ONEHOP_TIMEOUT.

An empty part is a message too, so no rank must know that another has nothing for it. Errors are
those of OnStream.send and recv; Peer.async_error of the rank concerned reports later ones. A
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
    """An object whose slices are buffers: a Region, in bytes; an array or a tensor, in rows."""

    def __getitem__(self, key: slice, /) -> Any: ...  # noqa: ANN401


class Parts(Protocol):
    """A buffer for each rank: a sequence, or a tensor whose first dimension is the rank."""

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
    """Send `out` to a rank, and receive `into` from it, or from the rank `source`, as in a ring.

    `into` must have room for the message that arrives.
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
    """Send to many ranks, {rank: buffer}. Each of them receives, by recv_many or comm.on().recv."""
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
    """Receive from many ranks, {rank: buffer}. Each of them sends at most its buffer's bytes."""
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
    """Exchange parts between all ranks; the host knows the size of each part.

    Rank r gets out[out_offsets[r] : out_offsets[r] + out_counts[r]]. Its part for this rank arrives
    in the same slice of `into`; into_counts may be larger than the part. Offsets and counts have
    one element for each rank, also the own. Their unit is that of the buffer's slices: rows of a
    tensor of shape [rows, ...], bytes of a Region. InvalidArgument: not one for every rank.
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
    """Exchange rows between all ranks; only the GPU knows how many, as for tokens to experts.

    out, into: tensors [ranks, capacity, ...], or sequences of buffers; part r is for rank r, or
    from it. out_bytes, into_bytes: 64-bit integers of shape [ranks] in GPU memory, in bytes (rows
    times the bytes of a row). out_bytes[r] is the size to send of part r, read when the exchange
    runs; into_bytes[r] gets the size that arrived. async_error reports a size beyond the capacity:
    at the sender, which sends as much as its part has, or at the receiver with Status.TRUNCATED.
    """
    on, given = comm.on(stream), _given(lane, timeout)
    with group():
        for rank in range(comm.size):
            on.send(out[rank], rank, **given, size_from=out_bytes[rank])
            on.recv(into[rank], rank, **given, size_to=into_bytes[rank])
