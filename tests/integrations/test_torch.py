# SPDX-License-Identifier: Apache-2.0
"""onehop.torch: torch's own tests of a backend over it, the example, and a program of ours."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TORCHS = (
    "get_rank",
    "get_rank_size_group",
    "get_rank_size_full_group",
    "destroy_group",
    "destroy_full_group",
    "send_recv",
    "send_recv_autograd_profiler",
    "send_recv_any_source",
    "send_recv_with_tag",
    "isend",
    "irecv",
    "barrier",
    "barrier_group",
    "barrier_full_group",
)


@pytest.fixture(scope="module", autouse=True)
def torch():
    pytest.importorskip("torch", reason="torch is not installed")


def run(*command, **environment) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    ran = subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=300
    )
    told = ran.stdout + ran.stderr
    assert ran.returncode == 0, told
    return told


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_own(name, tmp_path):
    pytest.importorskip("expecttest", reason="expecttest, which torch's tests need, is not there")
    program = str(HERE / "torch_own_program.py")
    ranks = "8" if name == "barrier_group" else "4"  # with fewer than 8 torch skips it
    torchs = {"BACKEND": "onehop", "WORLD_SIZE": ranks, "TEMP_DIR": str(tmp_path)}
    told = run(program, "-v", f"TestOnehop.test_{name}", **torchs)
    assert "skipped" not in told, told


def test_importing_onehop_imports_no_torch():
    run("-c", "import onehop, sys; sys.exit('torch' in sys.modules)")


def test_example_pipeline():
    assert "->" in run(str(HERE.parents[1] / "examples" / "torch_pipeline.py"))


@pytest.mark.parametrize("size", [2, 3])
def test_program(size, tmp_path):
    told = run(str(HERE / "torch_program.py"), str(size), str(tmp_path / "rendezvous"))
    assert told.count("all is well") == size, told
