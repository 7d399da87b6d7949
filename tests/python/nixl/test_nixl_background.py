# SPDX-License-Identifier: Apache-2.0
"""Large transfers of host memory: transfer() returns before their bytes have moved.

An agent that is unattended has no thread that makes progress: its bytes move when it is called.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from agents import Area, finish, notes, run, run_two, until
from onehop.nixl import inbox, nixl_agent, nixl_agent_config
from onehop.nixl.bindings import (
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)
from processes import run_alone

SIZE = 8 << 20
BLOCKS = 2048
SMALL = 64
OLD, NEW, LATER, CANARY = 11, 22, 33, 44


@pytest.fixture
def unattended(monkeypatch):
    monkeypatch.setattr(inbox.Inbox, "_listen", lambda *_: None)


class Two:
    """Two agents of this process, of which "A" knows "B", with larger memory."""

    def __init__(self, **config) -> None:
        self.a, self.b = nixl_agent("A", nixl_agent_config(**config)), nixl_agent("B")
        self.ours, self.theirs = Area(self.a, SIZE, NEW), Area(self.b, SIZE, OLD)
        self.a.add_remote_agent(self.b.get_agent_metadata())
        self.lists = [
            self.a.prep_xfer_dlist(name, area.blocks(BLOCKS, SIZE // BLOCKS), "DRAM")
            for name, area in (("", self.ours), ("B", self.theirs))
        ]
        # So that each side knows the other one's name.
        run(self.a, self.small("WRITE", b"hello", SIZE - SMALL))
        notes(self.b, 1)
        self.theirs.bytes[:] = OLD

    def large(self, operation="WRITE", notif=b""):
        local, remote = self.lists
        # In another order: no two blocks are neighbours at both sides.
        order = np.random.default_rng(1).permutation(BLOCKS)
        return self.a.make_prepped_xfer(operation, local, order, remote, order, notif)

    def small(self, operation="WRITE", notif=b"", at=0, here=0):
        places = (self.ours.at(here, SMALL), self.theirs.at(at, SMALL))
        lists = (self.a.get_xfer_descs([place], "DRAM") for place in places)
        return self.a.initialize_xfer(operation, *lists, "B", notif)


@pytest.fixture
def alone(unattended):
    return Two()


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_transfer_returns_before_its_bytes_have_moved(alone, operation):
    made = alone.large(operation, b"all")
    source, target = alone.ours.bytes, alone.theirs.bytes
    if operation == "READ":
        source, target = target, source
    before, expected = target.copy(), source.copy()
    for _ in range(2):
        assert alone.a.transfer(made) == "PROC"
        assert (target == before).all()
        assert alone.b.get_new_notifs() == {}
        with pytest.raises(nixlRepostActiveError):
            alone.a.transfer(made)
        finish(alone.a, made)
        assert (target == expected).all()
        assert alone.b.get_new_notifs() == {"A": [b"all"]}
        target[:] = before


def test_a_check_moves_a_part_at_most(alone):
    made = alone.large()
    assert alone.a.transfer(made) == "PROC"
    moved = [0]
    while alone.a.check_xfer_state(made) == "PROC":
        moved.append(int(np.count_nonzero(alone.theirs.bytes == NEW)))
        assert moved[-1] - moved[-2] <= SIZE // 4
    assert (alone.theirs.bytes == NEW).all()


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_small_transfer_has_ended_when_the_call_returns(alone, operation):
    made = alone.small(operation)
    assert alone.a.transfer(made) == "DONE"
    assert (alone.theirs.bytes[:SMALL] == alone.ours.bytes[:SMALL]).all()


def test_transfers_and_notifications_keep_their_order(alone):
    alone.ours.bytes[-SMALL:] = LATER
    large, last = alone.large(notif=b"1"), alone.large(notif=b"4")
    small = alone.small(notif=b"2", here=SIZE - SMALL)
    assert alone.a.transfer(large) == "PROC"
    assert alone.a.transfer(small) == "PROC"
    alone.a.send_notif("B", b"3")
    assert not (alone.theirs.bytes[SMALL:-SMALL] == NEW).all()  # it has not waited
    finish(alone.a, small)
    assert (alone.theirs.bytes[SMALL:-SMALL] == NEW).all()
    assert (alone.theirs.bytes[:SMALL] == LATER).all()  # the small one came last
    assert alone.a.check_xfer_state(large) == "DONE"
    run(alone.a, last)
    assert notes(alone.b, 4) == {"A": [b"1", b"2", b"3", b"4"]}


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_release_in_flight_stops_between_parts(alone, operation):
    made = alone.large(operation, b"never")
    target = alone.theirs.bytes if operation == "WRITE" else alone.ours.bytes
    before = int(target[0])
    behind = alone.large(operation, b"behind")
    assert alone.a.transfer(made) == alone.a.transfer(behind) == "PROC"
    assert alone.a.check_xfer_state(made) == "PROC"
    alone.a.release_xfer_handle(made)
    left = int(np.count_nonzero(target == before))
    assert 0 < left < SIZE
    alone.a.release_xfer_handle(behind)
    alone.ours.bytes[:] = CANARY
    run(alone.a, alone.small(notif=b"end"))
    assert notes(alone.b, 1) == {"A": [b"end"]}
    if operation == "WRITE":
        assert int(np.count_nonzero(target[SMALL:] == before)) >= left - SMALL
        assert not (target[SMALL:] == CANARY).any()
    else:
        assert (target == CANARY).all()


def test_memory_that_goes_in_flight(alone):
    made = alone.large()
    assert alone.a.transfer(made) == "PROC"
    assert alone.a.check_xfer_state(made) == "PROC"
    alone.b.deregister_memory(alone.theirs.reg)
    alone.theirs.bytes[:] = CANARY
    with pytest.raises(nixlNotFoundError):
        finish(alone.a, made)
    assert (alone.theirs.bytes == CANARY).all()
    with pytest.raises(nixlNotFoundError):
        alone.a.transfer(made)


def test_deregistering_cancels_what_is_in_flight(alone):
    made = alone.large("READ")
    assert alone.a.transfer(made) == "PROC"
    assert alone.a.check_xfer_state(made) == "PROC"
    alone.a.deregister_memory(alone.ours.reg)
    alone.ours.bytes[:] = CANARY
    for _ in range(20):
        alone.a.get_new_notifs()
    alone.a.send_notif("B", b"end")
    assert notes(alone.b, 1) == {"A": [b"end"]}
    assert (alone.ours.bytes == CANARY).all()


def test_an_agent_that_is_dropped_in_flight(alone):
    made = alone.large("READ")
    assert alone.a.transfer(made) == "PROC"
    assert alone.a.check_xfer_state(made) == "PROC"
    ours, alone.a, alone.lists = alone.ours, None, None
    del made
    gc.collect()
    ours.bytes[:] = CANARY
    assert not [one for one in gc.get_objects() if isinstance(one, nixl_agent) and one.name == "A"]
    assert (ours.bytes == CANARY).all()


# ---- With a thread that makes progress


def test_progress_needs_no_call():
    two = Two(capture_telemetry=True)
    made = two.large(notif=b"all")
    for _ in range(3):
        start = time.perf_counter()
        two.a.transfer(made)
        assert notes(two.b, 1) == {"A": [b"all"]}
        seen = time.perf_counter() - start
        assert (two.theirs.bytes == NEW).all()
        two.theirs.bytes[:] = OLD
        time.sleep(0.05)
        # Its own end counts, not when somebody has looked.
        finish(two.a, made)
        told = two.a.get_xfer_telemetry(made)
        assert 0 < told.postDuration <= told.xferDuration <= (seen + 0.05) * 1e6
        assert told.totalBytes == SIZE
        assert told.descCount == BLOCKS


def test_released_at_any_time():
    """Whatever a release has let through, it is not touched afterwards."""
    two = Two()
    two.theirs.bytes[:] = NEW
    for turn in range(40):
        two.ours.bytes[:] = OLD
        made = two.large("READ")
        two.a.transfer(made)
        for _ in range(turn % 8):
            two.a.check_xfer_state(made)
        two.a.release_xfer_handle(made)
        two.ours.bytes[:] = CANARY
        run(two.a, two.small(notif=b"%d" % turn))
        two.theirs.bytes[:SMALL] = NEW
        assert (two.ours.bytes == CANARY).all()
    assert len(notes(two.b, 40)["A"]) == 40


def test_transfers_of_several_threads():
    two = Two()
    order = list(range(40))
    made = [two.large(("WRITE", "READ")[number % 2], b"%d" % number) for number in order]

    def work(first):
        for number in order[first::4]:
            run(two.a, made[number])

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(50)
    assert sorted(notes(two.b, 40)["A"]) == sorted(b"%d" % number for number in order)


# ---- The ends of processes


def own(side, _):
    area = Area(side.agent, SIZE, OLD)
    side.give((side.agent.get_agent_metadata(), area.base, os.getpid()))
    side.take()


def lose(side, operation):
    inbox.Inbox._listen = lambda *_: None
    agent = nixl_agent("C")
    metadata, base, pid = side.take()
    name = agent.add_remote_agent(metadata)
    ours = Area(agent, SIZE, NEW)
    rows = ours.blocks(BLOCKS, SIZE // BLOCKS)
    local = agent.prep_xfer_dlist("", rows, "DRAM")
    there = rows.copy()
    there[:, 0] = base + np.arange(BLOCKS, dtype=np.uint64) * np.uint64(SIZE // BLOCKS)
    remote = agent.prep_xfer_dlist(name, there, "DRAM")
    order = np.random.default_rng(1).permutation(BLOCKS)
    made = agent.make_prepped_xfer(operation, local, order, remote, order, b"never")
    assert agent.transfer(made) == "PROC"
    assert agent.check_xfer_state(made) == "PROC"
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(nixlRemoteDisconnectError):
        finish(agent, made)
    agent.release_xfer_handle(made)
    agent.deregister_memory(ours.reg)
    ours.bytes[:] = CANARY
    until(lambda: not agent.check_remote_metadata(name), "the loss")
    assert (ours.bytes == CANARY).all()
    return "alive"


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_peer_that_dies_in_flight(operation):
    assert run_two(lose, own, operation, killed=[1])[0] == "alive"


EXIT = """
import os, sys, threading
sys.path.insert(0, {here!r})
from test_nixl_background import Two
two = Two()
made = [two.large("READ"), two.large("WRITE")]
for one in made:
    assert two.a.transfer(one) in ("PROC", "DONE")
{then}
"""


@pytest.mark.parametrize(
    "then",
    [
        "",
        "made = one = None",
        "made = one = two = None",
        "raise SystemExit(0)",
        "threading.Thread(target=two.a.check_xfer_state, args=(made[0],)).start()",
    ],
)
def test_the_interpreter_ends_with_transfers_in_flight(then):
    here = os.path.dirname(os.path.abspath(__file__))
    script = EXIT.format(here=here, then=then)
    path = os.pathsep.join([here, os.path.dirname(here), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def fork_in_flight():
    two = Two()
    made = two.large(notif=b"all")
    two.a.transfer(made)
    child = os.fork()
    if child == 0:
        # The agent is the parent's: no call hangs here, and none does any harm.
        for call in (
            lambda: two.a.check_xfer_state(made),
            lambda: two.a.transfer(made),
            lambda: two.a.release_xfer_handle(made),
        ):
            try:
                call()
            except Exception:
                continue
        os._exit(0)
    finish(two.a, made)
    assert notes(two.b, 1) == {"A": [b"all"]}
    assert (two.theirs.bytes == NEW).all()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_in_flight():
    assert run_alone(fork_in_flight) == 0
