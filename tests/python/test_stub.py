# SPDX-License-Identifier: Apache-2.0
"""The type stub in the repository is what nanobind writes for the module."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STUB = ROOT / "python" / "onehop" / "_core.pyi"


@pytest.mark.skipif(
    importlib.util.find_spec("nanobind") is None, reason="nanobind is not installed (extra: lint)"
)
@pytest.mark.skipif(sys.version_info < (3, 12), reason="written by Python 3.12 or newer")
def test_the_stub_is_up_to_date(tmp_path):
    fresh = tmp_path / "_core.pyi"
    command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "onehop._core"]
    command += ["-p", str(ROOT / "python" / "src" / "core.pat"), "-o", str(fresh)]
    subprocess.run(command, check=True, timeout=60)
    assert fresh.read_text() == STUB.read_text(), f"run: {' '.join(command[:-1])} {STUB}"
