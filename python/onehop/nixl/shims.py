# SPDX-License-Identifier: Apache-2.0
"""The packages `nixl`, `nixl_cu12` and `nixl_cu13` that lead to onehop.nixl, and who finds them."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

__all__ = ["FAMILIES", "SHIM", "install", "path", "plugin"]

# A folder that no import statement can name.
SHIM = Path(__file__).parent / "put-first-on-pythonpath"
FAMILIES = ("nixl", "nixl_cu13", "nixl_cu12")
_PARTS = ("_api", "_bindings", "_utils", "logging")


def path() -> str:
    """Return the folder that `PYTHONPATH` begins with to run programs of NIXL on onehop."""
    return str(SHIM)


def loaded() -> list[str]:
    """Return the modules of NIXL, ours or the real ones, that are imported."""
    return [name for name in sys.modules if name.partition(".")[0] in FAMILIES]


def install() -> None:
    """Let `import nixl` give onehop in this process, and in those that multiprocessing spawns.

    Modules that have imported the real NIXL before keep it: call this first.
    """
    _put_first()
    for family in FAMILIES:
        for part in _PARTS:
            importlib.import_module(f"{family}.{part}")


def plugin() -> None:
    """Where `ONEHOP_NIXL=1`, let `import nixl` give onehop: for the entry points that vLLM loads.

    It imports nothing yet: vLLM sets variables for NIXL before it imports that.
    """
    if os.environ.get("ONEHOP_NIXL") == "1":
        _put_first()


def _put_first() -> None:
    if str(SHIM) not in sys.path[:1]:
        sys.path.insert(0, str(SHIM))
    for name in loaded():
        if not (getattr(sys.modules[name], "__file__", None) or "").startswith(str(SHIM)):
            del sys.modules[name]
    importlib.invalidate_caches()
