# SPDX-License-Identifier: Apache-2.0
"""`onehop bench inline`: its rows, what it makes of them, and usage errors."""

from __future__ import annotations

import pytest
from onehop.cli.bench_inline import Study
from onehop.cli.output import make_console, results
from onehop.cli.rows import Row
from test_cli_bench import rows, run, why_no_ucx

QUICK = ("--iters", "20", "--rounds", "2")


def test_a_narrow_table_keeps_its_title_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = results("a title that is longer than the table is wide", "")
    shown.add_column("size")
    make_console().print(shown)
    assert "a title that is longer than the table is wide\n" in capsys.readouterr().out


def test_limits_of_shared_memory() -> None:
    found = rows("inline", "--transport", "auto", "--limits", "0,5000", "--sizes", "8,3K", *QUICK)
    # The limit in force is always among them; the rings grant 2,048.
    limits = [(0, 0), (400, 400), (5000, 2048)]
    assert [(row["size"], row["asked_inline"], row["max_inline"]) for row in found] == [
        (size, *limit) for size in (8, 3072) for limit in limits
    ]
    assert [row["path"] for row in found] == ["shm", "inline", "inline", "shm", "shm", "shm"]
    assert [row["of_default"] for row in found if row["asked_inline"] == 400] == [1, 1]
    assert all(row["of_default"] > 0 and row["op"] == "inline" for row in found)
    assert len({row["asked_inline"] for row in found if row["recommended"]}) == 1


def test_limits_of_ucx() -> None:
    if why := why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    found = rows("inline", "--limits", "0,64", "--sizes", "64,65", *QUICK)
    assert {row["path"] for row in found} == {"inline", "ucx"}
    assert [row["path"] for row in found if row["asked_inline"] == 64] == ["inline", "ucx"]


def test_sizes_around_the_limits_and_the_tables() -> None:
    done = run("inline", "--transport", "socket", "--limits", "64", *QUICK, ONEHOP_MAX_INLINE="70")
    assert done.returncode == 0, done.stderr
    for word in ("2 rounds", "granted", "of 70", "recommended: ONEHOP_MAX_INLINE="):
        assert word in done.stdout
    first = [line.split()[0] for line in done.stdout.splitlines() if line.strip()]
    assert [word for word in first if word in ("8", "64", "65", "70", "71")][:5] == [
        "8", "64", "65", "70", "71",
    ]  # fmt: skip


def study(times: dict[int, list[list[float]]]) -> Study:
    """Make what was found of the times: by limit, of each size those of all rounds."""
    return Study(400, (
        Row("latency", "c", "sendrecv", "host", "private", "ucx", size, 20, us, us, 0.0, 0,
            asked_inline=limit, max_inline=min(limit, 1000))
        for limit, sizes in times.items()
        for size, rounds in enumerate(sizes)
        for us in rounds
    ))  # fmt: skip


def test_the_limit_that_is_faster_for_sure_is_recommended() -> None:
    found = study({400: [[4, 8], [4, 8]], 200: [[3, 6], [4, 8]], 8000: [[2, 3], [8, 9]]})
    assert found.recommended() == 200
    assert found.granted(8000) == 1000
    assert found.ratios(200, 0) == [0.75, 0.75]
    assert found.ratios(8000, 1) == [2, 1.125]
    assert found.compare(200) == pytest.approx((0.75**0.5,) * 3)
    assert found.compare(8000, 0) == (0.4375, 0.375, 0.5)
    assert "ONEHOP_MAX_INLINE=200, which takes 0.87 [0.87, 0.87]" in found.advice()
    assert [row.p50_us for row in found.rows() if row.asked_inline == 200] == [4.5, 6]


def test_without_such_a_limit_it_stays_as_it_is() -> None:
    found = study({400: [[4, 8]], 200: [[1, 8.1]]})
    assert found.recommended() == 400
    assert "as it is" in found.advice()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--limits", "64K,65537"), "65537 is more than 65536"),
        (("--limits", "x"), "'x' is no size"),
        (("--threads",), "not with --threads"),
        (("--rounds", "0"), "0"),
    ],
)
def test_usage_errors(arguments: tuple[str, ...], text: str) -> None:
    done = run("inline", *arguments)
    assert done.returncode == 2
    assert text in done.stderr


def test_spoilt_bytes_are_found() -> None:
    done = run("inline", "--transport", "auto", "--limits", "0", "--sizes", "8", *QUICK,
               OH_BENCH_CORRUPT="1")  # fmt: skip
    assert done.returncode == 1
    assert "bytes were not what was sent" in done.stderr
