# SPDX-License-Identifier: Apache-2.0
"""What the benchmark's loops in Python share: a link, its arrays, and what a loop found.

The loops do what those in C++ do, by the package as a user calls it, with numpy arrays; payloads
are laid down and checked by the same functions as there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

import onehop
from onehop import _bench

Array = npt.NDArray[np.uint8]

CONTROL_TAG = 1
_CONTROL_SIZE = 4096


@dataclass
class Found:
    """What a loop measured and found: see _bench.Outcome."""

    samples_us: list[float] = field(default_factory=list)
    post_us: list[float] = field(default_factory=list)
    seconds: float = 0.0
    bytes: float = 0.0
    wrong: int = 0
    path: str = "none"

    def add(self, nanoseconds: int, moved: int, *, share: float = 1.0) -> None:
        """Record one operation; `share` of its time is the sample."""
        self.samples_us.append(nanoseconds * share / 1e3)
        self.seconds += nanoseconds / 1e9
        self.bytes += moved


class Link:
    """An endpoint, its peer, and what both sides agree on."""

    def __init__(self, number: int, endpoint: onehop.Endpoint | None = None) -> None:
        self.number = number
        self.endpoint = endpoint or onehop.Endpoint()
        self.peer: Any = None

    @property
    def first(self) -> bool:
        """Whether this side measures."""
        return self.number == 0

    def sync(self) -> None:
        """Return when both sides have come here."""
        self.swap(b"")

    def swap(self, data: bytes) -> bytes:
        """Give the other side bytes and take its own."""
        answer = bytearray(_CONTROL_SIZE)
        receive = self.peer.irecv(answer, CONTROL_TAG)
        self.peer.send(data, CONTROL_TAG)
        return bytes(answer[: receive.wait().nbytes])

    def swap_region(self, array: Array) -> tuple[onehop.Region, onehop.RemoteRegion]:
        """Register an array and attach the other side's."""
        region = self.endpoint.register(array)
        return region, self.peer.attach(self.swap(region.descriptor))


class LinkedLoops:
    """A side whose loops are Python: the part of _bench.Side that makes a link and ends it."""

    def __init__(self, number: int, endpoint: onehop.Endpoint | None = None) -> None:
        self.link = Link(number, endpoint)

    def address(self) -> bytes:
        """Return what the other side needs to connect."""
        return self.link.endpoint.address

    def connect(self, address: bytes) -> None:
        """Connect to the other side."""
        self.link.peer = self.link.endpoint.connect(address)

    def accept(self) -> None:
        """Await the other side."""
        self.link.peer = self.link.endpoint.accept()

    def close(self) -> None:
        """Close the endpoint."""
        self.link.endpoint.close()


def seed_of(spec: _bench.Spec, number: int, phase: int) -> int:
    """Return the seed of the bytes that side `number` sends in a phase of a row."""
    return (phase * 2 + number) * 0x1000193 + spec.size


def new_array(size: int, spec: _bench.Spec) -> Array:
    """Return an array of the kind that the row is about, poisoned."""
    array: Array
    if spec.shared:
        array = np.asarray(onehop.empty(max(size, 1), dtype=np.uint8))[:size]
    else:
        array = np.empty(size, dtype=np.uint8)
    _bench.poison(array)
    return array


def spoil(spec: _bench.Spec, array: Array, *, last: bool) -> None:
    """Flip a byte, if the row is to be spoilt and this is the last message."""
    if spec.corrupt and last and spec.size:
        array[spec.size // 2] ^= 1


def previous(i: int, step: int = 1) -> int:
    """Return the message before message `i` in the same place."""
    return i - step if i >= step else _bench.NO_ITERATION
