# SPDX-License-Identifier: Apache-2.0
"""Mooncake's Python TransferEngine on onehop: programs that use it run with no line changed.

`PYTHONPATH=$(onehop mooncake-path) program`, or `onehop.mooncake.install()` before the program's
imports. Needs numpy.
"""

try:
    import numpy as _numpy  # noqa: F401
except ImportError as _failure:
    _text = "onehop.mooncake needs numpy, which is not installed: pip install numpy"
    raise ImportError(_text) from _failure

from onehop.mooncake.engine import TransferEngine, TransferOpcode
from onehop.mooncake.shims import install, path

__all__ = ["TransferEngine", "TransferOpcode", "install", "path"]
