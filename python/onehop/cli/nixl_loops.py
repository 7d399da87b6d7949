# SPDX-License-Identifier: Apache-2.0
"""The sides of ``onehop bench nixl``: the same loops over onehop.nixl and over the real NIXL.

They use an agent only through NIXL's Python API.
"""

# ruff: noqa: ANN401 - agents are of either library, and arrays of any type

from __future__ import annotations

import importlib
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from onehop.cli.bench_nixl import FIRST, PICKED, ROW, Found, Job
from onehop.cli.measure import together
from onehop.cli.sides import Side
from onehop.nixl import api, real

_PREPS = 3  # per round


def nixl_role(side: Side, job: Job) -> None:
    """Run a round: side 0 adds the other agent and starts all transfers."""
    player = _Player(side, job)
    player.connect()
    for mode in ("prep", "prep_strided"):
        if mode in job.modes:
            player.prep(mode)
    if {"write", "read"} & set(job.modes):
        for size in job.sizes:
            player.transfers(size)
    if "idle" in job.modes:
        player.idle()
    # The other side may still use this side's memory.
    together(side)
    if job.library == "nixl":
        # NIXL 1.5.1 crashes when its libraries are unloaded; all results are reported by now.
        os._exit(0)


class _Player:
    """A side: its agent and memory, and the expected content of both sides' memory."""

    def __init__(self, side: Side, job: Job) -> None:
        self.side, self.job, self.number = side, job, side.number
        self.contents = [
            np.random.default_rng(number).integers(0, 256, job.nbytes, np.uint8)
            for number in (0, 1)
        ]
        name = job.devices[self.number]
        self.memory = _GpuMemory(job.nbytes, name) if name else _HostMemory(job.nbytes)
        self.memory.write(self.contents[self.number])
        library: Any = api if job.library == "onehop" else real.load()
        # The configuration that vLLM uses.
        config = library.nixl_agent_config(capture_telemetry=True)
        start = perf_counter_ns()
        self.agent = library.nixl_agent(f"side{self.number}", config)
        self.report(Found("agent", samples_us=[_since(start)]))
        registered = (self.memory.address, job.nbytes, self.memory.device, "")
        self.agent.register_memory([registered], self.memory.kind)

    def report(self, found: Found) -> None:
        """Report the results for a row, if it is wanted."""
        if found.mode in self.job.modes:
            self.side.report(found)

    def connect(self) -> None:
        """On side 0, add the other agent and write to it for the first time."""
        own = _There(self.memory.address, self.memory.device, self.memory.kind)
        self.side.tell((self.agent.get_agent_metadata(), own))
        metadata, self.there = self.side.hear()
        found = Found("first", FIRST)

        def move() -> None:
            start = perf_counter_ns()
            self.name = self.agent.add_remote_agent(metadata)
            local, remote = (
                self.agent.get_xfer_descs([(one.address, FIRST, one.device)], one.kind)
                for one in (own, self.there)
            )
            handle = self.agent.initialize_xfer("WRITE", local, remote, self.name)
            self._finish(handle, self.agent.transfer(handle))
            found.samples_us.append(_since(start))
            found.path = self._path(handle)
            self.agent.release_xfer_handle(handle)

        (found.wrong,) = self._checked("WRITE", [0], [0], FIRST, self.job.corrupt, [move])
        self.report(found)

    def prep(self, mode: str) -> None:
        """Prepare a long list, and write through some of its rows."""
        job, agent = self.job, self.agent
        blocks = job.rows
        if mode == "prep_strided":
            blocks = math.isqrt(job.rows) ** 2
        theirs = np.random.default_rng(blocks).permutation(blocks)[:PICKED].astype(np.int32)
        ours = np.arange(len(theirs), dtype=np.int32)
        found = Found(mode, ROW, blocks)

        def move() -> None:
            make = _strided if mode == "prep_strided" else _dense
            rows = make(self.there, blocks, ROW)
            remotes = []
            for _ in range(_PREPS):
                start = perf_counter_ns()
                remotes.append(agent.prep_xfer_dlist(self.name, rows, self.there.kind))
                found.samples_us.append(_since(start))
            local = agent.prep_xfer_dlist("", _dense(self.memory, len(ours), ROW), self.memory.kind)
            handle = agent.make_prepped_xfer("WRITE", local, ours, remotes[-1], theirs)
            self._post(handle, Found(mode))
            agent.release_xfer_handle(handle)

        (found.wrong,) = self._checked("WRITE", ours, theirs, ROW, job.corrupt, [move])
        self.report(found)

    def transfers(self, size: int) -> None:
        """Write and read blocks at random places, in turn; the first handles are not timed."""
        job, agent = self.job, self.agent
        rng = np.random.default_rng(size)
        ours, theirs = (
            rng.permutation(job.places)[: job.blocks].astype(np.int32) for _ in range(2)
        )
        if self.number == 0:
            rows = [_dense(one, job.places, size) for one in (self.memory, self.there)]
            local = agent.prep_xfer_dlist("", rows[0], self.memory.kind)
            remote = agent.prep_xfer_dlist(self.name, rows[1], self.there.kind)
        timed = [Found(mode, size, job.blocks) for mode in ("write", "read") if mode in job.modes]
        found = [(later.first_posts, later) for later in timed]
        for number in range(1 + job.iterations):
            for both in found:
                first, later = both if number else (Found(""), Found(""))
                operation = both[1].mode.upper()
                handle = None
                if self.number == 0:
                    start = perf_counter_ns()
                    handle = agent.make_prepped_xfer(operation, local, ours, remote, theirs)
                    first.make_us.append(_since(start))
                posts = [partial(self._post, handle, one) for one in (first, later)]
                moves = [posts[0], *posts[1:] * (job.posts - 1)]
                spoil = job.corrupt and number == job.iterations
                wrong = self._checked(operation, ours, theirs, size, spoil, moves)
                if self.number == 0:
                    agent.release_xfer_handle(handle)
                both[0].wrong += wrong[0]
                both[1].wrong += sum(wrong[1:])
        for both in found:
            for one in both:
                self.side.report(one)

    def idle(self) -> None:
        """Measure the CPU time of this process while its agent is idle."""
        together(self.side)
        cpu, start = time.process_time_ns(), perf_counter_ns()
        time.sleep(self.job.idle_s)
        share = (time.process_time_ns() - cpu) / (perf_counter_ns() - start)
        self.report(Found("idle", samples_us=[share * 1e6]))

    def _post(self, handle: Any, found: Found) -> None:
        """Post a transfer and finish it, each timed."""
        start = perf_counter_ns()
        state = self.agent.transfer(handle)
        found.post_us.append(_since(start))
        self._finish(handle, state)
        found.samples_us.append(_since(start))
        found.path = self._path(handle)

    def _finish(self, handle: Any, state: str) -> None:
        while state == "PROC":
            os.sched_yield()  # yields to the agent's progress thread, if it has one
            state = self.agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"a transfer ended as {state!r}")

    def _path(self, handle: Any) -> str:
        """Return the path that onehop reports, or NIXL's backend."""
        path = getattr(self.agent.get_xfer_telemetry(handle), "path", None)
        return path or str(self.agent.query_xfer_backend(handle))

    def _checked(
        self,
        operation: str,
        ours: Any,
        theirs: Any,
        size: int,
        spoil: bool,
        moves: Sequence[Callable[[], None]],
    ) -> list[int]:
        """Move blocks repeatedly on side 0; return this side's wrong bytes after each move.

        ours, theirs: indices of the blocks, in the memory of side 0 and of side 1. Before the first
        move all bytes are new; before each later one only the first byte of each block, so that
        moves follow each other closely. After each move the target checks those bytes, and after
        the last one all of its memory: the bytes between the blocks must not change.
        """
        source = 0 if operation == "WRITE" else 1
        blocks = (ours, theirs)[source], (ours, theirs)[1 - source]
        given, taken = self.contents[source], self.contents[1 - source]
        wrong = []
        for number, move in enumerate(moves):
            step = size if number else 1
            given[::step] += 1  # modulo 256
            if self.number == source:
                written = given[::step].copy()
                written[int(blocks[0][0]) * size // step] ^= spoil
                self.memory.write(written, step)
            together(self.side)
            if self.number == 0:
                move()
            together(self.side)
            new = slice(1 if number else size)  # of a block
            _blocks(taken, size)[blocks[1], new] = _blocks(given, size)[blocks[0], new]
            look = 1 if number + 1 == len(moves) else size
            differing = self.number != source and self.memory.read(look) != taken[::look]
            wrong.append(int(np.count_nonzero(differing)))
        return wrong


def _since(start: int) -> float:
    return (perf_counter_ns() - start) / 1e3


def _blocks(array: Any, size: int) -> Any:
    """Return the array as rows of blocks."""
    count = len(array) // size
    return array[: count * size].reshape(count, size)


def _dense(memory: Any, blocks: int, size: int) -> Any:
    """Describe adjacent blocks, each by a row of an N x 3 array."""
    rows = np.empty((blocks, 3), np.uint64)
    rows[:, 0] = memory.address + np.arange(blocks) * size
    rows[:, 1:] = size, memory.device
    return rows


def _strided(memory: Any, blocks: int, size: int) -> Any:
    """Describe the same blocks by an N x 5 array, with N blocks a row."""
    each = math.isqrt(blocks)
    rows = np.empty((each, 5), np.uint64)
    rows[:, 0] = memory.address + np.arange(each) * each * size
    rows[:, 1:] = size, memory.device, size, each
    return rows


# ---- Memory, and how NIXL's descriptors name it; write and read have every step-th byte


class _HostMemory:
    kind = "DRAM"
    device = 0

    def __init__(self, size: int) -> None:
        self._array = np.empty(size, np.uint8)
        self.address = self._array.ctypes.data

    def write(self, data: Any, step: int = 1) -> None:
        self._array[::step] = data

    def read(self, step: int) -> Any:
        return self._array[::step]


class _GpuMemory:
    kind = "VRAM"

    def __init__(self, size: int, name: str) -> None:
        self._torch = importlib.import_module("torch")
        if not self._torch.cuda.is_available():
            raise RuntimeError("torch has no CUDA here: torch.cuda.is_available() is False")
        self.device = int(name.removeprefix("cuda:"))
        # The real NIXL uses the current context.
        self._torch.cuda.set_device(self.device)
        self._tensor = self._torch.empty(size, dtype=self._torch.uint8, device=name)
        self.address = self._tensor.data_ptr()

    def write(self, data: Any, step: int = 1) -> None:
        self._tensor[::step].copy_(self._torch.from_numpy(data))
        self._torch.cuda.synchronize(self.device)

    def read(self, step: int) -> Any:
        return self._tensor[::step].cpu().numpy()


class _There(NamedTuple):
    """The memory of the other side, in the form of NIXL's descriptors."""

    address: int
    device: int
    kind: str
