# SPDX-License-Identifier: Apache-2.0
"""NVTX ranges, for a tool that is attached to the process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from test_trace import TRAFFIC

TOOL = Path(__file__).with_name("nvtx_tool.c")
ANY = """
request = b.irecv(small, 5)
request.cancel()
"""


@pytest.fixture(scope="module")
def tool(tmp_path_factory):
    """Build a tool."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a tool for NVTX with")
    library = tmp_path_factory.mktemp("nvtx") / "libtool.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, TOOL], check=True)
    return library


def lines_of(code, folder, tool, **variables):
    """Run a program with the tool; return what the tool was told."""
    log = folder / "log"
    log.touch()
    env = {
        **os.environ,
        "NVTX_INJECTION64_PATH": str(tool),
        "NVTX_TOOL_LOG": str(log),
        "ONEHOP_LOG": "info",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if "this build of onehop has no ranges" in done.stderr:
        pytest.skip("this build has no NVTX: its headers were not found")
    return log.read_text().splitlines()


def test_each_operation_is_a_range(tool, tmp_path):
    lines = lines_of(TRAFFIC + ANY, tmp_path, tool)
    assert lines[0] == "domain onehop"
    started, ended = {}, []
    for line in lines[1:]:
        what, *rest = line.split(" ", 4)
        if what == "start":
            number, domain, size, text = rest[0], rest[1], int(rest[2]), rest[3]
            assert domain == "onehop"
            started[number] = (text.partition(",")[0], size)
            assert text.partition(", ")[2]  # with whom
        elif what == "end":
            assert rest[0] in started
            ended.append(rest[0])
        else:
            assert what == "mark"
    # Each range ends, once: also those of receives that ended otherwise.
    assert sorted(ended, key=int) == sorted(started, key=int)
    verbs = Counter(verb for verb, _ in started.values())
    assert verbs == {"send": 9, "receive": 11, "put": 1, "get": 1}
    assert ("put", 100) in started.values()
    assert ("get", 64) in started.values()
    assert ("send", 1 << 20) in started.values()
    marks = [line for line in lines if line.startswith("mark onehop")]
    assert sum("connected" in line for line in marks) == 2


# Calls that are refused, and requests that are let go of.
REFUSED = """
import onehop
buffer = bytearray(64)
a, b = onehop.Endpoint(), onehop.Endpoint()
peer = a.connect(b.address)
other = b.accept(timeout=30)
remote = peer.attach(b.register(buffer).descriptor, timeout=30)
b.irecv(buffer, tag=2)
other.irecv(buffer, tag=3)
other.close()
for call in (lambda: peer.put(buffer, remote), lambda: peer.isend(buffer)):
    try:
        for _ in range(1000):
            call().wait(timeout=30)
        raise SystemExit("the peer has closed")
    except onehop.LinkError:
        pass
peer = a.connect(b.address)
waiting = []
try:
    while True:
        waiting.append(peer.isend(b"x" * 64, tag=1))
except onehop.OperationError as failure:
    assert failure.status == onehop.Status.AGAIN, failure
peer.close()
b.close()
a.close()
del waiting
"""


def test_ranges_of_what_is_refused_end(tool, tmp_path):
    lines = lines_of(REFUSED, tmp_path, tool)
    started = [line.split(" ")[1] for line in lines if line.startswith("start ")]
    ended = [line.split(" ")[1] for line in lines if line.startswith("end ")]
    assert len(started) > 1000
    assert sorted(ended, key=int) == sorted(started, key=int)


def test_it_can_be_turned_off(tool, tmp_path):
    assert lines_of(TRAFFIC, tmp_path, tool, ONEHOP_NVTX="off") == []


def test_a_trace_beside_it(tool, tmp_path):
    trace = tmp_path / "trace.json"
    lines = lines_of(TRAFFIC, tmp_path, tool, ONEHOP_TRACE=str(trace))
    assert trace.read_text().count('"send"') == sum(" send, " in line for line in lines)


def test_a_tool_that_cannot_be_loaded_is_none(tmp_path):
    assert lines_of(TRAFFIC, tmp_path, tmp_path / "missing.so") == []
