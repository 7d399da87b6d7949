# SPDX-License-Identifier: Apache-2.0
"""Notifications of any size: cut into pieces that the core carries, and joined by the receiver.

The first byte of each notification of the core says what it is. Behind PART come the number of the
whole (8 bytes), unique for its sender's process, and how many parts follow (4), little-endian.
Notifications of one link keep their order; parts of several wholes may alternate.
"""

from __future__ import annotations

import itertools
import struct
from collections import deque

import onehop
from onehop import Peer

__all__ = ["HELLO", "NOTE", "PART", "Joiner", "Note"]

HELLO, NOTE, PART = b"\x00", b"\x01", b"\x02"
# The bytes of a notification of the core, the first byte included.
_PIECE_MAX = 2048
_HEAD = struct.Struct("<cQI")
_numbers = itertools.count()


class Note:
    """A notification on its way to one peer."""

    def __init__(self, message: bytes) -> None:
        if len(message) < _PIECE_MAX:
            self._left = deque([NOTE + message])
            return
        number, room = next(_numbers), _PIECE_MAX - _HEAD.size
        starts = range(0, len(message), room)
        self._left = deque(
            _HEAD.pack(PART, number, follow) + message[start : start + room]
            for start, follow in zip(starts, reversed(range(len(starts))), strict=True)
        )

    @property
    def piece(self) -> bytes | None:
        """The one notification of the core that carries it, or None if it takes several."""
        return self._left[0] if len(self._left) == 1 else None

    def send(self, peer: Peer) -> None:
        """Send it, waiting for room at the peer for each piece. onehop.TimeoutError: none came."""
        for piece in self._left:
            peer.notify(piece)

    def send_some(self, peer: Peer) -> bool:
        """Send what the peer has room for now, behind what was sent; whether that is all."""
        while self._left:
            try:
                peer.notify(self._left[0], timeout=0)
            except onehop.TimeoutError:
                return False
            self._left.popleft()
        return True


class Joiner:
    """Joins the parts that come over the links of one agent. Threading: one call at a time."""

    def __init__(self) -> None:
        self._wholes: dict[int, dict[int, list[bytes]]] = {}  # by link, then by number

    def add(self, link: int, data: bytes) -> bytes | None:
        """Take a part; return the whole if it was the last one. Malformed parts are dropped."""
        if len(data) < _HEAD.size:
            return None
        _, number, follow = _HEAD.unpack_from(data)
        wholes = self._wholes.setdefault(link, {})
        wholes.setdefault(number, []).append(data[_HEAD.size :])
        return None if follow else b"".join(wholes.pop(number))

    def forget(self, link: int) -> None:
        """Drop what a link that ended left unfinished."""
        self._wholes.pop(link, None)
