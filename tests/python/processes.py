# SPDX-License-Identifier: Apache-2.0
"""Functions run in processes of their own, with a hard deadline and their exceptions given back."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path

import onehop

# How long a group of processes may take, on a loaded machine too; then it is killed.
DEADLINE = 60.0

_spawn = multiprocessing.get_context("spawn")
# New processes come from a server that has imported what tests import, which takes longer than most
# tests run. It has no thread, no endpoint and no driver.
_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload(["numpy", "onehop", "pytest"])


class LocalPair:
    """Two endpoints of this process and their link."""

    def __init__(self, *devices) -> None:
        first, second = devices or (None, None)
        self.endpoints = (onehop.Endpoint(first), onehop.Endpoint(second))
        self.first = self.endpoints[0].connect(self.endpoints[1].address, timeout=30)
        self.second = self.endpoints[1].accept(timeout=30)


def finish(*requests):
    """Wait for requests that need each other: each makes progress on its own side only."""
    waiting = set(requests)
    while waiting:
        waiting = {request for request in waiting if not request.done}
    return requests[0].wait(timeout=30)


def stop(pid: int) -> None:
    """Stop a process; return when no thread of it runs, which the signal alone does not say."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + DEADLINE
    while not _is_stopped(pid):
        assert time.monotonic() < end, f"process {pid} does not stop"
        time.sleep(0.001)


def exit_of(pid: int) -> int:
    """Wait for a child of fork(); return its exit code. One that hangs is killed."""
    end = time.monotonic() + DEADLINE / 2
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.001)
    return os.waitstatus_to_exitcode(ended[1])


def exit_in_child_beside(locks, function):
    """Fork while another thread holds the locks; return the exit code, which is function()'s."""
    held, go = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(function())
    try:
        return exit_of(child)
    finally:
        go.set()
        thread.join()


def _is_stopped(pid: int) -> bool:
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            if status.read_text().partition("State:")[2].split()[0] != "T":
                return False
    return True


class Failed(AssertionError):
    """A process failed: its traceback, or how it ended."""


def failure_of(peer):
    """Wait for the error of an operation that had gone to its stream."""
    end = time.monotonic() + DEADLINE / 2
    while (failure := peer.async_error()) is None:
        assert time.monotonic() < end, "no error came"
        time.sleep(0.001)
    return failure


def _run(function, result: Connection, arguments, environment) -> None:
    # The server's is that of its start.
    os.environ.clear()
    os.environ.update(environment)
    faulthandler.register(signal.SIGUSR2)  # shows where it hangs
    try:
        value = function(*arguments)
    except BaseException:
        result.send((False, traceback.format_exc()))
    else:
        result.send((True, value))


class Group:
    """Processes that belong together."""

    def __init__(self, context=_server) -> None:
        self.context = context
        self.processes = []
        self.results = []

    def start(self, function, *arguments) -> multiprocessing.Process:
        ours, theirs = self.context.Pipe(duplex=False)
        call = (function, theirs, arguments, dict(os.environ))
        process = self.context.Process(target=_run, args=call)
        process.start()
        theirs.close()
        self.processes.append(process)
        self.results.append(ours)
        return process

    def join(self, killed=()) -> list:
        """Return the results; of the processes in `killed` None is expected instead."""
        end = time.monotonic() + DEADLINE
        values = [None] * len(self.results)
        failures = []
        waiting = {result: i for i, result in enumerate(self.results)}
        try:
            while waiting:
                ready = wait(list(waiting), timeout=max(0.0, end - time.monotonic()))
                if not ready:
                    failures.append(f"{sorted(waiting.values())} did not end in {DEADLINE} s")
                    self._show_stacks(waiting.values())
                    break
                for result in ready:
                    index = waiting.pop(result)
                    try:
                        values[index] = self._value(index, result, killed)
                    except Failed as failure:
                        failures.append(str(failure))
        finally:
            self.kill()
        if failures:
            raise Failed("\n".join(failures))
        return values

    def _show_stacks(self, indices) -> None:
        for index in indices:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.processes[index].pid, signal.SIGUSR2)
        time.sleep(1)  # they write to our standard error

    def _value(self, index, result, killed):
        try:
            ok, value = result.recv()
        except EOFError:
            self.processes[index].join(DEADLINE)
            if index in killed:
                return None
            msg = f"process {index} ended with {self.processes[index].exitcode}"
            raise Failed(msg) from None
        if not ok:
            msg = f"process {index}:\n{value}"
            raise Failed(msg)
        return value

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.join(1)  # it has given its result
            if process.is_alive():
                process.kill()
            process.join()


class Meeting:
    """One of two processes, which tell each other things beside the library under test."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def give(self, value) -> None:
        self.pipe.send(value)

    def take(self):
        if not self.pipe.poll(DEADLINE):
            msg = "the other side gave nothing"
            raise Failed(msg)
        return self.pipe.recv()

    def sync(self) -> None:
        """Return when both have called it."""
        self.give("sync")
        assert self.take() == "sync"


class Side(Meeting):
    """One of two connected processes."""

    def __init__(self, number: int, pipe: Connection, device=None) -> None:
        super().__init__(pipe)
        self.number = number
        self.endpoint = onehop.Endpoint(device)
        if number == 0:
            self.peer = self.endpoint.connect(self.take(), timeout=30)
        else:
            self.give(self.endpoint.address)
            self.peer = self.endpoint.accept(timeout=30)


def run_alone(function, *arguments):
    """Run a function in a process of its own; return its result."""
    group = Group()
    group.start(function, *arguments)
    return group.join()[0]


def run_side(number, pipe, function, arguments, device):
    with contextlib.ExitStack() as stack:
        side = Side(number, pipe, device)
        stack.callback(side.endpoint.close)
        value = function(side, *arguments)
        # Nobody leaves before both have looked at what they wanted to see.
        side.sync()
        return value


def run_pair(first, second, *arguments, devices=(None, None)):
    """Run two connected processes; return their results."""
    pipes = _spawn.Pipe()
    group = Group()
    for number, function in enumerate((first, second)):
        group.start(run_side, number, pipes[number], function, arguments, devices[number])
    return group.join()


def run_ranks(size, function, *arguments, device=None, devices=None, context=_server):
    """Run function(communicator, *arguments) in `size` ranks, on a device each; return results."""
    group = Group(context)
    identity = onehop.unique_id()
    for rank in range(size):
        own = devices[rank] if devices else device
        group.start(_run_rank, rank, size, identity, function, arguments, own)
    return group.join()


def _run_rank(rank, size, identity, function, arguments, device):
    options = {"unique_id": identity, "device": device, "timeout": 30}
    with onehop.Communicator(rank, size, **options) as comm:
        value = function(comm, *arguments)
        comm.barrier(timeout=30)
        return value
