# SPDX-License-Identifier: Apache-2.0
"""The benchmark's loop in Python that sends messages to and fro, whatever memory they are in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

from onehop import _bench
from onehop.cli.python_link import Array, Found, Link, new_array, previous, seed_of, spoil

# Messages before the timed ones whose every byte is new and checked, where those are not looked at.
_WHOLE_ROUNDS = 4


class Memory(Protocol):
    """Where messages are: payloads are made and looked at in `data`, and travel from its place."""

    data: Array

    def publish(self) -> None: ...  # noqa: D102
    def fetch(self) -> None: ...  # noqa: D102


class HostMemory:
    """An array that is its own place."""

    def __init__(self, spec: _bench.Spec) -> None:
        self.data = new_array(spec.size, spec)

    def publish(self) -> None:
        """Leave the data where it is."""

    def fetch(self) -> None:
        """Leave the data where it is."""


@dataclass(frozen=True)
class Exchange:
    """Two memories, and how a message goes out and comes in.

    Attributes:
        overwritten: the next message may come as soon as this side has answered.
        kept: what has to live as long as the loop.

    """

    out: Memory
    inbox: Memory
    give: Callable[[], object]
    take: Callable[[], str]
    overwritten: bool = False
    kept: Any = None


def ping_pong(link: Link, spec: _bench.Spec, exchange: Exchange) -> Found:
    """Send messages to and fro; one way is half of the round trip.

    Each message is stamped and looked at; or else passes before the timed one, and that one's last
    message, are checked whole, as in the loops in C++.
    """
    found = Found()
    out, inbox = exchange.out, exchange.inbox
    give, take, stamped = exchange.give, exchange.take, spec.stamped
    early = stamped and exchange.overwritten and not link.first
    rounds = 0 if stamped else _WHOLE_ROUNDS
    for phase in range(rounds + 1):
        warmup, total = (1, 1) if phase < rounds else (spec.warmup, spec.warmup + spec.iterations)
        ours, theirs = seed_of(spec, link.number, phase), seed_of(spec, 1 - link.number, phase)
        _bench.fill(out.data, ours)
        spoil(spec, out.data, last=link.first and phase == rounds and not stamped)
        _bench.poison(inbox.data)
        out.publish()
        inbox.publish()
        link.sync()
        for i in range(total):
            if stamped:
                _bench.stamp(out.data, ours, previous(i), i)
                spoil(spec, out.data, last=link.first and i + 1 == total)
            if link.first:
                start = perf_counter_ns()
                give()
                found.path = take()
                passed = perf_counter_ns() - start
                if i >= warmup:
                    found.add(passed, 2 * spec.size, share=0.5)
            else:
                found.path = take()
                if early:
                    found.wrong += _bench.check_stamps(inbox.data, i)
                give()
            if stamped and not early:
                found.wrong += _bench.check_stamps(inbox.data, i)
        link.sync()
        inbox.fetch()
        if stamped:
            found.wrong += _bench.check_message(inbox.data, theirs, total - 1)
        else:
            found.wrong += _bench.count_wrong(inbox.data, theirs)
        link.sync()
    return found
