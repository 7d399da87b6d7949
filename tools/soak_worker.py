# SPDX-License-Identifier: Apache-2.0
"""One process of the soak: its endpoints, its links, and threads that receive from any source.

Notifications "H <uid> <kind> <place> <incarnation>" and "W <uid>" open a link: the first tells the
acceptor which process has connected; on the second the connector begins.
"""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING

import onehop
from onehop import Status
from soak_ledger import Ledger, Payloads
from soak_link import LATE, PATIENCE, TAG_NEVER, WILD_MAX, HangError, Link
from soak_memory import DeviceBuffer, HostBuffer, Memory, SharedBuffer, check_guard

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

RECEIVERS = 3  # threads that receive from any source
WATCHDOG = 2 * PATIENCE  # seconds that a thread may spend in one call


class Worker:
    """The state of one process."""

    def __init__(self, pipe: Connection, place: int, incarnation: int, options: dict) -> None:
        self.pipe, self.place, self.incarnation, self.options = pipe, place, incarnation, options
        self.seed = options["seed"]
        self.payloads = Payloads(self.seed, max(options["largest"], WILD_MAX, 1 << 20))
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.beats: dict[threading.Thread, tuple[float, str]] = {}
        self.links: dict[int, Link] = {}  # by the peer's id
        self.hellos: dict[int, list[str]] = {}
        self.accepted: dict[int, tuple[str, onehop.Peer, onehop.Request]] = {}
        self.welcome: dict[str, threading.Event] = {}
        self.busy: Counter[int] = Counter()  # links that this process opened, by place
        self.others: dict[int, tuple[int, dict[str, bytes]]] = {}
        self.made = itertools.count()
        self.posts = itertools.count()
        self.seeds = itertools.count()
        self.wild_doubts = 0
        self.pending: dict[str, float] = {}  # rounds that ended before all their messages arrived
        self.connecting, self.leaving = True, False
        self.spoiled = not options["inject"] or place != 0
        device = options["device"]
        self.memory = Memory(device, self.rng())
        self.directed, self.wild = onehop.Endpoint(device), onehop.Endpoint(device)
        self.endpoints = {"directed": self.directed, "wild": self.wild}

    # ---- What links use

    def rng(self) -> random.Random:
        """Return the random numbers of this process."""
        return random.Random(f"{self.seed}/{self.place}/{self.incarnation}/{next(self.seeds)}")

    def make(self, key: int, sequence: int, size: int) -> bytearray | DeviceBuffer:
        """Return a message; once a corrupt one, if the soak's own test injects that."""
        made = self.payloads.make(key, sequence, size)
        spoil = self.options["inject"] == "corrupt" and not self.spoiled and size > 64
        if spoil:
            self.spoiled = True
            made[size // 2] ^= 0x10
        return self.memory.payload(made, on_device=spoil)

    def spoil_order(self, sequences: list[int]) -> list[int]:
        """Return the order in which to send; a wrong one if a test injects that.

        Messages are lost once, but swapped in each round: receives of two threads are not ordered,
        so a single swap may go unnoticed.
        """
        order = list(sequences)
        if self.spoiled:
            return order
        if self.options["inject"] == "swap":
            order[0], order[1] = order[1], order[0]
        elif self.options["inject"] == "lose":
            self.spoiled = True
            order.pop(0)
        return order

    def count(self, what: str, by: int = 1) -> None:
        """Add to a counter."""
        with self.lock:
            self.counts[what] += by

    def verified(self, size: int, buffer: HostBuffer | SharedBuffer | DeviceBuffer) -> None:
        """Count a correct message in a buffer, and check the guard behind it."""
        check_guard(buffer)
        with self.lock:
            self.counts["messages"] += 1
            self.counts["bytes"] += size
            if isinstance(buffer, DeviceBuffer):
                self.counts["device_bytes"] += size

    def beat(self, what: str) -> None:
        """Record that this thread makes progress."""
        self.beats[threading.current_thread()] = (time.monotonic(), what)

    def rest(self) -> None:
        """Record that this thread ends."""
        self.beats.pop(threading.current_thread(), None)

    def report(self, *what: object) -> None:
        """Send a report to the supervisor."""
        with self.lock, contextlib.suppress(OSError):
            self.pipe.send(what)

    def fault(self, text: str, link: Link | None = None) -> None:
        """Report a fault, with the link's flight record."""
        record = ""
        if link:
            text = f"{link.uid} ({link.kind}, with {link.other}): {text}"
            with contextlib.suppress(onehop.Error):
                record = link.peer.flight_record()
        self.report("fault", text, record[-4000:])

    def failed(self, uid: str, other: tuple[int, int], text: str) -> None:
        """Report a fault, unless a shortage of descriptors explains it."""
        self.report("failed", uid, other, text, time.monotonic())

    def end(self, link: Link) -> None:
        """Close a link whose threads have all ended."""
        with contextlib.suppress(onehop.Error):
            for path, sent in link.peer.stats().sent.items():
                self.count(f"sent by {path}", sent.operations)
        with contextlib.suppress(onehop.EndpointError):  # this process is leaving
            link.peer.close()
        with self.lock:
            self.links.pop(link.peer.id, None)
            if link.connector:
                self.busy[link.other[0]] -= 1
        self.count("links")
        for ledger in link.ledgers.values():
            self.pending.pop(ledger.name, None)

    def add(self, link: Link) -> None:
        """Start a link."""
        if (path := link.peer.info().path) != self.options["path"]:
            self.failed(link.uid, link.other, f"the path is {path}, not {self.options['path']}")
        with self.lock:
            self.links[link.peer.id] = link

    # ---- Opening links

    def connect_forever(self, place: int) -> None:
        """Keep a connection to one other process."""
        own = self.rng()
        while self.connecting:
            self.beat("wait for a process to connect to")
            with self.lock:
                ready = place in self.others and self.busy[place] == 0
                if ready:
                    incarnation, addresses = self.others[place]
                    self.busy[place] += len(self.options["kinds"])
            if not ready:
                time.sleep(0.02)
                continue
            for kind in self.options["kinds"]:
                if not self.connect(kind, (place, incarnation), addresses[kind]):
                    with self.lock:
                        self.busy[place] -= 1
            if own.random() < 0.3:
                time.sleep(own.uniform(0, 0.2))
        self.rest()

    def connect(self, kind: str, other: tuple[int, int], address: bytes) -> bool:
        """Open one link."""
        uid = f"{self.place}.{self.incarnation}-{other[0]}.{other[1]}-{next(self.made)}"
        self.beat(f"connect {uid}")
        peer = None
        try:
            peer = self.endpoints[kind].connect(address, timeout=PATIENCE)
            welcome = self.welcome[uid] = threading.Event()
            doom = peer.irecv(bytearray(8), TAG_NEVER)
            link = Link(self, kind, uid, connector=True, other=other, peer=peer)
            self.add(link)
            hello = f"H {uid} {kind} {self.place} {self.incarnation}"
            peer.notify(hello.encode(), timeout=PATIENCE)
            deadline = time.monotonic() + PATIENCE
            while not welcome.wait(0.02):
                if doom.done:
                    doom.wait(timeout=PATIENCE)
                if time.monotonic() > deadline:
                    msg = f"{uid}: no acceptor answers"
                    raise HangError(msg)
            doom.cancel()
            link.start()
        except (onehop.Error, HangError) as failure:
            # With UCX as the only transport, a peer that UCX cannot reach is unreachable.
            gone = isinstance(failure, onehop.LinkError) or (
                isinstance(failure, onehop.Error) and failure.status == Status.NOT_VIABLE
            )
            if gone:
                self.report("lost", uid, other, f"connect: {failure}", time.monotonic())
            elif isinstance(failure, onehop.TimeoutError):
                self.fault(f"connect {uid}: {failure}")
            else:
                self.failed(uid, other, f"connect: {type(failure).__name__}: {failure}")
        else:
            self.count("connects")
            return True
        finally:
            self.welcome.pop(uid, None)
        if peer:
            with self.lock:
                self.links.pop(peer.id, None)
            peer.close()
        time.sleep(0.05)  # a dead process's address stays until its successor's arrives
        return False

    def accept_forever(self, kind: str) -> None:
        """Accept every connection until this process ends."""
        while not self.leaving:
            self.beat("accept")
            try:
                peer = self.endpoints[kind].accept(timeout=0.2)
            except onehop.TimeoutError:
                pass
            except onehop.Error as failure:
                if not self.leaving:
                    self.fault(f"accept: {type(failure).__name__}: {failure}")
                break
            else:
                try:
                    doom = peer.irecv(bytearray(8), TAG_NEVER)
                    with self.lock:
                        self.accepted[peer.id] = (kind, peer, doom)
                except onehop.LinkError:
                    peer.close()
            self.welcome_all()
        self.rest()

    def welcome_all(self) -> None:
        """Start the accepted links whose peer has introduced itself; drop those that ended."""
        with self.lock:
            known = [i for i in self.accepted if i in self.hellos]
            begin = [(self.accepted.pop(i), self.hellos.pop(i)) for i in known]
            waiting = list(self.accepted.items())
        for (kind, peer, doom), (uid, _, place, incarnation) in begin:
            link = Link(
                self, kind, uid, connector=False, other=(int(place), int(incarnation)), peer=peer
            )
            self.add(link)
            try:
                peer.notify(f"W {uid}".encode(), timeout=PATIENCE)
                doom.cancel()
                link.start()
            except onehop.LinkError as failure:
                link.lose(failure)
                self.end(link)
            except onehop.Error as failure:
                self.failed(uid, link.other, f"welcome: {type(failure).__name__}: {failure}")
                self.end(link)
        for peer_id, (_, peer, doom) in waiting:
            if doom.done:
                with self.lock:
                    taken = self.accepted.pop(peer_id, None)
                if taken:
                    peer.close()

    def notice_forever(self, kind: str) -> None:
        """Handle notifications."""
        while not self.leaving:
            self.beat("notifications")
            try:
                found = self.endpoints[kind].notifications()
            except onehop.Error as failure:
                if not self.leaving:
                    self.fault(f"notifications: {type(failure).__name__}: {failure}")
                break
            for source, note in found:
                try:
                    self.take_note(source, bytes(note))
                except onehop.LinkError:
                    pass  # the link's own threads report it, too
                except Exception as failure:
                    link = self.links.get(source)
                    if not (link and link.closing and isinstance(failure, onehop.Error)):
                        self.fault(f"notification {note!r}: {failure}", link)
            if not found:
                time.sleep(0.002)
        self.rest()

    def take_note(self, source: int, note: bytes) -> None:
        """Handle one notification."""
        if note.startswith(b"H "):
            with self.lock:
                self.hellos[source] = note.decode().split()[1:]
            self.welcome_all()
        elif note.startswith(b"W "):
            if event := self.welcome.get(note.decode().split()[1]):
                event.set()
        elif link := self.links.get(source):
            link.on_put(note)

    # ---- Receives from any source

    def receive_forever(self) -> None:
        """Receive from any source, by every kind of call."""
        own = self.rng()
        while not self.leaving:
            self.beat("receive from any")
            try:
                if own.random() < 0.3:
                    self.receive_one()
                else:
                    self.receive_window(own)
            except onehop.LinkError:
                self.count("lost_receives")  # its peer died while the message was in flight
            except onehop.Error as failure:
                if not self.leaving:
                    self.fault(f"receive from any: {type(failure).__name__}: {failure}")
            except Exception as failure:
                self.fault(f"receive from any: {type(failure).__name__}: {failure}")
        self.rest()

    @staticmethod
    def any_tag(own: random.Random) -> int:
        """Draw the tag to receive."""
        return onehop.ANY_TAG if own.random() < 0.5 else own.randrange(4)

    def receive_one(self) -> None:
        """Receive any tag by one call: threads that wait for one tag each might wait in vain."""
        buffer = self.memory.receive(WILD_MAX)
        first = next(self.posts)
        try:
            message = self.wild.recv(buffer.room, onehop.ANY_TAG, timeout=PATIENCE)
        except onehop.OperationError as failure:
            return self.give_up(failure)
        self.take(message, buffer, first, next(self.posts))
        return None

    def receive_window(self, own: random.Random) -> None:
        """Post several receives, cancel some."""
        window: deque[tuple[onehop.Request, HostBuffer | DeviceBuffer, int, int]] = deque()
        # Only one while all links end, so that none is left behind.
        for _ in range(own.choice((1, 4, 16)) if self.connecting else 1):
            buffer = self.memory.receive(WILD_MAX)
            first, tag = next(self.posts), self.any_tag(own)
            request = self.wild.irecv(buffer.room, tag)
            window.append((request, buffer, first, next(self.posts)))
        if own.random() < 0.2 and own.choice(window)[0].cancel():
            self.count("cancels")
        while window:
            request, buffer, first, last = window.popleft()
            end = time.monotonic() + own.choice((0.01, 0.2))
            while not request.done and time.monotonic() < end:
                time.sleep(0.0005)
            if not request.done and request.cancel():
                self.count("cancels")
            try:
                message = request.wait(timeout=PATIENCE)
            except onehop.OperationError as failure:
                self.give_up(failure)
            except onehop.LinkError:
                self.count("lost_receives")
            else:
                self.take(message, buffer, first, last)
            self.beat("receive from any")

    def give_up(self, failure: onehop.OperationError) -> None:
        """Record that a receive ended without a message."""
        if failure.status == Status.TIMEOUT:
            self.count("timeouts")
        if failure.status in (Status.TIMEOUT, Status.IN_DOUBT):
            with self.lock:
                self.wild_doubts += 1  # it may have dropped a message that had arrived in part
        elif failure.status != Status.CANCELLED:
            raise failure

    def take(
        self, message: onehop.Message, buffer: HostBuffer | DeviceBuffer, first: int, last: int
    ) -> None:
        """Check a message, and its round if that is complete."""
        with self.lock:
            link = self.links.get(message.source)
        try:
            if link:
                self.note(link, message, buffer, first, last)
            else:
                check_guard(buffer)  # the link is broken
        except Exception as failure:
            self.fault(f"{message}: {failure}", link)

    def note(
        self,
        link: Link,
        message: onehop.Message,
        buffer: HostBuffer | DeviceBuffer,
        first: int,
        last: int,
    ) -> None:
        """Record a message in its stream's ledger."""
        key = link.key(False, message.tag)
        sequence, end = self.payloads.read(key, buffer.read(message.nbytes), message.nbytes)
        self.verified(message.nbytes, buffer)
        with link.lock:
            name = f"{link.uid} tag {message.tag} from any"
            ledger = link.ledgers.setdefault(message.tag, Ledger(name))
            if end:
                ledger.rounds.append(end)
                if end["rounds"]:
                    link.expected_rounds = end["rounds"]
                self.pending[name] = time.monotonic()
            else:
                ledger.record(sequence, first, last)
            self.settle(link, ledger)

    def settle(self, link: Link, ledger: Ledger, *, late: bool = False) -> None:
        """Check the messages of a stream. The link must be locked."""
        with self.lock:
            self.wild_doubts -= ledger.settle(self.wild_doubts if late else None)
        if ledger.rounds:
            return
        self.pending.pop(ledger.name, None)
        if sum(one.settled for one in link.ledgers.values()) == link.expected_rounds:
            link.inbound_done.set()

    def settle_late(self) -> None:
        """Check rounds that are still incomplete some time after their end."""
        now = time.monotonic()
        for link in list(self.links.values()):
            for ledger in list(link.ledgers.values()):
                late = now - self.pending.get(ledger.name, now) >= LATE
                if not late or link.lost or link.closing or link.broken:
                    continue
                try:
                    with link.lock:
                        self.settle(link, ledger, late=True)
                except Exception as failure:
                    self.pending[ledger.name] = now + 1e9
                    self.fault(str(failure), link)

    # ---- The main thread

    def watch(self) -> None:
        """Report threads that spend too long in one call."""
        now = time.monotonic()
        for thread, (then, what) in list(self.beats.items()):
            if now - then > WATCHDOG and thread.is_alive():
                self.beats[thread] = (now, what)
                faulthandler.dump_traceback(all_threads=True)
                for link in list(self.links.values()):
                    with contextlib.suppress(onehop.Error):
                        text = link.peer.flight_record()[-2000:]
                        print(f"{link.uid} with {link.other}:\n{text}", file=sys.stderr)
                self.fault(f"{thread.name} hangs in: {what}")

    def handles(self) -> dict[str, int] | None:
        """Return this process's counts of releasable resources; None: no descriptor is free.

        Not counted: descriptors of NVIDIA's driver, which opens some with the first use of a GPU.
        """
        try:
            maps = Path("/proc/self/maps").read_text().splitlines()
            files = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        except OSError as failure:
            if failure.errno != errno.EMFILE:
                raise
            return None
        shared = sum("memfd:" in line or "/dev/shm" in line for line in maps)
        descriptors = sum(not leads_to(file).startswith("/dev/nvidia") for file in files)
        return {"descriptors": descriptors, "mappings": shared, **self.memory.handles()}

    def run(self) -> None:
        """Execute the supervisor's commands."""
        before = self.handles()
        threads = [(self.receive_forever, ())] * RECEIVERS
        for kind in self.endpoints:
            threads += [(self.accept_forever, (kind,)), (self.notice_forever, (kind,))]
        for place in range(self.place + 1, self.options["processes"]):
            threads.append((self.connect_forever, (place,)))
        addresses = {kind: endpoint.address for kind, endpoint in self.endpoints.items()}
        self.report("ready", addresses)
        started = [
            threading.Thread(target=function, args=arguments, daemon=True)
            for function, arguments in threads
        ]
        for thread in started:
            thread.start()
        told = time.monotonic()
        while True:
            if self.pipe.poll(0.2):
                what, *values = self.pipe.recv()
                if what == "others":
                    with self.lock:
                        self.others = values[0]
                elif what == "finish":
                    self.connecting = False
                elif what == "leave":
                    break
            self.watch()
            self.settle_late()
            if time.monotonic() - told > 0.5:
                told = time.monotonic()
                with self.lock:
                    idle = not (self.connecting or self.links or self.accepted)
                    counts = dict(self.counts)
                if idle:
                    gc.collect()  # links and their peers form cycles
                    self.directed.progress()  # releases regions that a stopped peer was using
                    self.memory.rest()
                self.report("counts", counts, idle, before, self.handles())
        self.leaving = True
        for endpoint in self.endpoints.values():
            endpoint.close()
        end = time.monotonic() + PATIENCE / 2
        for thread in started:
            thread.join(max(0.0, end - time.monotonic()))
        self.report("left")


def leads_to(link: Path) -> str:
    """Return the target of a symbolic link, which may have disappeared."""
    try:
        return os.readlink(link)
    except OSError:
        return ""


def main(pipe: Connection, place: int, incarnation: int, options: dict) -> None:
    """Run a worker."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the supervisor ends the workers
    with contextlib.suppress(EOFError, BrokenPipeError):
        Worker(pipe, place, incarnation, options).run()
