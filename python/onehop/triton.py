# SPDX-License-Identifier: Apache-2.0
"""Signals and barriers for kernels written in Triton: those of onehop/device.cuh.

    import onehop.triton as oh

    @triton.jit
    def push(lane, there, data, size, block: tl.constexpr):
        at = tl.program_id(0) * block + tl.arange(0, block)
        values = tl.load(data + at, mask=at < size)
        tl.store(there.to(tl.pointer_type(tl.float32)) + at, values, mask=at < size)
        oh.signal(lane, 3)

    lane = oh.to_device(peer.device_handle(0))
    there, _ = remote.device_memory()

Put and get are `tl.store` and `tl.load` at the addresses of a peer's region. A signal orders the
`tl.store` operations of its own program before it. After a wait, `tl.load` sees what the peer
stored before the signal. A signal does not order stores by a tensor descriptor (TMA).

Atomic operations are `tl.atomic_add` and `tl.atomic_cas` on int64 at those addresses, with
`scope="sys"`. They are atomic towards those of all GPUs and of onehop/device.cuh.

Functions return 0 or an `oh_lane_fault` as an int32, the same for all threads of the program:

- 2: there is no such slot; slots are 0 to 63
- 3: the timeout in the handle has passed
- 4: the host has ended all waits, because the peer is lost or the link is closed

Threading: any number of programs at once, on the same slot too. A program is one block
(`num_ctas=1`). Call outside of warp-specialized loops. Needs Triton 3.6 or newer, and sm_70.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

try:
    import triton
    import triton.language as tl
except ImportError as missing:
    msg = "onehop.triton needs Triton 3.6 or newer: pip install triton"
    raise ImportError(msg) from missing
if tuple(int(part) for part in triton.__version__.split(".")[:2]) < (3, 6):
    # Older versions cannot compile an atomic_cas of 8 bytes.
    msg = f"onehop.triton needs Triton 3.6 or newer, this is {triton.__version__}"
    raise ImportError(msg)

if TYPE_CHECKING:
    import torch

    from onehop import CommunicatorHandle, LaneHandle

__all__ = [
    "barrier",
    "of_rank",
    "read_signal",
    "set_signal",
    "signal",
    "to_device",
    "wait",
    "wait_until",
]

# A lane in device memory, in words of 8 bytes. A communicator has one for each of 64 ranks; words 0
# to 3 are zero if there is no such rank, and for the own rank.
#   0 signals   1 their_signals   2 address of the host's word   3 timeout_ns   4 to 8: 0 to 4
_SIGNALS = tl.constexpr(0)
_THEIRS = tl.constexpr(1)
_ABORT = tl.constexpr(2)
_TIMEOUT_NS = tl.constexpr(3)
_CODES = tl.constexpr(4)
_WORDS = tl.constexpr(9)
# As in onehop/lane.h and detail/lane.h.
_RANKS = tl.constexpr(64)
_SLOTS = tl.constexpr(64)
_LOOK = tl.constexpr(1024)  # polls
_OK = tl.constexpr(0)
_RANGE = tl.constexpr(2)
_TIMEOUT = tl.constexpr(3)
_ABORTED = tl.constexpr(4)


def to_device(
    handle: LaneHandle | CommunicatorHandle, device: torch.device | str | int | None = None
) -> torch.Tensor:
    """Return the int64 tensor by which kernels use a lane, or that lane of all ranks.

    `device` is the GPU that the handle was made for, by default torch's current one. The tensor is
    constant, and valid as long as the handle. Graphs that captured it can be replayed.
    """
    import torch

    words = torch.tensor(_words(bytes(handle)), dtype=torch.int64)
    return words.to(torch.device("cuda") if device is None else device)


def _words(handle: bytes) -> list[int]:
    """Return the words of an oh_lane_handle, or of each lane of an oh_comm_handle."""
    size = 128
    words: list[int] = []
    for at in range(len(handle) % size, len(handle), size):
        (lane,) = struct.unpack_from("I", handle, at + 4)
        notice, timeout_ns, signals, theirs = struct.unpack_from("Q8xQ8xQQ", handle, at + 64)
        # signals_notice() of detail/lane.h: after the notices of 16 lanes, 384 bytes each.
        abort = notice + (16 - lane) * 384 if notice else 0
        words += [signals, theirs, abort, timeout_ns, *range(5)]
    return words


@triton.jit
def of_rank(comm: tl.tensor, rank: int) -> tl.tensor:
    """Return the lane of another rank from a communicator's tensor."""
    return comm + rank * _WORDS


@triton.jit
def signal(lane: tl.tensor, slot: int, count: int = 1) -> tl.tensor:
    """Add to the peer's count of a slot, after everything that the program has stored before."""
    there = _is_slot(slot)
    theirs = _address(lane, _THEIRS) + slot
    tl.debug_barrier()
    tl.atomic_add(theirs, count, mask=there, sem="release", scope="sys")
    return tl.where(there, _OK, _RANGE)


@triton.jit
def set_signal(lane: tl.tensor, slot: int, count: int) -> tl.tensor:
    """Set the peer's count of a slot, for example to a step number; ordered like signal().

    For slots that one program at a time signals and from which no wait() subtracts.
    """
    there = _is_slot(slot)
    theirs = _address(lane, _THEIRS) + slot
    tl.debug_barrier()
    tl.atomic_xchg(theirs, count, mask=there, sem="release", scope="sys")
    return tl.where(there, _OK, _RANGE)


@triton.jit
def wait(lane: tl.tensor, slot: int, count: int = 1) -> tl.tensor:
    """Wait until the count of a slot is at least `count`, then subtract `count`.

    The peer's earlier stores are then visible to the program. A wait that fails subtracts nothing.
    """
    arrived = _address(lane, _SIGNALS) + slot
    taken = arrived + _SLOTS
    fault = tl.where(_is_slot(slot), _OK, _RANGE)
    started = tl.cast(0, tl.int64)
    polls = 0
    waits = fault == _OK
    while waits:
        had = _relaxed(taken)
        # Signed: `taken` may be newer than `arrived`. A sum could overflow.
        if _acquire(arrived) - had >= count:
            seen = tl.atomic_cas(taken, had, had + count, sem="acquire", scope="gpu")
            waits = seen != had
        else:
            polls += 1
            if polls % _LOOK == 0:
                fault, started = _look(lane, _aborted(lane), _timeout(lane), started)
                waits = fault == _OK
    tl.debug_barrier()
    return fault


@triton.jit
def wait_until(lane: tl.tensor, slot: int, least: int) -> tl.tensor:
    """Wait until the count is at least `least`, and subtract nothing.

    Many programs may wait for the same signal.
    """
    arrived = _address(lane, _SIGNALS) + slot
    fault = tl.where(_is_slot(slot), _OK, _RANGE)
    started = tl.cast(0, tl.int64)
    polls = 0
    waits = fault == _OK
    while waits:
        waits = _count(arrived) < least
        if waits:
            polls += 1
            if polls % _LOOK == 0:
                fault, started = _look(lane, _aborted(lane), _timeout(lane), started)
                waits = fault == _OK
    tl.debug_barrier()
    return fault


@triton.jit
def read_signal(lane: tl.tensor, slot: int) -> tuple[tl.tensor, tl.tensor]:
    """Return a fault, and the count of a slot as an int64, without waiting.

    Stores that the peer made before the counted signals are visible to the program. A polling loop
    can end on the fault: it is 4 once the host has ended all waits; the count may not grow then.
    """
    fault = tl.where(_is_slot(slot), _OK, _RANGE)
    count = tl.cast(0, tl.int64)
    if fault == _OK:
        fault = _share(lane, tl.where(_aborted(lane), _ABORTED, _OK))
        count = _count(_address(lane, _SIGNALS) + slot)
    tl.debug_barrier()
    return fault, count


@triton.jit
def barrier(comm: tl.tensor, slot: int) -> tl.tensor:
    """Return once all ranks of the communicator have called it, on the same slot.

    `comm` is the communicator's tensor. The earlier stores of every rank are then visible to the
    program. It signals that slot of every other rank; use the slot for nothing else. One program of
    a grid calls it. After a fault use another slot on all ranks, since their counts may differ.
    """
    fault = tl.where(_is_slot(slot), _OK, _RANGE)
    if fault == _OK:
        fault = _meet(comm, slot)
    return fault


# One element for each rank; one thread makes its accesses.
@triton.jit
def _meet(comm: tl.tensor, slot: tl.tensor) -> tl.tensor:
    lanes = comm + tl.arange(0, _RANKS) * _WORDS
    others = tl.load(lanes + _THEIRS) != 0
    arrived = _address(lanes, _SIGNALS) + slot
    theirs = _address(lanes, _THEIRS) + slot
    tl.debug_barrier()
    tl.atomic_add(theirs, 1, mask=others, sem="release", scope="sys")
    had = tl.atomic_add(arrived + _SLOTS, 0, mask=others, sem="relaxed", scope="gpu")
    fault = tl.cast(_OK, tl.int32)
    started = tl.cast(0, tl.int64)
    polls = 0
    waits = fault == _OK
    while waits:
        came = tl.atomic_add(arrived, 0, mask=others, sem="acquire", scope="sys")
        waits = tl.max((others & (came <= had)).to(tl.int32)) != 0
        if waits:
            polls += 1
            if polls % _LOOK == 0:
                told = tl.load(_address(lanes, _ABORT), mask=others, other=0, volatile=True)
                aborted = tl.max((told != 0).to(tl.int32)) != 0
                fault, started = _look(comm, aborted, tl.max(_timeout(lanes)), started)
                waits = fault == _OK
    # Nothing else subtracts from this slot.
    if fault == _OK:
        tl.atomic_add(arrived + _SLOTS, 1, mask=others, sem="relaxed", scope="gpu")
    tl.debug_barrier()
    return fault


# All threads of a program execute scalar code and must see the same values. Otherwise they diverge
# at the next branch and do not meet at a barrier. Triton lets thread 0 make an atomic access and
# broadcasts its result. So counts are read by adding 0, which compiles to a load.


@triton.jit
def _relaxed(word: tl.tensor) -> tl.tensor:
    return tl.atomic_add(word, 0, sem="relaxed", scope="gpu")


@triton.jit
def _acquire(word: tl.tensor) -> tl.tensor:
    return tl.atomic_add(word, 0, sem="acquire", scope="sys")


# The count of a slot, never more than it was at one time: the count taken is read after the count
# arrived.
@triton.jit
def _count(arrived: tl.tensor) -> tl.tensor:
    came = _acquire(arrived)
    return tl.maximum(came - _relaxed(arrived + _SLOTS), 0)


# Each thread reads the clock and the host's word, and may see another value. Only thread 0's fault
# is used: a number from 0 to 4, read from the word with this index, which contains it.
@triton.jit
def _share(lane: tl.tensor, fault: tl.tensor) -> tl.tensor:
    return _relaxed(lane + _CODES + fault).to(tl.int32)


# The fault that ends a wait, or 0, and the time of the first call in nanoseconds.
@triton.jit
def _look(
    lane: tl.tensor, aborted: tl.tensor, timeout_ns: tl.tensor, started: tl.tensor
) -> tuple[tl.tensor, tl.tensor]:
    now = tl.extra.cuda.globaltimer()
    started = tl.where(started == 0, now, started)
    late = now - started > timeout_ns
    fault = tl.where(aborted, _ABORTED, tl.where(late, _TIMEOUT, _OK))
    return _share(lane, fault), started


@triton.jit
def _aborted(lane: tl.tensor) -> tl.tensor:
    return tl.load(_address(lane, _ABORT), volatile=True) != 0


@triton.jit
def _timeout(lane: tl.tensor) -> tl.tensor:
    return tl.load(lane + _TIMEOUT_NS)


@triton.jit
def _address(lane: tl.tensor, field: tl.constexpr) -> tl.tensor:
    return tl.load(lane + field).to(tl.pointer_type(tl.int64))


@triton.jit
def _is_slot(slot: tl.tensor) -> tl.tensor:
    number = tl.cast(slot, tl.int64)
    return (number >= 0) & (number < _SLOTS)
