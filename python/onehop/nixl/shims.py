# SPDX-License-Identifier: Apache-2.0
"""The packages `nixl`, `nixl_cu12` and `nixl_cu13` that lead to onehop.nixl."""

from __future__ import annotations

import os

from onehop.shims import Shim

__all__ = ["FAMILIES", "SHIM", "install", "loaded", "path", "plugin"]

FAMILIES = ("nixl", "nixl_cu13", "nixl_cu12")
_PARTS = ("_api", "_bindings", "_utils", "logging")
_shim = Shim(__file__, [f"{family}.{part}" for family in FAMILIES for part in _PARTS])
SHIM = _shim.folder
path = _shim.path
loaded = _shim.loaded


def install() -> None:
    """Let `import nixl` give onehop in this process, and in those that multiprocessing spawns.

    Modules that have imported the real NIXL before keep it: call this first.
    """
    _shim.install()


def plugin() -> None:
    """Where `ONEHOP_NIXL=1`, let `import nixl` give onehop: for the entry points that vLLM loads.

    It imports nothing yet: vLLM sets variables for NIXL before it imports that.
    """
    if os.environ.get("ONEHOP_NIXL") == "1":
        _shim.put_first()
