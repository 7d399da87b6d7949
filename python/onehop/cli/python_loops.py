# SPDX-License-Identifier: Apache-2.0
"""The benchmark's loops in Python: what the package adds to the time of an operation.

They do what loops.cc does, by the package as a user calls it: with numpy arrays, and of GPU memory
by a Region, a torch tensor, or any array with the CUDA array interface. Payloads are those of the
loops in C++.
"""

# ruff: noqa: ANN401 - arrays, regions and requests are whatever a user may have

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import onehop
from onehop import _bench

_CONTROL_TAG = 1
_CONTROL_SIZE = 4096
_SLOT = 0
_PREPARED = (_bench.Mode.PUT_PREPARED, _bench.Mode.GET_PREPARED)

Verb = Callable[[int], Any]


@dataclass
class Found:
    """What a loop measured and found: see _bench.Outcome."""

    samples_us: list[float] = field(default_factory=list)
    post_us: list[float] = field(default_factory=list)
    seconds: float = 0.0
    bytes: float = 0.0
    wrong: int = 0
    path: str = "none"


@dataclass(frozen=True)
class Wire:
    """How the messages of a row move: see bench/wire.h.

    Attributes:
        out, inbox: what this side gives and takes.
        send, recv: move message i; what they return has a path, or is None.
        isend, irecv: start to, and return a request.
        overwritten: the next message may come as soon as this side has answered.
        one_sided: only side 0 acts.
        passive: this side only lets the other one read or write its memory.
        kept: what has to live as long as the row.

    """

    out: _bench.Payload | None = None
    inbox: _bench.Payload | None = None
    send: Verb = lambda _: None
    recv: Verb = lambda _: None
    isend: Verb | None = None
    irecv: Verb | None = None
    overwritten: bool = False
    one_sided: bool = False
    passive: bool = False
    kept: Any = None


class PythonLoops:
    """A side whose loops are Python: see _bench.Side."""

    def __init__(self, number: int, device: str, api: str) -> None:
        self.number = number
        self.endpoint = onehop.Endpoint(device=device) if device else onehop.Endpoint()
        self._device = device
        self._api = api
        self.peer: Any = None

    def address(self) -> bytes:
        """Return what the other side needs to connect."""
        return self.endpoint.address

    def connect(self, address: bytes) -> None:
        """Connect to the other side."""
        self.peer = self.endpoint.connect(address)

    def accept(self) -> None:
        """Await the other side."""
        self.peer = self.endpoint.accept()

    def close(self) -> None:
        """Close the endpoint."""
        self.endpoint.close()

    # ---- The loops

    def run(self, spec: _bench.Spec) -> Found:
        """Measure a row."""
        loops = {_bench.Op.LATENCY: self.latency, _bench.Op.BANDWIDTH: self.bandwidth}
        return loops.get(spec.op, self.batch)(spec)

    def latency(self, spec: _bench.Spec) -> Found:
        """Measure single operations."""
        found = Found()
        self._latency(self._wire(spec, in_flight=False), spec, found)
        return found

    def bandwidth(self, spec: _bench.Spec) -> Found:
        """Measure many in flight, in one direction."""
        found = Found()
        wire = self._wire(spec, in_flight=True)
        for number, count in enumerate((spec.warmup, spec.iterations)):
            self._begin(wire, number, last=True)
            begin = perf_counter_ns()
            if not wire.passive:
                self._flow(wire, spec.window, count, found)
            if not wire.one_sided:
                self._sync()
            passed = perf_counter_ns() - begin
            if self.number == 0:
                found.seconds, found.bytes = passed / 1e9, spec.size * count
                found.samples_us = found.samples_us or [passed / 1e3 / count]
            self._end(wire, count, found)
        return found

    def batch(self, spec: _bench.Spec) -> Found:
        """Measure many blocks by one call."""
        found = Found()
        blocks = _bench.Blocks(spec, self.number)
        put = self._puts(spec)
        region, remote = self._swap_region(blocks.memory())
        places = [self._places(spec, blocks, target=target) for target in (False, True)]
        start = self._batch_starter(spec, put, region, remote, places)
        move = start(spec.size)
        verb: dict[str, Any] = {"send" if put else "recv": lambda _: move().wait()}
        mine: dict[str, Any] = {"out" if put == (self.number == 0) else "inbox": blocks}
        self._latency(Wire(**mine, **verb, passive=self.number == 1), spec, found)
        if self.number == 0 and spec.mode in _PREPARED:
            post = start(1)
            for _ in range(spec.iterations):
                begin = perf_counter_ns()
                post().wait()
                found.post_us.append((perf_counter_ns() - begin) / 1e3)
        self._sync()
        return found

    def _latency(self, wire: Wire, spec: _bench.Spec, found: Found) -> None:
        # Passes before the timed one whose every byte is new.
        whole = 2 if spec.stamped else 4
        for number in range(whole):
            self._latency_pass(wire, number, 1, 1, found)
        total = spec.warmup + spec.iterations
        self._latency_pass(wire, whole, total, spec.warmup, found, last=True)

    def _latency_pass(
        self, wire: Wire, number: int, count: int, skipped: int, found: Found, last: bool = False
    ) -> None:
        self._begin(wire, number, last)
        out, inbox, send, recv = wire.out, wire.inbox, wire.send, wire.recv
        first = self.number == 0
        early = wire.overwritten and not first
        ways = 2 if out and inbox else 1
        moved = sum(payload.nbytes for payload in (out, inbox) if payload)
        done = None
        for i in range(0 if wire.passive else count):
            if out:
                out.mark(i, last and i + 1 == count)
            if inbox:
                inbox.expect(i)
            if first:
                start = perf_counter_ns()
                sent = send(i)
                done = recv(i) or sent
                passed = perf_counter_ns() - start
                if i >= skipped:
                    found.samples_us.append(passed / ways / 1e3)
                    found.seconds += passed / 1e9
                    found.bytes += moved
            else:
                done = recv(i)
                if early and inbox:
                    found.wrong += inbox.check(i)
                send(i)
            if inbox and not early:
                found.wrong += inbox.check(i)
        found.path = str(getattr(done, "path", found.path))
        self._end(wire, count, found)

    def _flow(self, wire: Wire, window: int, count: int, found: Found) -> None:
        """Keep the window full: a slot is used again when its last operation has ended."""
        out, inbox = wire.out, wire.inbox
        start = wire.isend if out else wire.irecv
        assert start
        requests: list[Any] = [None] * window
        samples = []
        done: Any = None
        oldest = 0
        last = perf_counter_ns()
        for i in range(count):
            if i - oldest == window:
                done = requests[oldest % window].wait()
                if inbox:
                    found.wrong += inbox.check(oldest)
                oldest += 1
            if out:
                out.mark(i, i + 1 == count)
            if inbox:
                inbox.expect(i)
            requests[i % window] = start(i)
            if window == 1:
                # It ends before the clock is read.
                done = requests[0].wait()
                if inbox:
                    found.wrong += inbox.check(i)
                oldest += 1
            if (i + 1) % window == 0:
                now = perf_counter_ns()
                samples.append((now - last) / window / 1e3)
                last = now
        for i in range(oldest, count):
            done = requests[i % window].wait()
            if inbox:
                found.wrong += inbox.check(i)
        # A send ends when its bytes may be overwritten; the receiver knows their path.
        if inbox or wire.one_sided:
            found.path = str(done.path)
        if self.number == 0:
            found.samples_us = samples

    def _begin(self, wire: Wire, number: int, last: bool) -> None:
        if wire.out:
            wire.out.lay_out(number, last)
        if wire.inbox:
            wire.inbox.clear(number)
        self._sync()

    def _end(self, wire: Wire, count: int, found: Found) -> None:
        self._sync()
        if wire.inbox:
            found.wrong += wire.inbox.check_all(count)
        self._sync()

    # ---- The wires

    def _wire(self, spec: _bench.Spec, *, in_flight: bool) -> Wire:
        if self._one_sided(spec):
            return self._one_sided_wire(spec)
        if spec.mode == _bench.Mode.PUT_SIGNAL:
            return self._signalled_puts(spec)
        return self._messages(spec, in_flight)

    @staticmethod
    def _one_sided(spec: _bench.Spec) -> bool:
        return spec.mode in (_bench.Mode.PUT, _bench.Mode.GET)

    @staticmethod
    def _puts(spec: _bench.Spec) -> bool:
        return spec.mode in (_bench.Mode.PUT, _bench.Mode.PUT_PREPARED)

    def _messages(self, spec: _bench.Spec, in_flight: bool) -> Wire:
        peer, first = self.peer, self.number == 0
        out = self._slots(spec, self.number, spoils=first) if first or not in_flight else None
        inbox = self._slots(spec, 1 - self.number) if not first or not in_flight else None
        sources, targets = self._objects(out, spec), self._objects(inbox, spec)
        # The least that a call can be asked to do.
        how = {"after": None} if self._api == "python-region" else {}
        window = spec.window
        if in_flight:
            return Wire(
                out,
                inbox,
                isend=lambda i: peer.isend(sources[i % window], **how),
                irecv=lambda i: peer.irecv(targets[i % window], **how),
            )
        source, target = sources[0], targets[0]
        if how:
            return Wire(
                out,
                inbox,
                lambda _: peer.send(source, after=None),
                lambda _: peer.recv(target, after=None),
            )
        return Wire(out, inbox, lambda _: peer.send(source), lambda _: peer.recv(target))

    def _signalled_puts(self, spec: _bench.Spec) -> Wire:
        peer = self.peer
        out = self._slots(spec, self.number, spoils=self.number == 0)
        inbox = self._slots(spec, 1 - self.number)
        source = out.array(0)
        region, remote = self._swap_region(inbox.array(0))

        def send(_: int) -> Any:
            put = peer.put(source, remote)
            peer.signal(_SLOT)
            return put.wait()

        def recv(_: int) -> None:
            peer.wait_signal(_SLOT)

        return Wire(out, inbox, send, recv, overwritten=True, kept=region)

    def _one_sided_wire(self, spec: _bench.Spec) -> Wire:
        peer, put, window, size = self.peer, self._puts(spec), spec.window, spec.size
        passive = self.number == 1
        slots = self._slots(spec, 0 if put else 1, fixed=not put)
        region, remote = self._swap_region(slots.memory())
        arrays = self._objects(slots, spec)
        remotes = [remote[i * size : (i + 1) * size] for i in range(window)]
        verb = peer.put if put else peer.get

        def start(i: int) -> Any:
            return verb(arrays[i % window], remotes[i % window])

        def move(_: int) -> Any:
            return verb(region, remote).wait()

        verbs: dict[str, Any] = (
            {"send": move, "isend": start} if put else {"recv": move, "irecv": start}
        )
        mine: dict[str, Any] = {"inbox" if put == passive else "out": slots}
        return Wire(**mine, **verbs, one_sided=True, passive=passive, kept=region)

    def _places(self, spec: _bench.Spec, blocks: _bench.Blocks, *, target: bool) -> Any:
        """Return where the blocks lie, as a range or as an array of offsets."""
        if spec.strided:
            pitch = 2 * spec.size
            return range(0, spec.blocks * pitch, pitch)
        import numpy as np

        return np.array([blocks.offset(i, target) for i in range(spec.blocks)], dtype=np.uint64)

    def _batch_starter(
        self, spec: _bench.Spec, put: bool, region: Any, remote: Any, places: Sequence[Any]
    ) -> Callable[[int], Callable[[], Any]]:
        """Return what makes, of a block's size, the function that starts a batch."""
        peer = self.peer
        if spec.mode in _PREPARED:
            prepare = peer.prepare_put if put else peer.prepare_get
            return lambda size: prepare(region, remote, *places, size).post
        verb = peer.put_batch if put else peer.get_batch
        return lambda size: lambda: verb(region, remote, *places, size)

    # ---- Memory

    def _slots(
        self, spec: _bench.Spec, writer: int, *, spoils: bool = True, fixed: bool = False
    ) -> _bench.Slots:
        return _bench.Slots(spec, writer, spoils, fixed, self._device)

    def _objects(self, slots: _bench.Slots | None, spec: _bench.Spec) -> list[Any]:
        """Return what is sent or received: the slots as a user has them."""
        if slots is None:
            return []
        if not self._device:
            return [slots.array(i) for i in range(spec.window)]
        arrays = [GpuArray(slots, i) for i in range(spec.window)]
        if self._api == "python-torch":
            torch = importlib.import_module("torch")
            return [torch.as_tensor(array, device=self._device) for array in arrays]
        if self._api == "python-region":
            return [self.endpoint.register(array) for array in arrays]
        return list(arrays)

    # ---- What the sides tell each other

    def _sync(self) -> None:
        self._swap(b"")

    def _swap(self, data: bytes) -> bytes:
        answer = bytearray(_CONTROL_SIZE)
        receive = self.peer.irecv(answer, _CONTROL_TAG)
        self.peer.send(data, _CONTROL_TAG)
        return bytes(answer[: receive.wait().nbytes])

    def _swap_region(self, array: Any) -> tuple[onehop.Region, onehop.RemoteRegion]:
        region = self.endpoint.register(array)
        return region, self.peer.attach(self._swap(region.descriptor))


class GpuArray:
    """A slot in memory of a GPU, as a library presents its arrays."""

    def __init__(self, slots: _bench.Slots, i: int) -> None:
        self._slots = slots
        self._at = i

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self._slots.nbytes,),
            "typestr": "|u1",
            "data": (self._slots.address(self._at), False),
            "version": 3,
        }
