# SPDX-License-Identifier: Apache-2.0
"""The command line tool, run as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

ONEHOP = [sys.executable, "-m", "onehop.cli"]


def run_onehop(
    *arguments: str, command: list[str] = ONEHOP, timeout: float = 100, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **env},
        check=False,
    )


def rows_of(done: subprocess.CompletedProcess[str]) -> list[dict]:
    """Return the rows of `--json -`."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_that_passed(done: subprocess.CompletedProcess[str]) -> list[dict]:
    assert done.returncode == 0, done.stderr
    found = rows_of(done)
    for row in found:
        assert row["wrong"] == 0
        assert 0 < row["p50_us"] <= row["p99_us"]
    return found


def chosen(*modes: str) -> list[str]:
    return [word for mode in modes for word in ("--mode", mode)]
