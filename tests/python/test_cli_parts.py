# SPDX-License-Identifier: Apache-2.0
"""The parts of the command line tool: sizes, percentiles, sides that fail, `info`, `doctor`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import onehop
import pytest
from command import ONEHOP, rows_of
from command import run_onehop as run
from onehop import _bench
from onehop.cli import measure
from onehop.cli.info import markdown
from onehop.cli.measure import Found, Job
from onehop.cli.rows import percentile
from onehop.cli.sides import Placement, Side, SideError, run_sides
from onehop.cli.sizes import format_size, parse_sizes

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8", [8]),
        ("8,1K, 64k,1MiB,1G", [8, 2**10, 2**16, 2**20, 2**30]),
        ("8:64", [8, 16, 32, 64]),
        ("8:64M:8", [8 * 8**i for i in range(8)]),
        ("1,2:8", [1, 2, 4, 8]),
    ],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "-1", "K", "1.5K", "8:", "64:8", "0:8", "8:64:1", "1:2:3:4"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        parse_sizes(text)


@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 73728, 2**20, 2**30])
def test_sizes_round_trip(size: int) -> None:
    assert parse_sizes(format_size(size)) == [size]


def test_percentile_is_a_sample() -> None:
    samples = [float(i) for i in range(100, 0, -1)]
    assert percentile(samples, 0.5) == 50
    assert percentile(samples, 0.99) == 99
    assert percentile([7.0], 0.99) == 7


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize(
    ("mode", "always"), [("kernel", None), ("put_flag", False), ("memcpy", True)]
)
def test_floors_of_kernels_run_where_the_messages_do(
    monkeypatch: pytest.MonkeyPatch, within: bool, mode: str, always: bool | None
) -> None:
    placements: list[Placement] = []

    def rows_of_sides(_: object, __: object, placement: Placement) -> Iterator[Found]:
        placements.append(placement)
        yield from ()

    monkeypatch.setattr(measure, "rows_of_sides", rows_of_sides)
    floor = Job("latency", "floor", mode, 8, 10, memory=("cuda", "cuda"), devices=("cuda:0",) * 2)
    assert list(measure.measure([floor], Placement(within=within))) == []
    assert [placement.within for placement in placements] == [within if always is None else always]


def converse(side: Side, word: str) -> None:
    side.tell((side.number, word))
    side.report(side.hear())


def refuse(side: Side, word: str) -> None:
    if side.number == 1:
        raise ValueError(word)
    side.hear()


def die(side: Side, _: str) -> None:
    if side.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    side.hear()


def hang(side: Side, _: str) -> None:
    side.hear()


@pytest.mark.parametrize("within", [False, True])
def test_sides_talk(within: bool) -> None:
    said = dict(run_sides(converse, "word", Placement(within=within)))
    assert said == {0: (1, "word"), 1: (0, "word")}


@pytest.mark.parametrize("within", [False, True])
def test_a_side_that_fails(within: bool) -> None:
    with pytest.raises(SideError, match="side 1: no way"):
        list(run_sides(refuse, "no way", Placement(within=within)))


def test_a_side_that_dies() -> None:
    with pytest.raises(SideError, match="SIGKILL"):
        list(run_sides(die, "", Placement()))


def test_sides_that_hang() -> None:
    with pytest.raises(SideError, match="hang"):
        list(run_sides(hang, "", Placement(silence=0.5)))


def test_info() -> None:
    done = run("info", ONEHOP_UCX_LIBRARY="off")
    assert done.returncode == 0, done.stderr
    for word in (onehop.__version__, "kernel", "local", "shm", "UCX is switched off", "Limits"):
        assert word in done.stdout


def test_info_as_json(tmp_path) -> None:
    target = tmp_path / "info.json"
    done = run("info", "--json", "-", ONEHOP_UCX_LIBRARY="off", ONEHOP_SECRET="0123456789abcdefg")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == onehop.__version__
    assert found["provenance"]["kernel"]
    viable = {transport["name"]: transport["viable"] for transport in found["transports"]}
    assert viable["shm"]
    assert not viable["ucx"]
    assert {one["name"] for one in found["config"]} == {one.name for one in onehop.config()}
    assert "0123456789abcdefg" not in done.stdout
    assert run("info", "--json", str(target)).stdout == ""
    assert json.loads(target.read_text())["version"] == onehop.__version__


def test_the_package_is_a_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "onehop", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"onehop, version {onehop.__version__}\n"


def test_a_pipe_is_as_wide_as_columns_says() -> None:
    def width(**env: str) -> int:
        return max(len(line) for line in run("info", "--config", **env).stdout.splitlines())

    assert width(COLUMNS="200") > 120
    assert width(COLUMNS="80") <= 80
    assert width(COLUMNS="") == width(COLUMNS="wide") <= 120


def test_info_config() -> None:
    done = run("info", "--config", ONEHOP_SPIN_US="77", ONEHOP_SECRET="0123456789abcdefg")
    assert done.returncode == 0, done.stderr
    assert all(variable.name in done.stdout for variable in onehop.config())
    assert "77" in done.stdout
    assert "0123456789abcdefg" not in done.stdout
    assert "did you mean ONEHOP_SPIN_US?" in run("info", ONEHOP_SPINN_US="1").stdout
    assert run("info", "--markdown").returncode == 2


def test_documented_configuration_is_in_step() -> None:
    page = markdown(onehop.config())
    assert run("info", "--config", "--markdown").stdout == page
    written = (ROOT / "docs" / "configuration.md").read_text()
    assert written == page, "run: onehop info --config --markdown > docs/configuration.md"


def findings(*arguments: str, code: int, **env: str) -> list[dict]:
    done = run("doctor", "--json", "-", *arguments, **env)
    assert done.returncode == code, done.stdout + done.stderr
    return rows_of(done)


def test_doctor_drives_every_path() -> None:
    found = findings(code=0)
    assert all(finding["state"] != "fault" for finding in found)
    (ucx,) = [finding for finding in found if finding["check"] == "UCX"]
    with_ucx = ucx["state"] == "ok"
    assert with_ucx == any(one.viable for one in onehop.info().transports if one.name == "ucx")
    assert {finding["place"] for finding in found} == {
        *(["UCX over TCP"] if with_ucx else []),
        "surroundings",
        "within a process",
        "shm, private memory",
        "shm, shared blocks",
        "shm without process_vm",
        "control socket",
        "GPUs",
        "rendezvous",
    }
    driven = [finding for finding in found if "p50_us" in finding]
    assert len(driven) == (5 + with_ucx) * 9
    if with_ucx:
        over = [f for f in driven if f["place"] == "UCX over TCP" and f["check"] != "message 8"]
        assert all(f["detail"] in ("by ucx", "notes and signals") for f in over), over


def test_doctor_tells_which_times_are_the_schedulers() -> None:
    cpu = min(os.sched_getaffinity(0))
    done = run("doctor", "--json", "-", command=["taskset", "-c", str(cpu), *ONEHOP])
    driven = [f for f in rows_of(done) if f["check"].startswith(("message", "put", "get"))]
    assert driven
    assert all(finding["shared_cpu"] == cpu for finding in driven)


def test_doctor_says_what_is_missing_without_ucx() -> None:
    found = findings(code=0, ONEHOP_UCX_LIBRARY="off")
    (ucx,) = [finding for finding in found if finding["check"] == "UCX"]
    assert ucx["state"] == "slow"
    assert "libucx" in ucx["remedy"]
    assert "UCX over TCP" not in {finding["place"] for finding in found}


def test_doctor_finds_spoilt_bytes() -> None:
    found = findings(code=1, OH_BENCH_CORRUPT="1", ONEHOP_UCX_LIBRARY="off")
    faults = [finding for finding in found if finding["state"] == "fault"]
    assert len(faults) == 5 * 8
    assert all("wrong" in fault["detail"] and fault["remedy"] for fault in faults)


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"ONEHOP_LIBCRYPTO": "/nonexistent"}, "libcrypto"),
        ({"ONEHOP_PORT_RANGE": "1-99999"}, "ONEHOP_PORT_RANGE"),
    ],
)
def test_doctor_names_the_fault(env: dict[str, str], text: str) -> None:
    found = findings(code=1, **env)
    faults = [finding for finding in found if finding["state"] == "fault"]
    assert any(text in fault["detail"] for fault in faults)


def test_doctor_names_a_misspelled_variable_once() -> None:
    done = run("doctor", "--json", "-", ONEHOP_TIMEOUTS="5", ONEHOP_UCX_LIBRARY="off")
    assert done.stderr.count("ONEHOP_TIMEOUTS is set") == 1, done.stderr
    (found,) = [finding for finding in rows_of(done) if finding["check"] == "environment"]
    assert "did you mean ONEHOP_TIMEOUT" in found["remedy"]


def test_doctor_says_what_is_slower() -> None:
    found = findings(code=0, ONEHOP_CMA="off")
    slower = [finding["check"] for finding in found if finding["state"] == "slow"]
    assert "single copy" in slower


def test_doctor_shows_a_table() -> None:
    done = run("doctor", ONEHOP_LIBCRYPTO="/nonexistent")
    assert done.returncode == 1
    assert "FAULT" in done.stdout
    assert "1 faults" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_help() -> None:
    assert onehop.__version__ in run("--version").stdout
    for arguments in ((), ("bench",), ("bench", "latency"), ("doctor",), ("info",)):
        done = run(*arguments, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout


@pytest.mark.parametrize("group", [(), ("bench",), ("trace",)])
def test_lists_of_commands_are_not_cut_short(group: tuple[str, ...]) -> None:
    commands = run(*group, "--help").stdout.partition("Commands:")[2].splitlines()
    assert commands
    assert not [line for line in commands if line.endswith("...")]


def test_the_stub_names_all_of_the_loops() -> None:
    stub = (ROOT / "python" / "onehop" / "_bench.pyi").read_text()
    for name in dir(_bench):
        if not name.startswith("_"):
            assert f"class {name}:" in stub or f"{name}(" in stub or f"{name}:" in stub, name
