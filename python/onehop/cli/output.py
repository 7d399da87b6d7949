# SPDX-License-Identifier: Apache-2.0
"""Where JSON lines go: a file, standard output, or nowhere."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import click


@contextlib.contextmanager
def json_lines(target: str | None) -> Iterator[Callable[[str], None]]:
    """Give a function that writes a line to a file, to standard output (``-``), or nowhere (None).

    Raises:
        click.UsageError: the file cannot be written.

    """
    if target is None:
        yield lambda _: None
        return
    if target == "-":
        yield lambda line: print(line, file=sys.stdout, flush=True)
        return
    try:
        file = open(target, "w", encoding="utf-8")  # noqa: SIM115 - closed below
    except OSError as failure:
        raise click.UsageError(f"--json {target}: {failure.strerror}") from failure
    with file:
        yield lambda line: print(line, file=file, flush=True)
