# SPDX-License-Identifier: Apache-2.0
"""Messages between sides on different hosts: JSON, checked against the expected type."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def encode(value: object) -> bytes:
    """Write a value of dataclasses, lists, texts and numbers."""
    return json.dumps(value, default=_plain).encode()


def _plain(value: Any) -> object:  # noqa: ANN401 - what json does not know
    return value.hex() if isinstance(value, bytes) else asdict(value)


def decode(kind: Any, data: bytes) -> Any:  # noqa: ANN401 - a type, and a value of it
    """Read a value of a type: a dataclass, or one of those that its fields may have.

    Raises:
        ValueError: it is something else.

    """
    return build(kind, json.loads(data))


def build(kind: Any, value: Any) -> Any:  # noqa: ANN401
    """Make a value of a type of what JSON has of it.

    Raises:
        ValueError: it is something else.

    """
    if is_dataclass(kind):
        return _dataclass(kind, value)
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin is Literal and value in inner:
        return value
    if origin in (list, tuple, Sequence) and isinstance(value, list):
        made = [build(inner[0], one) for one in value]
        return tuple(made) if origin is tuple else made
    if origin in (dict, Mapping) and isinstance(value, dict):
        return {key: build(inner[1], one) for key, one in value.items()}
    if origin in (Union, UnionType) and NoneType in inner:
        return None if value is None else build(inner[0], value)
    if kind is bytes and isinstance(value, str):
        return bytes.fromhex(value)
    if kind is float and type(value) is int:
        return float(value)
    if kind in (str, int, float, bool) and type(value) is kind:
        return value
    raise ValueError(f"{str(value)[:60]!r} is no {getattr(kind, '__name__', kind)}")


def _dataclass(kind: Any, value: Any) -> Any:  # noqa: ANN401
    names = {field.name for field in fields(kind)}
    if not isinstance(value, dict) or value.keys() != names:
        raise ValueError(f"{str(value)[:60]!r} is no {kind.__name__}")
    hints = get_type_hints(kind)
    return kind(**{name: build(hints[name], one) for name, one in value.items()})
