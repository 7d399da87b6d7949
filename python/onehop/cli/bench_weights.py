# SPDX-License-Identifier: Apache-2.0
"""``onehop bench weights``: one trainer to inference engines, beside plain copies and gloo."""

# ruff: noqa: ANN401, D401 - values of any kind cross pipes; docstrings are help texts

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import multiprocessing
import os
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import onehop
from onehop.cli import bench_options as options
from onehop.cli.bench import bench
from onehop.cli.measure import corrupts
from onehop.cli.output import (
    Column,
    figures,
    json_lines,
    make_console,
    provenance,
    say_provenance,
)
from onehop.cli.rows import WRONG, figure, ratio
from onehop.cli.sides import SideError
from onehop.cli.sizes import SizeList, format_size

_COLUMNS = 1024  # of a tensor
_SILENCE = 600.0  # seconds that a process may take for one step
_MOST_PIECES = 1024  # of one process_vm_readv: the kernel's IOV_MAX


@dataclass
class Figure:
    """One row.

    Attributes:
        what: pull, copies or gloo; prepare.
        engines: that are fed.
        tensors, publishers, nbytes: of which size; nbytes of one engine.
        seconds: of each round.
        wrong: bytes that were not what the trainer had.
        cpu_seconds: seconds of CPU time of each round, of prepare.
        of_copies, of_gloo: of pull: their time by the pull's in the same round; the median.

    """

    what: str
    engines: int
    tensors: int
    publishers: int
    nbytes: int
    path: str = ""
    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    wrong: int = 0
    of_copies: float | None = None
    of_gloo: float | None = None

    @property
    def median(self) -> float:
        """Seconds of the median round."""
        return statistics.median(self.seconds)


@bench.command()
@click.option(
    "--vs", type=click.Choice(["gloo"]), help="Also torch's broadcast over gloo, in turn."
)
@click.option(
    "--size", type=SizeList(), default="1G", show_default=True, help="Bytes of all tensors."
)
@click.option("--tensors", type=click.IntRange(1), default=300, show_default=True)
@click.option(
    "--engines",
    default="1,3",
    show_default=True,
    metavar="N,N",
    help="How many engines pull at once; a row each.",
)
@click.option(
    "--prepare",
    default="10000,64",
    show_default=True,
    metavar="TENSORS,PUBLISHERS",
    help="A plan over so many, each tensor cut in as many rows; 0,0 leaves it out.",
)
@options.rounds()
@options.json_to
def weights(
    vs: str | None,
    size: Sequence[int],
    tensors: int,
    engines: str,
    prepare: str,
    rounds: int,
    json_to: str | None,
) -> None:
    """A trainer's tensors into engines by onehop.weights; with plain copies in the same processes.

    pull: all engines at once, leases included, until the last has all; copies: the same bytes by
    process_vm_readv, one engine after the other; gloo: a broadcast of each tensor; prepare: of a
    plan, with the links made before.
    """
    for package in ("numpy", *(["torch"] if vs else [])):
        if importlib.util.find_spec(package) is None:
            raise click.ClickException(f"{package} is not installed: pip install {package}")
    console = make_console(stderr=json_to == "-")
    known = provenance()
    say_provenance(console, known)
    found: list[Figure] = []
    with json_lines(json_to) as write:
        for count in _numbers("--engines", engines):
            found += _pulls(vs, size[0], tensors, count, rounds)
        many, publishers = _numbers("--prepare", prepare, 2)
        if many and publishers:
            found += _prepares(many, publishers, rounds)
        for one in found:
            write(json.dumps({**asdict(one), **known}))
    console.print(_table(found))
    if wrong := sum(one.wrong for one in found):
        raise click.ClickException(f"{wrong} bytes were not what the trainer had")


def _numbers(option: str, text: str, count: int | None = None) -> list[int]:
    try:
        found = [int(one) for one in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 0 or (count is not None and len(found) != count):
        raise click.UsageError(f"{option} {text}: give {count or 'some'} integers, with commas")
    return found


# ---- Processes


class _Process:
    """A process that does as it is told: an object's methods, one at a time."""

    def __init__(self, kind: Callable[..., Any], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(kind, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def start(self, method: str, *arguments: Any) -> None:
        """Let it call a method; result() fetches what it returns."""
        self._pipe.send((method, arguments))

    def result(self) -> Any:
        """Wait for the result. SideError: it failed, died or hangs."""
        try:
            if not self._pipe.poll(_SILENCE):
                raise SideError(f"a process was silent for {_SILENCE:g} s")
            ok, value = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise SideError(f"a process ended with {self._process.exitcode}") from None
        if not ok:
            raise SideError(value)
        return value

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method and wait for its result."""
        self.start(method, *arguments)
        return self.result()

    def end(self) -> None:
        """Kill it: nothing of a benchmark has to be kept."""
        self._process.kill()
        self._process.join()


def _serve(kind: Callable[..., Any], pipe: Connection, arguments: Sequence[Any]) -> None:
    try:
        thing = kind(*arguments)
        while True:
            method, given = pipe.recv()
            pipe.send((True, getattr(thing, method)(*given)))
    except EOFError:
        return
    except BaseException:
        pipe.send((False, traceback.format_exc()))


def _together(processes: Sequence[_Process], method: str, *arguments: Any) -> list[Any]:
    for process in processes:
        process.start(method, *arguments)
    return [process.result() for process in processes]


# ---- Pulls


def _pulls(vs: str | None, size: int, tensors: int, engines: int, rounds: int) -> Iterator[Figure]:
    trainer = _Process(_Trainer, size, tensors, engines + 1)
    others = [_Process(_Engine, size, tensors, n, engines + 1) for n in range(engines)]
    try:
        table, pid, addresses = trainer.call("describe")
        _together(others, "prepare", table, pid, addresses)
        ways = ["pull", "copies", *(["gloo"] if vs else [])]
        if vs:
            with tempfile.TemporaryDirectory(prefix="onehop-bench-") as folder:
                _together([trainer, *others], "join", str(Path(folder) / "gloo"))
        nbytes = trainer.call("nbytes")
        told = {way: Figure(way, engines, tensors, 1, nbytes) for way in ways}
        # The first round of each touches memory and connects: it is not counted.
        for number in range(rounds + 1):
            for turn, way in enumerate(ways[:: -1 if number % 2 else 1]):
                version = number * len(ways) + turn + 1
                trainer.call("publish", version)
                _together(others, "clear")
                seconds = _seconds(way, trainer, others)
                told[way].wrong += sum(_together(others, "wrong", version))
                if number:
                    told[way].seconds.append(seconds)
        told["pull"].path = others[0].call("path")
    finally:
        for process in (trainer, *others):
            process.end()
    pull = told["pull"]
    for way in ways[1:]:
        setattr(pull, f"of_{way}", ratio(told[way].seconds, pull.seconds))
    yield from told.values()


def _seconds(way: str, trainer: _Process, engines: Sequence[_Process]) -> float:
    """Let all engines get the tensors; return how long that took."""
    if way == "copies":
        in_turn: list[tuple[float, float]] = [engine.call("copy") for engine in engines]
        return sum(end - start for start, end in in_turn)
    if way == "gloo":
        trainer.start("broadcast")
    spans: list[tuple[float, float]]
    spans = _together(engines, "pull" if way == "pull" else "broadcast")
    if way == "gloo":
        spans.append(trainer.result())
    return max(end for _, end in spans) - min(start for start, _ in spans)


class _Tensors:
    """The tensors of one process, and gloo among all of them."""

    def __init__(self, size: int, tensors: int, rank: int, ranks: int) -> None:
        import numpy as np

        rows = max(1, size // (4 * _COLUMNS * tensors))
        self.rank, self.ranks = rank, ranks
        self.arrays = [np.zeros((rows, _COLUMNS), np.float32) for _ in range(tensors)]

    def join(self, store: str) -> None:
        """Make a group of gloo."""
        torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        self._dist.init_process_group(
            "gloo", init_method=f"file://{store}", rank=self.rank, world_size=self.ranks
        )
        self._torch = [torch.from_numpy(array) for array in self.arrays]

    def broadcast(self) -> tuple[float, float]:
        """Take part in a broadcast of each tensor."""
        self._dist.barrier()
        start = time.monotonic()
        for tensor in self._torch:
            self._dist.broadcast(tensor, 0)
        return start, time.monotonic()

    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(array.nbytes for array in self.arrays)


class _Trainer(_Tensors):
    def __init__(self, size: int, tensors: int, ranks: int) -> None:
        from onehop.weights import Publisher

        super().__init__(size, tensors, 0, ranks)
        self._endpoint = onehop.Endpoint()
        self._publisher = Publisher(self._endpoint, "trainer")
        for number, array in enumerate(self.arrays):
            self._publisher.add(f"layer.{number}", array)

    def describe(self) -> tuple[bytes, int, list[int]]:
        """Return what the engines need to know."""
        table = self._publisher.seal()
        return table, os.getpid(), [array.ctypes.data for array in self.arrays]

    def publish(self, version: int) -> None:
        """Write all tensors."""
        self._publisher.begin()
        for number, array in enumerate(self.arrays):
            array[:] = version + number
        self._publisher.commit(version)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Engine(_Tensors):
    def __init__(self, size: int, tensors: int, number: int, ranks: int) -> None:
        super().__init__(size, tensors, number + 1, ranks)
        self._endpoint = onehop.Endpoint()

    def prepare(self, table: bytes, pid: int, addresses: Sequence[int]) -> None:
        """Prepare pulls, and the copies."""
        from onehop.weights import Subscriber

        self._subscriber = Subscriber(self._endpoint, [table], name=f"engine{self.rank}")
        for number, array in enumerate(self.arrays):
            self._subscriber.want(f"layer.{number}", array)
        self._subscriber.prepare()
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.process_vm_readv.restype = ctypes.c_ssize_t
        pieces = list(zip(self.arrays, addresses, strict=True))
        self._vectors = []
        for first in range(0, len(pieces), _MOST_PIECES):
            some = pieces[first : first + _MOST_PIECES]
            ours = (_IoVec * len(some))(*(_IoVec(a.ctypes.data, a.nbytes) for a, _ in some))
            theirs = (_IoVec * len(some))(*(_IoVec(there, a.nbytes) for a, there in some))
            self._vectors.append((ours, theirs, sum(a.nbytes for a, _ in some)))

    def pull(self) -> tuple[float, float]:
        """Pull, and return when it began and ended."""
        start = time.monotonic()
        found = self._subscriber.pull()
        self._path = found.paths["trainer"]
        return start, time.monotonic()

    def copy(self) -> tuple[float, float]:
        """Read the same bytes by system calls; one reads at most 2 GiB."""
        start = time.monotonic()
        for ours, theirs, size in self._vectors:
            read = self._libc.process_vm_readv(
                self._pid, ours, ctypes.c_ulong(len(ours)), theirs, ctypes.c_ulong(len(theirs)), 0
            )
            if read != size:
                code = os.strerror(ctypes.get_errno()) if read < 0 else "short"
                raise RuntimeError(f"process_vm_readv read {read} of {size} bytes: {code}")
        return start, time.monotonic()

    def clear(self) -> None:
        """Forget what was pulled."""
        for array in self.arrays:
            array[:] = -1

    def wrong(self, version: int) -> int:
        """Return how many bytes are not those of a version."""
        import numpy as np

        if corrupts():
            self.arrays[0][0, 0] += 1
        return sum(
            4 * int(np.count_nonzero(array != version + number))
            for number, array in enumerate(self.arrays)
        )

    def path(self) -> str:
        """Return how the last pull travelled."""
        return self._path


# ---- Plans


def _prepares(tensors: int, publishers: int, rounds: int) -> Iterator[Figure]:
    trainers = _Process(_Trainers, tensors, publishers)
    planner = _Process(_Planner, tensors, publishers)
    try:
        planner.call("begin", trainers.call("tables"))
        prepare = Figure("prepare", 1, tensors, publishers, tensors * publishers * _Trainers.ROW)
        planner.call("plan")  # connects
        for _ in range(rounds):
            wall, cpu = planner.call("plan")
            prepare.seconds.append(wall)
            prepare.cpu_seconds.append(cpu)
        trainers.call("publish", 1)
        pull = Figure("pull of it", 1, tensors, publishers, prepare.nbytes)
        pull.seconds = [planner.call("pull") for _ in range(rounds)]
        pull.wrong = planner.call("wrong")
        yield prepare
        yield pull
    finally:
        trainers.end()
        planner.end()


class _Trainers:
    """As many publishers, each with a row of each tensor."""

    ROW = 128  # bytes

    def __init__(self, tensors: int, publishers: int) -> None:
        import numpy as np

        from onehop.weights import Publisher

        self._publishers = []
        for number in range(publishers):
            endpoint = onehop.Endpoint()
            # One allocation, as of sharded optimizers that keep flat parameters.
            flat = np.full((tensors, 1, self.ROW), number, np.uint8)
            publisher = Publisher(endpoint, f"rank{number}")
            for tensor in range(tensors):
                publisher.add(
                    f"layer.{tensor}.weight",
                    flat[tensor],
                    global_shape=(publishers, self.ROW),
                    start=(number, 0),
                )
            self._publishers.append((endpoint, publisher))

    def tables(self) -> list[bytes]:
        """Return what subscribers need."""
        return [publisher.seal() for _, publisher in self._publishers]

    def publish(self, version: int) -> None:
        """Let the engine read."""
        for _, publisher in self._publishers:
            publisher.begin()
            publisher.commit(version)


class _Planner:
    def __init__(self, tensors: int, publishers: int) -> None:
        import numpy as np

        self._flat = np.zeros((tensors, publishers, _Trainers.ROW), np.uint8)
        self._endpoint = onehop.Endpoint()

    def begin(self, tables: Sequence[bytes]) -> None:
        """Ask for all tensors."""
        from onehop.weights import Subscriber

        self._subscriber = Subscriber(self._endpoint, tables, name="engine")
        for number, tensor in enumerate(self._flat):
            self._subscriber.want(f"layer.{number}.weight", tensor)
        self._more = bytearray(_Trainers.ROW)

    def plan(self) -> tuple[float, float]:
        """Prepare anew; return how long that took, and how much CPU time."""
        # Another want lets go of the plan before it.
        self._subscriber.want(
            "layer.0.weight", memoryview(self._more).cast("B", (1, 128)), start=(0, 0)
        )
        start, cpu = time.monotonic(), time.process_time()
        self._subscriber.prepare()
        return time.monotonic() - start, time.process_time() - cpu

    def pull(self) -> float:
        """Pull, and return how long that took."""
        start = time.monotonic()
        self._subscriber.pull()
        return time.monotonic() - start

    def wrong(self) -> int:
        """Return how many bytes are not those of the publishers."""
        import numpy as np

        right = np.arange(self._flat.shape[1], dtype=np.uint8)[None, :, None]
        return int(np.count_nonzero(self._flat != right))


# ---- Rows


def _spread(one: Figure) -> str:
    return " ".join(f"{of(one.seconds) / one.median - 1:+.0%}" for of in (min, max))


def _cpu(one: Figure) -> str | None:
    return figure(statistics.median(one.cpu_seconds) * 1e3, 1) if one.cpu_seconds else None


def _rate(one: Figure) -> str | None:
    moved = one.what != "prepare"
    return figure(one.engines * one.nbytes / one.median / 1e9, 2) if moved else None


_SHOWN: tuple[Column[Figure], ...] = (
    Column("what", lambda one: one.what, "left"),
    Column("engines", lambda one: str(one.engines), "left"),
    Column("tensors", lambda one: str(one.tensors), "left"),
    Column("publishers", lambda one: str(one.publishers), "left"),
    Column("size", lambda one: format_size(one.nbytes), "left"),
    Column("path", lambda one: one.path, "left"),
    Column("ms", lambda one: figure(one.median * 1e3, 1)),
    Column("rounds", _spread),
    Column("CPU ms", _cpu),
    Column("GB/s", _rate),
    Column("by copies", lambda one: figure(one.of_copies, 2)),
    Column("by gloo", lambda one: figure(one.of_gloo, 2)),
    WRONG,
)


def _table(found: Sequence[Figure]) -> Table:
    return figures(
        "onehop bench weights: host memory",
        "ms: median of the rounds, the least and the greatest beside it; GB/s: bytes of all engines"
        " by the median; by copies, by gloo: their time by the pull's in the same round, median",
        _SHOWN,
        found,
    )
