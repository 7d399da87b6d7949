# SPDX-License-Identifier: Apache-2.0
"""Rows through the public Python API: the time that Python adds to an operation.

The loops are those of all rows (bench/loops.h). This module has the operations that they call: with
numpy arrays, and for GPU memory with a Region, a torch tensor, or an array with the CUDA array
interface.
"""

# ruff: noqa: ANN401 - arrays, regions and requests are whatever a user may have

from __future__ import annotations

import importlib
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

import onehop
from onehop import _bench
from onehop._bench import Mode

_CONTROL_TAG = 1
_CONTROL_SIZE = 4096
_SLOT = 0
_PREPARED = (Mode.PUT_PREPARED, Mode.GET_PREPARED)
_PUTS = (Mode.PUT, Mode.PUT_PREPARED)

# Functions that take a message's number: send, recv, isend and irecv of a PythonRow.
Verbs = dict[str, Callable[[int], Any]]


class PythonSide:
    """A side that uses the package's operations: see _bench.Side."""

    def __init__(self, number: int, device: str, api: str) -> None:
        self.number = number
        self.endpoint = onehop.Endpoint(device=device) if device else onehop.Endpoint()
        self._device = device
        self._api = api
        self.peer: Any = None
        self._region: onehop.Region | None = None

    def address(self) -> bytes:
        """Return the address that the other side needs to connect."""
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

    def run(self, spec: _bench.Spec) -> _bench.Outcome:
        """Measure a row."""
        row = _bench.PythonRow(self.number, self._swap, spec, self._device)
        try:
            if spec.op == _bench.Op.BATCH:
                return self._batch(row, spec)
            if spec.mode == Mode.PUT_SIGNAL:
                return row.run(**self._signalled_puts(row, spec))
            if spec.mode in (Mode.PUT, Mode.GET):
                return row.run(**self._one_sided(row, spec))
            return row.run(**self._messages(row, spec))
        finally:
            # Breaks a cycle that the collector does not see: the region owns the row's memory,
            # and the row this side.
            self._region = None

    # ---- The operations

    def _messages(self, row: _bench.PythonRow, spec: _bench.Spec) -> Verbs:
        peer, window = self.peer, spec.window
        sources, targets = (self._slots(row, spec, giving=giving) for giving in (True, False))
        if self._api == "python-region":
            # Empty operations, which measure the overhead of a call.
            return {
                "send": lambda i: peer.send(sources[i % window], after=None),
                "recv": lambda i: peer.recv(targets[i % window], after=None),
            }
        return {
            "send": lambda i: peer.send(sources[i % window]),
            "recv": lambda i: peer.recv(targets[i % window]),
            "isend": lambda i: peer.isend(sources[i % window]),
            "irecv": lambda i: peer.irecv(targets[i % window]),
        }

    def _signalled_puts(self, row: _bench.PythonRow, spec: _bench.Spec) -> Verbs:
        peer = self.peer
        (source,) = self._slots(row, spec, giving=True)
        _, remote = self._swap_region(row.memory(giving=False))

        def send(_: int) -> Any:
            put = peer.put(source, remote)
            peer.signal(_SLOT)
            return put.wait()

        def recv(_: int) -> None:
            peer.wait_signal(_SLOT)

        return {"send": send, "recv": recv}

    def _one_sided(self, row: _bench.PythonRow, spec: _bench.Spec) -> Verbs:
        put, window, size = spec.mode == Mode.PUT, spec.window, spec.size
        verb = self.peer.put if put else self.peer.get
        giving = put == (self.number == 0)
        region, remote = self._swap_region(row.memory(giving))
        arrays = self._slots(row, spec, giving=giving)
        remotes = [remote[i * size : (i + 1) * size] for i in range(window)]

        def start(i: int) -> Any:
            return verb(arrays[i % window], remotes[i % window])

        def move(_: int) -> Any:  # of a window of one
            return verb(region, remote).wait()

        return {"send": move, "isend": start} if put else {"recv": move, "irecv": start}

    def _batch(self, row: _bench.PythonRow, spec: _bench.Spec) -> _bench.Outcome:
        put = spec.mode in _PUTS
        region, remote = self._swap_region(row.memory(put))
        places = [self._places(row, spec, target=target) for target in (False, True)]

        def starter(size: int) -> Callable[[], Any]:
            """Return a function that starts a batch of blocks of a size."""
            if spec.mode in _PREPARED:
                prepare = self.peer.prepare_put if put else self.peer.prepare_get
                return prepare(region, remote, *places, size).post  # type: ignore[no-any-return]
            verb = self.peer.put_batch if put else self.peer.get_batch
            return lambda: verb(region, remote, *places, size)

        move = starter(spec.size)
        found = row.run(**{"send" if put else "recv": lambda _: move().wait()})
        if self.number == 0 and spec.mode in _PREPARED:
            post = starter(1)
            posts_us = []
            for _ in range(spec.iterations):
                begin = perf_counter_ns()
                post().wait()
                posts_us.append((perf_counter_ns() - begin) / 1e3)
            found.post_us = posts_us
        self._swap(b"")
        return found

    # ---- Memory

    @staticmethod
    def _places(row: _bench.PythonRow, spec: _bench.Spec, *, target: bool) -> Any:
        """Return the offsets of the blocks, as a range or as an array."""
        if spec.strided:
            pitch = 2 * spec.size
            return range(0, spec.blocks * pitch, pitch)
        import numpy as np

        return np.array(row.offsets(target), dtype=np.uint64)

    def _slots(self, row: _bench.PythonRow, spec: _bench.Spec, *, giving: bool) -> list[Any]:
        """Return the slots to send or receive, as objects of the public API."""
        at = row.address(giving)
        if not at:
            return []
        offsets = [i * spec.size for i in range(spec.window)]
        if not self._device:
            memory: Any = row.memory(giving)
            return [memory[offset : offset + spec.size] for offset in offsets]
        arrays = [GpuArray(at + offset, spec.size) for offset in offsets]
        if self._api == "python-torch":
            torch = importlib.import_module("torch")
            return [torch.as_tensor(array, device=self._device) for array in arrays]
        if self._api == "python-region":
            return [self.endpoint.register(array) for array in arrays]
        return list(arrays)

    # ---- Exchange with the other side

    def _swap(self, data: bytes) -> bytes:
        answer = bytearray(_CONTROL_SIZE)
        receive = self.peer.irecv(answer, _CONTROL_TAG)
        self.peer.send(data, _CONTROL_TAG)
        return bytes(answer[: receive.wait().nbytes])

    def _swap_region(self, array: Any) -> tuple[onehop.Region, onehop.RemoteRegion]:
        # Stays registered during the row's life.
        region = self._region = self.endpoint.register(array)
        return region, self.peer.attach(self._swap(region.descriptor))


class GpuArray:
    """GPU memory with the interface of an array library."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }
