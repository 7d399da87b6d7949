#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random mixed traffic between several processes, some of which get killed and stopped.

    tools/soak.py --seconds 3600 --transports shm,socket,ucx
    tools/soak.py --seconds 3600 --transports cuda --processes 4

Uses the installed package. Each transport has its own processes, and all run at once; each process
is linked to all others of its transport. They send messages of 0 bytes to some MiB in windows,
cancel some and abandon others, receive from any source in several threads, put and get with
notifications and signals, close links in order or abruptly, and connect again. Meanwhile this
process kills workers (except place 0, whose handles are counted at the end), stops and continues
them, lowers their descriptor limit for a while, and replaces each killed process.

With cuda the process in place i has GPU i modulo --devices. Three in four of its messages, receives
and regions lie in the memory of that GPU, the others in host memory; some processes have no GPU.
cuda_relay is the same with ONEHOP_CUDA_IPC=off, cuda_ucx over UCX as between hosts. The memory
comes from the CUDA driver; no array library is needed.

A fault is: a wrong byte; a message that is lost, duplicated or out of order; bytes beyond a receive
or written after its end; an error that no kill, close or shortage of descriptors explains; a
process that dies by itself; a call that takes too long (stacks of all threads and flight records go
to standard error); descriptors, shared mappings and socket files that leak; GPU memory that onehop
still references when all links are closed; with a single GPU transport, while nothing else uses the
GPUs, free memory that a GPU lacks when all processes but place 0 have ended. The first fault ends
the run with exit code 1. The last line of standard output is a summary in JSON. A run with the same
--seed draws the same random numbers, but its timing differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING

import onehop
import soak_memory
import soak_worker
from soak_transports import TRANSPORTS

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST_ONLY = 0.2  # share of processes without a GPU in groups with GPUs
START = 60.0  # seconds for a process to start
SILENCE = 150.0  # seconds without a report of a process that is not stopped
DRAIN = 180.0  # seconds for all links to end
SETTLE = 15.0  # seconds for the resources of links to be released
POLLED = 16  # limit of the descriptors that a thread polls at once
AFTER_SQUEEZE = 3.0  # seconds in which a shortage of descriptors may still explain an error
# Allowed growth of a process without links since its start: descriptors of UCX, spare segments, and
# buffers of any-source receives, which the fake driver maps.
MORE = {
    "descriptors": 24,
    "mappings": 8 + soak_worker.RECEIVERS,
    "bytes of device memory": soak_worker.RECEIVERS * soak_worker.WILD_MAX,
}
MORE_DEVICE_MEMORY = 64 << 20  # bytes that the driver keeps for a process that has used it


_spawn = multiprocessing.get_context("spawn")


@dataclass
class Process:
    """A worker process."""

    place: int
    incarnation: int
    process: multiprocessing.process.BaseProcess
    pipe: Connection
    heard: float = field(default_factory=time.monotonic)
    addresses: dict[str, bytes] | None = None
    idle: bool = False
    left: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    squeezed_until: float = 0.0  # until then it lacks descriptors
    files: int = 0  # its initial descriptor limit


@dataclass
class Shortages:
    """The times at which processes lacked descriptors; a process is its place and incarnation."""

    times: dict[tuple[int, int], list[list[float]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def begin(self, process: tuple[int, int], when: float) -> None:
        """Record the start of a shortage."""
        self.times[process].append([when, math.inf])

    def end(self, process: tuple[int, int], when: float) -> None:
        """Record the end of a shortage."""
        self.times[process][-1][1] = when

    def explain(self, processes: Iterable[tuple[int, int]], when: float) -> bool:
        """Return whether a shortage of descriptors may explain an error between two processes."""
        return any(
            begin <= when <= end + AFTER_SQUEEZE
            for process in processes
            for begin, end in self.times[process]
        )


class Group:
    """The processes of one transport, and the disturbances that they get."""

    def __init__(self, transport: str, arguments: argparse.Namespace, folder: str) -> None:
        self.name, self.arguments = transport, arguments
        self.transport = TRANSPORTS[transport]
        self.sockets = Path(folder, transport)
        self.sockets.mkdir()
        self.random = random.Random(f"{arguments.seed}/{transport}/supervisor")
        self.processes: dict[int, Process] = {}
        self.started: Counter[int] = Counter()
        self.counts: Counter[str] = Counter()
        self.killed: dict[tuple[int, int], float] = {}
        self.shortages = Shortages()
        self.abrupt: set[str] = set()
        self.lost: list[tuple[str, tuple[int, int], tuple[int, int], str, float]] = []
        self.faults: list[str] = []
        self.stopped: dict[int, float] = {}  # until when each is stopped
        self.slowest_death = 0.0
        self.next_kill = self.next_stop = self.next_squeeze = 0.0
        self.squeeze_every = arguments.squeeze_every if self.transport.squeezed else 0
        self.draining = self.leaving = False
        self.free: list[int] = []  # bytes of each GPU with only place 0 running; empty: unknown
        self.device_memory_kept: list[int] = []
        self.start(0)
        gpu_groups = sum(TRANSPORTS[name].gpus for name in arguments.transports)
        if self.transport.gpus and gpu_groups == 1:
            self.await_first()
            self.free = [] if self.faults else self.free_memory()
        for place in range(1, arguments.processes):
            self.start(place)

    def start(self, place: int) -> None:
        """Start a new process in a place."""
        self.started[place] += 1
        options = {
            "seed": self.arguments.seed,
            "path": self.transport.path,
            "device": self.device(place),
            "processes": self.arguments.processes,
            "largest": self.arguments.largest,
            "abrupt": self.arguments.abrupt,
            "kinds": self.arguments.kinds,
            "inject": self.arguments.inject,
        }
        ours, theirs = _spawn.Pipe()
        environment = {
            "ONEHOP_SOCKET_DIR": str(self.sockets),
            "ONEHOP_HELLO_TIMEOUT": "30",  # a process that is stopped meanwhile is no fault
            **self.transport.environment,
        }
        before = dict(os.environ)
        os.environ.update(environment)
        try:
            process = _spawn.Process(
                target=soak_worker.main, args=(theirs, place, self.started[place], options)
            )
            process.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        self.processes[place] = Process(place, self.started[place], process, ours)

    def device(self, place: int) -> int | None:
        """Return the GPU of a new process, if it gets one. Place 0 always does, as it stays."""
        if not self.transport.gpus or (place and self.random.random() < HOST_ONLY):
            return None
        return place % self.arguments.devices

    def await_first(self) -> None:
        """Wait until place 0 has started."""
        first, end = self.processes[0], time.monotonic() + START
        while not (first.addresses or first.left) and time.monotonic() < end:
            if wait([first.pipe], timeout=0.5):
                self.hear(first)

    def free_memory(self) -> list[int]:
        """Return the free bytes of each GPU, measured by a temporary process."""
        with ProcessPoolExecutor(1, mp_context=_spawn) as executor:
            return executor.submit(soak_memory.free_memory, self.arguments.devices).result(START)

    # ---- What processes report

    def hear(self, one: Process) -> None:
        """Handle all pending reports of a process."""
        try:
            while one.pipe.poll():
                self.take(one, one.pipe.recv())
        except (EOFError, OSError):
            one.process.join(10)
            if not one.left and (one.place, one.incarnation) not in self.killed:
                who = f"process {one.place}.{one.incarnation}"
                self.faults.append(f"{who} died by itself: exit code {one.process.exitcode}")
            one.left = True

    def take(self, one: Process, message: tuple) -> None:
        """Handle one report."""
        what, *values = message
        one.heard = time.monotonic()
        if what == "ready":
            (one.addresses,) = values
            self.tell_others()
        elif what == "counts":
            one.counts, one.idle, before, after = values
            one.before = one.before or before or {}
            one.after = after or one.after
        elif what == "abrupt":
            self.abrupt.add(values[0])
        elif what == "lost":
            uid, other, text, when = values
            self.lost.append((uid, (one.place, one.incarnation), other, text, when))
            if uid not in self.abrupt and other in self.killed:
                self.slowest_death = max(self.slowest_death, when - self.killed[other])
        elif what == "failed" and not self.leaving:
            uid, other, text, when = values
            self.abrupt.add(uid)  # its process closes the link
            self.counts["failures"] += 1
            if not self.shortages.explain([(one.place, one.incarnation), other], when):
                who = f"process {one.place}.{one.incarnation}"
                self.faults.append(f"{who}: {uid}: {text}")
        elif what == "fault" and not self.leaving:
            text, record = values
            self.faults.append(f"process {one.place}.{one.incarnation}: {text}\n{record}".rstrip())
        elif what == "left":
            one.left = True

    def tell_others(self) -> None:
        """Send all processes the addresses of the others."""
        there = {
            place: (one.incarnation, one.addresses)
            for place, one in self.processes.items()
            if one.addresses
        }
        for one in self.processes.values():
            self.send(one, "others", there)

    def send(self, one: Process, *what: object) -> None:
        """Send a process a command; a dead process is ignored."""
        with contextlib.suppress(OSError):
            one.pipe.send(what)

    # ---- Disturbances

    def is_up(self) -> bool:
        """Return whether all processes have reported their addresses."""
        return all(one.addresses for one in self.processes.values())

    def act(self) -> None:
        """Kill, stop and continue the processes that are due."""
        now = time.monotonic()
        for place in [place for place, until in self.stopped.items() if now >= until]:
            self.resume(place)
        for one in self.processes.values():
            if one.squeezed_until and now >= one.squeezed_until:
                self.give_room(one)
        if not self.draining and self.is_up():
            if self.arguments.kill_every and now >= self.next_kill:
                if self.next_kill and len(self.processes) > 1:
                    self.kill(self.random.randrange(1, len(self.processes)))
                self.next_kill = now + self.random.uniform(0.5, 1.5) * self.arguments.kill_every
            if self.arguments.stop_every and now >= self.next_stop:
                if self.next_stop:
                    self.stop(self.random.randrange(len(self.processes)))
                self.next_stop = now + self.random.uniform(0.5, 1.5) * self.arguments.stop_every
            if self.squeeze_every and now >= self.next_squeeze:
                if self.next_squeeze:
                    self.squeeze(self.random.randrange(len(self.processes)))
                self.next_squeeze = now + self.random.uniform(0.5, 1.5) * self.squeeze_every
        for one in self.processes.values():
            patience = SILENCE if one.addresses else START
            if now - one.heard > patience and one.place not in self.stopped and not one.left:
                os.kill(one.process.pid, signal.SIGUSR2)  # prints its stacks
                one.process.join(2)
                self.faults.append(f"process {one.place}.{one.incarnation} says nothing any more")
                one.heard = now

    def kill(self, place: int) -> None:
        """Kill a process and start its successor."""
        one = self.processes[place]
        self.hear(one)
        if one.left:
            return
        self.killed[place, one.incarnation] = time.monotonic()
        self.stopped.pop(place, None)
        if one.squeezed_until:
            self.give_room(one)
        one.process.kill()
        one.process.join()
        self.hear(one)
        self.counts.update(one.counts)
        self.counts["kills"] += 1
        one.pipe.close()
        self.start(place)

    def stop(self, place: int) -> None:
        """Stop a process for a while."""
        one = self.processes[place]
        if place in self.stopped or one.left:
            return
        os.kill(one.process.pid, signal.SIGSTOP)
        self.stopped[place] = time.monotonic() + self.random.uniform(0.02, 2)
        self.counts["stops"] += 1

    def resume(self, place: int) -> None:
        """Continue a process that was stopped."""
        del self.stopped[place]
        os.kill(self.processes[place].process.pid, signal.SIGCONT)
        self.processes[place].heard = time.monotonic()

    def squeeze(self, place: int) -> None:
        """Lower a process's descriptor limit for a while; a few free ones may remain."""
        one = self.processes[place]
        if one.squeezed_until or one.left:
            return
        pid, now = one.process.pid, time.monotonic()
        try:
            highest = max((int(name) for name in os.listdir(f"/proc/{pid}/fd")), default=0)
            one.files, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            # poll() fails for more descriptors than the limit.
            few = self.random.choice((POLLED, highest + self.random.randrange(1, 9)))
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, most))
        except OSError:
            return  # it has just died
        one.squeezed_until = now + self.random.uniform(0.02, 2)
        self.shortages.begin((place, one.incarnation), now)
        self.counts["squeezes"] += 1

    def give_room(self, one: Process) -> None:
        """Restore the limit that squeeze() lowered."""
        one.squeezed_until = 0.0
        with contextlib.suppress(OSError):
            _, most = resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(one.process.pid, resource.RLIMIT_NOFILE, (one.files, most))
        self.shortages.end((one.place, one.incarnation), time.monotonic())

    # ---- The end

    def drain(self) -> None:
        """Wait for all links to end."""
        self.draining = True
        for one in self.processes.values():
            if one.squeezed_until:
                self.give_room(one)
        for place in list(self.stopped):
            self.resume(place)
        for one in self.processes.values():
            one.idle = False
            self.send(one, "finish")

    def drained(self) -> bool:
        """Return whether no link is left."""
        return all(one.left or one.idle for one in self.processes.values())

    def socket_files(self) -> list[Path]:
        """Return the socket files in the folder that these processes share."""
        return [path for path in self.sockets.iterdir() if path.name.startswith("onehop-")]

    def left_behind(self) -> list[str]:
        """Return the resources that processes without links have too much of."""
        return [
            f"process {one.place}.{one.incarnation} began with {one.before[what]} {what} and has "
            f"{one.after[what]} when all links are closed"
            for one in self.processes.values()
            for what in one.after
            if one.idle and one.after[what] > one.before.get(what, math.inf) + MORE.get(what, 0)
        ]

    def judge(self) -> None:
        """Find the faults that only show at the end."""
        for uid, one, other, text, when in self.lost:
            # A death explains only losses after it.
            dead = self.killed.get(other, math.inf) <= when
            short = self.shortages.explain([one, other], when)
            if not (dead or short or uid in self.abrupt):
                self.faults.append(f"{uid}: the link to {other} was lost for no reason: {text}")
        self.faults += self.left_behind()
        # The successor of a killed process has removed its stale socket file.
        if len(files := self.socket_files()) > len(self.processes):
            self.faults.append(f"{len(files)} socket files of {len(self.processes)} processes")

    def leave(self) -> None:
        """End all processes, place 0 last: by then the GPUs' memory must be as at the start."""
        self.leaving = True
        self.end([one for one in self.processes.values() if one.place != 0])
        if self.free and not self.faults:
            after = self.free_memory()
            both = zip(self.free, after, strict=True)
            self.device_memory_kept = [then - now for then, now in both]
            self.faults += [
                f"device {device} has {kept} bytes less than before the links, whose other "
                "processes have ended"
                for device, kept in enumerate(self.device_memory_kept)
                if kept > MORE_DEVICE_MEMORY
            ]
        self.end([self.processes[0]])

    def end(self, processes: list[Process]) -> None:
        """Ask processes to end; kill those that do not."""
        for one in processes:
            self.send(one, "leave")
        end = time.monotonic() + 30
        for one in processes:
            while not one.left and time.monotonic() < end and one.process.is_alive():
                if wait([one.pipe], timeout=0.5):
                    self.hear(one)
            one.process.join(max(0.1, end - time.monotonic()))
            if one.process.is_alive():
                if not self.faults:
                    os.kill(one.process.pid, signal.SIGUSR2)
                    one.process.join(2)
                    self.faults.append(f"process {one.place}.{one.incarnation} does not end")
                one.process.kill()
                one.process.join()
            elif one.process.exitcode and not self.faults:
                who = f"process {one.place}.{one.incarnation}"
                self.faults.append(f"{who} ended with exit code {one.process.exitcode}")

    def summary(self) -> dict[str, object]:
        """Return the counts of the run."""
        total = Counter(self.counts)
        for one in self.processes.values():
            total.update(one.counts)
        names = "bytes device_bytes messages one_sided connects links abrupt_closes kills stops"
        names += " cancels timeouts squeezes failures again lost_receives"
        counted = {name: total[name] for name in names.split()}
        first = self.processes[0]
        return {
            **counted,
            "sent_by_path": {
                name.removeprefix("sent by "): count
                for name, count in sorted(total.items())
                if name.startswith("sent by ")
            },
            "losses": len(self.lost),
            "slowest_death_s": round(self.slowest_death, 4),
            "socket_files": len(self.socket_files()),
            "handles_at_start": first.before,
            "handles_at_end": first.after,
            "device_memory_kept": self.device_memory_kept,
        }


def listen(groups: list[Group], seconds: float) -> None:
    """Handle reports for a while."""
    pipes = {one.pipe: (group, one) for group in groups for one in group.processes.values()}
    pipes = {pipe: of for pipe, of in pipes.items() if not of[1].left}
    for pipe in wait(list(pipes), timeout=seconds):
        group, one = pipes[pipe]
        group.hear(one)


def soak(groups: list[Group], arguments: argparse.Namespace) -> None:
    """Run until the time is over or a process finds a fault."""
    while not all(g.is_up() for g in groups) and not any(g.faults for g in groups):
        listen(groups, 0.05)
        for group in groups:
            group.act()
    told = begin = time.monotonic()
    while time.monotonic() < begin + arguments.seconds and not any(g.faults for g in groups):
        listen(groups, 0.05)
        for group in groups:
            group.act()
        if arguments.report_every and time.monotonic() - told > arguments.report_every:
            told = time.monotonic()
            for group in groups:
                text = json.dumps(group.summary())
                print(f"{told - begin:.0f} s {group.name}: {text}", file=sys.stderr, flush=True)
    for group in groups:
        group.drain()
    end = time.monotonic() + DRAIN
    while not all(group.drained() for group in groups) and not any(g.faults for g in groups):
        listen(groups, 0.2)
        for group in groups:
            group.act()
        if time.monotonic() > end:
            for group in groups:
                waiting = [p.place for p in group.processes.values() if not p.idle]
                for place in waiting:
                    os.kill(group.processes[place].process.pid, signal.SIGUSR2)
                    group.processes[place].process.join(1)
                if waiting:
                    group.faults.append(f"links of the processes {waiting} do not end")
    # The watchers' threads release the resources of the last links with a delay.
    end = time.monotonic() + SETTLE
    while any(group.left_behind() for group in groups) and time.monotonic() < end:
        listen(groups, 0.2)
    for group in groups:
        if not group.faults:
            group.judge()
    for group in groups:
        group.leave()


def parse(words: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60, help="how long (60)")
    parser.add_argument("--seed", type=int, help="of the random numbers; another one each time")
    parser.add_argument(
        "--transports",
        default="shm,socket,ucx",
        help=f"which, of {','.join(TRANSPORTS)} (shm,socket,ucx)",
    )
    parser.add_argument("--processes", type=int, default=3, help="of each transport (3)")
    parser.add_argument("--devices", type=int, help="GPUs to use, from the first on (all)")
    parser.add_argument("--kinds", default="directed,wild", help="of links (directed,wild)")
    parser.add_argument("--largest", type=int, default=4 << 20, help="bytes of a message (4 MiB)")
    parser.add_argument("--abrupt", type=float, default=0.2, help="share of links torn down (0.2)")
    parser.add_argument("--kill-every", type=float, default=8, help="seconds; 0: never (8)")
    parser.add_argument("--stop-every", type=float, default=3, help="seconds; 0: never (3)")
    parser.add_argument("--squeeze-every", type=float, default=20, help="seconds; 0: never (20)")
    parser.add_argument("--report-every", type=float, default=60, help="seconds; 0: never (60)")
    # For the test of this tool: an error that one sender makes, once.
    parser.add_argument("--inject", choices=("corrupt", "swap", "lose"), help=argparse.SUPPRESS)
    arguments = parser.parse_args(words)
    arguments.transports = arguments.transports.split(",")
    arguments.kinds = arguments.kinds.split(",")
    if unknown := set(arguments.kinds).difference(("directed", "wild")):
        parser.error(f"no kind {', '.join(sorted(unknown))}: there are directed, wild")
    if unknown := set(arguments.transports).difference(TRANSPORTS):
        known = ", ".join(TRANSPORTS)
        parser.error(f"no transport {', '.join(sorted(unknown))}: there are {known}")
    if any(TRANSPORTS[name].gpus for name in arguments.transports):
        topology = onehop.topology()
        most = len(topology.devices)
        if not 1 <= (arguments.devices or most) <= most:
            parser.error(f"there are {most} GPUs here. {topology.why_no_devices}".rstrip())
        arguments.devices = arguments.devices or most
    if arguments.processes < 2:
        parser.error("at least 2 processes")
    if arguments.seed is None:
        arguments.seed = random.SystemRandom().randrange(1 << 32)
    return arguments


def main(words: list[str] | None = None) -> int:
    """Run; return the exit code."""
    arguments = parse(words)
    print(f"seed {arguments.seed}", file=sys.stderr, flush=True)
    folder = tempfile.mkdtemp(prefix="ohsoak-")
    groups: list[Group] = []
    begin = time.monotonic()
    try:
        groups = [Group(name, arguments, folder) for name in arguments.transports]
        soak(groups, arguments)
        seconds = time.monotonic() - begin
        faults = [f"{group.name}: {fault}" for group in groups for fault in group.faults]
        for fault in faults:
            print(f"FAULT {fault}", file=sys.stderr)
        summary = {
            "seed": arguments.seed,
            "seconds": round(seconds, 1),
            "processes": arguments.processes,
            "faults": [fault.splitlines()[0] for fault in faults],
            "transports": {group.name: group.summary() for group in groups},
        }
        print(json.dumps(summary), flush=True)
        return 1 if faults else 0
    finally:
        for group in groups:
            for one in group.processes.values():
                if one.process.is_alive():
                    one.process.kill()
                    one.process.join()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
