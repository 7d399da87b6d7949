# SPDX-License-Identifier: Apache-2.0
"""Packages under other projects' names that lead to onehop, in folders for the import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Shim"]


class Shim:
    """A folder with packages under other projects' names, and their modules."""

    def __init__(self, beside: str, modules: Sequence[str]) -> None:
        """Use the folder beside a module; `modules` are full names."""
        # The name is not an identifier: no import statement can name the folder.
        self.folder = Path(beside).parent / "put-first-on-pythonpath"
        self.modules = tuple(modules)
        self.families = tuple(dict.fromkeys(name.partition(".")[0] for name in modules))

    def path(self) -> str:
        """Return the folder to put first on `PYTHONPATH` to run programs on onehop."""
        return str(self.folder)

    def loaded(self) -> list[str]:
        """Return the imported modules of these packages, whether onehop's or the real ones."""
        return [name for name in sys.modules if name.partition(".")[0] in self.families]

    def install(self) -> None:
        """Import all modules here, and let processes that multiprocessing spawns find them."""
        self.put_first()
        for name in self.modules:
            importlib.import_module(name)

    def put_first(self) -> None:
        """Make later imports find them, and unload the real ones."""
        if self.path() not in sys.path[:1]:
            sys.path.insert(0, self.path())
        for name in self.loaded():
            if not (getattr(sys.modules[name], "__file__", None) or "").startswith(self.path()):
                del sys.modules[name]
        importlib.invalidate_caches()
