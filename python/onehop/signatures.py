# SPDX-License-Identifier: Apache-2.0
"""Signatures of the compiled functions, for inspect.signature and help."""

from __future__ import annotations
import __future__

import inspect
from typing import Any

from onehop import _core

__all__: list[str] = []


def _signature(function: Any) -> inspect.Signature:  # noqa: ANN401
    # Parses a declaration such as "def progress(self) -> None"; annotations remain strings.
    declaration = f"{function.__nb_signature__[0][0]}: ..."
    flags = __future__.annotations.compiler_flag
    made: dict[str, Any] = {"CURRENT_STREAM": _core.CURRENT_STREAM}
    exec(compile(declaration, _core.__file__, "exec", flags, dont_inherit=True), made)
    return inspect.signature(made[function.__name__])


def _bound_signature(method: Any) -> inspect.Signature:  # noqa: ANN401
    whole = _signature(method.__func__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def show() -> None:
    """Set __signature__ on all functions and methods of nanobind."""
    for function in (_core.group, _core.Peer.send):
        _core.add_signature(function, property(_signature))
    _core.add_signature(_core.CURRENT_STREAM.__repr__, property(_bound_signature))
