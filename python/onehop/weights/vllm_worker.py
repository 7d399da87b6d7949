# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer engine "onehop": the inference workers' side.

Each worker pulls full tensors under one lease, one bucket of layers after the other, into two
buffers in turn. It passes them to the model's `load_weights`, which slices them for its rank.
"""

from __future__ import annotations

import base64
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
    layerwise_groups,
)

from onehop import Endpoint, Status
from onehop.errors import InvalidArgument
from onehop.weights.subscriber import Subscriber

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.config.weight_transfer import WeightTransferConfig

__all__ = ["OnehopInitInfo", "OnehopUpdateInfo", "OnehopWeightTransferEngine"]

# Alignment, in bytes, of tensors in a buffer: for the widest loads of a GPU.
_ALIGNMENT = 256


@dataclass
class OnehopInitInfo(WeightTransferInitInfo):
    """The information that the trainer sends to each worker once.

    Attributes:
        tables: of all publishers, each in base64.
        bucket_bytes: size of a buffer, unless a layer is larger.
        timeout: seconds, for connects and for one update.

    """

    tables: list[str]
    bucket_bytes: int = 256 << 20
    timeout: float = 300.0


@dataclass
class OnehopUpdateInfo(WeightTransferUpdateInfo):
    """The information that the trainer sends to each worker for an update: the version to pull."""

    version: int


@dataclass(frozen=True)
class _Bucket:
    buffer: int
    tensors: list[tuple[str, torch.Tensor]]


class OnehopWeightTransferEngine(WeightTransferEngine[OnehopInitInfo, OnehopUpdateInfo]):
    """Pulls each version with a Subscriber of this worker and loads it layer by layer."""

    init_info_cls = OnehopInitInfo
    update_info_cls = OnehopUpdateInfo

    def __init__(
        self,
        config: WeightTransferConfig,
        vllm_config: VllmConfig,
        device: torch.device,
        model: torch.nn.Module,
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._endpoint: Endpoint | None = None
        self._subscriber: Subscriber | None = None
        self._buffers: list[torch.Tensor] = []
        self._buckets: list[_Bucket] = []

    def init_transfer_engine(self, init_info: OnehopInitInfo) -> None:
        """Connect to the publishers and prepare all buckets. Again: with other publishers."""
        self.shutdown()
        self._endpoint = Endpoint(None if self.device.type == "cpu" else self.device.index or 0)
        name = f"vllm {socket.gethostname()} {os.getpid()} rank {self.parallel_config.rank}"
        tables = [base64.b64decode(one, validate=True) for one in init_info.tables]
        self._subscriber = Subscriber(self._endpoint, tables, name=name, timeout=init_info.timeout)
        self._divide(self._subscriber, init_info.bucket_bytes)
        self._subscriber.prepare()

    def _divide(self, subscriber: Subscriber, bucket_bytes: int) -> None:
        """Place the tensors in two buffers; a layer stays in one piece."""
        published = subscriber.tensors()
        layouts: list[list[tuple[str, int]]] = []
        size = largest = 0
        for group in layerwise_groups(list(published)):
            needed = sum(_aligned(published[name].nbytes) for name in group)
            if not layouts or size + needed > bucket_bytes:
                layouts.append([])
                size = 0
            for name in group:
                layouts[-1].append((name, size))
                size += _aligned(published[name].nbytes)
            largest = max(largest, size)
        self._buffers = [
            torch.empty(largest, dtype=torch.uint8, device=self.device)
            for _ in range(min(2, len(layouts)))
        ]
        for part, layout in enumerate(layouts):
            buffer = part % len(self._buffers)
            tensors = []
            for name, offset in layout:
                one = published[name]
                bytes_ = self._buffers[buffer][offset : offset + one.nbytes]
                tensors.append((name, bytes_.view(_torch_dtype(one.dtype)).view(one.shape)))
                subscriber.want(name, tensors[-1][1], part=part)
            self._buckets.append(_Bucket(buffer, tensors))

    def start_weight_update(self) -> None:
        """Prepare the model for weights in checkpoint format."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Pull a version and load it. On a GPU, wait until the device has finished."""
        if self.device.type == "cpu":
            # vLLM's implementation waits for an accelerator, which a CPU build does not have.
            self.receive_weights(self.parse_update_info(update_info))
        else:
            super().update_weights(update_info)

    def receive_weights(self, update_info: OnehopUpdateInfo) -> None:
        """Pass the tensors of a version to the model as they arrive.

        VersionChanged and PublisherLost: as for Subscriber.pull_parts. The model then has parts of
        both versions, and needs another update before it is used.
        """
        from vllm.model_executor.model_loader.mtp_validation import (
            disable_mtp_completeness_check,
        )

        if self._subscriber is None:
            msg = 'weight transfer engine "onehop" is not initialized: init_weight_transfer_engine'
            raise InvalidArgument(Status.INVALID, msg)
        with disable_mtp_completeness_check(), torch.no_grad():
            for part in self._subscriber.pull_parts(update_info.version):
                bucket = self._buckets[part]
                # One call per bucket: some models copy all that they are given into a list.
                self.model.load_weights(iter(bucket.tensors))
                # The bucket after the next one reuses its buffer.
                if part + len(self._buffers) < len(self._buckets):
                    self._keep(self._buffers[bucket.buffer])

    def _keep(self, buffer: torch.Tensor) -> None:
        """Copy the data of a buffer that incomplete layers still need.

        Such layers have padding, attention scales, or tensors that belong to several layers.
        """
        from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

        storage = buffer.untyped_storage().data_ptr()
        for layer in self.model.modules():
            for _, bound in get_layerwise_info(layer).loaded_weights:
                for key, value in bound.arguments.items():
                    bound.arguments[key] = _copied(value, storage)

    def finish_weight_update(self) -> None:
        """Process the layers that waited for their last weights."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Disconnect from the publishers; the worker continues. May be called again."""
        if self._subscriber is not None:
            self._subscriber.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._subscriber = self._endpoint = None
        self._buffers, self._buckets = [], []


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _torch_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise InvalidArgument(
            Status.INVALID, f"a publisher has dtype {name!r}, which torch has not"
        )
    return found


def _copied(value: Any, storage: int) -> Any:  # noqa: ANN401 - arguments of a weight loader
    """Return an argument with copies of its tensors that lie in this storage."""
    if isinstance(value, torch.Tensor):
        if value.device.type != "meta" and value.untyped_storage().data_ptr() == storage:
            return value.clone()
    elif isinstance(value, tuple | list):
        return type(value)(_copied(one, storage) for one in value)
    elif isinstance(value, dict):
        return {key: _copied(one, storage) for key, one in value.items()}
    return value
