# SPDX-License-Identifier: Apache-2.0
"""Runs the sides of a link: each in a process of its own, or as threads of one.

The process that shows the results does not take part, so it can report any failure of a side, also
a crash or a hang.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection, resource_tracker
from multiprocessing.context import SpawnProcess
from typing import Any

_PR_SET_PDEATHSIG = 1


class SideError(Exception):
    """A side failed, died, or was silent for too long; the text names the side and the reason."""


@dataclass(frozen=True)
class Placement:
    """The processes, CPUs and settings of the sides."""

    count: int = 2
    within: bool = False  # as threads of one process, else one process each
    cpus: Sequence[int] = ()  # CPU of each side; empty: the system decides
    env: Mapping[str, str] = field(default_factory=dict)  # variables of all sides
    # Seconds without a report from any side after which the run is abandoned; None: no limit.
    silence: float | None = 120.0
    connect: str = ""  # HOST:PORT of another host that plays side 1; empty: all sides are local


@dataclass(frozen=True)
class Note:
    """Why a job is omitted; the run continues. Only side 0 reports it."""

    text: str


@dataclass
class Side:
    """The argument of a role: its number, and its channels to the other side and the parent."""

    number: int
    placement: Placement
    report: Callable[[Any], None]
    tell: Callable[[Any], None]
    hear: Callable[[], Any]


Role = Callable[[Side, Any], None]


def current_cpu() -> int:
    """Return the CPU that the calling thread runs on."""
    return int(ctypes.CDLL(None).sched_getcpu())


def shared_cpu(cpus: Sequence[int]) -> int | None:
    """Return a CPU that two sides of one host shared; None: each had its own."""
    return next((cpu for cpu in cpus if cpus.count(cpu) > 1), None)


def run_sides(role: Role, argument: object, placement: Placement) -> Iterator[tuple[int, Any]]:
    """Run `role(side, argument)` on every side and yield (number, value) for all they report.

    `role` must be importable by name, `argument` be picklable. `tell` and `hear` connect side 0
    with side 1 (side 0 hears of all others).

    Raises:
        SideError: a side raised an exception, died, or was silent for too long.

    """
    context = multiprocessing.get_context("spawn")
    groups = [range(placement.count)] if placement.within else [[n] for n in range(placement.count)]
    processes: list[SpawnProcess] = []
    links: list[connection.Connection] = []
    try:
        for numbers in groups:
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_process,
                args=(theirs, role, argument, placement, list(numbers)),
                daemon=True,
            )
            with _ctrl_c_held():
                process.start()
            theirs.close()
            processes.append(process)
            links.append(ours)
        yield from _listen(links, processes, placement)
    finally:
        for process in processes:
            process.kill()
            process.join()
        for link in links:
            link.close()


@contextlib.contextmanager
def _ctrl_c_held() -> Iterator[None]:
    """Block SIGINT, so that processes that are started meanwhile never receive it.

    A terminal sends it to all processes. The process that shows the results ends the others.
    """
    # The first process starts the tracker on demand, which would unblock SIGINT for the rest.
    resource_tracker.ensure_running()
    former = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)


def _listen(
    links: list[connection.Connection], processes: list[SpawnProcess], placement: Placement
) -> Iterator[tuple[int, Any]]:
    running = dict(zip(links, processes, strict=True))
    while running:
        ready = connection.wait(list(running), timeout=placement.silence)
        if not ready:
            raise SideError(f"no word from either side for {placement.silence:.0f} s: they hang")
        for link in ready:
            assert isinstance(link, connection.Connection)
            try:
                kind, number, value = link.recv()
            except EOFError:
                _check_exit(running.pop(link))
                continue
            if kind == "error":
                raise SideError(f"side {number}: {value}" if placement.count > 1 else value)
            if kind == "tell":
                links[1 if number == 0 else 0].send(value)
            else:
                yield number, value


def _check_exit(process: SpawnProcess) -> None:
    process.join()
    code = process.exitcode or 0
    if code < 0:
        raise SideError(f"a side was ended by {signal.Signals(-code).name}")
    if code > 0:
        raise SideError(f"a side ended with exit code {code}")


def _process(
    link: connection.Connection,
    role: Role,
    argument: object,
    placement: Placement,
    numbers: list[int],
) -> None:
    # The kernel kills a side when the parent process ends, however it ends.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = multiprocessing.parent_process()
    if parent and parent.pid != os.getppid():
        return  # the parent ended before the prctl
    os.environ.update(placement.env)
    lock = threading.Lock()

    def send(kind: str, number: int, value: object) -> None:
        with lock:
            link.send((kind, number, value))

    inboxes: list[queue.Queue[Any]] = [queue.Queue() for _ in numbers]

    def side_of(number: int) -> Side:
        within = placement.within
        return Side(
            number,
            placement,
            report=partial(send, "report", number),
            tell=inboxes[1 if number == 0 else 0].put if within else partial(send, "tell", number),
            hear=inboxes[number].get if within else link.recv,
        )

    if not placement.within:
        _play(role, side_of(numbers[0]), argument, send)
        return
    threads = [
        threading.Thread(target=_play, args=(role, side_of(number), argument, send))
        for number in numbers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _play(
    role: Role, side: Side, argument: object, send: Callable[[str, int, object], None]
) -> None:
    try:
        if side.placement.cpus:
            cpus = side.placement.cpus
            os.sched_setaffinity(0, {cpus[side.number % len(cpus)]})
        role(side, argument)
    except Exception as failure:
        send("error", side.number, str(failure) or type(failure).__name__)
