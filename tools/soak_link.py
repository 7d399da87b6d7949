# SPDX-License-Identifier: Apache-2.0
"""One link of the soak: the operations of its two sides until it is closed or lost.

Both sides derive the plan of each direction from the run's seed and the link's name, so neither
announces its next step. A link of kind "directed" carries rounds of messages that are received
from this peer, and puts and gets beside them. One of kind "wild" carries rounds that the receiver's
threads take from any source, see soak_worker.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import onehop
from onehop import Status
from soak_ledger import Ledger, WrongBytesError, WrongOrderError, stream_key
from soak_memory import check_guard

if TYPE_CHECKING:
    from collections.abc import Callable

    from soak_memory import DeviceBuffer, HostBuffer
    from soak_worker import Worker

PATIENCE = 60.0  # seconds; limit of each operation that is not abandoned, also with stopped peers
LATE = 15.0  # seconds after the end of a round in which its messages must have arrived
WILD_MAX = 256 << 10  # bytes of a message for receives from any source
TAG_DESCRIPTOR, TAG_DONE, TAG_NEVER = 1 << 40, (1 << 40) + 1, (1 << 40) + 2
TAG_LOOSE = 1 << 20  # the first of the loose rounds' tags
STATIC = 256 << 10  # bytes of a region that are only read
SLOT = 64 << 10  # bytes of a region that one put may write
SLOTS = 8
SCRATCH = STATIC + SLOTS * SLOT
REGION = SCRATCH + SLOT


class HangError(Exception):
    """An expected event did not happen within its deadline."""


@dataclass
class Link:
    """One side of a link."""

    worker: Worker
    kind: str  # "directed" or "wild"
    uid: str
    connector: bool
    other: tuple[int, int]  # the other side's process: its place and its incarnation
    peer: onehop.Peer
    closing: bool = False
    lost: bool = False
    broken: bool = False  # as this side sees it; await_inbound decides whether it was a loss
    threads: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    inbound_done: threading.Event = field(default_factory=threading.Event)
    shared: Any = None  # memory of the local region
    region: Any = None
    outstanding: set[int] = field(default_factory=set)  # slots that the peer has not checked yet
    expected_rounds: int = -1

    def plan(self, outbound: bool) -> random.Random:
        """Return the random numbers from which both sides derive a direction's rounds."""
        direction = "there" if outbound == self.connector else "back"
        return random.Random(f"{self.worker.seed}/{self.uid}/{direction}")

    def key(self, outbound: bool, *parts: object) -> int:
        """Return the key of a stream of this link."""
        direction = "there" if outbound == self.connector else "back"
        return stream_key(self.worker.seed, self.uid, direction, *parts)

    # ---- Life

    def start(self) -> None:
        """Start the threads of the link."""
        if self.kind == "directed":
            static = self.worker.payloads.body(self.key(False, "static"), 0, STATIC)
            self.shared = self.worker.memory.region(REGION, static)
            roles = [self.send_rounds, self.receive_rounds, self.one_sided]
        else:
            roles = [self.send_wild]
        rng = random.Random(f"{self.worker.seed}/{self.uid}/close/{self.connector}")
        if rng.random() < self.worker.options["abrupt"] / 2:
            threading.Thread(target=self.close_abruptly, args=(rng.uniform(0, 2),)).start()
        self.threads = len(roles)
        for role in roles:
            threading.Thread(
                target=self.run, args=(role,), name=f"{self.uid} {role.__name__}"
            ).start()

    def close_abruptly(self, delay: float) -> None:
        """Close the link after a delay, in the middle of its operations."""
        time.sleep(delay)
        with self.lock:
            if self.closing or self.lost or self.threads == 0:
                return
            self.closing = True
        self.worker.report("abrupt", self.uid)
        self.worker.count("abrupt_closes")
        self.peer.close()

    def run(self, role: Callable[[], None]) -> None:
        """Run one thread of the link; the last thread closes it."""
        try:
            role()
        except onehop.LinkError as failure:
            where = traceback.extract_tb(failure.__traceback__)[-1]
            self.lose(failure, f"{role.__name__}, line {where.lineno}, {where.line}: ")
        except onehop.TimeoutError as failure:
            if not self.closing:
                self.worker.fault(f"{role.__name__}: {failure}", self)
        except onehop.Error as failure:
            if failure.status == Status.IN_DOUBT and self.is_broken():
                self.lose(failure)  # the peer's copy engine had already begun
            elif not self.closing:
                text = f"{role.__name__}: {type(failure).__name__}: {failure}"
                self.worker.failed(self.uid, self.other, text)
        except BaseException as failure:
            # After a local close() a buffer may be half written, but never by a wrong message.
            self.worker.fault(f"{role.__name__}: {type(failure).__name__}: {failure}", self)
        finally:
            self.worker.rest()
            with self.lock:
                self.threads -= 1
                last = self.threads == 0
            if last:
                self.worker.end(self)

    def is_broken(self) -> bool:
        """Return whether the link carries no more messages."""
        try:
            self.peer.irecv(bytearray(8), TAG_NEVER).cancel()
        except onehop.Error:
            return True
        return False

    def lose(self, failure: onehop.Error, where: str = "", when: float | None = None) -> None:
        """Report a broken link to the supervisor, which decides whether it was expected."""
        with self.lock:
            if self.closing or self.lost:
                return
            self.lost = True
        self.worker.report(
            "lost", self.uid, self.other, f"{where}{failure}", when or time.monotonic()
        )

    # ---- Messages that the receiver expects from this peer

    def rounds(self, rng: random.Random) -> list[tuple[str, int, int]]:
        """Return the plan of a direction: kind, tag and number of messages of each round."""
        plan = []
        for i in range(rng.randint(2, 10)):
            if rng.random() < 0.5:
                plan.append(("strict", rng.randrange(3), rng.choice((1, 8, 40, 200))))
            else:
                plan.append(("loose", TAG_LOOSE + i, rng.choice((2, 10, 50))))
        return plan

    def size(self, rng: random.Random, smallest: int) -> int:
        """Draw the size of a message."""
        largest = self.worker.options["largest"]
        most = rng.choice((0, 8, 64, 400, 400, 4096, 16384, 65536, 65536, 300_000, largest))
        most = min(most, largest)
        return max(smallest, rng.randint(most // 2, most))

    def send_rounds(self) -> None:
        """Send the rounds of the plan."""
        self.peer.send(self.describe(), TAG_DESCRIPTOR, timeout=PATIENCE)
        sequences: dict[int, int] = {}
        rng = self.plan(outbound=True)
        for kind, tag, messages in self.rounds(rng):
            round_rng = random.Random(rng.random())
            if kind == "strict":
                self.send_strict(round_rng, tag, messages, sequences)
            else:
                self.send_loose(round_rng, tag, messages)

    def receive_rounds(self) -> None:
        """Receive the rounds of the plan, then wait until no process uses the local region."""
        sequences: dict[int, int] = {}
        rng = self.plan(outbound=False)
        plan = self.rounds(rng)
        for kind, tag, messages in plan:
            round_rng = random.Random(rng.random())
            if kind == "strict":
                self.receive_strict(round_rng, tag, messages, sequences)
            else:
                self.receive_loose(tag)
        self.peer.recv(bytearray(1), TAG_DONE, timeout=PATIENCE)
        self.region.deregister(timeout=PATIENCE)

    def send_strict(
        self, rng: random.Random, tag: int, messages: int, sequences: dict[int, int]
    ) -> None:
        """Send messages that must all arrive, also those without bytes."""
        key, window = self.key(True, tag), deque()
        depth = self.worker.rng().choice((1, 2, 16))
        for _ in range(messages):
            sequence = sequences.get(tag, 0)
            sequences[tag] = sequence + 1
            made = self.worker.make(key, sequence, self.size(rng, 0))
            if depth == 1:
                self.peer.send(made, tag, timeout=PATIENCE)
            else:
                window.append(self.isend(made, tag, window))
            while len(window) >= depth:
                window.popleft().wait(timeout=PATIENCE)
            self.worker.beat("send")
        while window:
            window.popleft().wait(timeout=PATIENCE)

    def isend(
        self, made: bytes | bytearray | DeviceBuffer, tag: int, window: deque[onehop.Request]
    ) -> onehop.Request:
        """Post a send; while the peer accepts no more, wait for the oldest send."""
        while True:
            try:
                return self.peer.isend(made, tag)
            except onehop.OperationError as failure:
                if failure.status != Status.AGAIN or not window:
                    raise
            self.worker.count("again")
            window.popleft().wait(timeout=PATIENCE)

    def receive_strict(
        self, rng: random.Random, tag: int, messages: int, sequences: dict[int, int]
    ) -> None:
        """Receive the messages, each at its place and with its size."""
        key, own = self.key(False, tag), self.worker.rng()
        depth = own.choice((1, 2, 16))
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer, int, int]] = deque()
        for _ in range(messages):
            sequence = sequences.get(tag, 0)
            sequences[tag] = sequence + 1
            size = self.size(rng, 0)
            buffer = self.worker.memory.receive(size + own.choice((0, 0, 1, 100)))
            if depth == 1:
                message = self.peer.recv(buffer.room, tag, timeout=PATIENCE)
                self.check_strict(key, sequence, size, buffer, message)
            else:
                window.append((self.peer.irecv(buffer.room, tag), buffer, sequence, size))
            while len(window) >= depth:
                self.finish_strict(key, window)
            self.worker.beat("recv")
        while window:
            self.finish_strict(key, window)

    def finish_strict(
        self,
        key: int,
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer, int, int]],
    ) -> None:
        """Wait for the oldest receive and check its message."""
        request, buffer, sequence, size = window.popleft()
        self.check_strict(key, sequence, size, buffer, request.wait(timeout=PATIENCE))

    def check_strict(
        self,
        key: int,
        sequence: int,
        size: int,
        buffer: HostBuffer | DeviceBuffer,
        message: onehop.Message,
    ) -> None:
        """Check a message whose place in the stream is known."""
        if message.nbytes != size:
            msg = f"{message} where {size} bytes, message {sequence}, were expected"
            raise WrongOrderError(msg)
        self.worker.payloads.check(key, sequence, buffer.read(size), size)
        self.worker.verified(size, buffer)

    # ---- Messages whose sends and receives are sometimes cancelled

    def send_loose(self, rng: random.Random, tag: int, messages: int) -> None:
        """Send messages, cancel some; list at the end which of them arrive."""
        own, key = self.worker.rng(), self.key(True, tag)
        window: deque[tuple[onehop.Request, int]] = deque()
        sent: list[int] = []
        doubtful: list[int] = []

        def finish(timeout: float) -> None:
            request, sequence = window.popleft()
            self.conclude(lambda: request.wait(timeout=timeout), sequence, sent, doubtful)

        for sequence in range(messages):
            made = self.worker.make(key, sequence, self.size(rng, 8))
            dice = own.random()
            if dice < 0.1:
                timeout = own.choice((0.0, 0.001, 0.02))
                self.conclude(
                    lambda m=made, t=timeout: self.peer.send(m, tag, timeout=t),
                    sequence,
                    sent,
                    doubtful,
                )
            else:
                window.append((self.peer.isend(made, tag), sequence))
            if window and dice > 0.9:
                request, _ = own.choice(window)
                if request.cancel():
                    self.worker.count("cancels")
            while len(window) > 12:
                finish(PATIENCE if own.random() < 0.9 else 0.001)
            self.worker.beat("send loosely")
        while window:
            finish(PATIENCE)
        end = {"sent": sent, "doubtful": doubtful, "first": 0, "next": messages}
        self.peer.send(self.worker.payloads.make_end(key, end), tag, timeout=PATIENCE)

    def conclude(
        self, wait: Callable[[], object], sequence: int, sent: list[int], doubtful: list[int]
    ) -> None:
        """Wait for a send; record whether its message arrives."""
        try:
            wait()
            sent.append(sequence)
        except onehop.OperationError as failure:
            if failure.status in (Status.IN_DOUBT, Status.TRUNCATED):
                doubtful.append(sequence)
            elif failure.status == Status.TIMEOUT:
                self.worker.count("timeouts")
            elif failure.status != Status.CANCELLED:
                raise

    def receive_loose(self, tag: int) -> None:
        """Receive until the end of the round; abandon some receives."""
        own, key = self.worker.rng(), self.key(False, tag)
        ledger = Ledger(f"{self.uid} tag {tag}")
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer]] = deque()
        given_up: list[tuple[HostBuffer | DeviceBuffer, bytes]] = []
        doubts = place = 0
        while not ledger.rounds:
            self.post_loosely(tag, own, window)
            if own.random() < 0.1:
                request, _ = window[own.randrange(len(window))]
                if request.cancel():
                    self.worker.count("cancels")
            request, buffer = window.popleft()
            try:
                message = request.wait(timeout=PATIENCE if own.random() < 0.8 else 0.002)
            except onehop.OperationError as failure:
                if failure.status == Status.TIMEOUT:
                    self.worker.count("timeouts")
                # An abandoned receive drops a message that has arrived in part.
                if failure.status in (Status.TIMEOUT, Status.TRUNCATED, Status.IN_DOUBT):
                    doubts += 1
                elif failure.status != Status.CANCELLED:
                    raise
                if request.buffer_released:
                    given_up.append((buffer, bytes(buffer.read(buffer.size))))
                check_guard(buffer)
                continue
            got = buffer.read(message.nbytes)
            sequence, end = self.worker.payloads.read(key, got, message.nbytes)
            self.worker.verified(message.nbytes, buffer)
            if end:
                ledger.rounds.append(end)
                sequence = end["next"]
            ledger.record(sequence, place, place)
            place += 1
            self.worker.beat("receive loosely")
        ledger.settle(doubts + self.give_up(key, window, ledger, place))
        for buffer, then in given_up:
            if buffer.read(buffer.size) != then:
                msg = f"{self.uid} tag {tag}: a buffer was written after its receive had ended"
                raise WrongBytesError(msg)

    def post_loosely(
        self,
        tag: int,
        own: random.Random,
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer]],
    ) -> None:
        """Post more receives than there are messages."""
        while len(window) < 6:
            size = 4096 if own.random() < 0.05 else self.worker.options["largest"]
            buffer = self.worker.memory.receive(size)
            try:
                window.append((self.peer.irecv(buffer.room, tag), buffer))
            except onehop.LinkError:
                # The other side has finished and closed: earlier messages are in the window.
                if not window:
                    raise
                return

    def give_up(
        self,
        key: int,
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer]],
        ledger: Ledger,
        place: int,
    ) -> int:
        """Cancel the receives after the one that got the end of a round.

        Some may have a message: if a send was withdrawn, its receive may have got the end. Return
        how many had a message that was too long.
        """
        too_long = 0
        for after, (request, buffer) in enumerate(window):
            request.cancel()
            try:
                message = request.wait(timeout=PATIENCE)
            except onehop.LinkError:
                continue  # the round is complete; a receiver that continues meets it again
            except onehop.OperationError as failure:
                if failure.status == Status.TRUNCATED:
                    too_long += 1
                elif failure.status != Status.CANCELLED:
                    raise
                continue
            got = buffer.read(message.nbytes)
            sequence, _ = self.worker.payloads.read(key, got, message.nbytes)
            self.worker.verified(message.nbytes, buffer)
            ledger.record(sequence, place + after, place + after)
        return too_long

    # ---- Messages for receives from any source

    def send_wild(self) -> None:
        """Send rounds; return when the other side's rounds have arrived, too."""
        own = self.worker.rng()
        doom = self.peer.irecv(bytearray(8), TAG_NEVER)
        sequences = dict.fromkeys(range(4), 0)
        rounds = own.randint(2, 12)
        for number in range(rounds):
            lane = own.randrange(4)
            key, window = self.key(True, lane), deque()
            messages, most = own.choice(((500, 8), (100, 400), (40, 16384), (20, WILD_MAX)))
            first = sequences[lane]
            sequences[lane] += own.randint(2, messages)
            sent = list(range(first, sequences[lane]))
            for sequence in self.worker.spoil_order(sent):
                made = self.worker.make(key, sequence, own.randint(8, most))
                window.append(self.isend(made, lane, window))
                while len(window) > 64:
                    window.popleft().wait(timeout=PATIENCE)
                self.worker.beat("send to any")
            end = {
                "sent": sent,
                "doubtful": [],
                "first": first,
                "next": sequences[lane],
                "rounds": rounds if number == rounds - 1 else 0,
            }
            window.append(self.isend(self.worker.payloads.make_end(key, end), lane, window))
            while window:
                window.popleft().wait(timeout=PATIENCE)
        self.await_inbound(doom)

    def await_inbound(self, doom: onehop.Request) -> None:
        """Wait for the other side's last message, or its death."""
        deadline = time.monotonic() + PATIENCE
        while not self.inbound_done.wait(0.02):
            self.worker.beat("await the other side")
            if doom.done:
                self.broken, when = True, time.monotonic()
                # Messages that it sent before closing may still be under check.
                if self.inbound_done.wait(LATE):
                    return
                missing = [ledger.missing() for ledger in self.ledgers.values()]
                where = f"rounds that came: {self.rounds_came()}, missing: {missing}: "
                try:
                    doom.wait(timeout=PATIENCE)
                except onehop.LinkError as failure:
                    self.lose(failure, where, when)
                    return
            if time.monotonic() > deadline:
                missing = [ledger.missing() for ledger in self.ledgers.values()]
                msg = f"the other side's rounds do not end; missing: {missing}"
                raise HangError(msg)
        doom.cancel()

    def rounds_came(self) -> str:
        """Describe how much of the other side's rounds is complete."""
        settled = sum(ledger.settled for ledger in self.ledgers.values())
        return f"{settled} of {self.expected_rounds}"

    # ---- Puts and gets

    def describe(self) -> bytes:
        """Register the local region; return the descriptor for the peer."""
        self.region = self.worker.directed.register(self.shared.room)
        return self.region.descriptor

    def one_sided(self) -> None:
        """Put into the peer's region and get from it."""
        own = self.worker.rng()
        descriptor = bytearray(4096)
        got = self.peer.recv(descriptor, TAG_DESCRIPTOR, timeout=PATIENCE).nbytes
        remote = self.peer.attach(descriptor[:got], timeout=PATIENCE)
        operations = (self.put, self.put_blocks, self.get, self.get_blocks, self.put_and_get)
        for number in range(own.randint(5, 60)):
            own.choice(operations)(own, remote, number)
            self.worker.count("one_sided")
            self.worker.beat("put or get")
        for slot in self.outstanding:
            self.peer.wait_signal(slot, timeout=PATIENCE)
        remote.detach()
        self.peer.send(b"d", TAG_DONE, timeout=PATIENCE)

    def take_slot(self, own: random.Random) -> int:
        """Return a slot of the peer's region that the peer has checked since the last put."""
        slot = own.randrange(SLOTS)
        if slot in self.outstanding:
            self.peer.wait_signal(slot, timeout=PATIENCE)
        self.outstanding.add(slot)
        return slot

    def put(self, own: random.Random, remote: onehop.RemoteRegion, number: int) -> None:
        """Put and notify."""
        slot, size = self.take_slot(own), own.randint(8, SLOT)
        made = self.worker.make(self.key(True, "put"), number, size)
        at = STATIC + slot * SLOT
        note = f"P {number} {slot} {size}".encode()
        self.peer.put(made, remote[at : at + size], notify=note).wait(timeout=PATIENCE)

    def put_blocks(self, own: random.Random, remote: onehop.RemoteRegion, number: int) -> None:
        """Put many blocks and notify."""
        slot = self.take_slot(own)
        most, longest = own.choice(((64, 1024), (64, 1024), (4096, 16)))
        count, block = own.randint(1, most), own.randint(8, longest)
        made = self.worker.make(self.key(True, "put"), number, count * block)
        places = own.sample(range(count), count)
        local = [place * block for place in places]
        base = STATIC + slot * SLOT
        there = [base + place for place in local]
        note = f"P {number} {slot} {count * block}".encode()
        if own.random() < 0.3:
            with self.peer.prepare_put(made, remote, local, there, block) as batch:
                batch.post(notify=note).wait(timeout=PATIENCE)
        else:
            request = self.peer.put_batch(made, remote, local, there, block, notify=note)
            request.wait(timeout=PATIENCE)

    def get(self, own: random.Random, remote: onehop.RemoteRegion, _number: int) -> None:
        """Get from the part that is never written."""
        first = own.randrange(STATIC - 8)
        size = own.randint(1, STATIC - first)
        buffer = self.worker.memory.receive(size)
        self.peer.get(buffer.room, remote[first : first + size]).wait(timeout=PATIENCE)
        self.check_static(buffer, first, size)

    def get_blocks(self, own: random.Random, remote: onehop.RemoteRegion, _number: int) -> None:
        """Get many blocks of that part."""
        count, block = own.randint(1, 64), own.randint(8, 1024)
        first = own.randrange(STATIC - count * block)
        places = [place * block for place in own.sample(range(count), count)]
        buffer = self.worker.memory.receive(count * block)
        there = [first + place for place in places]
        self.peer.get_batch(buffer.room, remote, places, there, block).wait(timeout=PATIENCE)
        self.check_static(buffer, first, count * block)

    def check_static(self, buffer: HostBuffer | DeviceBuffer, first: int, size: int) -> None:
        """Check bytes that a get returned from the peer's region."""
        static = self.worker.payloads.body(self.key(True, "static"), 0, STATIC)
        if not buffer.read(size).startswith(static[first : first + size]):
            msg = f"{self.uid}: a get of {size} bytes at {first} brought wrong bytes"
            raise WrongBytesError(msg)
        self.worker.verified(size, buffer)

    def put_and_get(self, own: random.Random, remote: onehop.RemoteRegion, number: int) -> None:
        """Put, and get the bytes back."""
        size = own.randint(8, SLOT)
        key = self.key(True, "back")
        made = self.worker.make(key, number, size)
        buffer = self.worker.memory.receive(size)
        self.peer.put(made, remote[SCRATCH : SCRATCH + size]).wait(timeout=PATIENCE)
        self.peer.get(buffer.room, remote[SCRATCH : SCRATCH + size]).wait(timeout=PATIENCE)
        self.worker.payloads.check(key, number, buffer.read(size), size)
        self.worker.verified(size, buffer)

    def on_put(self, note: bytes) -> None:
        """Check the put that a notification announces; let the peer use the slot again."""
        number, slot, size = map(int, note.split()[1:])
        at = STATIC + slot * SLOT
        got = self.shared.read(size, at)
        self.worker.payloads.check(self.key(False, "put"), number, got, size)
        self.worker.verified(size, self.shared)
        self.peer.signal(slot)
