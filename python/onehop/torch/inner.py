# SPDX-License-Identifier: Apache-2.0
"""The torch backends that carry collectives: gloo for hosts, NCCL for CUDA."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["COLLECTIVES", "BackendView", "Inner"]

# Under all names that torch versions use.
COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "allgather",
    "allgather_coalesced",
    "_allgather_base",
    "all_gather_single",
    "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced",
    "gather",
    "scatter",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced",
    "reduce_scatter_single_coalesced",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "barrier",
    "monitored_barrier",
    "_start_coalescing",
    "_end_coalescing",
)


def _device_of(values: Iterable[Any]) -> str | None:
    """Return the device type of the first tensor among the arguments, or of their options."""
    for value in values:
        if isinstance(value, torch.Tensor):
            return str(value.device.type)
        if isinstance(value, (list, tuple)):
            found = _device_of(value)
        else:
            device = getattr(value, "device", value)  # of BarrierOptions
            found = str(device.type) if isinstance(device, torch.device) else None
        if found is not None:
            return found
    return None


class Inner:
    """Creates each inner backend when a collective first needs it, on all ranks in step."""

    def __init__(
        self,
        group: Any,  # noqa: ANN401 - torch's
        store: Any,  # noqa: ANN401
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        cuda: bool,
    ) -> None:
        self._group = group
        self._store = store
        self._rank = rank
        self._size = size
        self._timeout = timeout
        self._cuda = cuda
        self._making = threading.Lock()  # held while ranks meet, which may take the timeout
        self._lock = threading.Lock()
        self._made: dict[str, Any] = {}
        self._ended = False
        # torch's own group of those backends: it selects the backend of a collective.
        self._collectives = dist.ProcessGroup(store, rank, size)

    @property
    def devices(self) -> list[torch.device]:
        """The device types whose tensors are supported."""
        return [torch.device(kind) for kind in (("cpu", "cuda") if self._cuda else ("cpu",))]

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Call a collective; its backend is created if necessary."""
        self.on(_device_of((*args, *kwargs.values())) or "cpu")
        return getattr(self._collectives, name)(*args, **kwargs)

    def on(self, device: str) -> Any:  # noqa: ANN401
        """Return the backend of a device type."""
        with self._making:
            with self._lock:
                self._refuse_if_ended()
                if device in self._made:
                    return self._made[device]
            backend = self._make(device)
            with self._lock:
                self._refuse_if_ended()
                self._made[device] = backend
            return backend

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise dist.DistBackendError(
                "onehop: a collective of a group that was aborted or destroyed: make another group"
            )

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a collective may take."""
        self._timeout = timeout
        with self._lock:
            made = list(self._made.values())
        for backend in made:
            backend._set_default_timeout(timeout)

    def end(self, how: str) -> None:
        """Call abort or shutdown of all backends, if this torch has it; create no more."""
        with self._lock:
            self._ended = True
            made = list(self._made.values())
        failures = []
        for backend in made:
            call = getattr(backend, how, None) or getattr(backend, f"_{how}", None)
            try:
                if call is not None:
                    call()
            except Exception as failure:  # the others must still be ended
                failures.append(failure)
        try:
            if failures:
                raise failures[0]
        finally:
            failures.clear()  # its traceback has this frame: otherwise a cycle

    def _make(self, device: str) -> Any:  # noqa: ANN401
        store = dist.PrefixStore("inner", self._store)
        if device == "cpu":
            if not dist.is_gloo_available():
                raise RuntimeError(
                    "onehop: collectives on host tensors need gloo, which this torch lacks"
                )
            backend = dist.ProcessGroupGloo(store, self._rank, self._size, timeout=self._timeout)
            kind = dist.ProcessGroup.BackendType.GLOO
        elif device == "cuda":
            if not self._cuda or not dist.is_nccl_available():
                raise RuntimeError(
                    "onehop: collectives on CUDA tensors need NCCL and a GPU: this torch"
                    f" ({torch.__version__}) has {'no NCCL' if self._cuda else 'no GPU'} here"
                )
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            backend = dist.ProcessGroupNCCL(store, self._rank, self._size, options)
            kind = dist.ProcessGroup.BackendType.NCCL
        else:
            raise ValueError(f"onehop: no backend for tensors on {device}: there are cpu and cuda")
        backend._set_sequence_number_for_group()
        # Registered with the outer group too: torch's C++ code searches there.
        for group in (self._collectives, self._group):
            group._register_backend(torch.device(device), kind, backend)
            if not self._made:
                group._set_default_backend(kind)
        return backend


class BackendView:
    """The result of _get_backend: the inner backend, created when it is first used."""

    supports_coalescing = False  # batch_isend_irecv then posts the operations one by one
    supports_splitting = False

    def __init__(self, inner: Inner, device: str) -> None:
        self._inner = inner
        self._device = device

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._inner.on(self._device), name)
