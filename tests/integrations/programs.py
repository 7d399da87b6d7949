# SPDX-License-Identifier: Apache-2.0
"""Runs a program of this folder over one library and reads the JSON line that it ends with."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def run(name: str, library, seconds: float = 240, *arguments: str):
    """The object that `name` prints last; its whole process group ends with it."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / name), *arguments],
        env=library.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, error = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, error = process.communicate()
        why = f"did not end in {seconds} s"
    else:
        why = f"ended with {process.returncode}" if process.returncode else ""
    assert not why, f"{name} over {library.name} {why}:\n{out[-2000:]}\n{error[-6000:]}"
    return json.loads(out.splitlines()[-1])
