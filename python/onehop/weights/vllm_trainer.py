# SPDX-License-Identifier: Apache-2.0
"""vLLM's weight transfer engine "onehop": the trainer's side."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from onehop import Endpoint, Status
from onehop.errors import InvalidArgument
from onehop.vllm_plugin import BACKEND, register_weights
from onehop.weights.publisher import Publisher

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["LLMClient", "OnehopTrainerInitInfo", "OnehopTrainerWeightTransferEngine"]


@dataclass
class OnehopTrainerInitInfo(TrainerInitInfo):
    """How a trainer rank publishes.

    Attributes:
        in_place: the source yields the same memory in each round, such as ModuleSource of a module
            that is not sharded: the memory itself is published. Otherwise a copy of all tensors is
            kept on their device, which takes as much memory as the model.
        bucket_bytes, timeout: as in OnehopInitInfo.

    """

    backend: ClassVar[str] = BACKEND

    in_place: bool = False
    bucket_bytes: int = 256 << 20
    timeout: float = 300.0


class LLMClient:
    """The weight updates of a `vllm.LLM` of this process. vLLM has clients for HTTP and for Ray."""

    def __init__(self, llm: Any) -> None:  # noqa: ANN401 - vllm.LLM, which takes long to import
        self._llm = llm

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Tell all workers how to reach the trainer."""
        self._llm.init_weight_transfer_engine({"init_info": init_info})

    def start_weight_update(self) -> None:
        """Prepare all workers."""
        self._llm.start_weight_update()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Let all workers pull."""
        self._llm.update_weights({"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Let all workers use what they have pulled."""
        self._llm.finish_weight_update(weight_version)


class OnehopTrainerWeightTransferEngine(TrainerWeightTransferEngine[OnehopTrainerInitInfo]):
    """Publishes a WeightSource's tensors. Rank 0 publishes; the others take part in the gather.

    Workers pull within the client's update_weights(). They need no rank, no port and no collective.
    """

    init_info_cls = OnehopTrainerInitInfo

    def __init__(
        self,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource,
        init_info: OnehopTrainerInitInfo,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=init_info.is_sender)
        self._info = init_info
        self._published: dict[str, torch.Tensor] = {}
        self._version = 0
        self._endpoint: Endpoint | None = None
        self._publisher: Publisher | None = None

    @classmethod
    def trainer_init(
        cls,
        init_info: OnehopTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """Publish the source's tensors and pass the table to the workers. Every rank calls it.

        InvalidArgument: there is no source, or it yields tensors of several devices.
        """
        if source is None:
            msg = 'weight transfer engine "onehop" publishes a WeightSource: give source='
            raise InvalidArgument(Status.INVALID, msg)
        engine = cls(client=client, source=source, init_info=init_info)
        if not engine.is_sender:
            for _ in source:  # gathering a tensor takes all ranks
                pass
            return engine
        table = engine._publish(source)
        client.init_weight_transfer_engine(
            {
                "tables": [base64.b64encode(table).decode()],
                "bucket_bytes": init_info.bucket_bytes,
                "timeout": init_info.timeout,
            }
        )
        return engine

    def _publish(self, source: WeightSource) -> bytes:
        for name, tensor in source:
            own = tensor.detach()
            self._published[name] = own if self._info.in_place else own.clone().contiguous()
        devices = {tensor.device for tensor in self._published.values()}
        if len(devices) > 1:
            names = ", ".join(sorted(map(str, devices)))
            msg = f"the source yields tensors of {names}: all of them must be on one device"
            raise InvalidArgument(Status.INVALID, msg)
        device = next(iter(devices), torch.device("cpu"))
        self._endpoint = Endpoint(None if device.type == "cpu" else device.index or 0)
        self._publisher = Publisher(self._endpoint, "trainer", timeout=self._info.timeout)
        for name, tensor in self._published.items():
            self._publisher.add(name, tensor)
        return self._publisher.seal()

    def send_weights(self) -> None:
        """Publish the source's present content as the next version, and let the workers pull it.

        Every rank calls it. It returns once all workers have loaded the version. With in_place
        nothing can be pulled from then on until the next call, so the optimizer may write. Errors
        of the workers are raised as by the client. TimeoutError as for Publisher.begin.
        """
        assert self.source is not None
        if self._publisher is None:
            for _ in self.source:
                pass
            return
        self._publisher.begin()
        for name, tensor in self.source:
            self._take(name, tensor.detach())
        self._version += 1
        self._publisher.commit(self._version, stream=self._stream())
        self.client.start_weight_update()
        self.client.update_weights({"version": self._version})
        self.client.finish_weight_update()
        if self._info.in_place:
            self._publisher.begin()

    def _stream(self) -> torch.cuda.Stream | None:
        """Return the stream that wrote the tensors; None: no stream did."""
        device = next((tensor.device for tensor in self._published.values()), None)
        if device is None or device.type == "cpu":
            return None
        return torch.cuda.current_stream(device)

    def _take(self, name: str, tensor: torch.Tensor) -> None:
        own = self._published.get(name)
        if own is None or own.shape != tensor.shape or own.dtype != tensor.dtype:
            msg = (
                f"the source yields {name!r} of {tensor.dtype} {tuple(tensor.shape)}, and did not "
                "at trainer_init: make another engine"
            )
            raise InvalidArgument(Status.INVALID, msg)
        if own.data_ptr() == tensor.data_ptr():
            return
        if self._info.in_place:
            msg = f"the source yields {name!r} in other memory than before: give in_place=False"
            raise InvalidArgument(Status.INVALID, msg)
        own.copy_(tensor)

    def shutdown(self) -> None:
        """End the publisher. May be called again."""
        if self._publisher is not None:
            self._publisher.close()
        if self._endpoint is not None:
            self._endpoint.close()
        self._publisher = self._endpoint = None


register_weights()
