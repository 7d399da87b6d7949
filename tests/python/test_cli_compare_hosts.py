# SPDX-License-Identifier: Apache-2.0
"""tools/compare_hosts.py with stand-ins, and the programs that it compiles."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
SCRIPT = TOOLS / "compare_hosts.py"
SIZES = [0, 1, 8, 4096, 9000, 300_000, 4_194_305]
TIMED = [0, 9000, 4_194_305]  # of these also runs that are timed

# Stands in for the C++ compiler: what it "compiles" answers as the programs do, and tells in a file
# which settings of UCX it got.
COMPILER = """\
#!/bin/sh
while [ "$1" != -o ]; do shift; done
cat > "$2" <<'PROGRAM'
#!/bin/sh
env | grep ^UCX_ | sort | tr '\\n' ' ' >> "$SEEN"
echo "$@" >> "$SEEN"
echo '{"p50_us": 2.0, "GBps": 3.0, "ucx": "9.9"}'
PROGRAM
chmod +x "$2"
"""


@pytest.fixture(scope="module")
def script():
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("compare_hosts", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(TOOLS))
    return module


@pytest.fixture
def stand_ins(tmp_path, monkeypatch):
    """An installation of UCX and a compiler that are none; returns a function to compare with."""
    compiler = tmp_path / "cc"
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    (tmp_path / "ucx" / "lib").mkdir(parents=True)
    header = tmp_path / "ucx" / "include" / "ucp" / "api" / "ucp.h"
    header.parent.mkdir(parents=True)
    header.touch()
    for name in [name for name in os.environ if name.startswith("UCX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setenv("SEEN", str(tmp_path / "seen"))
    return lambda *options: compare(
        "--ucx", str(tmp_path / "ucx"), "--json", str(tmp_path / "figures.json"), *options
    )


def compare(*options):
    command = [sys.executable, str(SCRIPT), "--pairs", "2", "--iters", "20", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


def test_comparison(stand_ins, tmp_path) -> None:
    settings = ("--ucx-settings", "tuned", "--ucx-settings", "as-shipped")
    done = stand_ins("--sizes", "0,8", *settings)
    assert done.returncode == 0, done.stderr
    empty, small, bandwidth = map(json.loads, (tmp_path / "figures.json").read_text().splitlines())
    assert (empty["op"], empty["size"], small["size"], bandwidth["op"]) == (
        "latency", 0, 8, "bandwidth",
    )  # fmt: skip
    assert small["figures"]["UCP 9.9"] == [2.0, 2.0]
    assert bandwidth["figures"]["UCP 9.9 as shipped"] == [3.0, 3.0]
    assert len(small["figures"]["onehop"]) == 2
    assert "| size | onehop us | UCP 9.9 us | onehop / UCP 9.9 | UCP 9.9 as shipped us |" in (
        done.stdout
    )
    assert " TCP us | onehop / TCP |" in done.stdout


def test_settings_of_ucx(stand_ins, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("UCX_RNDV_THRESH", "1")
    done = stand_ins("--sizes", "8", "--ops", "latency")
    assert done.returncode == 0, done.stderr
    seen = (tmp_path / "seen").read_text()
    assert "UCX_NET_DEVICES=lo UCX_RNDV_SCHEME=put_zcopy UCX_RNDV_THRESH=1 " in seen
    assert "256k" not in seen


def test_ucx_is_run_as_onehop_runs_it(stand_ins, tmp_path) -> None:
    done = stand_ins("--sizes", "8", "--ops", "latency", "--ucx-settings", "alike")
    assert done.returncode == 0, done.stderr
    assert "| size | onehop us | UCP 9.9 alike us |" in done.stdout
    seen = (tmp_path / "seen").read_text()
    assert "UCX_POSIX_ERROR_HANDLING=y" in seen
    assert "--peer-errors --wakeup --threads serialized" in seen


def test_ways_of_onehop_and_shared_memory(stand_ins) -> None:
    done = stand_ins(
        "--sizes", "8", "--ops", "latency", "--over", "shm",
        "--onehop", "auto:ONEHOP_SEGMENT=auto", "--onehop", "socket:ONEHOP_SEGMENT=off",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| size | auto us | socket us | auto / socket | UCP 9.9 us |" in done.stdout
    assert "TCP" not in done.stdout


def test_ways_are_parsed(script) -> None:
    assert script.parse_way("a:B=c,D=e=f") == ("a", {"B": "c", "D": "e=f"})
    assert script.parse_way("a:") == ("a", {})
    for text in ("a", ":B=c", "a:B"):
        with pytest.raises(script.argparse.ArgumentTypeError, match="is not NAME"):
            script.parse_way(text)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--ucx", "/nowhere"], "--ucx /nowhere: no include/ucp/api/ucp.h"),
        (["--over", "shm"], "nothing to compare with"),
        (["--cpus", "1"], "--cpus takes two numbers"),
    ],
)
def test_what_cannot_be_compared(options, text, stand_ins) -> None:
    done = compare(*options)
    assert done.returncode == 1
    assert text in done.stderr


def need_compiler() -> None:
    if not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("there is no C++ compiler to build the ping-pong programs with")


def ucx_prefix() -> Path | None:
    """Find UCX: with its headers, for a program is to be compiled."""
    found = importlib.util.find_spec("libucx")
    places = [Path(place) for place in (found.submodule_search_locations or [])] if found else []
    if shutil.which("pkg-config"):
        asked = ["pkg-config", "--variable=prefix", "ucx"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=100, check=False)
        places += [Path(done.stdout.strip())] if done.returncode == 0 else []
    headers = (place for place in places if (place / "include" / "ucp" / "api" / "ucp.h").exists())
    return next(headers, None)


@pytest.fixture(scope="module")
def tcp_program(script, tmp_path_factory):
    need_compiler()
    return script.compile_pingpong("tcp", tmp_path_factory.mktemp("tcp"))


@pytest.fixture(scope="module")
def ucp_program(script, tmp_path_factory):
    need_compiler()
    prefix = ucx_prefix()
    if prefix is None:
        pytest.skip("UCX's headers are not there: neither pkg-config nor libucx-cu13 has them")
    return script.compile_ucp(prefix, tmp_path_factory.mktemp("ucp"))


def run(program, *options, **env):
    return subprocess.run(
        [str(program), *options], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, **env},
    )  # fmt: skip


def check_rows(program, options=(), **env) -> None:
    """Check each byte of some messages of all sizes, and runs that are timed."""
    for size in SIZES:
        for op, window in (("latency", 1), ("bandwidth", 1), ("bandwidth", 5)):
            how = [op, "--size", str(size), "--iters", "12", "--window", str(window), *options]
            for mode in (["--check"], []) if size in TIMED else (["--check"],):
                done = run(program, *how, *mode, **env)
                assert done.returncode == 0, (how, done.stderr)
                row = json.loads(done.stdout)
                assert (row["op"], row["size"], row["window"]) == (op, size, window)
                assert row["wrong_bytes"] == 0
                assert row["checked"] >= (12 if mode else 2)
                assert row["p50_us" if op == "latency" else "message_us"] > 0


def test_tcp(tcp_program) -> None:
    check_rows(tcp_program)


def test_wrong_bytes_are_found(tcp_program) -> None:
    for op in ("latency", "bandwidth"):
        done = run(tcp_program, op, "--size", "100", "--iters", "5", "--corrupt")
        assert done.returncode == 1
        assert json.loads(done.stdout)["wrong_bytes"] > 0


def test_two_hosts(tcp_program) -> None:
    listens = [str(tcp_program), "--listen", "0"]
    with subprocess.Popen(listens, stderr=subprocess.PIPE, text=True) as other:
        port = other.stderr.readline().split()[-1]
        done = run(tcp_program, "latency", "--iters", "5", "--connect", f"127.0.0.1:{port}")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["wrong_bytes"] == 0
        assert other.wait(100) == 0


def test_other_process_that_dies(tcp_program) -> None:
    """Whoever waits for it ends, too."""
    listens = [str(tcp_program), "--listen", "0"]
    with subprocess.Popen(listens, stderr=subprocess.PIPE, text=True) as other:
        port = int(other.stderr.readline().split()[-1])
        socket.create_connection(("127.0.0.1", port)).close()
        assert other.wait(100) == 1
        assert "side 0 has told no options" in other.stderr.read()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["latency", "--size", "x"], "--size x: takes a number, 0 or more"),
        (["latency", "--iters", "0"], "--iters 0: takes a number, 1 or more"),
        (["latency", "--cpus", "1"], "--cpus 1: takes two numbers, A,B"),
        (["latency", "--cpus", "0,1000"], "CPU 1000: "),
        (["latency", "--wakeup"], "are UCX's"),
        (["latency", "--connect", "nowhere"], "--connect nowhere: takes HOST:PORT"),
        (["sideways"], "usage: tcp_pingpong latency|bandwidth"),
    ],
)
def test_wrong_options(options, text, tcp_program) -> None:
    done = run(tcp_program, *options)
    assert done.returncode in (1, 2)
    assert text in done.stderr


@pytest.mark.parametrize("over", ["tcp", "shm"])
def test_ucp(over, script, ucp_program) -> None:
    check_rows(ucp_program, **script.OVER[over])
    # Checked as tuned, too: other protocols of UCX.
    check_rows(ucp_program, **script.OVER[over], **script.TUNED[over])


def test_options_of_ucp(script, ucp_program) -> None:
    for options in (
        ["--in-header"], ["--header", "64"], ["--peer-errors"], ["--wakeup"], ["--persistent"],
        ["--threads", "serialized"],
    ):  # fmt: skip
        for op in ("latency", "bandwidth"):
            done = run(
                ucp_program, op, "--size", "400", "--iters", "50", "--check", *options,
                **script.OVER["tcp"],
            )  # fmt: skip
            assert done.returncode == 0, (options, done.stderr)
            row = json.loads(done.stdout)
            assert row["wrong_bytes"] == 0
            assert "tcp" in row["transports"]
