# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of what runs in the order of a stream, or within a kernel, on the fake driver."""

from __future__ import annotations

import json
import subprocess

import pytest
from command import chosen, rows_of, rows_that_passed, run_onehop

pytestmark = pytest.mark.usefixtures("fake_gpus")


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_onehop("bench", *arguments, "--json", "-", timeout=200, **env)


def rows(*arguments: str) -> list[dict]:
    return rows_that_passed(run(*arguments))


@pytest.mark.parametrize("where", ["--processes", "--threads"])
@pytest.mark.parametrize("devices", ["0,1", "0"])
def test_latency(where: str, devices: str) -> None:
    # The last one is larger than a ring.
    found = rows(
        "latency", "--memory", "cuda", "--devices", devices, where, "--sizes", "1,1000,700K",
        "--iters", "7", *chosen("stream", "graph"),
    )  # fmt: skip
    assert [(row["mode"], row["size"]) for row in found] == [
        (mode, size) for mode in ("stream", "graph") for size in (1, 1000, 700 * 1024)
    ]
    assert {row["path"] for row in found} == {"nvlink"}
    assert {row["api"] for row in found} == {"c"}


@pytest.mark.parametrize("where", ["--processes", "--threads"])
def test_bandwidth(where: str) -> None:
    modes = ("stream", "stream_put", "graph_put")
    found = rows(
        "bandwidth", "--memory", "cuda", where, "--sizes", "100,5M", "--iters", "12",
        *chosen(*modes),
    )  # fmt: skip
    assert [(row["mode"], row["size"]) for row in found] == [
        (mode, size) for mode in modes for size in (100, 5 * 2**20)
    ]
    for row in found:
        assert "window" not in row
        assert row["GBps"] > 0


def test_beside_the_floor_of_copies() -> None:
    found = rows(
        "bandwidth", "--memory", "cuda", "--sizes", "64K", "--iters", "5", "--vs", "memcpy",
        *chosen("stream_put"),
    )  # fmt: skip
    assert [(row["api"], row["mode"]) for row in found] == [
        ("c", "stream_put"),
        ("floor", "memcpy"),
    ]


def test_batches() -> None:
    modes = ("put_stream", "get_stream", "put_graph", "get_graph")
    found = rows("batch", "--memory", "cuda", "--sizes", "700", "--blocks", "1100", "--iters", "30",
                 *chosen(*modes))  # fmt: skip
    assert [(row["mode"], row["path"], row["blocks"]) for row in found] == [
        (mode, "nvlink", 1100) for mode in modes
    ]
    assert all(row["GBps"] > 0 for row in found)


# A byte of the last one that is timed, and one of those in a row that are all checked; of batches
# that get there are none of those.
@pytest.mark.parametrize(
    ("op", "modes", "wrong"),
    [
        (("batch", "--blocks", "3"), ("put_stream", "put_graph"), 2),
        (("batch", "--blocks", "3"), ("get_stream", "get_graph"), 1),
        (("latency",), ("stream", "graph"), 2),
        (("bandwidth",), ("stream", "stream_put", "graph_put"), 2),
    ],
)
def test_spoilt_bytes_are_found(op: tuple[str, ...], modes: tuple[str, ...], wrong: int) -> None:
    done = run(
        *op, "--memory", "cuda", "--sizes", "20,700K", "--iters", "3", *chosen(*modes),
        OH_BENCH_CORRUPT="1",
    )  # fmt: skip
    assert done.returncode == 1
    found = rows_of(done)
    assert len(found) == 2 * len(modes)
    assert [row["wrong"] for row in found] == [wrong] * len(found)


# The fake driver has none of the benchmark's own kernels, so it shows that their rows are left out.
@pytest.mark.parametrize(
    ("arguments", "left_out"),
    [
        (("latency", "--mode", "kernel"), "no rows of device kernel: "),
        (("bandwidth", "--mode", "kernel_put"), "no rows of device kernel_put: "),
        (
            ("bandwidth", "--mode", "kernel", "--groups", "512,cluster", "--both"),
            "no rows of device kernel, kernel_single: ",
        ),
        (
            ("latency", "--mode", "stream", "--vs", "floor"),
            "no rows of floor stream: ",
        ),
    ],
)
def test_without_kernels_of_its_own(arguments: tuple[str, ...], left_out: str) -> None:
    done = run(*arguments, "--memory", "cuda", "--sizes", "8", "--iters", "3")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if "no rows of" in line)
    assert line.startswith(left_out)
    assert len(line) > len(left_out)
    assert all(json.loads(row)["api"] == "c" for row in done.stdout.splitlines())


def test_no_nccl_is_one_line() -> None:
    done = run("latency", "--memory", "cuda", "--sizes", "1K", "--iters", "3", "--vs", "nccl",
               "--nccl", "/nonexistent/libnccl.so", "--mode", "graph")  # fmt: skip
    assert done.returncode == 0
    assert "not compared with NCCL" in done.stderr


@pytest.mark.parametrize("kind", ["cuda-vmm", "cuda-pool"])
def test_kinds_of_memory(kind: str) -> None:
    (row,) = rows("latency", "--memory", kind, "--sizes", "73K", "--iters", "3", "--mode", "stream")
    assert row["memory"] == kind


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("latency", "--mode", "stream"), "memory of a GPU on both sides"),
        (("latency", "--memory", "cuda,host", "--mode", "graph"), "memory of a GPU on both sides"),
        (("bandwidth", "--mode", "stream_put"), "memory of a GPU on both sides"),
        (("latency", "--vs", "floor"), "--vs floor compares memory of GPUs"),
        (("bandwidth", "--memory", "cuda", "--both", "--mode", "stream"), "--both goes with"),
        (("latency", "--memory", "cuda", "--sizes", "0", "--mode", "stream"), "at least one byte"),
        (("latency", "--mode", "kernel", "--groups", "warp,64"), "'64' is not one of warp, 128"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
