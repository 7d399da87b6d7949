# SPDX-License-Identifier: Apache-2.0
"""The benchmark's loops in Python: bandwidth and batches."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import numpy as np

import onehop
from onehop import _bench
from onehop.cli.python_link import (
    CONTROL_TAG,
    Array,
    Found,
    Link,
    new_array,
    previous,
    seed_of,
    spoil,
)


class Window:
    """Slots of one array, each a message of its own, and the operations that use them."""

    def __init__(self, spec: _bench.Spec, writer: int) -> None:
        self.spec = spec
        self.array = new_array(spec.size * spec.window, spec)
        self.bounds = [(i * spec.size, (i + 1) * spec.size) for i in range(spec.window)]
        self.slots = [self.array[first:last] for first, last in self.bounds]
        self.seeds = [seed_of(spec, writer, i) for i in range(spec.window)]

    def fill(self) -> None:
        """Lay down all slots' patterns."""
        for slot, seed in zip(self.slots, self.seeds, strict=True):
            _bench.fill(slot, seed)

    def mark(self, i: int, *, last: bool) -> Array:
        """Make a slot hold message `i`."""
        n = i % self.spec.window
        _bench.stamp(self.slots[n], self.seeds[n], previous(i, self.spec.window), i)
        spoil(self.spec, self.slots[n], last=last)
        return self.slots[n]

    def check(self, count: int) -> int:
        """Check the last message of each slot, of `count` messages."""
        used = range(count - min(count, self.spec.window), count)
        places = ((i, i % self.spec.window) for i in used)
        return sum(_bench.check_message(self.slots[n], self.seeds[n], i) for i, n in places)

    def run(
        self, count: int, start: Callable[[int], Any], ended: Callable[[int], None]
    ) -> tuple[str, list[float]]:
        """Keep the window full: start(i) begins, ended(i) follows. Return path and samples."""
        window = self.spec.window
        requests: list[Any] = [None] * window
        samples: list[float] = []
        path, last = "none", perf_counter_ns()
        # With a window of 1 an operation ends before the clock is read.
        behind = window if window > 1 else 0
        for i in range(count):
            if behind and i >= behind:
                path = requests[i % window].wait().path
                ended(i - behind)
            requests[i % window] = start(i)
            if not behind:
                path = requests[0].wait().path
                ended(i)
            if (i + 1) % window == 0:
                now = perf_counter_ns()
                samples.append((now - last) / window / 1e3)
                last = now
        for i in range(max(0, count - behind), count):
            path = requests[i % window].wait().path
            ended(i)
        return path, samples


def send_flow(link: Link, spec: _bench.Spec) -> Found:
    """Send as many messages as the window allows; the receiver confirms the last."""
    found = Found()
    window = Window(spec, 0)
    peer, size = link.peer, spec.size
    for count in (spec.warmup, spec.iterations):
        if link.first:
            window.fill()
        link.sync()
        begin = perf_counter_ns()
        if link.first:

            def send(i: int, count: int = count) -> Any:  # noqa: ANN401 - a request
                return peer.isend(window.mark(i, last=i + 1 == count))

            _, samples = window.run(count, send, lambda _: None)
            peer.recv(bytearray(1), CONTROL_TAG)
            _finish(found, samples, begin, count, size)
        else:

            def check(i: int) -> None:
                found.wrong += _bench.check_stamps(window.slots[i % spec.window], i)

            found.path, _ = window.run(
                count, lambda i: peer.irecv(window.slots[i % spec.window]), check
            )
            peer.send(b"", CONTROL_TAG)
            found.wrong += window.check(count)
        link.sync()
    return found


def _finish(found: Found, samples: list[float], begin: int, count: int, size: int) -> None:
    passed = perf_counter_ns() - begin
    found.seconds = passed / 1e9
    found.bytes = size * count
    found.samples_us = samples or [passed / 1e3 / count]


def one_sided_flow(link: Link, spec: _bench.Spec) -> Found:
    """Put or get as many at a time as the window allows."""
    found = Found()
    put = spec.mode == _bench.Mode.PUT
    window = Window(spec, 0 if put else 1)
    _region, remote = link.swap_region(window.array)
    targets = [remote[first:last] for first, last in window.bounds]
    for count in (spec.warmup, spec.iterations):
        _bench.poison(window.array)
        if link.first == put:
            window.fill()
        held = min(count, spec.window)
        if not link.first and not put:
            for i in range(spec.window):
                window.mark(i, last=i + 1 == held)
        link.sync()
        if link.first:
            begin = perf_counter_ns()
            start, ended = _one_sided_steps(link, spec, window, targets, found, count)
            found.path, samples = window.run(count, start, ended)
            _finish(found, samples, begin, count, spec.size)
        link.sync()
        if link.first != put:
            found.wrong += window.check(count if put else held)
    link.sync()
    return found


def _one_sided_steps(
    link: Link,
    spec: _bench.Spec,
    window: Window,
    targets: list[onehop.RemoteRegion],
    found: Found,
    count: int,
) -> tuple[Callable[[int], Any], Callable[[int], None]]:
    peer = link.peer

    def put(i: int) -> Any:  # noqa: ANN401 - a request
        return peer.put(window.mark(i, last=i + 1 == count), targets[i % spec.window])

    def get(i: int) -> Any:  # noqa: ANN401 - a request
        n = i % spec.window
        _bench.poison_stamps(window.slots[n], n)
        return peer.get(window.slots[n], targets[n])

    def check(i: int) -> None:
        n = i % spec.window
        found.wrong += _bench.check_stamps(window.slots[n], n)

    if spec.mode == _bench.Mode.PUT:
        return put, lambda _: None
    return get, check


def _starter(peer: onehop.Peer, put: bool, prepared: bool) -> Callable[..., Any]:
    """Return what makes, of a batch's arguments, the function that starts it."""
    if prepared:
        prepare = peer.prepare_put if put else peer.prepare_get
        return lambda *batch: prepare(*batch).post
    verb = peer.put_batch if put else peer.get_batch
    return lambda *batch: lambda: verb(*batch)


def batch(link: Link, spec: _bench.Spec) -> Found:
    """Move many blocks by one call; gaps between them must stay as they are."""
    found = Found()
    put = spec.mode in (_bench.Mode.PUT, _bench.Mode.PUT_PREPARED)
    prepared = spec.mode in (_bench.Mode.PUT_PREPARED, _bench.Mode.GET_PREPARED)
    pitch = 2 * spec.size
    array = new_array(spec.blocks * pitch, spec)
    region, remote = link.swap_region(array)
    places: Any = range(0, spec.blocks * pitch, pitch)
    if not spec.strided:
        places = np.arange(0, spec.blocks * pitch, pitch, dtype=np.uint64)
    # As lists, the target has the blocks in the opposite order, so nothing can be joined.
    opposite = places if spec.strided else np.ascontiguousarray(places[::-1])
    mine = places if link.first else opposite
    blocks = [array[int(at) : int(at) + spec.size] for at in mine]
    gaps = [array[int(at) + spec.size : int(at) + pitch] for at in mine]
    if link.first == put:
        for i, block in enumerate(blocks):
            _bench.fill(block, seed_of(spec, 0 if put else 1, i))
            _bench.stamp(block, seed_of(spec, 0 if put else 1, i), _bench.NO_ITERATION, i)
        spoil(spec, blocks[spec.blocks // 2], last=True)
    start_batch = _starter(link.peer, put, prepared)
    move = start_batch(region, remote, places, opposite, spec.size)
    link.sync()
    for i in range(spec.warmup + spec.iterations if link.first else 0):
        start = perf_counter_ns()
        found.path = move().wait().path
        passed = perf_counter_ns() - start
        if i >= spec.warmup:
            found.add(passed, spec.size * spec.blocks)
    if link.first and prepared:
        move = start_batch(region, remote, places, opposite, 1)
        for _ in range(spec.iterations):
            start = perf_counter_ns()
            move().wait()
            found.post_us.append((perf_counter_ns() - start) / 1e3)
    link.sync()
    if link.first != put:
        for i, (block, gap) in enumerate(zip(blocks, gaps, strict=True)):
            found.wrong += _bench.check_message(block, seed_of(spec, 0 if put else 1, i), i)
            found.wrong += _bench.count_touched(gap)
    link.sync()
    return found
