# SPDX-License-Identifier: Apache-2.0
"""ProcessGroup: sends and receives by onehop, collectives by what torch has for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd import _profiler_enabled
from torch.autograd.profiler import record_function

import onehop
from onehop.torch.completions import Completions
from onehop.torch.inner import COLLECTIVES, BackendView, Inner
from onehop.torch.lives import Life
from onehop.torch.work import Work, backend_error, text_of

__all__ = ["ProcessGroup", "create"]


def create(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:  # noqa: ANN401
    """Make a group, in all of its ranks: what torch calls."""
    return ProcessGroup(store, rank, size, timeout)


class ProcessGroup(dist.ProcessGroup):  # type: ignore[misc] # torch is Any
    """A group whose sends and receives go by onehop.

    Any order of posting is fine: a send never waits for its receive to be posted, a receive is
    never posted behind another. Messages of one pair and one tag match in the order of their posts.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:  # noqa: ANN401
        super().__init__(rank, size)
        self._rank = rank
        self._size = size
        self._store = store
        self._name = ""
        self._description = ""
        self._seconds = timeout.total_seconds()
        cuda = torch.cuda.is_available()
        device = f"cuda:{torch.cuda.current_device()}" if cuda else None
        life = Life(store, rank, size, self._seconds)
        try:
            self._comm = onehop.Communicator(
                rank,
                size,
                store=life.store,
                device=device,
                # Posted operations progress while the program computes, as with other backends.
                progress_thread=True,
                timeout=self._seconds,
            )
        except onehop.Error as failure:
            life.give_up()
            if text := life.disagreement:
                raise ValueError(text) from failure
            on = f"on {device}" if device else "on the host (torch.cuda.is_available() is False)"
            raise backend_error(f"rank {rank} of {size} {on}", failure) from failure
        self._device = device
        self._peers: dict[int, onehop.Peer] = {}
        self._completions = Completions(self._comm.endpoint)
        self._inner = Inner(self, life.store, rank, size, timeout, cuda=cuda)

    # ---- What torch asks

    def getBackendName(self) -> str:  # noqa: N802 - torch's
        """Return "onehop"."""
        return "onehop"

    def getRank(self) -> int:  # noqa: N802
        """Return our rank in the group."""
        return self._rank

    def getSize(self) -> int:  # noqa: N802
        """Return how many ranks the group has."""
        return self._size

    # torch's own implementations store both in the backends, which are created later here.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name that torch gives the group."""
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name that torch has given."""
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Take the description."""
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description."""
        return self._description

    @property
    def supports_splitting(self) -> bool:
        """Whether a group can be made out of this one: no, new groups meet by the store."""
        return False

    @property
    def communicator(self) -> onehop.Communicator:
        """The communicator beneath: its peers tell paths and counters."""
        return self._comm

    @property
    def _device_types(self) -> list[torch.device]:
        return self._inner.devices

    def _get_backend(self, device: torch.device) -> Any:  # noqa: ANN401
        if device.type == "cuda" and self._device is None:
            # torch also requests the backend for init_process_group(device_id=).
            raise RuntimeError(
                f"onehop: {device} was asked for, but torch.cuda.is_available() is False: the"
                f" group is on the host (torch {torch.__version__})"
            )
        return BackendView(self._inner, device.type)

    def _has_hooks(self) -> bool:
        return False

    def get_group_store(self) -> Any:  # noqa: ANN401
        """Return the store that the group was made with."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long operations that are posted from now on may take."""
        self._seconds = timeout.total_seconds()
        self._inner.set_timeout(timeout)

    # ---- Sends and receives

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> Work:
        """Post a send of the tensor to a rank of the group."""
        if _profiler_enabled():
            with record_function("onehop:send"):
                return self._send(tensors, dst, tag)
        return self._send(tensors, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> Work:
        """Post a receive into the tensor. A shorter message is fine: it fills the beginning.

        ValueError: src is negative, which is not any source: that is recv_anysource().
        """
        if src < 0:
            raise ValueError(
                f"onehop: a receive from rank {src} of {self._size}: ranks are 0 to"
                f" {self._size - 1}; leave src out to receive from any rank"
            )
        if _profiler_enabled():
            with record_function("onehop:recv"):
                return self._recv(tensors, src, tag)
        return self._recv(tensors, src, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        """Post a receive from the first rank that sends: Work.source_rank() returns it."""
        if _profiler_enabled():
            with record_function("onehop:recv_anysource"):
                return self._recv(tensors, onehop.ANY_SOURCE, tag)
        return self._recv(tensors, onehop.ANY_SOURCE, tag)

    def _send(self, tensors: list[torch.Tensor], dst: int, tag: int) -> Work:
        tensor = self._buffer(tensors, tag)
        what = ("send", tensors[0], "to", dst, tag)
        try:
            try:
                request = self._peer(dst).isend(tensor, tag)
            except onehop.OperationError as failure:
                if failure.status != onehop.Status.AGAIN:
                    raise
                request = self._send_with_room(tensor, dst, tag)
        except onehop.Error as failure:
            raise backend_error(text_of(what), failure) from failure
        return Work(request, tensors[0], what, self._seconds, self._completions)

    def _recv(self, tensors: list[torch.Tensor], src: int, tag: int) -> Work:
        tensor = self._buffer(tensors, tag)
        what = ("receive", tensors[0], "from", src, tag)
        try:
            if src == onehop.ANY_SOURCE:
                request = self._comm.irecv(tensor, src, tag)
            else:
                request = self._peer(src).irecv(tensor, tag)
        except onehop.Error as failure:
            raise backend_error(text_of(what), failure) from failure
        return Work(request, tensors[0], what, self._seconds, self._completions)

    def _send_with_room(self, tensor: torch.Tensor, dst: int, tag: int) -> onehop.Request:
        """Send once fewer sends wait for their receives."""
        deadline = time.monotonic() + self._seconds
        while True:
            self._comm.endpoint.progress()
            try:
                return self._peer(dst).isend(tensor, tag)
            except onehop.OperationError as failure:
                if failure.status != onehop.Status.AGAIN or time.monotonic() > deadline:
                    raise
            time.sleep(0.0001)  # until the peer has received

    def _peer(self, rank: int) -> onehop.Peer:
        peer = self._peers.get(rank)
        if peer is None:
            peer = self._peers[rank] = self._comm.peer(rank, timeout=self._seconds)
        return peer

    def _buffer(self, tensors: list[torch.Tensor], tag: int) -> torch.Tensor:
        """Check the arguments, and return the contiguous bytes to send or receive."""
        if len(tensors) != 1:
            raise ValueError(f"onehop: a list of {len(tensors)} tensors: give one")
        tensor = tensors[0]
        if tag < 0:
            raise ValueError(f"onehop: tag {tag}: tags are 0 to 2**63 - 1")
        if tensor.layout is not torch.strided or not tensor.is_contiguous():
            raise ValueError(
                f"onehop: a tensor of shape {tuple(tensor.shape)} that is not contiguous: give"
                " tensor.contiguous(), and copy from it what was received"
            )
        if tensor.is_cuda and f"cuda:{tensor.device.index}" != self._device:
            raise ValueError(
                f"onehop: a tensor on {tensor.device}, but the group is on"
                f" {self._device or 'the host'}: call torch.cuda.set_device() before"
                " init_process_group() and new_group()"
            )
        if tensor.requires_grad:
            tensor = tensor.detach()
        if tensor.is_complex():
            tensor = torch.view_as_real(tensor)
        elif tensor.element_size() == 1 and tensor.is_floating_point():
            tensor = tensor.view(torch.uint8)  # DLPack of older torch does not support float8
        return tensor

    # ---- The end

    def abort(self) -> None:
        """End all that is in flight: waits raise, streams go on."""
        self._end("abort")

    def shutdown(self) -> None:
        """Close the group once devices are through with what wait() left to streams.

        Other operations in flight are cancelled.
        """
        self._completions.settle()
        self._end("shutdown")

    def _end(self, how: str) -> None:
        self._comm.close()
        self._completions.close()
        self._inner.end(how)


def _collective(name: str) -> Callable[..., Any]:
    def call(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return self._inner.call(name, *args, **kwargs)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Call {name} of the inner backend for the tensors' device."
    return call


for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(ProcessGroup, _name, _collective(_name))
