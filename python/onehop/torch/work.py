# SPDX-License-Identifier: Apache-2.0
"""Work: a send or a receive in flight, as torch.distributed sees it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import onehop

if TYPE_CHECKING:
    from onehop.torch.completions import Completions

__all__ = ["What", "Work", "backend_error", "text_of"]

# Verb, tensor, preposition, rank, tag: formatted only on demand.
What = tuple[str, torch.Tensor, str, int, int]

_GROUPS = timedelta(0)  # torch passes this for "the group's timeout"


def text_of(what: What) -> str:
    """Describe an operation, for messages."""
    verb, tensor, preposition, rank, tag = what
    other = "any rank" if rank == onehop.ANY_SOURCE else f"rank {rank}"
    return f"{verb} of {tuple(tensor.shape)} {tensor.dtype} {preposition} {other}, tag {tag}"


def backend_error(what: str, failure: onehop.Error) -> Exception:
    """Return the exception that torch's programs expect for a failure."""
    text = f"onehop: {what}: {failure}"
    if isinstance(failure, onehop.InvalidArgument):
        return ValueError(text)
    error: Exception = dist.DistBackendError(text)
    return error


class Work(dist.Work):  # type: ignore[misc] # torch is Any
    """One send or receive.

    wait() with a CUDA tensor lets the current stream wait, and blocks the host only until a copy
    engine has the message: to enqueue a copy is a call of the driver, which waits for other calls
    that hold the driver's lock, as the first launch of a kernel does until the device is idle. A
    stream that stood still for such a copy would stand still for ever.
    block_current_stream() never blocks the host, for programs that make no such call.
    """

    def __init__(
        self,
        request: onehop.Request,
        tensor: torch.Tensor,
        what: What,
        timeout: float,
        completions: Completions,
    ) -> None:
        super().__init__()
        self._request = request
        self._tensor = tensor
        self._what = what
        self._timeout = timeout  # seconds
        self._completions = completions
        self.is_enqueued = False  # only a stream waits for it, and it will end without the host
        self._future: Any = None
        self._lock = threading.Lock()  # guards the future

    @property
    def request(self) -> onehop.Request:
        """The operation, for paths and sizes."""
        return self._request

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for its end, at most for the timeout; without one, for the group's.

        With a CUDA tensor and no timeout the current stream waits, and the host only until the
        message is with a copy engine. What goes wrong later is told by exception(), by another
        wait(), and in the log. DistBackendError: it has failed, or the time is over, which ends it.
        """
        if timeout is not None and timeout > _GROUPS:
            return self._wait_here(timeout.total_seconds())
        if not self._tensor.is_cuda or self._request.done:
            return self._wait_here(self._timeout)
        stream = torch.cuda.current_stream(self._tensor.device)
        try:
            self._request.wait_enqueued(stream, self._timeout)
        except onehop.Error as failure:
            raise backend_error(text_of(self._what), failure) from failure
        if self._request.done:
            return self._wait_here(self._timeout)
        self.is_enqueued = True
        self._watch(announced=False)
        return True

    def _wait_here(self, seconds: float) -> bool:
        try:
            self._request.wait(seconds)
        except onehop.Error as failure:
            raise backend_error(text_of(self._what), failure) from failure
        return True

    def block_current_stream(self) -> None:
        """Let the current stream of a CUDA tensor wait, and the host go on.

        Until the operation has ended no thread makes a call that holds the driver's lock while it
        waits for the device: kernels were launched before (or CUDA_MODULE_LOADING=EAGER is set),
        and no memory is freed. Waiting for streams and events is allowed. What
        goes wrong is told by exception(), by wait(), and in the log. With a host tensor the host
        waits.
        """
        if not self._tensor.is_cuda or self._request.done:
            self._wait_here(self._timeout)
            return
        stream = torch.cuda.current_stream(self._tensor.device)
        try:
            self._request.stream_wait(stream)
        except onehop.Error as failure:
            raise backend_error(text_of(self._what), failure) from failure
        # A stream has no deadline, and the program may never request the error.
        self._watch()

    def synchronize(self) -> None:
        """Do the same as wait() without a timeout."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._request.done

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._request.status == onehop.Status.OK

    def exception(self) -> Exception | None:
        """Return what it has failed with; None: it has not ended, or well."""
        try:
            self._request.test()
        except onehop.Error as failure:
            return backend_error(text_of(self._what), failure)
        return None

    def source_rank(self) -> int:
        """Return the rank in the group that a received message is from; the host waits for it."""
        self._wait_here(self._timeout)
        return self._request.message.source

    def _source_rank(self) -> int:
        return self.source_rank()

    def result(self) -> list[torch.Tensor]:
        """Return the tensor, in a list."""
        return [self._tensor]

    def get_future(self) -> Any:  # noqa: ANN401 - torch.futures.Future
        """Return a future of result(); a thread of the group completes it."""
        with self._lock:
            if self._future is not None:
                return self._future
            devices = [self._tensor.device] if self._tensor.is_cuda else None
            future = self._future = torch.futures.Future(devices=devices)
        try:
            self._watch()
        except BaseException:
            with self._lock:
                self._future = None
            raise
        return future

    def _watch(self, *, announced: bool = True) -> None:
        try:
            self._completions.watch(self, self._timeout, announced=announced)
        except onehop.Error as failure:
            raise backend_error(text_of(self._what), failure) from failure

    def tell(self) -> Exception | None:
        """After its end: complete the future. Return what it has failed with."""
        failure = self.exception()
        with self._lock:
            future = self._future
        if future is not None and not future.done():
            if failure is None:
                future.set_result(self.result())
            else:
                future.set_exception(failure)
        return failure
