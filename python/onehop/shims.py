# SPDX-License-Identifier: Apache-2.0
"""Packages of others' names that lead to onehop: folders that go first on the import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Shim"]


class Shim:
    """A folder with packages under others' names, and the modules of them that lead to onehop."""

    def __init__(self, beside: str, modules: Sequence[str]) -> None:
        """Take the folder beside a module, and the full names of its modules."""
        # No import statement can name it.
        self.folder = Path(beside).parent / "put-first-on-pythonpath"
        self.modules = tuple(modules)
        self.families = tuple(dict.fromkeys(name.partition(".")[0] for name in modules))

    def path(self) -> str:
        """Return the folder that `PYTHONPATH` begins with to run programs on onehop."""
        return str(self.folder)

    def loaded(self) -> list[str]:
        """Return the modules of these packages, ours or the real ones, that are imported."""
        return [name for name in sys.modules if name.partition(".")[0] in self.families]

    def install(self) -> None:
        """Import all of them here, and let processes that multiprocessing spawns find them."""
        self.put_first()
        for name in self.modules:
            importlib.import_module(name)

    def put_first(self) -> None:
        """Let imports find them from now on; what was imported under their names is forgotten."""
        if self.path() not in sys.path[:1]:
            sys.path.insert(0, self.path())
        for name in self.loaded():
            if not (getattr(sys.modules[name], "__file__", None) or "").startswith(self.path()):
                del sys.modules[name]
        importlib.invalidate_caches()
