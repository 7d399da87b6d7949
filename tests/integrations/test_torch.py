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


def run_program(name, *arguments, tmp_path) -> str:
    return run(str(HERE / name), *arguments, str(tmp_path / "rendezvous"))


@pytest.mark.parametrize("size", [2, 3])
def test_program(size, tmp_path):
    told = run_program("torch_program.py", str(size), tmp_path=tmp_path)
    assert told.count("all is well") == size, told


def test_pipelines_equal_one_process(tmp_path):
    told = run_program("torch_pipelines_program.py", tmp_path=tmp_path)
    assert told.count("all is well") == 2, told


@pytest.mark.parametrize("case", ["killed", "stopped", "left"])
def test_deaths(case, tmp_path):
    assert "all is well" in run_program("torch_deaths_program.py", case, tmp_path=tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        "sizes",
        "missing",
        "device",
        "aborted",
        "again",
        "reused",
        "late",
        "awaited",
        "first",
        "exits",
        "elsewhere",
    ],
)
def test_lives(case, tmp_path):
    told = run_program("torch_lives_program.py", case, tmp_path=tmp_path)
    assert "all is well" in told
    print(told)  # how long an abort took


def test_a_thread_that_cannot_start_is_told_and_the_end_goes_on():
    code = """
import os, threading, types
from onehop.torch.completions import Completions
def refuse(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start, start = refuse, threading.Thread.start
watched = Completions(types.SimpleNamespace(event_fd=os.eventfd(0)))
files = len(os.listdir("/proc/self/fd"))
for _ in range(2):
    try:
        watched.watch(object(), 1)
    except RuntimeError as failure:
        print(failure)
assert len(os.listdir("/proc/self/fd")) == files
watched.close()
print("closed")
"""
    assert run("-c", code).splitlines() == ["can't start new thread"] * 2 + ["closed"]


def test_the_error_of_an_end_is_in_no_cycle():
    code = """
import gc, threading, types, weakref
from onehop.torch.inner import Inner
class Failure(Exception):
    pass
def fail():
    raise Failure("an error of the test")
inner = object.__new__(Inner)
inner._lock = threading.Lock()
inner._made = {"cpu": types.SimpleNamespace(abort=fail)}
gc.disable()
try:
    inner.end("abort")
except Failure as failure:
    kept = weakref.ref(failure)
print(kept())
"""
    assert run("-c", code).splitlines()[-1] == "None"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("torch.__version__ = '2.5.1+cpu'", "onehop.torch needs torch 2.6 or newer, this is 2.5.1"),
        ("torch.distributed.is_available = lambda: False", "built without torch.distributed"),
        ("sys.modules['torch'] = None", "pip install 'torch>=2.6'"),
    ],
)
def test_a_torch_that_does_not_fit_is_told(change, text):
    code = f"""
import sys, torch, torch.distributed
{change}
try:
    import onehop.torch
except ImportError as failure:
    print(failure)
"""
    assert text in run("-c", code)
