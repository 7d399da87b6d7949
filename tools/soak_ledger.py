# SPDX-License-Identifier: Apache-2.0
"""The messages of the soak, and how receivers check that all of them arrive, in order.

The bytes of a message are derived from the run's seed, its stream (one direction of a link and a
tag) and its sequence number. Messages of 8 bytes and more begin with a header:

    | sequence, 31 bits | end of round, 1 bit | check of stream and sequence, 32 bits | bytes ...

A round is a burst of messages of one stream. Its last message lists the messages that the receiver
must have.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import random
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

HEADER = struct.Struct("<II")
END = 1 << 31  # in a header's first word
STRIDE = 65_521  # period of the messages' first bytes
GUARD = bytes(range(64))  # follows each receive buffer


class WrongBytesError(Exception):
    """A message differs from the one that was sent."""


class WrongOrderError(Exception):
    """A message is missing, duplicated, or out of order."""


def stream_key(*parts: object) -> int:
    """Return the number of a stream, equal in all processes."""
    text = "/".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Payloads:
    """Makes and checks the bytes of messages."""

    def __init__(self, seed: int, largest: int) -> None:
        self._block = memoryview(random.Random(f"{seed}/bytes").randbytes(largest + STRIDE))

    @staticmethod
    def _mix(key: int, sequence: int) -> int:
        return ((key ^ (sequence * 0xBF58476D1CE4E5B9)) * 0x9E3779B97F4A7C15) >> 7 & (1 << 60) - 1

    def body(self, key: int, sequence: int, size: int) -> memoryview:
        """Return the bytes of a message without its header."""
        offset = self._mix(key, sequence) % STRIDE
        return self._block[offset : offset + size]

    def make(self, key: int, sequence: int, size: int) -> bytearray:
        """Return a message."""
        made = bytearray(self.body(key, sequence, size))
        if size >= HEADER.size:
            check = self._mix(key, sequence) >> 20 & 0xFFFFFFFF
            HEADER.pack_into(made, 0, sequence, check)
        return made

    def make_end(self, key: int, what: dict[str, object]) -> bytes:
        """Return the last message of a round."""
        text = json.dumps(what).encode()
        return HEADER.pack(END, zlib.crc32(text, key & 0xFFFFFFFF)) + text

    def check(self, key: int, sequence: int, got: bytearray, size: int) -> None:
        """Raise unless the first bytes of a buffer are this message."""
        begin = 0
        if size >= HEADER.size:
            word, check = HEADER.unpack_from(got)
            if (word, check) != (sequence, self._mix(key, sequence) >> 20 & 0xFFFFFFFF):
                msg = f"header {word:#x}, {check:#x} where message {sequence} was expected"
                raise WrongBytesError(msg)
            begin = HEADER.size
        body = self.body(key, sequence, size)
        if got.startswith(body[begin:], begin):
            return
        first = next(i for i in range(begin, size) if got[i] != body[i])
        wrong = sum(got[i] != body[i] for i in range(begin, size))
        msg = (
            f"{wrong} wrong of {size} bytes of message {sequence}, the first is byte {first}: "
            f"{got[first : first + 16].hex()} for {body[first : first + 16].hex()}"
        )
        raise WrongBytesError(msg)

    def read(self, key: int, got: bytearray, size: int) -> tuple[int, dict[str, Any] | None]:
        """Return the sequence number and, at an end of round, the content; raise if wrong."""
        if size < HEADER.size:
            msg = f"a message of {size} bytes, without a header"
            raise WrongBytesError(msg)
        word, check = HEADER.unpack_from(got)
        if not word & END:
            self.check(key, word, got, size)
            return word, None
        text = bytes(memoryview(got)[HEADER.size : size])
        if zlib.crc32(text, key & 0xFFFFFFFF) != check:
            msg = f"the end of a round, {size} bytes, fails its check: {text[:64]!r}"
            raise WrongBytesError(msg)
        return -1, json.loads(text)


@dataclass
class Ledger:
    """The received messages of one stream, each with the interval in which its receive was posted.

    Receives overlap. Of two messages the earlier one must not be in a receive that was posted after
    the later one's.
    """

    name: str
    got: dict[int, tuple[int, int]] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    settled: int = 0

    def record(self, sequence: int, first: int, last: int) -> None:
        """Record a message, and the interval of its receive."""
        if sequence in self.got:
            msg = f"{self.name}: message {sequence} came twice"
            raise WrongOrderError(msg)
        self.got[sequence] = (first, last)

    def check_order(self, withdrawn: int = 0) -> None:
        """Raise if messages overtook each other.

        A receive whose message was withdrawn keeps its place, though later receives may have got
        later messages already: `withdrawn` messages may be out of order.
        """
        if withdrawn:
            self._check_count_out_of_order(withdrawn)
            return
        latest, of = -1, -1
        for sequence in sorted(self.got):
            first, last = self.got[sequence]
            if last < latest:
                msg = f"{self.name}: message {sequence} overtook message {of}"
                raise WrongOrderError(msg)
            if first > latest:
                latest, of = first, sequence

    def _check_count_out_of_order(self, most: int) -> None:
        tails: list[int] = []  # of increasing subsequences, indexed by length
        for sequence in sorted(self.got, key=self.got.__getitem__):
            at = bisect.bisect_left(tails, sequence)
            tails[at : at + 1] = [sequence]
        if len(self.got) - len(tails) > most:
            msg = (
                f"{self.name}: {len(self.got) - len(tails)} messages are out of order, though only "
                f"{most} were withdrawn"
            )
            raise WrongOrderError(msg)

    def settle(self, doubts: int | None = None) -> int:
        """Check the rounds that are complete; return how many of their messages are missing.

        doubts: how many may be missing, because receives in doubt took them. None: missing messages
        may still arrive, and their rounds are kept.
        """
        lost = 0
        for end in list(self.rounds):
            expected = set(end["sent"])
            missing = expected.difference(self.got)
            if missing and doubts is None:
                continue
            lost += len(missing)
            if lost > (doubts or 0):
                msg = f"{self.name}: {len(missing)} messages are lost: {sorted(missing)[:8]}"
                raise WrongOrderError(msg)
            allowed = expected.union(end["doubtful"])
            self.check_order(end["next"] - end["first"] - len(allowed))
            self.rounds.remove(end)
            for sequence in [s for s in self.got if end["first"] <= s < end["next"]]:
                if sequence not in allowed:
                    msg = f"{self.name}: message {sequence} came though its send had failed"
                    raise WrongOrderError(msg)
                del self.got[sequence]
            self.settled += 1
        return lost

    def missing(self) -> str:
        """Describe the messages that are still expected."""
        missing = [s for end in self.rounds for s in end["sent"] if s not in self.got]
        return f"{self.name}: {len(missing)} messages, the first are {missing[:8]}"
