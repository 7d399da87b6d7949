# SPDX-License-Identifier: Apache-2.0
"""The benchmark's loops in Python with memory of a GPU: latency.

As a user calls it: by a Region, by a torch tensor, or by any array with the CUDA array interface.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

import onehop
from onehop import _bench
from onehop.cli.python_link import Array, Found, Link, LinkedLoops
from onehop.cli.python_pingpong import Exchange, ping_pong


class GpuArray:
    """Memory of a GPU, as a library presents its arrays; `object` is what is sent.

    Payloads are made and looked at in `data`, a copy of it on the host.
    """

    def __init__(self, link: Link, spec: _bench.Spec, device: str, api: str) -> None:
        self._block = _bench.GpuBlock(device, spec.memory, max(spec.size, 1))
        self._size = spec.size
        self.data: Array = np.empty(spec.size, dtype=np.uint8)
        if api == "python-torch":
            torch = importlib.import_module("torch")
            self.object: Any = torch.as_tensor(self, device=device)
        elif api == "python-region":
            self.object = link.endpoint.register(self)
        else:
            self.object = self

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {
            "shape": (self._size,),
            "typestr": "|u1",
            "data": (self._block.address, False),
            "version": 3,
        }

    def release(self) -> None:
        """Give up what is sent: it holds this array, which holds it."""
        self.object = None

    def publish(self) -> None:
        """Copy the data to the GPU."""
        self._block.write(self.data)

    def fetch(self) -> None:
        """Copy the GPU's bytes to the data."""
        self._block.read(self.data)


def _messages(link: Link, out: GpuArray, inbox: GpuArray, api: str) -> Exchange:
    peer, source, target = link.peer, out.object, inbox.object
    if api == "python-region":
        # The least that a call can be asked to do.
        return Exchange(
            out,
            inbox,
            lambda: peer.send(source, after=None),
            lambda: str(peer.recv(target, after=None).path),
        )
    return Exchange(out, inbox, lambda: peer.send(source), lambda: str(peer.recv(target).path))


class PythonGpuLoops(LinkedLoops):
    """Loops with memory of a GPU: see _bench.Side."""

    def __init__(self, number: int, device: str, api: str) -> None:
        super().__init__(number, onehop.Endpoint(device=device))
        self._device = device
        self._api = api

    def latency(self, spec: _bench.Spec) -> Found:
        """Measure messages."""
        out, inbox = (GpuArray(self.link, spec, self._device, self._api) for _ in range(2))
        found = ping_pong(self.link, spec, _messages(self.link, out, inbox, self._api))
        out.release()
        inbox.release()
        return found

    def bandwidth(self, spec: _bench.Spec) -> Found:
        """Refuse: the loops in C++ have it."""
        raise NotImplementedError("bandwidth of GPU memory is measured with --api c")

    def batch(self, spec: _bench.Spec) -> Found:
        """Refuse: the loops in C++ have it."""
        raise NotImplementedError("batches of GPU memory are measured with --api c")
