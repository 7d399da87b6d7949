# SPDX-License-Identifier: Apache-2.0
"""The calls of NIXL's agent that make lists of descriptors, and read and write them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from onehop.nixl import descs as lists
from onehop.nixl.arguments import bytes_of, tensors_of
from onehop.nixl.descs import PLAIN, nixlRegDList, nixlRemoteDList, nixlXferDList
from onehop.nixl.enums import nixl_mem_t
from onehop.nixl.errors import nixlInvalidParamError

__all__ = ["DescriptorCalls"]

_log = logging.getLogger("onehop.nixl")


class DescriptorCalls:
    """Calls that need no other agent and no registration. Threading: any thread."""

    nixl_mems: dict[str, nixl_mem_t]

    def _memory(self, mem_type: str) -> nixl_mem_t:
        try:
            return self.nixl_mems[mem_type]
        except KeyError:
            msg = f"mem_type is {mem_type!r}: give one of {', '.join(self.nixl_mems)}"
            raise KeyError(msg) from None

    def get_xfer_descs(
        self,
        descs: Any,  # noqa: ANN401
        mem_type: str | None = None,
    ) -> nixlXferDList | None:
        """Return a list of memory to move: of tuples (address, length, device), tensors or arrays.

        Arrays are C-contiguous, of int64 or uint64, N x 3, or N x 5 with (distance, count) of the
        blocks of each row. None, and a logged error: of another shape.
        """
        made: nixlXferDList | None = self._descs(nixlXferDList, descs, mem_type, PLAIN)
        return made

    def get_reg_descs(
        self,
        descs: Any,  # noqa: ANN401
        mem_type: str | None = None,
    ) -> nixlRegDList | None:
        """Return a list of memory to register: of tuples (address, length, device, text), ..."""
        made: nixlRegDList | None = self._descs(nixlRegDList, descs, mem_type, PLAIN + 1)
        return made

    def get_remote_descs(
        self,
        descs: Any,  # noqa: ANN401
        mem_type: str | None = None,
    ) -> nixlRemoteDList | None:
        """Return a list of memory of other agents: of tuples (address, length, device, agent)."""
        if isinstance(descs, np.ndarray):
            _log.error("get_remote_descs of an array: give tuples of 4, the last is the agent")
            return None
        made: nixlRemoteDList | None = self._descs(nixlRemoteDList, descs, mem_type, PLAIN + 1)
        return made

    def _descs(
        self,
        kind: type[Any],
        descs: Any,  # noqa: ANN401
        mem_type: str | None,
        parts: int,
    ) -> Any:  # noqa: ANN401
        if isinstance(descs, kind):
            return descs
        if (tensors := tensors_of(descs)) is not None:
            return self._tensor_descs(kind, tensors)
        array = isinstance(descs, np.ndarray)
        what = f"descriptors for a {kind.__name__}"
        if not array and not isinstance(descs, (list, tuple)):
            _log.error("%s from a %s: give tuples, tensors or an array", what, type(descs).__name__)
            return None
        if mem_type is None:
            _log.error("%s without mem_type: give one of %s", what, ", ".join(self.nixl_mems))
            return None
        memory = self._memory(mem_type)
        if array:
            if descs.ndim != 2 or descs.shape[1] not in kind.columns:
                _log.error("%s of shape %s: give N x 3", what, descs.shape)
                return None
            return kind(memory, descs)
        if any(len(desc) != parts for desc in descs[:1]) or not set(map(len, descs)) <= {parts}:
            _log.error("%s from tuples of %d parts: give %d", what, len(descs[0]), parts)
            return None
        return kind(memory, descs)

    def _tensor_descs(self, kind: type[Any], tensors: list[Any]) -> Any:  # noqa: ANN401
        on_gpu = {tensor.is_cuda for tensor in tensors}
        if len(on_gpu) > 1:
            _log.error("tensors of both host and GPU memory in one list: make two lists")
            return None
        rows = []
        for tensor in tensors:
            if not tensor.is_contiguous():
                _log.error("a tensor of shape %s is not contiguous", tuple(tensor.shape))
                return None
            size = tensor.numel() * tensor.element_size()
            rows.append((tensor.data_ptr(), size, max(tensor.get_device(), 0)))
        memory = nixl_mem_t.VRAM_SEG if on_gpu == {True} else nixl_mem_t.DRAM_SEG
        return kind(memory, np.array(rows, np.uint64))

    def get_serialized_descs(self, descs: Any) -> bytes:  # noqa: ANN401
        """Return bytes that deserialize_descs() reads, here or elsewhere."""
        if not isinstance(descs, (nixlXferDList, nixlRegDList, nixlRemoteDList)):
            msg = f"serialize a {type(descs).__name__}: give a list of descriptors"
            raise nixlInvalidParamError(msg)
        return lists.serialize(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:  # noqa: ANN401
        """Return the list of get_serialized_descs(). nixlMismatchError: anything else."""
        return lists.deserialize(bytes_of(serialized_descs))
