# SPDX-License-Identifier: Apache-2.0
"""`onehop bench` as a user runs it: rows, their keys and paths, spoilt bytes, and usage errors."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from command import ONEHOP, rows_of, rows_that_passed, run_onehop

KEYS = {"op", "api", "mode", "memory", "path", "size", "iters", "p50_us", "p99_us", "GBps", "wrong"}
COMMAND = [*ONEHOP, "bench"]


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return run_onehop("bench", *arguments, **env)


def rows(*arguments: str) -> list[dict]:
    found = rows_that_passed(run(*arguments, "--json", "-"))
    for row in found:
        assert row.keys() >= KEYS
        assert row["memory"] == "host"
        assert row["provenance"]["onehop"]
    return found


@pytest.mark.parametrize("api", ["c", "python"])
@pytest.mark.parametrize(("where", "path"), [("--processes", "shm"), ("--threads", "local")])
def test_latency(api: str, where: str, path: str) -> None:
    modes = ("sendrecv", "put", "get", "put_signal")
    found = rows(
        "latency", "--api", api, where, "--sizes", "1,8,73K", "--iters", "20",
        *(word for mode in modes for word in ("--mode", mode)),
    )  # fmt: skip
    assert [(row["mode"], row["size"]) for row in found] == [
        (mode, size) for mode in modes for size in (1, 8, 73 * 1024)
    ]
    for row in found:
        assert row["api"] == api
        assert row["iters"] == 20
        inline = row["mode"] == "sendrecv" and row["size"] <= 8
        assert row["path"] == ("inline" if inline else path)
        assert row["GBps"] == pytest.approx(row["size"] / row["p50_us"] / 1e3)


@pytest.mark.parametrize("api", ["c", "python"])
@pytest.mark.parametrize(("transport", "path"), [("auto", "shm"), ("socket", "socket")])
def test_transport(api: str, transport: str, path: str) -> None:
    (row,) = rows(
        "latency", "--api", api, "--transport", transport, "--sizes", "40K", "--iters", "20"
    )
    assert row["path"] == path
    for op in ("bandwidth", "batch"):
        (row,) = rows(
            op, "--api", api, "--transport", transport, "--sizes", "40K", "--iters", "20",
            "--mode", "put",
        )  # fmt: skip
        assert row["path"] == path


def test_transport_of_a_setup() -> None:
    done = rows("setup", "--transport", "socket", "--iters", "3", "--peers", "2")
    assert {row["path"] for row in done} == {"none", "socket"}


def why_no_ucx() -> str:
    """Say why this machine has none; empty: it has. UCX is opened by another process."""
    ask = (
        "import onehop; found = {one.name: one for one in onehop.info().transports}['ucx'];"
        " print('' if found.viable else found.why)"
    )
    return subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, timeout=100, check=True
    ).stdout.strip()


def test_transport_ucx() -> None:
    if why := why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    found = rows("latency", "--transport", "ucx", "--sizes", "8,40K", "--iters", "20")
    assert [row["path"] for row in found] == ["inline", "ucx"]


def test_a_transport_that_is_not_there_gives_no_rows() -> None:
    done = run("latency", "--transport", "ucx", "--json", "-", ONEHOP_UCX_LIBRARY="off")
    assert done.returncode == 1
    assert "UCX is switched off" in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("api", ["c", "python"])
def test_nothing_is_a_message(api: str) -> None:
    for op in ("latency", "bandwidth"):
        (row,) = rows(op, "--api", api, "--sizes", "0", "--iters", "20")
        assert row["path"] == "inline"
        assert row["GBps"] == 0


@pytest.mark.parametrize("api", ["c", "python"])
@pytest.mark.parametrize(
    ("window", "buffers"), [(None, "shared"), (1, "private"), (3, "private"), (3, "shared")]
)
def test_bandwidth(api: str, window: int | None, buffers: str) -> None:
    found = rows(
        "bandwidth", "--api", api, "--sizes", "8,100K", "--iters", "25", "--buffers", buffers,
        "--mode", "sendrecv", "--mode", "put", "--mode", "get",
        *(["--window", str(window)] if window else []),
    )  # fmt: skip
    assert len(found) == 6
    for row in found:
        assert row["window"] == (window or 16)
        assert row["buffers"] == buffers
        assert row["GBps"] > 0


@pytest.mark.parametrize("window", [1, 3])
def test_both_directions(window: int) -> None:
    (row,) = rows("bandwidth", "--both", "--sizes", "70K", "--window", str(window), "--iters", "20")
    assert row["mode"] == "sendrecv_both"
    assert row["GBps"] > 0


@pytest.mark.parametrize("api", ["c", "python"])
@pytest.mark.parametrize("strided", [False, True])
def test_batch(api: str, strided: bool) -> None:
    found = rows(
        "batch", "--api", api, "--sizes", "1,4K", "--blocks", "33", "--iters", "4",
        "--mode", "put", "--mode", "get", "--mode", "put_prepared", "--mode", "get_prepared",
        *(["--strided"] if strided else []),
    )  # fmt: skip
    assert len(found) == 8
    for row in found:
        assert ("post_us" in row) == ("prepared" in row["mode"])
        assert row["blocks"] == 33
        assert row["block_us"] == pytest.approx(row["p50_us"] / 33)
        assert row["mode"].endswith("_strided") == strided


def test_batch_in_bulk() -> None:
    (row,) = rows("batch", "--sizes", "4K", "--blocks", "9", "--iters", "4", "--mode", "bulk")
    assert (row["mode"], row["blocks"], row["wrong"]) == ("bulk", 9, 0)
    refused = run("batch", "--api", "python", "--mode", "bulk")
    assert refused.returncode == 2
    assert "with --api c only" in refused.stderr


def test_setup() -> None:
    done = rows("setup", "--iters", "5", "--peers", "3")
    assert [row["mode"] for row in done] == ["endpoint", "connect", "first", "further"]
    assert done[0]["first_us"] > 0
    assert done[1]["rss_per_peer"] >= 0


def test_floors() -> None:
    found = rows("latency", "--sizes", "1K", "--iters", "20", "--vs", "floors")
    assert [row["mode"] for row in found] == ["sendrecv", "flag", "process_vm", "memcpy"]
    assert {row["api"] for row in found[1:]} == {"floor"}
    found = rows("bandwidth", "--sizes", "64K", "--iters", "20", "--vs", "memcpy")
    assert [row["mode"] for row in found] == ["sendrecv", "memcpy"]


@pytest.mark.parametrize("api", ["c", "python"])
@pytest.mark.parametrize(
    ("modes", "arguments"),
    [
        (("sendrecv", "put", "get", "put_signal"), ("latency", "--sizes", "8,64K")),
        (("sendrecv", "put", "get"), ("bandwidth", "--sizes", "8,64K")),
        (("sendrecv", "put", "get"), ("bandwidth", "--sizes", "64K", "--window", "1")),
        (
            ("put", "get", "put_prepared", "get_prepared"),
            ("batch", "--sizes", "4K", "--blocks", "9"),
        ),
    ],
)
def test_spoilt_bytes_are_found(
    api: str, modes: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    chosen = [word for mode in modes for word in ("--mode", mode)]
    done = run(
        *arguments, *chosen, "--api", api, "--iters", "20", "--json", "-", OH_BENCH_CORRUPT="1"
    )
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
    found = rows_of(done)
    assert {row["mode"] for row in found} == set(modes)
    assert all(row["wrong"] > 0 for row in found)


def test_spoilt_setup_and_floors_are_found() -> None:
    done = run("setup", "--iters", "3", "--json", "-", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[2])["wrong"] > 0
    done = run("latency", "--sizes", "1K", "--iters", "5", "--vs", "floors", "--json", "-",
               OH_BENCH_CORRUPT="1")  # fmt: skip
    assert done.returncode == 1
    assert all(json.loads(line)["wrong"] > 0 for line in done.stdout.splitlines())


def test_table_and_json_file(tmp_path) -> None:
    target = tmp_path / "rows.json"
    done = run("latency", "--sizes", "8", "--iters", "20", "--json", str(target))
    assert done.returncode == 0
    for word in ("onehop bench latency", "kernel", "p50 us", "inline", "one way"):
        assert word in done.stdout
    assert json.loads(target.read_text())["size"] == 8


def test_pinned() -> None:
    cpu = min(os.sched_getaffinity(0))
    latency = ("latency", "--sizes", "8", "--iters", "5", "--json", "-", "--cpus")
    done = run(*latency, f"{cpu},{cpu}")
    assert done.returncode == 0, done.stderr
    assert f"2 sides share CPU {cpu}" in done.stderr
    assert "--cpus 0,1" in done.stderr
    assert [row["shared_cpu"] for row in rows_of(done)] == [cpu]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_what_the_scheduler_does_is_told() -> None:
    one, other = sorted(os.sched_getaffinity(0))[:2]
    latency = ("latency", "--sizes", "8,1K", "--iters", "5", "--json", "-", "--cpus")
    shared = run(*latency, str(one))
    assert "in 2 of 2 rows two sides were on one CPU" in shared.stderr
    apart = run(*latency, f"{one},{other}")
    assert "shared_cpu" not in apart.stdout
    assert "on one CPU" not in apart.stderr


def test_one_cpu_for_both_sides_is_warned_of() -> None:
    cpu = min(os.sched_getaffinity(0))
    alone = ["taskset", "-c", str(cpu), *COMMAND, "latency", "--sizes", "8", "--iters", "5"]
    done = subprocess.run(alone, capture_output=True, text=True, timeout=100, check=True)
    assert f"2 sides share CPU {cpu}" in done.stderr


def wait_for(condition, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it has ended"
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


LONG = ("latency", "--sizes", "8,1K,64M", "--iters", "20000")


def test_ctrl_c_leaves_the_rows(tmp_path) -> None:
    """A terminal sends it to all processes of its foreground."""
    target = tmp_path / "rows.json"
    process = subprocess.Popen(
        [*COMMAND, *LONG, "--json", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: target.exists() and target.read_text().count("\n") == 2, process)
    os.killpg(process.pid, signal.SIGINT)
    shown, said = (text.decode() for text in process.communicate(timeout=60))
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert "interrupted" in said
    assert len(re.findall(r"^ *c .*sendrecv", shown, re.MULTILINE)) == 2, shown


def test_rows_appear_as_they_are_measured() -> None:
    """On a terminal, where they stay after Ctrl-C."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *LONG],
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
    )
    os.close(theirs)
    text = b""

    def seen(word: bytes) -> bool:
        nonlocal text
        if select.select([ours], [], [], 0)[0]:
            text += os.read(ours, 65536)
        return word in text

    wait_for(lambda: seen(b" 1K "), process)
    begin = len(text)
    os.killpg(process.pid, signal.SIGINT)
    end = time.monotonic() + 60
    with contextlib.suppress(OSError):  # the other end is closed
        while time.monotonic() < end:
            if select.select([ours], [], [], 1)[0]:
                text += os.read(ours, 65536)
    os.close(ours)
    assert process.wait(timeout=60) == 130
    assert b"Traceback" not in text
    assert b" 1K " in text[begin:], text[begin:]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("latency", "--memory", "gpu"), "'gpu' is no kind of memory"),
        (("latency", "--memory", "cuda,host,host"), "there are two sides"),
        (("latency", "--devices", "0"), "--devices goes with --memory cuda"),
        (("latency", "--mode", "event"), "memory of a GPU on both sides"),
        (("latency", "--vs", "flag,sideways"), "'sideways' is not one of"),
        (("latency", "--vs", "nccl"), "--memory cuda"),
        (("bandwidth", "--both", "--mode", "put"), "--both goes with"),
        (("matrix", "--memory", "host"), "the matrix is of GPUs"),
        (("latency", "--sizes", "8,x"), "'x' is no size"),
        (("latency", "--sizes", "64K:8"), "is no range"),
        (("latency", "--mode", "push"), "push"),
        (("latency", "--iters", "0"), "0"),
        (("latency", "--cpus", "a"), "no list of CPU numbers"),
        (("latency", "--cpus", "0,9999"), "CPU 9999 is not usable here; there are: 0"),
        (("latency", "--cpus", "-1"), "CPU -1 is not usable here"),
        (("latency", "--cpus", "0,0,0"), "--cpus names 3 CPUs, and there are 2 sides"),
        (("latency", "--sizes", "64T"), "'64T' is no size"),
        (("latency", "--sizes", "65536G"), "of memory are free here"),
        (("bandwidth", "--sizes", "8192G", "--window", "2"), "of memory are free here"),
        (("bandwidth", "--mode", "put_signal"), "put_signal"),
        (("batch", "--sizes", "0"), "at least one byte"),
        (("latency", "--sizes", "0", "--mode", "get"), "at least one byte"),
        (("setup", "--api", "python"), "--api c only"),
        (("latency", "--transport", "pigeon"), "pigeon"),
        (("latency", "--transport", "ucx", "--threads"), "not with --threads"),
        (("latency", "--json", "/nonexistent/rows"), "No such file"),
        (("sideways",), "No such command"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_failing_side_is_one_line() -> None:
    done = run("latency", "--sizes", "8", ONEHOP_PORT_RANGE="wrong")
    assert done.returncode == 1
    assert "ONEHOP_PORT_RANGE" in done.stderr
    assert "Traceback" not in done.stderr
