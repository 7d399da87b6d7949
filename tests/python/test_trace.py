# SPDX-License-Identifier: Apache-2.0
"""ONEHOP_TRACE: what a program leaves, and `onehop trace merge`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict

import onehop
import pytest
from command import run_onehop as run

DEADLINE = 60

# Two endpoints of one process: small and large messages, a put, a get, and a receive that fails.
TRAFFIC = """
import onehop
a, b = onehop.Endpoint(), onehop.Endpoint()
peer = a.connect(b.address)
other = b.accept(timeout=30)
small, large = bytearray(8), bytearray(1 << 20)
for tag in range(5):
    request = other.irecv(small, tag=tag)
    peer.send(b"12345678", tag=tag)
    request.wait(timeout=30)
for _ in range(3):
    peer.send(b"early", tag=9)
    other.recv(small, tag=9, timeout=30)
request = other.irecv(large, tag=77)
peer.send(bytes(1 << 20), tag=77, timeout=30)
request.wait(timeout=30)
region = b.register(large)
remote = peer.attach(region.descriptor)
peer.put(b"x" * 100, remote[:100]).wait(timeout=30)
peer.get(bytearray(64), remote[:64]).wait(timeout=30)
try:
    other.recv(small, tag=1000, timeout=0.01)
except onehop.TimeoutError:
    pass
"""
RANK = """
import sys, onehop
rank = int(sys.argv[1])
with onehop.Communicator(rank, 2, unique_id=bytes.fromhex(sys.argv[2]), timeout=30) as comm:
    peer = comm.peer(1 - rank)
    for _ in range(10):
        if rank == 0:
            peer.send(b"ping", tag=1)
        peer.recv(bytearray(4), tag=1, timeout=30)
        if rank == 1:
            peer.send(b"pong", tag=1)
    comm.barrier(timeout=30)
"""


def start(code, folder, *arguments, pattern="t.%h.%p.json", **variables):
    env = {**os.environ, "ONEHOP_TRACE": f"{folder}/{pattern}", **variables}
    return subprocess.Popen([sys.executable, "-c", code, *arguments], env=env)


def trace_of(code, folder, **variables):
    process = start(code, folder, pattern="t.json", **variables)
    assert process.wait(DEADLINE) == 0
    return json.loads((folder / "t.json").read_bytes())


def operations(trace):
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def check_order(trace):
    """Times ascend, and the slices of a track follow each other."""
    timed = [event for event in trace["traceEvents"] if event["ph"] != "M"]
    assert timed
    assert [event["ts"] for event in timed] == sorted(event["ts"] for event in timed)
    ends = defaultdict(float)
    for event in operations(trace):
        assert event["dur"] >= 0
        track = (event["pid"], event["tid"])
        assert ends[track] <= event["ts"] + 1e-3, "slices of one track overlap"
        ends[track] = event["ts"] + event["dur"]


def test_it_has_each_operation_from_post_to_end(tmp_path):
    trace = trace_of(TRAFFIC, tmp_path)
    check_order(trace)
    found = defaultdict(list)
    for event in operations(trace):
        found[event["name"]].append(event["args"])
    assert [args["tag"] for args in found["send"]] == [0, 1, 2, 3, 4, 9, 9, 9, 77]
    assert [args["bytes"] for args in found["send"]] == [8] * 5 + [5] * 3 + [1 << 20]
    received = sorted(found["recv"], key=lambda args: args["tag"])
    assert [args["tag"] for args in received] == [0, 1, 2, 3, 4, 9, 9, 9, 77, 1000]
    assert received[0]["path"] == "inline"
    assert received[-2] == {"tag": 77, "bytes": 1 << 20, "path": "local", "status": "OH_OK"}
    assert received[-1]["status"] == "OH_ERR_TIMEOUT"
    assert [(args["bytes"], args["status"]) for args in found["put"]] == [(100, "OH_OK")]
    assert [(args["bytes"], args["status"]) for args in found["get"]] == [(64, "OH_OK")]
    moments = [event["name"] for event in trace["traceEvents"] if event["ph"] == "i"]
    assert moments.count("connected") == 2
    assert moments.count("closed") >= 1
    names = {event["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert names == {"process_name", "thread_name"}


def test_the_ring_is_bounded(tmp_path):
    trace = trace_of(TRAFFIC, tmp_path, ONEHOP_TRACE_EVENTS="4")
    assert len([event for event in trace["traceEvents"] if event["ph"] != "M"]) == 4
    assert trace["otherData"]["overwritten"] > 10


@pytest.mark.parametrize("transport", ["auto", "socket"])
def test_merge_orders_the_processes_of_a_host(tmp_path, transport):
    identity = onehop.unique_id().hex()
    ranks = [
        start(RANK, tmp_path, str(rank), identity, ONEHOP_TRANSPORT=transport) for rank in (0, 1)
    ]
    assert [rank.wait(DEADLINE) for rank in ranks] == [0, 0]
    files = sorted(tmp_path.iterdir())
    assert len(files) == 2
    merged = tmp_path / "merged.json"
    done = run("trace", "merge", *map(str, files), "-o", str(merged))
    assert done.returncode == 0, done.stderr
    assert "of 2 processes on 1 hosts" in done.stdout
    trace = json.loads(merged.read_bytes())
    check_order(trace)
    # One clock: no receive ends before its send was posted.
    sent = {0: [], 1: []}
    received = {0: [], 1: []}
    pids = [rank.pid for rank in ranks]
    for event in operations(trace):
        if event["args"]["tag"] != 1:
            continue
        side = pids.index(event["pid"])
        (sent if event["name"] == "send" else received)[side].append(event)
    for side in (0, 1):
        assert len(sent[side]) == len(received[1 - side]) == 10
        for send, receive in zip(sent[side], received[1 - side], strict=True):
            assert send["ts"] <= receive["ts"] + receive["dur"]


def record(host, boot, epoch_offset, *times, pid=1):
    events = [{"ph": "M", "pid": pid, "tid": 0, "name": "process_name", "args": {"name": host}}]
    for ts in times:
        events.append({"ph": "X", "pid": pid, "tid": 1, "ts": ts, "dur": 1.5, "name": host})
    about = {"host": host, "boot": boot, "pid": pid, "epoch_offset_us": epoch_offset}
    return {"otherData": {**about, "overwritten": 0}, "traceEvents": events}


def merged_times(tmp_path, records, *options):
    files = []
    for number, each in enumerate(records):
        files.append(tmp_path / f"{number}.json")
        files[-1].write_text(json.dumps(each))
    merged = tmp_path / "merged.json"
    done = run("trace", "merge", *map(str, files), "-o", str(merged), *options)
    assert done.returncode == 0, done.stderr
    return json.loads(merged.read_bytes())


def test_merge_aligns_hosts_by_the_clock_of_the_day_and_an_offset(tmp_path):
    records = [
        record("a", "boot a", 1000.0, 100.0, 300.0),
        record("b", "boot b", 1500.0, 50.0),
        # The same clock as the one before, whatever the clock of the day was by then.
        record("b", "boot b", 9999.0, 60.0, pid=2),
    ]
    trace = merged_times(tmp_path, records)
    times = [(event["name"], event["ts"]) for event in operations(trace)]
    assert times == [("a", 0), ("a", 200), ("b", 450), ("b", 460)]
    trace = merged_times(tmp_path, records, "--offset", "b=-400.25")
    times = [(event["name"], event["ts"]) for event in operations(trace)]
    assert times == [("a", 0), ("b", 49.75), ("b", 59.75), ("a", 200)]


def test_merge_tells_processes_of_the_same_number_apart(tmp_path):
    records = [record("a", "x", 0.0, 1.0), record("b", "y", 0.0, 2.0), record("c", "z", 0.0, 3.0)]
    trace = merged_times(tmp_path, records)
    pids = {event["name"]: event["pid"] for event in operations(trace)}
    assert pids == {"a": 1, "b": 2, "c": 3}
    names = {
        event["args"]["name"]: event["pid"] for event in trace["traceEvents"] if event["ph"] == "M"
    }
    assert names == pids


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["missing.json", "-o", "out"], 1, "cannot be read"),
        (["text", "-o", "out"], 1, "is no trace of ONEHOP_TRACE"),
        (["other.json", "-o", "out"], 1, "is no trace of ONEHOP_TRACE"),
        (["a.json", "-o", "missing/out"], 1, "cannot be written"),
        (["a.json", "-o", "out", "--offset", "b=1"], 2, "no such host"),
        (["a.json", "-o", "out", "--offset", "a=x"], 2, "expected HOST=MICROSECONDS"),
        (["a.json", "-o", "out", "--offset", "7"], 2, "expected HOST=MICROSECONDS"),
        (["a.json"], 2, "--output"),
        (["-o", "out"], 2, "FILES"),
    ],
)
def test_merge_refuses(tmp_path, monkeypatch, arguments, code, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("no JSON")
    (tmp_path / "other.json").write_text('{"traceEvents": []}')
    (tmp_path / "a.json").write_text(json.dumps(record("a", "x", 0.0, 1.0)))
    done = run("trace", "merge", *arguments)
    assert done.returncode == code
    assert text in done.stderr


def test_a_file_that_cannot_be_written_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("ONEHOP_TRACE", f"{tmp_path}/missing/t.json")
    with pytest.raises(onehop.EndpointError, match=r"ONEHOP_TRACE=.*missing"):
        onehop.Endpoint()
    monkeypatch.setenv("ONEHOP_TRACE", f"{tmp_path}/%d.json")
    with pytest.raises(onehop.EndpointError, match="is not allowed"):
        onehop.Endpoint()
