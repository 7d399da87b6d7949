# SPDX-License-Identifier: Apache-2.0
"""Sizes on the command line: ``8,1K,64K``, ``8:64M`` (doubling) and ``8:64M:8`` (eightfold)."""

from __future__ import annotations

import re
from typing import Any

import click

_SUFFIXES = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE = re.compile(r"(\d+)([KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse one size: ``64K`` is 65,536.

    Raises:
        ValueError: the text is no size.

    """
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"'{text}' is no size: expected a whole number with K, M or G")
    return int(match[1]) * _SUFFIXES[match[2].upper()]


def parse_sizes(text: str) -> list[int]:
    """Parse a list of sizes and ranges of sizes.

    Raises:
        ValueError: a part is neither a size nor FIRST:LAST nor FIRST:LAST:FACTOR.

    """
    sizes: list[int] = []
    for part in text.split(","):
        bounds = part.split(":")
        if len(bounds) == 1:
            sizes.append(parse_size(part))
        elif len(bounds) <= 3:
            sizes.extend(_range(part, bounds))
        else:
            raise ValueError(f"'{part}' is no range: expected FIRST:LAST or FIRST:LAST:FACTOR")
    return sizes


def _range(part: str, bounds: list[str]) -> list[int]:
    first, last = parse_size(bounds[0]), parse_size(bounds[1])
    factor = parse_size(bounds[2]) if len(bounds) == 3 else 2
    if first < 1 or last < first or factor < 2:
        raise ValueError(f"'{part}' is no range: it needs 1 <= FIRST <= LAST and FACTOR >= 2")
    sizes = []
    while first <= last:
        sizes.append(first)
        first *= factor
    return sizes


def format_size(size: int) -> str:
    """Write a size as it would be typed: 65,536 is ``64K``."""
    for suffix in ("G", "M", "K"):
        if size and size % _SUFFIXES[suffix] == 0:
            return f"{size // _SUFFIXES[suffix]}{suffix}"
    return str(size)


class SizeList(click.ParamType[list[int]]):
    """A click option that takes a list of sizes."""

    name = "sizes"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> list[int]:
        """Parse the text, or fail as a usage error."""
        if isinstance(value, list):
            return value
        try:
            return parse_sizes(value)
        except ValueError as failure:
            self.fail(str(failure), param, ctx)
