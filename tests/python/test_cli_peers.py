# SPDX-License-Identifier: Apache-2.0
"""`onehop bench peers`: its rows and table, spoilt bytes, and counts that cannot be."""

from __future__ import annotations

import pytest
from test_cli_bench import rows, run, why_no_ucx


@pytest.mark.parametrize(("transport", "path"), [("auto", "shm"), ("socket", "socket")])
def test_peers(transport: str, path: str) -> None:
    found = rows("peers", "--transport", transport, "--counts", "2,5")
    assert [row["peers"] for row in found] == [2, 5]
    for row in found:
        assert row["path"] == path
        assert row["rss_per_peer"] > 0
        assert "pss_per_peer" in row
        assert row["fds_per_peer"] >= 1
        assert row["progress_us"] > 0
        assert row["message_us"] > 0


def test_peers_by_ucx() -> None:
    if why := why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    (row,) = rows("peers", "--transport", "ucx", "--counts", "3")
    assert row["path"] == "ucx"


def test_table() -> None:
    done = run("peers", "--counts", "2")
    assert done.returncode == 0, done.stderr
    for word in ("PSS KiB", "fds each", "ns each", "shm"):
        assert word in done.stdout


def test_spoilt_bytes_are_found() -> None:
    done = run("peers", "--counts", "2", OH_BENCH_CORRUPT="1")
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr


def test_a_count_that_cannot_be_leaves_the_others() -> None:
    done = run("peers", "--counts", "2", "--transport", "ucx", ONEHOP_UCX_LIBRARY="off")
    assert done.returncode == 1
    assert "2 peers: side" in done.stderr
    assert "UCX is switched off" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--counts", "0"), "at least one peer"),
        (("--counts", "many"), "'many' is no size"),
        (("--transport", "pigeon"), "pigeon"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run("peers", *arguments)
    assert done.returncode == 2
    assert text in done.stderr
