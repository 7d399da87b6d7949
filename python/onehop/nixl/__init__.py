# SPDX-License-Identifier: Apache-2.0
"""NIXL's Python agent API on onehop: programs that use NIXL run on onehop with no line changed.

`PYTHONPATH=$(onehop nixl-path) program`, or `onehop.nixl.install()` before the program's imports.
Needs numpy.
"""

try:
    import numpy as _numpy  # noqa: F401
except ImportError as _failure:
    _text = "onehop.nixl needs numpy, which is not installed: pip install numpy"
    raise ImportError(_text) from _failure

from onehop.nixl.agent import Explanation, nixl_agent, nixl_agent_config
from onehop.nixl.shims import install, path

__all__ = ["Explanation", "install", "nixl_agent", "nixl_agent_config", "path"]
