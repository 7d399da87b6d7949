# SPDX-License-Identifier: Apache-2.0
"""The soak passes where nothing is wrong, and reports each kind of fault that it is there for."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import onehop
import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"
UCX = next(found for found in onehop.info().transports if found.name == "ucx")
transports = pytest.mark.parametrize(
    "transport",
    [
        "shm",
        "socket",
        pytest.param("ucx", marks=pytest.mark.skipif(not UCX.viable, reason=f"no UCX: {UCX.why}")),
    ],
)


FAKE_CUDA = os.environ.get("FAKE_CUDA_LIBRARY")
gpus = pytest.mark.skipif(not FAKE_CUDA, reason="FAKE_CUDA_LIBRARY names no fake CUDA driver")


@pytest.fixture
def fake_gpus(monkeypatch, tmp_path):
    """Two GPUs for the processes of a soak."""
    monkeypatch.setenv("ONEHOP_CUDA_LIBRARY", FAKE_CUDA)
    monkeypatch.setenv("ONEHOP_NVML_LIBRARY", FAKE_CUDA)
    monkeypatch.setenv("FAKE_CUDA", "devices=2,memory=4G,p2p=all")
    monkeypatch.setenv("FAKE_CUDA_STATE", str(tmp_path / "gpus"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def ledger(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return importlib.import_module("soak_ledger")


def run(*words, tolerate_faults=False):
    """Run the soak; return its exit code, summary and standard error."""
    command = [sys.executable, str(TOOLS / "soak.py"), "--seed", "1", "--report-every", "0", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    summary = json.loads(done.stdout.splitlines()[-1])
    if not tolerate_faults:
        assert done.returncode == 0, done.stderr[-8000:]
        assert summary["faults"] == []
    return done.returncode, summary, done.stderr


@transports
def test_traffic_with_kills_and_stops_passes(transport):
    _, summary, _ = run(
        "--transports", transport, "--seconds", "6", "--kill-every", "2", "--stop-every", "1",
        "--squeeze-every", "1", "--largest", "300000", "--kinds", "directed",
    )  # fmt: skip
    counts = summary["transports"][transport]
    for name in ("bytes", "messages", "one_sided", "connects", "kills", "stops", "timeouts"):
        assert counts[name] > 0, (name, counts)
    assert (counts["squeezes"] > 0) == (transport != "ucx")


@transports
def test_receives_from_any_source_pass(transport):
    _, summary, _ = run(
        "--transports", transport, "--seconds", "4", "--kill-every", "0", "--stop-every", "1",
        "--squeeze-every", "0", "--processes", "2", "--kinds", "wild",
    )  # fmt: skip
    counts = summary["transports"][transport]
    for name in ("bytes", "messages", "connects", "stops", "cancels"):
        assert counts[name] > 0, (name, counts)


@gpus
def test_traffic_of_gpu_memory_passes(fake_gpus):
    _, summary, _ = run(
        "--transports", "cuda", "--seconds", "6", "--kill-every", "2", "--stop-every", "1",
        "--largest", "300000", "--kinds", "directed",
    )  # fmt: skip
    counts = summary["transports"]["cuda"]
    for name in ("device_bytes", "messages", "one_sided", "connects", "kills", "stops"):
        assert counts[name] > 0, (name, counts)
    assert counts["device_bytes"] < counts["bytes"]
    assert counts["sent_by_path"]["cuda_ipc"] > 0
    assert len(counts["device_memory_kept"]) == 2


@gpus
def test_a_wrong_byte_in_gpu_memory_is_reported(fake_gpus):
    code, summary, _ = run(
        "--transports", "cuda", "--seconds", "60", "--processes", "2", "--abrupt", "0",
        "--kill-every", "0", "--stop-every", "0", "--kinds", "directed", "--largest", "4096",
        "--inject", "corrupt",
        tolerate_faults=True,
    )  # fmt: skip
    assert code == 1
    assert "wrong" in summary["faults"][0]


BUFFERS = """
import random
import soak_memory
from soak_ledger import GUARD, WrongBytesError

memory = soak_memory.Memory(0, random.Random(1))
before = memory.pool.driver.free_bytes()
buffers = []
while len(buffers) < 50:  # some are of the host
    buffer = memory.receive(10_000)
    if isinstance(buffer, soak_memory.DeviceBuffer):
        buffers.append(buffer)
for buffer in buffers:
    assert set(buffer.read(10_000)) == {soak_memory.UNWRITTEN}
    assert buffer.guard() == GUARD
assert memory.handles()["bytes of device memory"] == 50 << 14
buffer.write(b"x", 10_000)
try:
    soak_memory.check_guard(buffer)
except WrongBytesError as found:
    print(found)
del buffer, buffers
again = memory.payload(bytearray(b"message of 24 bytes here"), on_device=True)
assert again.read(24) == b"message of 24 bytes here"
del again
memory.rest()
assert memory.handles()["bytes of device memory"] == 0
assert memory.pool.driver.free_bytes() == before
assert isinstance(memory.receive(8), soak_memory.HostBuffer)
"""


@gpus
def test_device_memory_is_guarded_and_given_back(fake_gpus):
    done = subprocess.run(
        [sys.executable, "-c", BUFFERS],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TOOLS), *sys.path])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "bytes behind a buffer of 10000 were written" in done.stdout


@pytest.mark.parametrize(
    ("what", "says", "seconds"),
    [
        # These end the run.
        ("corrupt", "wrong", "60"),
        ("swap", "overtook", "60"),
        # As messages, or as a link that its other side closed before they came: judged at the end.
        ("lose", "lost", "4"),
    ],
)
def test_a_fault_is_reported(what, says, seconds):
    code, summary, _ = run(
        "--transports", "shm", "--seconds", seconds, "--processes", "2", "--abrupt", "0",
        "--kill-every", "0", "--stop-every", "0", "--squeeze-every", "0", "--largest", "4096",
        "--inject", what,
        tolerate_faults=True,
    )  # fmt: skip
    assert code == 1
    assert says in summary["faults"][0]


def test_a_process_that_dies_by_itself_is_reported():
    command = [sys.executable, str(TOOLS / "soak.py"), "--transports", "shm", "--seconds", "60"]
    command += ["--kill-every", "0", "--stop-every", "0", "--squeeze-every", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as soak:
        try:
            workers = children_of(soak.pid, 3)
            os.kill(workers[0], signal.SIGKILL)
            out, _ = soak.communicate(timeout=100)
        finally:
            soak.kill()
    assert soak.returncode == 1
    assert "died by itself" in json.loads(out.splitlines()[-1])["faults"][0]


def children_of(pid, count):
    """Return the workers of a soak, as soon as it has so many."""
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                stat = (entry / "stat").read_text()
                words = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid and b"spawn_main" in words:
                found.append(int(entry.name))
        if len(found) >= count:
            return found


def test_want_of_descriptors_explains_what_went_wrong_then(ledger):
    soak = importlib.import_module("soak")
    shortages = soak.Shortages()
    shortages.begin((1, 1), 100.0)
    shortages.end((1, 1), 101.0)
    shortages.begin((1, 1), 200.0)
    pair = [(0, 1), (1, 1)]
    later = 101.0 + soak.AFTER_SQUEEZE
    assert [shortages.explain(pair, when) for when in (99.9, 100.0, later, later + 0.1)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert shortages.explain(pair, 1000.0)
    assert not shortages.explain([(0, 1), (1, 2)], 100.5)


def test_payloads_differ_and_are_checked(ledger):
    payloads = ledger.Payloads(7, 1 << 20)
    key = ledger.stream_key("a", 1)
    for size in (0, 1, 7, 8, 400, 100_000):
        made = payloads.make(key, 3, size)
        payloads.check(key, 3, made, size)
        if size >= 8:
            assert payloads.read(key, made, size) == (3, None)
    made = payloads.make(key, 3, 100)
    for wrong in (0, 5, 8, 99):
        spoiled = bytearray(made)
        spoiled[wrong] ^= 1
        with pytest.raises(ledger.WrongBytesError):
            payloads.check(key, 3, spoiled, 100)
    with pytest.raises(ledger.WrongBytesError):
        payloads.check(key, 4, made, 100)
    with pytest.raises(ledger.WrongBytesError):
        payloads.check(ledger.stream_key("a", 2), 3, made, 100)


def test_the_end_of_a_round_is_checked(ledger):
    payloads = ledger.Payloads(7, 1 << 20)
    end = {"sent": [0, 1], "doubtful": [], "first": 0, "next": 2}
    made = bytearray(payloads.make_end(5, end))
    assert payloads.read(5, made, len(made)) == (-1, end)
    made[-2] ^= 1
    with pytest.raises(ledger.WrongBytesError):
        payloads.read(5, made, len(made))


def test_a_ledger_finds_what_is_lost_doubled_or_in_a_wrong_place(ledger):
    def fresh(*intervals, sent=(0, 1, 2), doubtful=(), of=3):
        made = ledger.Ledger("stream")
        for sequence, first, last in intervals:
            made.record(sequence, first, last)
        end = {"sent": list(sent), "doubtful": list(doubtful), "first": 0, "next": of}
        made.rounds.append(end)
        return made

    assert fresh((0, 0, 0), (1, 1, 1), (2, 2, 2)).settle() == 0
    # Receives that were posted at the same time may have either.
    assert fresh((0, 0, 5), (1, 1, 3), (2, 0, 4)).settle() == 0
    with pytest.raises(ledger.WrongOrderError, match="message 1 overtook message 0"):
        fresh((0, 2, 2), (1, 1, 1), (2, 3, 3)).settle()
    # The receive of a message that was withdrawn gets a later one.
    assert fresh((0, 0, 0), (2, 1, 1), (1, 2, 2), (3, 3, 3), sent=(0, 1, 2, 3), of=5).settle() == 0
    # That may be the end of the round, which counts as message `next`.
    assert fresh((0, 0, 0), (3, 1, 1), (1, 2, 2), sent=(0, 1), of=3).settle() == 0
    with pytest.raises(ledger.WrongOrderError, match="message 1 overtook message 0"):
        fresh((0, 1, 1), (2, 2, 2), (1, 0, 0), sent=(0, 1), of=2).settle()
    with pytest.raises(ledger.WrongOrderError, match="message 2 overtook message 1"):
        fresh((0, 0, 0), (2, 1, 1), (1, 2, 2), sent=(0, 1), of=2).settle()
    with pytest.raises(ledger.WrongOrderError, match="2 messages are out of order"):
        fresh((2, 0, 0), (3, 1, 1), (0, 2, 2), (1, 3, 3), sent=(0, 1, 2, 3), of=5).settle()
    with pytest.raises(ledger.WrongOrderError, match="twice"):
        fresh((0, 0, 0), (0, 1, 1))
    waiting = fresh((0, 0, 0), (2, 2, 2))
    assert waiting.settle() == 0
    assert waiting.rounds
    assert fresh((0, 0, 0), (2, 2, 2)).settle(doubts=1) == 1
    with pytest.raises(ledger.WrongOrderError, match="1 messages are lost"):
        fresh((0, 0, 0), (2, 2, 2)).settle(doubts=0)
    assert fresh((0, 0, 0), (1, 1, 1), (2, 2, 2), sent=(0, 2), doubtful=(1,)).settle() == 0
    with pytest.raises(ledger.WrongOrderError, match="message 1 came though"):
        fresh((0, 0, 0), (1, 1, 1), (2, 2, 2), sent=(0, 2)).settle()
