# SPDX-License-Identifier: Apache-2.0
"""GPUs and their streams, as arguments."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias

from onehop._core import CURRENT_STREAM, CurrentStream

__all__ = [
    "CURRENT_STREAM",
    "After",
    "CudaStreamProtocol",
    "CupyStream",
    "CurrentStream",
    "Device",
    "NumbaStream",
    "NumberedDevice",
    "Stream",
    "TorchEvent",
    "TorchStream",
]


class NumberedDevice(Protocol):
    """A device with a type and an index, such as torch.device("cuda:1")."""

    @property
    def type(self) -> str: ...  # noqa: D102
    @property
    def index(self) -> int | None: ...  # noqa: D102


class TorchStream(Protocol):
    """torch.cuda.Stream."""

    @property
    def cuda_stream(self) -> int: ...  # noqa: D102


class TorchEvent(Protocol):
    """torch.cuda.Event."""

    @property
    def cuda_event(self) -> int: ...  # noqa: D102


class CudaStreamProtocol(Protocol):
    """A stream of cuda.core, or of packages with its protocol: a version, and the raw stream."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


class CupyStream(Protocol):
    """cupy.cuda.Stream or Event. Subclasses of a class named Event are events."""

    @property
    def ptr(self) -> Any: ...  # noqa: ANN401, D102


class NumbaStream(Protocol):
    """A stream or an event of numba. Subclasses of a class named Event are events."""

    @property
    def handle(self) -> Any: ...  # noqa: ANN401, D102


# The device of an endpoint: None or "host", the number of a GPU, "cuda:1", "GPU-<uuid>".
Device: TypeAlias = str | int | NumberedDevice | None
# A CUDA stream. An integer: a raw stream; 0 is the legacy default stream.
Stream: TypeAlias = TorchStream | CudaStreamProtocol | CupyStream | NumbaStream | int
# The GPU work to wait for before GPU memory is accessed. None: nothing, the memory is ready. An
# integer: a raw stream. CURRENT_STREAM: the current stream of the buffer's library.
After: TypeAlias = (
    CurrentStream
    | TorchStream
    | TorchEvent
    | CudaStreamProtocol
    | CupyStream
    | NumbaStream
    | int
    | None
)
