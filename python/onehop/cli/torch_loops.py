# SPDX-License-Identifier: Apache-2.0
"""The sides of ``onehop bench torch``: the same loops over each backend of torch.distributed."""

# ruff: noqa: ANN401 - tensors, works and stores are torch's, which is Any

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import torch
import torch.distributed as dist

import onehop.torch  # noqa: F401 - makes the backend known
from onehop.cli.bench_torch import Job, Turn
from onehop.cli.measure import together
from onehop.cli.sides import Side

_LIMIT = timedelta(seconds=60)  # of one operation
_AT_ONCE = 100  # posts without a wait in between
# For streams, which the host waits for once: a sample is the mean of this many.
_IN_A_ROW = 10

Loop = Callable[[list[Any], list[Any], int], list[float]]


def torch_role(side: Side, job: Job) -> None:
    """Run all rounds. All backends take turns in each round, and take turns in being first."""
    torch.set_num_threads(1)
    if job.on_gpus:
        torch.cuda.set_device(job.devices[side.number])
        torch.zeros(1, device="cuda")  # creates the context
    store = _store(side)
    for number in range(job.rounds):
        for backend in job.backends[:: -1 if number % 2 else 1]:
            _Turns(side, job, number, backend).run(dist.PrefixStore(f"{number}{backend}", store))
    together(side)  # side 0 serves the store


def _store(side: Side) -> Any:
    if side.number == 0:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        side.tell(store.port)
        return store
    return dist.TCPStore("127.0.0.1", side.hear(), is_master=False)


class _Turns:
    """A side's work with one backend in one round, in a process group of its own."""

    def __init__(self, side: Side, job: Job, number: int, backend: str) -> None:
        self._side, self._job, self._number, self._backend = side, job, number, backend
        self._rank, self._other = side.number, 1 - side.number
        self._device = job.devices[side.number] or "cpu"
        self._path = "none" if backend == "onehop" else backend
        self._stamp = 0

    def run(self, store: Any) -> None:
        """Measure all rows."""
        together(self._side)
        start = perf_counter_ns()
        dist.init_process_group(
            self._backend, store=store, rank=self._rank, world_size=2, timeout=_LIMIT
        )
        found = {"init": [_since(start)]}
        for mode, size in self._job.kinds:
            if mode == "init":
                self._report(mode, size, found[mode], 0)
            else:
                self._row(mode, size)
        together(self._side)  # neither side closes while the other still receives
        dist.destroy_process_group()

    def _report(self, mode: str, size: int, samples_us: list[float], wrong: int) -> None:
        self._side.report(
            Turn(
                self._number,
                self._backend,
                mode,
                size,
                samples_us,
                wrong,
                self._path,
                torch.__version__,
            )
        )

    def _row(self, mode: str, size: int) -> None:
        """Measure a row; unless it is about the first operation, warm up with a tenth as many."""
        loop: Loop = getattr(self, f"_{mode}")
        slots = {"post": _AT_ONCE, "window": self._job.window(size)}.get(mode, 1)
        seeded = torch.Generator().manual_seed(size)
        base = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=seeded)
        memory = _Memory(base.to(self._device), slots, self._rank)
        receives = self._rank == 1 or mode not in ("post", "window")
        iterations = 1 if mode == "first" else self._job.iterations(size)
        wrong = 0
        for count in (max(1, iterations // 10), iterations)[mode == "first" :]:
            timed = count == iterations
            memory.renew(spoil=self._job.corrupt and timed and self._rank == 0)
            self._finish()
            together(self._side)
            samples_us = loop(memory.mine, memory.theirs, count)
            if receives:
                wrong += memory.wrong()
        self._report(mode, size, samples_us if self._rank == 0 else [], wrong)

    def _finish(self) -> None:
        if self._job.on_gpus:
            torch.cuda.synchronize()

    def _wait(self, works: list[Any]) -> None:
        for work in works:
            work.wait()
        self._finish()
        self._see(works[-1])

    def _see(self, work: Any) -> None:
        """Record the path of a completed local operation."""
        if (request := getattr(work, "request", None)) is not None:
            request.wait()  # the stream has finished; the completion may not be seen yet
            self._path = request.message.path

    # ---- The loops: each returns samples in us, per operation

    def _first(self, mine: list[Any], theirs: list[Any], _: int) -> list[float]:
        start = perf_counter_ns()
        if self._rank == 0:
            dist.send(mine[0], 1)
            dist.recv(theirs[0], 1)
        else:
            dist.recv(theirs[0], 0)
            dist.send(mine[0], 0)
        self._finish()
        return [_since(start)]

    def _post(self, mine: list[Any], theirs: list[Any], count: int) -> list[float]:
        samples_us = []
        for _ in range(-(-count // _AT_ONCE)):
            works = []
            if self._rank == 1:
                works = [dist.irecv(tensor, 0) for tensor in theirs]
            together(self._side)
            if self._rank == 0:
                for tensor in mine:
                    start = perf_counter_ns()
                    works.append(dist.isend(tensor, 1))
                    samples_us.append(_since(start))
            self._wait(works)
        return samples_us

    def _sendrecv(self, mine: list[Any], theirs: list[Any], count: int) -> list[float]:
        samples_us = []
        row = _IN_A_ROW if self._job.on_gpus else 1
        for _ in range(-(-count // row)):
            start = perf_counter_ns()
            for _ in range(row):
                if self._rank == 0:
                    dist.send(mine[0], 1)
                last = dist.irecv(theirs[0], self._other)
                last.wait()
                if self._rank == 1:
                    dist.send(mine[0], 0)
            self._finish()
            samples_us.append(_since(start) / row / 2)
        self._see(last)
        return samples_us

    def _window(self, mine: list[Any], theirs: list[Any], count: int) -> list[float]:
        samples_us = []
        answer = torch.zeros(1, dtype=torch.uint8, device=self._device)
        for _ in range(-(-count // len(mine))):
            start = perf_counter_ns()
            if self._rank == 0:
                self._wait([dist.isend(tensor, 1) for tensor in mine])
                dist.recv(answer, 1)
            else:
                self._wait([dist.irecv(tensor, 0) for tensor in theirs])
                dist.send(answer, 0)
            self._finish()
            samples_us.append(_since(start) / len(mine))
        return samples_us

    def _batch(self, mine: list[Any], theirs: list[Any], count: int) -> list[float]:
        samples_us = []
        for _ in range(count):
            start = perf_counter_ns()
            operations = [
                dist.P2POp(dist.isend, mine[0], self._other),
                dist.P2POp(dist.irecv, theirs[0], self._other),
            ]
            self._wait(dist.batch_isend_irecv(operations))
            samples_us.append(_since(start))
        return samples_us


class _Memory:
    """A side's send and receive buffers: new bytes each time, known to the receiver."""

    def __init__(self, base: Any, slots: int, rank: int) -> None:
        self._base, self._rank, self._time = base, rank, 0
        self.mine, self.theirs = ([torch.empty_like(base) for _ in range(slots)] for _ in range(2))

    def renew(self, *, spoil: bool) -> None:
        """Fill the send buffer with new bytes, and make every byte of the receive buffer wrong."""
        self._time += 1
        for slot, (mine, theirs) in enumerate(zip(self.mine, self.theirs, strict=True)):
            mine.copy_(self._base).add_(self._number(self._rank, slot))
            theirs.copy_(self._base).add_(self._number(1 - self._rank, slot) ^ 1)
        self.mine[0][0] ^= spoil

    def wrong(self) -> int:
        """Return how many received bytes are wrong."""
        return sum(
            int((theirs != self._base + self._number(1 - self._rank, slot)).sum())
            for slot, theirs in enumerate(self.theirs)
        )

    def _number(self, rank: int, slot: int) -> int:
        return (37 * self._time + 101 * rank + 3 * slot) % 256


def _since(start: int) -> float:
    return (perf_counter_ns() - start) / 1e3
