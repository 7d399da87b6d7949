# SPDX-License-Identifier: Apache-2.0
"""The processes of ``onehop bench weights``: a trainer, its engines, publishers and a planner."""

# ruff: noqa: ANN401 - values of any kind cross pipes

from __future__ import annotations

import ctypes
import importlib
import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import onehop
from onehop.cli.measure import corrupts
from onehop.cli.sides import SideError

_COLUMNS = 1024  # columns per tensor
_SILENCE = 600.0  # limit, in seconds, of one step of a process
_MOST_PIECES = 1024  # pieces per process_vm_readv: the kernel's IOV_MAX


# ---- Processes


class Process:
    """A child process that calls an object's methods on request, one at a time."""

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
        """Wait for the result. SideError: the process failed, died or hangs."""
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
        """Kill it: a benchmark has no state to preserve."""
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


def together(processes: Sequence[Process], method: str, *arguments: Any) -> list[Any]:
    """Let all processes call a method at once, and return their results."""
    for process in processes:
        process.start(method, *arguments)
    return [process.result() for process in processes]


# ---- Pulls


class _Tensors:
    """The tensors of one process, and a group of torch.distributed among all of them.

    Host tensors are numpy arrays; on a device they are torch tensors, which fill and compare alike.
    """

    def __init__(self, size: int, tensors: int, rank: int, ranks: int, device: str) -> None:
        shape = (max(1, size // (4 * _COLUMNS * tensors)), _COLUMNS)
        self.rank, self.ranks, self._device = rank, ranks, device
        self.arrays: list[Any]
        if device:
            torch = importlib.import_module("torch")
            torch.cuda.set_device(device)
            self.arrays = [torch.zeros(shape, device=device) for _ in range(tensors)]
            self._endpoint = onehop.Endpoint(torch.device(device).index)
        else:
            numpy = importlib.import_module("numpy")
            self.arrays = [numpy.zeros(shape, numpy.float32) for _ in range(tensors)]
            self._endpoint = onehop.Endpoint()

    def join(self, backend: str, store: str) -> None:
        """Make a group of gloo or NCCL."""
        torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        self._dist.init_process_group(
            backend, init_method=f"file://{store}", rank=self.rank, world_size=self.ranks
        )
        self._torch = [torch.as_tensor(array) for array in self.arrays]  # share the memory

    def settle(self) -> None:
        """Wait for all work of the GPU."""
        if self._device:
            importlib.import_module("torch").cuda.synchronize()

    def broadcast(self) -> tuple[float, float]:
        """Take part in a broadcast of each tensor."""
        self._dist.barrier()
        self.settle()
        start = time.monotonic()
        for tensor in self._torch:
            self._dist.broadcast(tensor, 0)
        self.settle()
        return start, time.monotonic()

    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(array.nbytes for array in self.arrays)


class Trainer(_Tensors):
    """Publishes its tensors."""

    def __init__(self, size: int, tensors: int, ranks: int, device: str) -> None:
        from onehop.weights import Publisher

        super().__init__(size, tensors, 0, ranks, device)
        self._publisher = Publisher(self._endpoint, "trainer")
        for number, array in enumerate(self.arrays):
            self._publisher.add(f"layer.{number}", array)

    def describe(self) -> tuple[bytes, int, list[int] | bytes]:
        """Return the data that the engines need: the table, and the addresses to copy from."""
        table = self._publisher.seal()
        if not self._device:
            return table, os.getpid(), [array.ctypes.data for array in self.arrays]
        reduce = importlib.import_module("torch.multiprocessing.reductions").reduce_tensor
        # Pickled here: unpickling the data maps the memory.
        return table, os.getpid(), pickle.dumps([reduce(array) for array in self.arrays])

    def publish(self, version: int) -> None:
        """Write all tensors."""
        self._publisher.begin()
        for number, array in enumerate(self.arrays):
            array[:] = version + number
        self.settle()
        self._publisher.commit(version)


class _IoVec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class Engine(_Tensors):
    """Pulls the trainer's tensors into its own, or copies them."""

    def prepare(self, table: bytes, pid: int, places: list[int] | bytes) -> None:
        """Prepare pulls, and the copies."""
        from onehop.weights import Subscriber

        self._subscriber = Subscriber(self._endpoint, [table], name=f"engine{self.rank}")
        for number, array in enumerate(self.arrays):
            self._subscriber.want(f"layer.{number}", array)
        self._subscriber.prepare()
        if isinstance(places, bytes):
            # torch's handles of CUDA IPC, which the trainer's process exports.
            self._theirs = [make(*arguments) for make, arguments in pickle.loads(places)]
            return
        self._pid = pid
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.process_vm_readv.restype = ctypes.c_ssize_t
        pieces = list(zip(self.arrays, places, strict=True))
        self._vectors = []
        for first in range(0, len(pieces), _MOST_PIECES):
            some = pieces[first : first + _MOST_PIECES]
            ours = (_IoVec * len(some))(*(_IoVec(a.ctypes.data, a.nbytes) for a, _ in some))
            theirs = (_IoVec * len(some))(*(_IoVec(there, a.nbytes) for a, there in some))
            self._vectors.append((ours, theirs, sum(a.nbytes for a, _ in some)))

    def pull(self) -> tuple[float, float]:
        """Pull, and return the start and end time."""
        start = time.monotonic()
        found = self._subscriber.pull()
        self._path = found.paths["trainer"]
        return start, time.monotonic()

    def copy(self) -> tuple[float, float]:
        """Copy the same bytes by system calls, or by torch from memory that CUDA IPC maps."""
        start = time.monotonic()
        if self._device:
            for array, there in zip(self.arrays, self._theirs, strict=True):
                array.copy_(there, non_blocking=True)
            self.settle()
            return start, time.monotonic()
        # One call reads at most 2 GiB.
        for ours, theirs, size in self._vectors:
            read = self._libc.process_vm_readv(
                self._pid, ours, ctypes.c_ulong(len(ours)), theirs, ctypes.c_ulong(len(theirs)), 0
            )
            if read != size:
                code = os.strerror(ctypes.get_errno()) if read < 0 else "short"
                raise RuntimeError(f"process_vm_readv read {read} of {size} bytes: {code}")
        return start, time.monotonic()

    def clear(self) -> None:
        """Overwrite the pulled bytes."""
        for array in self.arrays:
            array[:] = -1
        self.settle()

    def wrong(self, version: int) -> int:
        """Return how many bytes differ from those of a version."""
        if corrupts():
            self.arrays[0][0, 0] += 1
        return sum(
            4 * int((array != version + number).sum()) for number, array in enumerate(self.arrays)
        )

    def path(self) -> str:
        """Return the paths of the last pull."""
        return self._path


# ---- Plans


class Trainers:
    """A number of publishers, each with a row of each tensor."""

    ROW = 128  # bytes

    def __init__(self, tensors: int, publishers: int) -> None:
        import numpy as np

        from onehop.weights import Publisher

        self._publishers = []
        for number in range(publishers):
            endpoint = onehop.Endpoint()
            # One allocation, as in sharded optimizers with flat parameters.
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
        """Return the tables for subscribers."""
        return [publisher.seal() for _, publisher in self._publishers]

    def publish(self, version: int) -> None:
        """Commit the version."""
        for _, publisher in self._publishers:
            publisher.begin()
            publisher.commit(version)


class Planner:
    """Plans and pulls the tensors of all trainers."""

    def __init__(self, tensors: int, publishers: int) -> None:
        import numpy as np

        self._flat = np.zeros((tensors, publishers, Trainers.ROW), np.uint8)
        self._endpoint = onehop.Endpoint()

    def begin(self, tables: Sequence[bytes]) -> None:
        """Request all tensors."""
        from onehop.weights import Subscriber

        self._subscriber = Subscriber(self._endpoint, tables, name="engine")
        for number, tensor in enumerate(self._flat):
            self._subscriber.want(f"layer.{number}.weight", tensor)
        self._more = bytearray(Trainers.ROW)

    def plan(self) -> tuple[float, float]:
        """Prepare again; return the elapsed time and the CPU time."""
        # Another want releases the previous plan.
        self._subscriber.want(
            "layer.0.weight", memoryview(self._more).cast("B", (1, 128)), start=(0, 0)
        )
        start, cpu = time.monotonic(), time.process_time()
        self._subscriber.prepare()
        return time.monotonic() - start, time.process_time() - cpu

    def pull(self) -> float:
        """Pull, and return the elapsed time."""
        start = time.monotonic()
        self._subscriber.pull()
        return time.monotonic() - start

    def wrong(self) -> int:
        """Return how many bytes differ from those of the publishers."""
        import numpy as np

        right = np.arange(self._flat.shape[1], dtype=np.uint8)[None, :, None]
        return int(np.count_nonzero(self._flat != right))
