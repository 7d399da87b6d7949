# SPDX-License-Identifier: Apache-2.0
"""Where figures come from: machine, CPU, kernel, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import onehop


def cpu_model() -> str:
    """Return the CPU's name and how many this process may use."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "CPU part")):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def commit() -> str | None:
    """Return the commit of the source tree that the package lies in, if it does."""
    package = Path(onehop.__file__).resolve().parent
    top = package.parent.parent
    if not (top / "include" / "onehop" / "onehop.h").exists():
        return None
    try:
        found = subprocess.run(
            ["git", "-C", str(top), "describe", "--always", "--dirty"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def provenance() -> dict[str, str]:
    """Return what a figure is printed with."""
    facts = {
        "machine": platform.node(),
        "cpu": cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "onehop": onehop.__version__,
    }
    known = commit()
    if known:
        facts["commit"] = known
    return facts
