# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of exchanges among ranks, on the fake driver."""

from __future__ import annotations

import subprocess
import sys

import pytest
from command import rows_of, run_onehop

pytestmark = pytest.mark.usefixtures("fake_gpus")

PATTERNS = ("sendrecv", "send_many", "recv_many", "all_to_all_v", "dispatch")
MODES = tuple(name + how for name in PATTERNS for how in ("", "_graph"))


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_onehop("bench", "patterns", *arguments, "--json", "-", timeout=200, **env)


# More ranks than devices share them. The last size is larger than a ring.
@pytest.mark.parametrize(
    ("ranks", "devices", "where"),
    [(2, "0,1", "--processes"), (2, "0,1", "--threads"), (4, "0,1,0,1", "--processes")],
)
def test_every_pattern(ranks: int, devices: str, where: str) -> None:
    done = run("--ranks", str(ranks), "--sizes", "1,1001,700K", "--iters", "3", where)
    assert done.returncode == 0, done.stderr
    rows = rows_of(done)
    sizes = (1, 1001, 700 * 1024)
    assert [(row["mode"], row["size"]) for row in rows] == [
        (mode, size) for mode in MODES for size in sizes
    ]
    for row in rows:
        assert row["wrong"] == 0
        assert (row["ranks"], row["devices"], row["path"]) == (ranks, devices, "nvlink")
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert row["GBps"] == pytest.approx(row["rank_bytes"] / row["p50_us"] / 1e3)


def test_bytes_of_the_busiest_rank() -> None:
    done = run("--ranks", "4", "--sizes", "400", "--iters", "1")
    assert done.returncode == 0, done.stderr
    # Of all to all, 2/4, 3/4 and 4/4 of the size to the others.
    expected = {"sendrecv": 400, "send_many": 1200, "recv_many": 1200}
    for row in rows_of(done):
        name = row["mode"].removesuffix("_graph")
        assert row["rank_bytes"] == expected.get(name, 900)


@pytest.mark.parametrize("ranks", ["2", "3"])
def test_a_spoilt_byte_is_found(ranks: str) -> None:
    done = run("--ranks", ranks, "--sizes", "20,300K", "--iters", "2", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    rows = rows_of(done)
    assert [row["mode"] for row in rows] == [mode for mode in MODES for _ in range(2)]
    # The last timed exchange's, and one of those in a row that are all checked.
    assert [row["wrong"] for row in rows] == [2] * len(rows)


def test_one_rank_a_device_unless_told_otherwise() -> None:
    (row,) = rows_of(run("--sizes", "8", "--iters", "1", "--mode", "sendrecv"))
    assert (row["ranks"], row["devices"]) == (2, "0,1")
    (row,) = rows_of(run("--sizes", "8", "--iters", "1", "--mode", "dispatch", "--devices", "1"))
    assert (row["ranks"], row["devices"]) == (2, "1,1")


def test_no_nccl_is_one_line() -> None:
    done = run("--sizes", "8", "--iters", "1", "--mode", "sendrecv", "--vs",
               "nccl,nccl-registered", "--nccl", "/nonexistent/libnccl.so")  # fmt: skip
    assert done.returncode == 0
    assert "not compared with NCCL:" in done.stderr
    assert "not compared with NCCL-registered:" in done.stderr
    assert len(rows_of(done)) == 1


def test_the_formula_is_printed() -> None:
    command = [sys.executable, "-m", "onehop.cli", "bench", "patterns", "--sizes", "8"]
    command += ["--iters", "1", "--mode", "dispatch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "GB/s = a rank's / p50" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--memory", "host"), "the patterns are of GPUs"),
        (("--memory", "cuda,cuda-vmm"), "the patterns are of GPUs"),
        (("--sizes", "0"), "at least one byte"),
        (("--devices", "0,2"), "--devices 2: there are 2"),
        (("--ranks", "1"), "--ranks"),
        (("--vs", "memcpy"), "'memcpy' is not one of nccl, nccl-registered"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
