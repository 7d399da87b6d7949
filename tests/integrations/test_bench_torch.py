# SPDX-License-Identifier: Apache-2.0
"""`onehop bench torch`: its rows, gloo beside it, spoilt bytes, and what is not there."""

import json
import os
import subprocess
import sys

import pytest

KINDS = [("init", 0), ("first", 8), ("post", 8)] + [
    (mode, size) for mode in ("sendrecv", "window", "batch") for size in (8, 65536)
]
SMALL = ("--sizes", "8,64K", "--iters", "20", "--rounds", "2")


@pytest.fixture(scope="module", autouse=True)
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def bench(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "onehop.cli", "bench", "torch", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def rows(*arguments):
    done = bench(*arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_rows_beside_gloo(torch):
    found = rows("--vs", "gloo", "--memory", "host", *SMALL)
    assert [(row["mode"], row["size"], row["api"]) for row in found] == [
        (mode, size, backend) for mode, size in KINDS for backend in ("onehop", "gloo")
    ]
    for row in found:
        assert (row["op"], row["memory"], row["wrong"]) == ("torch", "host", 0)
        assert 0 < row["low_us"] <= row["p50_us"] <= row["high_us"]
        assert row["p50_us"] <= row["p99_us"]
        assert row["torch"] == torch.__version__
        assert ("of_gloo" in row) == (row["api"] == "onehop")
        assert "of_nccl" not in row
        if row["mode"] in ("sendrecv", "window", "batch"):
            assert row["GBps"] == pytest.approx(row["size"] / row["p50_us"] / 1e3)
            assert row["path"] in (("gloo",) if row["api"] == "gloo" else ("inline", "shm"))
    iterations = {row["mode"]: row["iters"] for row in found}
    # Both ranks make a group, rank 0 measures the rest; 100 posts, and windows of 16, at a time.
    assert iterations == {
        "init": 4, "first": 2, "post": 200, "sendrecv": 40, "window": 4, "batch": 40
    }  # fmt: skip


def test_chosen_rows_by_another_transport():
    found = rows("--transport", "socket", "--mode", "sendrecv", *SMALL)
    host = [row for row in found if row["memory"] == "host"]
    assert [(row["mode"], row["size"], row["path"]) for row in host] == [
        ("sendrecv", 8, "inline"), ("sendrecv", 65536, "socket")
    ]  # fmt: skip


def test_the_first_message_comes_first():
    found = rows("--mode", "sendrecv", "--mode", "first", "--memory", "host", *SMALL)
    assert [row["mode"] for row in found] == ["first", "sendrecv", "sendrecv"]


def test_table():
    done = bench("--vs", "gloo", "--mode", "sendrecv", "--memory", "host", *SMALL)
    assert done.returncode == 0, done.stderr
    for word in ("onehop bench torch: torch", "sendrecv 64K", "gloo", "of gloo", "rounds"):
        assert word in done.stdout
    assert "NCCL" not in done.stdout.partition("p50:")[0]


def test_spoilt_bytes_are_found():
    done = bench("--vs", "gloo", "--memory", "host", *SMALL, "--json", "-", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    for line in done.stdout.splitlines():
        row = json.loads(line)
        assert (row["wrong"] > 0) == (row["mode"] != "init"), row


def test_missing_cuda_is_told(torch):
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    for asked in (("--vs", "gloo,nccl"), ("--memory", "cuda")):
        done = bench(*asked)
        assert done.returncode == 1
        assert "torch.cuda.is_available() is False" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--memory", "pinned"), "host or cuda"),
        (("--sizes", "0"), "at least one byte"),
        (("--vs", "mpi"), "gloo, nccl"),
        (("--mode", "append"), "append"),
        (("--memory", "host", "--vs", "nccl"), "no host memory"),
        (("--memory", "host", "--devices", "0"), "of CUDA tensors"),
        (("--memory", "cuda", "--vs", "gloo"), "on host memory"),
    ],
)
def test_usage_errors(arguments, text):
    done = bench(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
