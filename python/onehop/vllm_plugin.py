# SPDX-License-Identifier: Apache-2.0
"""What vLLM loads by its entry points: onehop in NIXL's place, and the weight transfer engine."""

from __future__ import annotations

import contextlib
import importlib

from onehop.nixl import shims

__all__ = ["plugin", "register_weights"]

# The name that `WeightTransferConfig(backend=...)` gives.
BACKEND = "onehop"
_FACTORY = "vllm.distributed.weight_transfer.factory"
_ENGINES = (
    ("WeightTransferEngineFactory", "onehop.weights.vllm_worker", "OnehopWeightTransferEngine"),
    (
        "WeightTransferTrainerFactory",
        "onehop.weights.vllm_trainer",
        "OnehopTrainerWeightTransferEngine",
    ),
)


def plugin() -> None:
    """Do what vLLM's processes need: see shims.plugin and register_weights."""
    shims.plugin()
    register_weights()


def register_weights() -> None:
    """Let vLLM know the weight transfer engine "onehop"; it is imported when it is used.

    May be called again. A vLLM without weight transfer engines is left as it is.
    """
    try:
        factory = importlib.import_module(_FACTORY)
    except ImportError:
        return
    for registry, module, name in _ENGINES:
        # vLLM refuses a name that it knows: then this is the second call.
        with contextlib.suppress(AttributeError, ValueError):
            getattr(factory, registry).register_engine(BACKEND, module, name)
