# SPDX-License-Identifier: Apache-2.0
"""A build without nvcc goes on and says so; one that must have kernels fails with the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = f"""
cmake_minimum_required(VERSION 3.22)
project(build LANGUAGES NONE)
list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")
include(FindNvcc)
onehop_find_nvcc()
message(STATUS "kernels: ${{ONEHOP_CUDA}} by ${{ONEHOP_NVCC_PROGRAM}}")
"""

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="there is no cmake")


@pytest.fixture
def configure(tmp_path):
    """Look for nvcc where the machine and Python's packages have none."""
    (tmp_path / "CMakeLists.txt").write_text(PROJECT)
    empty = tmp_path / "python"
    empty.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    empty.chmod(0o755)
    hidden = ";".join([*os.environ["PATH"].split(":"), "/usr/local/cuda/bin"])

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [
            "cmake",
            "-S",
            tmp_path,
            "-B",
            tmp_path / "build",
            f"-DPython_EXECUTABLE={empty}",
        ]
        command += ["-G", "Unix Makefiles", "-DCMAKE_MAKE_PROGRAM=true"]  # which nothing calls
        command += [f"-DCMAKE_IGNORE_PATH={hidden}", *(f"-D{option}" for option in options)]
        environment = {name: value for name, value in os.environ.items() if name != "ONEHOP_NVCC"}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


def words(text: str) -> str:
    return " ".join(text.split())


def test_auto_goes_on_without_kernels_and_says_so(configure):
    done = configure("ONEHOP_CUDA=AUTO")
    assert done.returncode == 0, done.stderr
    assert "kernels: OFF by" in done.stdout
    said = words(done.stderr)
    assert "onehop: no nvcc, neither in Python's packages nor on PATH" in said
    assert "pip install nvidia-cuda-nvcc" in said
    assert "-DONEHOP_CUDA=OFF builds without kernels and without this warning" in said


@pytest.mark.parametrize(
    "options", [["ONEHOP_CUDA=ON"], ["ONEHOP_CUDA=AUTO", "ONEHOP_NVCC=system"]]
)
def test_a_build_that_wants_nvcc_fails_with_the_remedy(configure, options):
    done = configure(*options)
    assert done.returncode != 0
    assert "or build without kernels: -DONEHOP_CUDA=OFF" in words(done.stderr)


@pytest.mark.parametrize(("release", "refused"), [("12.4", True), ("13.0", False)])
def test_an_old_nvcc_is_refused(configure, tmp_path, release, refused):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(f"#!/bin/sh\necho Cuda compilation tools, release {release}\n")
    nvcc.chmod(0o755)
    done = configure("ONEHOP_CUDA=AUTO", f"ONEHOP_NVCC={nvcc}")
    assert (done.returncode != 0) == refused
    said = words(done.stdout + done.stderr)
    assert (f"is release {release}, 12.8 or newer is needed" in said) == refused
    assert (f"kernels: AUTO by {nvcc}" in said) != refused
