# SPDX-License-Identifier: Apache-2.0
"""The package `mooncake` whose module `engine` leads to onehop.mooncake."""

from __future__ import annotations

from onehop.shims import Shim

__all__ = ["SHIM", "install", "path"]

_shim = Shim(__file__, ["mooncake.engine"])
SHIM = _shim.folder
path = _shim.path


def install() -> None:
    """Let `from mooncake.engine import ...` give onehop here, and in processes that are spawned.

    Modules that have imported the real Mooncake before keep it: call this first.
    """
    _shim.install()
