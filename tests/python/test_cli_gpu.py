# SPDX-License-Identifier: Apache-2.0
"""The command line tool with GPUs, on the fake driver: benchmarks, matrix, doctor, info."""

from __future__ import annotations

import json
import subprocess

import pytest
from command import chosen, rows_of, rows_that_passed, run_onehop

pytestmark = pytest.mark.usefixtures("fake_gpus")

KINDS = ("cuda", "cuda-vmm", "cuda-pool", "cuda-async", "cuda-managed", "pinned")
# What of them another process can map.
MAPPED = KINDS[:3]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_onehop(*arguments, timeout=280, **env)


def rows(*arguments: str, **env: str) -> list[dict]:
    found = rows_that_passed(run("bench", *arguments, "--json", "-", **env))
    for row in found:
        assert row["provenance"]["gpu"] == "Fake GPU + Fake GPU"
        assert "CUDA" in row["provenance"]["driver"]
    return found


@pytest.mark.parametrize(("where", "path"), [("--processes", "cuda_ipc"), ("--threads", "local")])
@pytest.mark.parametrize("devices", ["0,1", "1,0", "0"])
def test_latency(where: str, path: str, devices: str) -> None:
    modes = ("sendrecv", "event", "put", "get", "put_signal")
    found = rows(
        "latency", "--memory", "cuda", "--devices", devices, where, "--sizes", "1,73K",
        "--iters", "5", *chosen(*modes),
    )  # fmt: skip
    assert [(row["mode"], row["size"]) for row in found] == [
        (mode, size) for mode in modes for size in (1, 73 * 1024)
    ]
    for row in found:
        assert row["memory"] == "cuda"
        assert row["path"] == path
        assert row["devices"] == (devices if "," in devices else "0,0")


def test_devices_by_themselves() -> None:
    assert (
        rows("latency", "--memory", "cuda", "--sizes", "8", "--iters", "2")[0]["devices"] == "0,1"
    )
    done = run("bench", "latency", "--memory", "cuda", "--sizes", "8", "--iters", "2", "--json",
               "-", FAKE_CUDA="devices=1,memory=256M")  # fmt: skip
    assert json.loads(done.stdout)["devices"] == "0,0"


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_memory(kind: str) -> None:
    (row,) = rows("latency", "--memory", kind, "--sizes", "21M", "--iters", "2")
    assert row["memory"] == kind
    assert row["path"] == "cuda_ipc" or kind not in MAPPED


@pytest.mark.parametrize("kinds", ["cuda,host", "host,cuda", "cuda,pinned"])
def test_mixed_memory(kinds: str) -> None:
    found = rows("latency", "--memory", kinds, "--sizes", "8,73K", "--iters", "3")
    assert {row["memory"] for row in found} == {kinds}


def test_without_shared_memory() -> None:
    modes = ("sendrecv", "put", "get")
    found = rows(
        "latency", "--memory", "cuda", "--transport", "socket", "--sizes", "8,2M", "--iters", "3",
        *chosen(*modes),
    )  # fmt: skip
    assert [row["mode"] for row in found] == [mode for mode in modes for _ in range(2)]
    assert all((row["path"], row["wrong"]) == ("socket", 0) for row in found)


@pytest.mark.parametrize("window", [1, 3])
def test_bandwidth(window: int) -> None:
    found = rows(
        "bandwidth", "--memory", "cuda", "--sizes", "8,100K", "--iters", "7", "--window",
        str(window), *chosen("sendrecv", "put", "get"),
    )  # fmt: skip
    assert len(found) == 6
    assert all(row["window"] == window and row["GBps"] > 0 for row in found)


@pytest.mark.parametrize("strided", [False, True])
def test_batch(strided: bool) -> None:
    found = rows(
        "batch", "--memory", "cuda-vmm", "--sizes", "1,4K", "--blocks", "33", "--iters", "4",
        *chosen("put", "get", "put_prepared", "get_prepared"),
        *(["--strided"] if strided else []),
    )  # fmt: skip
    assert len(found) == 8
    assert all(row["post_us"] > 0 for row in found[4:])


def test_setup() -> None:
    found = rows("setup", "--memory", "cuda", "--iters", "3", "--peers", "3")
    assert [row["mode"] for row in found] == ["endpoint", "connect", "first", "further"]
    assert found[1]["device_per_peer"] <= 2 * 2**20
    assert found[2]["path"] == "cuda_ipc"


def test_latency_beside_its_floors() -> None:
    found = rows(
        "latency", "--memory", "cuda", "--sizes", "1K", "--iters", "5", "--vs", "memcpy",
        *chosen("sendrecv", "event"),
    )  # fmt: skip
    assert [(row["api"], row["mode"]) for row in found] == [
        ("c", "sendrecv"),
        ("c", "event"),
        ("floor", "memcpy"),
        ("floor", "put_flag"),
        ("floor", "put_flag_event"),
    ]
    done = run("bench", "latency", "--memory", "cuda", "--sizes", "1K", "--iters", "5",
               "--vs", "memcpy")  # fmt: skip
    assert "of floor" in done.stdout


def test_from_python() -> None:
    found = rows(
        "latency", "--memory", "cuda", "--api", "python", "--sizes", "8,73K", "--iters", "5"
    )
    assert [row["api"] for row in found[:4]] == ["python-region"] * 2 + ["python-array"] * 2
    assert {row["path"] for row in found} == {"cuda_ipc"}


@pytest.mark.parametrize("both", [False, True])
def test_bandwidth_beside_its_floor(both: bool) -> None:
    found = rows(
        "bandwidth", "--memory", "cuda", "--sizes", "64K", "--iters", "9", "--vs", "floors",
        "--window", "2", *(["--both"] if both else []),
    )  # fmt: skip
    suffix = "_both" if both else ""
    assert [row["mode"] for row in found] == ["sendrecv" + suffix, "memcpy" + suffix]


@pytest.mark.parametrize("name", ["nccl", "nccl-registered"])
def test_no_nccl_is_one_line(name: str) -> None:
    done = run("bench", "latency", "--memory", "cuda", "--sizes", "1K", "--iters", "3",
               "--vs", name, "--nccl", "/nonexistent/libnccl.so")  # fmt: skip
    assert done.returncode == 0
    (line,) = (line for line in done.stderr.splitlines() if "NCCL" in line)
    assert f"not compared with {name.replace('nccl', 'NCCL')}:" in line
    assert "/nonexistent/libnccl.so" in line


def test_matrix() -> None:
    found = rows("matrix", "--sizes", "1K,100K", "--iters", "3")
    assert {row["devices"] for row in found} == {"0,0", "0,1", "1,0", "1,1"}
    assert len(found) == 4 * 2 * 2
    done = run("bench", "matrix", "--sizes", "1K", "--iters", "3")
    assert done.returncode == 0
    for word in ("bandwidth 1K, GB/s", "latency 1K, us", "from, to"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("modes", "arguments"),
    [
        (("sendrecv", "event", "put", "get", "put_signal"), ("latency", "--sizes", "20,64K")),
        (("sendrecv", "put", "get"), ("bandwidth", "--sizes", "64K")),
        (
            ("put", "get", "put_prepared", "get_prepared"),
            ("batch", "--sizes", "4K", "--blocks", "9"),
        ),
        (("sendrecv",), ("bandwidth", "--sizes", "64K", "--both", "--vs", "memcpy")),
        (("sendrecv",), ("latency", "--sizes", "64K", "--vs", "memcpy")),
    ],
)
def test_spoilt_bytes_are_found(modes: tuple[str, ...], arguments: tuple[str, ...]) -> None:
    done = run("bench", *arguments, *chosen(*modes), "--memory", "cuda", "--iters", "8",
               "--json", "-", OH_BENCH_CORRUPT="1")  # fmt: skip
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    found = rows_of(done)
    assert len(found) >= len(modes)
    assert all(row["wrong"] > 0 for row in found)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("latency", "--memory", "cuda", "--devices", "2"), 2, "there are 2, 0 to 1"),
        (("latency", "--memory", "cuda", "--devices", "0,1,0"), 2, "one device or two"),
        (("latency", "--memory", "cuda", "--devices", "x"), 2, "no list of device numbers"),
        (("latency", "--memory", "cuda", "--vs", "flag"), 2, "a floor of host memory"),
        (("latency", "--memory", "cuda,host", "--vs", "memcpy"), 2, "compares memory of GPUs"),
        (("batch", "--memory", "cuda", "--api", "python"), 2, "is for latency"),
        (("latency", "--memory", "cuda", "--api", "python", "--mode", "put"), 2, "sendrecv"),
        (("matrix", "--sizes", "0"), 2, "at least one byte"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], code: int, text: str) -> None:
    done = run("bench", *arguments)
    assert done.returncode == code
    assert text in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [("latency", "--memory", "cuda"), ("matrix",)])
@pytest.mark.parametrize("library", ["/nonexistent/libcuda.so", "off"])
def test_bench_without_a_driver(command: tuple[str, ...], library: str) -> None:
    done = run("bench", *command, ONEHOP_CUDA_LIBRARY=library)
    assert done.returncode == 1
    assert library in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.timeout(300)
def test_doctor() -> None:
    done = run("doctor", "--json", "-", FAKE_CUDA="devices=2,memory=1G")
    found = rows_of(done)
    faults = [finding for finding in found if finding["state"] == "fault"]
    assert not faults, faults
    assert done.returncode == 0, done.stderr
    places = {finding["place"] for finding in found}
    assert places >= {f"{gpus} GPU{s}, {one} process{es}" for gpus, s in (("one", ""), ("two", "s"))
                      for one, es in (("one", ""), ("two", "es"))}  # fmt: skip
    assert places >= {"GPUs", "endpoint of the host"}
    mapped = {"cudaMalloc", "VMM, several chunks", "exportable pool"}
    states = {(at["check"], at["state"]) for at in found if at["place"].endswith("two processes")}
    assert {(check, "ok") for check in mapped} <= states
    assert not {(check, "slow") for check in mapped} & states


def test_doctor_without_a_driver() -> None:
    done = run("doctor", "--json", "-", ONEHOP_CUDA_LIBRARY="off")
    assert done.returncode == 0, done.stderr
    (finding,) = (
        one for one in map(json.loads, done.stdout.splitlines()) if one["place"] == "GPUs"
    )
    assert finding["state"] == "ok"
    assert "host memory only" in finding["detail"]


def test_doctor_sees_a_library_that_is_not_there() -> None:
    done = run("doctor", "--json", "-", ONEHOP_CUDA_LIBRARY="/nonexistent/libcuda.so")
    (finding,) = (
        one for one in map(json.loads, done.stdout.splitlines()) if one["place"] == "GPUs"
    )
    assert finding["state"] == "slow"
    assert "ONEHOP_CUDA_LIBRARY" in finding["remedy"]


def test_info() -> None:
    done = run("info", FAKE_CUDA="devices=3,memory=256M,p2p=0-1")
    assert done.returncode == 0, done.stderr
    for word in ("Fake GPU", "cuda:2", "GPU-", "9.0", "Peer access", "CUDA 13.0", "NUMA"):
        assert word in done.stdout
    assert done.stdout.count("no\n") + done.stdout.count(" no ") >= 4


def test_info_without_a_driver() -> None:
    done = run("info", ONEHOP_CUDA_LIBRARY="off")
    assert done.returncode == 0
    assert "none: ONEHOP_CUDA_LIBRARY is off" in done.stdout
