# SPDX-License-Identifier: Apache-2.0
"""`onehop top`: what running, stopped and killed processes have told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from command import run_onehop as run
from processes import stop

DEADLINE = 60

# Sends to itself until its standard input ends; one receive stays posted.
BUSY = """
import sys, threading, onehop
a, b = onehop.Endpoint(), onehop.Endpoint()
peer = a.connect(b.address)
other = b.accept(timeout=30)
late = other.irecv(bytearray(8), tag=1)
over = threading.Event()
def work():
    room, data = bytearray(1 << 16), bytes(1 << 16)
    while not over.is_set():
        request = other.irecv(room, tag=2)
        peer.send(data, tag=2, timeout=30)
        request.wait(timeout=30)
worker = threading.Thread(target=work)
worker.start()
print("ready", flush=True)
sys.stdin.read()
over.set()
worker.join()
late.cancel()
a.close()
b.close()
"""
IDLE = """
import sys, onehop
endpoint = onehop.Endpoint()
print("ready", flush=True)
sys.stdin.read()
endpoint.close()
"""


@contextlib.contextmanager
def program(code, folder, top="on"):
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "ONEHOP_SOCKET_DIR": str(folder), "ONEHOP_TOP": top},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
        process.communicate(timeout=DEADLINE)
    finally:
        process.kill()
        process.communicate()


def top(folder, *arguments):
    return run("top", "--once", "--interval", "0.6", "--folder", str(folder), *arguments)


def test_rates_and_what_is_in_flight(tmp_path):
    begin = time.monotonic()
    with program(BUSY, tmp_path) as process:
        done = top(tmp_path, str(process.pid), "--json")
        assert done.returncode == 0, done.stderr
        shown = json.loads(done.stdout)
        assert [(each["pid"], each["state"]) for each in shown["processes"]] == [
            (process.pid, "running")
        ]
        near, far = sorted(shown["peers"], key=lambda row: row["sent_bytes"], reverse=True)
        assert near["path"] == far["path"] == "local"
        assert near["sent_gb_s"] > 0
        assert near["received_gb_s"] == 0
        assert far["received_gb_s"] > 0
        assert far["sent_gb_s"] == 0
        assert near["ops_s"] > 1
        assert far["in_flight"] >= 1
        # The receive that nothing is sent to; the page is of any time after its posting.
        assert 0 < far["oldest_s"] < time.monotonic() - begin
        table = top(tmp_path, str(process.pid))
        assert table.returncode == 0, table.stderr
        assert "GB/s out" in table.stdout
        assert f":{process.pid}" in table.stdout
    assert process.returncode == 0
    assert not list(tmp_path.glob("onehop-top.*")), "an endpoint that is closed has no page"


def test_a_killed_process_is_reported_as_gone(tmp_path):
    with program(BUSY, tmp_path) as process:
        running = json.loads(top(tmp_path, str(process.pid), "--json").stdout)
        assert [each["state"] for each in running["processes"]] == ["running"]
        process.kill()
        process.wait(DEADLINE)
        done = top(tmp_path, str(process.pid), "--json")
        assert done.returncode == 1
        shown = json.loads(done.stdout)
        assert [each["state"] for each in shown["processes"]] == ["gone"]
        assert max(row["sent_bytes"] for row in shown["peers"]) > 0
        assert {row["sent_gb_s"] for row in shown["peers"]} == {None}
        table = top(tmp_path, str(process.pid))
        assert table.returncode == 1
        assert f"process {process.pid}" in table.stdout
        assert "is gone" in table.stdout
        # Among others, its end is no fault.
        assert top(tmp_path).returncode == 0


def test_a_stopped_process_is_silent(tmp_path):
    with program(IDLE, tmp_path) as process:
        stop(process.pid)
        try:
            (page,) = tmp_path.glob("onehop-top.*[!w]")
            long_ago = time.time() - 10
            os.utime(page, (long_ago, long_ago))
            done = top(tmp_path, str(process.pid))
            assert done.returncode == 0, done.stderr
            assert "has written no page for" in done.stdout
            assert "has no peers" in done.stdout
        finally:
            os.kill(process.pid, signal.SIGCONT)


def test_no_page(tmp_path):
    with program(IDLE, tmp_path, top="off") as process:
        done = top(tmp_path, str(process.pid))
        assert done.returncode == 1
        assert "start it with ONEHOP_TOP=on" in done.stderr
    done = top(tmp_path, str(process.pid))
    assert done.returncode == 1
    assert "there is no process" in done.stderr
    done = top(tmp_path)
    assert done.returncode == 1
    assert "no process of this user has a page" in done.stderr


NOBODY = 65534
# As another user, who has the same programs.
AS_NOBODY = f"""
import os
from onehop.cli import main
os.setgid({NOBODY})
os.setuid({NOBODY})
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_users_process_is_refused(tmp_path):
    for folder in [tmp_path, *tmp_path.parents]:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    with program(IDLE, tmp_path) as process:
        command = [sys.executable, "-c", AS_NOBODY]
        arguments = ("top", "--once", "--folder", str(tmp_path))
        done = run(*arguments, str(process.pid), command=command)
        assert done.returncode == 1
        assert f"process {process.pid} belongs to user root" in done.stderr
        done = run(*arguments, command=command)
        assert done.returncode == 1
        assert "no process of this user" in done.stderr


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"version": 2}', "\x00"])
def test_a_page_of_another_form(tmp_path, content):
    (tmp_path / "onehop-top.1.a").write_text(content)
    done = top(tmp_path, "1")
    assert done.returncode == 1
    assert "is no page of ONEHOP_TOP=on" in done.stderr


def test_a_pipe_does_not_hang_it(tmp_path):
    os.mkfifo(tmp_path / "onehop-top.1.a", 0o600)
    done = top(tmp_path, "1")
    assert done.returncode == 1
    assert "is no page of ONEHOP_TOP=on" in done.stderr


@pytest.mark.parametrize("arguments", [["0"], ["x"], ["--interval", "0"], ["--folder", "/missing"]])
def test_wrong_calls(arguments):
    assert run("top", *arguments).returncode == 2
