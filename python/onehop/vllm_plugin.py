# SPDX-License-Identifier: Apache-2.0
"""The plugins that vLLM loads by entry point: NIXL on onehop, and the weight transfer engine."""

from __future__ import annotations

import contextlib
import importlib

from onehop.nixl import shims

__all__ = ["plugin", "register_weights"]

# The name for `WeightTransferConfig(backend=...)`.
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
    """Set up vLLM's processes: see shims.plugin and register_weights."""
    shims.plugin()
    register_weights()


def register_weights() -> None:
    """Register the weight transfer engine "onehop" with vLLM, which imports it on first use.

    May be called again. Does nothing if vLLM has no weight transfer engines.
    """
    try:
        factory = importlib.import_module(_FACTORY)
    except ImportError:
        return
    for registry, module, name in _ENGINES:
        # vLLM refuses a registered name: this is then the second call.
        with contextlib.suppress(AttributeError, ValueError):
            getattr(factory, registry).register_engine(BACKEND, module, name)
