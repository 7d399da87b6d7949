# SPDX-License-Identifier: Apache-2.0
"""Peers that die or stop, transfers that are given up, memory that goes away in between."""

import gc
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from agents import Area, finish, run, run_two, until
from onehop.nixl.bindings import (
    nixlCancelledError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)
from processes import stop

SIZE = 4 << 20
OLD, NEW, CANARY = 11, 22, 33


def victim(side, *_):
    """Own memory until the end comes; tell what it has become if the other side asks."""
    area = Area(side.agent, SIZE, OLD)
    side.give((side.agent.get_agent_metadata(), area.base, os.getpid()))
    while side.take() == "look":
        values = np.unique(area.bytes).tolist()
        side.give(values)
    return np.unique(area.bytes).tolist()


class Attacker:
    """The other side, with lists of both memories."""

    def __init__(self, side) -> None:
        self.side, self.agent = side, side.agent
        metadata, self.base, self.pid = side.take()
        self.name = self.agent.add_remote_agent(metadata)
        self.area = Area(self.agent, SIZE, NEW)
        self.local = self.agent.prep_xfer_dlist("", self.area.blocks(16, SIZE // 16), "DRAM")
        rows = self.area.blocks(16, SIZE // 16)
        rows[:, 0] += np.uint64(2**64 + self.base - self.area.base & 2**64 - 1)
        self.remote = self.agent.prep_xfer_dlist(self.name, rows, "DRAM")

    def make(self, operation, count=16):
        numbers = list(range(count))
        return self.agent.make_prepped_xfer(
            operation, self.local, numbers, self.remote, numbers, b"done"
        )


# ---- Death


def kill_between(side):
    it = Attacker(side)
    agent = it.agent
    writes = it.make("WRITE"), it.make("WRITE")
    run(agent, writes[0])
    os.kill(it.pid, signal.SIGKILL)
    until(lambda: not agent.check_remote_metadata(it.name), "the loss")
    for call in (lambda: agent.transfer(writes[0]), lambda: agent.send_notif(it.name, b"x")):
        with pytest.raises(nixlRemoteDisconnectError, match="is gone"):
            call()
    with pytest.raises(nixlRemoteDisconnectError):
        agent.prep_xfer_dlist(it.name, [(it.base, 8, 0)], "DRAM")
    for handle in writes:
        agent.release_xfer_handle(handle)
    agent.remove_remote_agent(it.name)
    agent.deregister_memory(it.area.reg)
    return "alive"


def test_a_peer_that_is_killed(transport):
    assert run_two(kill_between, victim, killed=[1])[0] == "alive"


def kill_during(side, operation, needs_the_peer):
    it = Attacker(side)
    agent = it.agent
    made = it.make(operation)
    run(agent, made)
    stop(it.pid)
    state = agent.transfer(made)
    if needs_the_peer:
        assert state == "PROC"
    else:
        finish(agent, made)
    os.kill(it.pid, signal.SIGKILL)
    if needs_the_peer:
        with pytest.raises(nixlRemoteDisconnectError):
            finish(agent, made)
        with pytest.raises(nixlRemoteDisconnectError):
            agent.check_xfer_state(made)
    agent.release_xfer_handle(made)
    # Its memory is free: nobody writes it any more.
    agent.deregister_memory(it.area.reg)
    it.area.bytes[:] = CANARY
    time.sleep(0.2)
    assert (it.area.bytes == CANARY).all()
    until(lambda: not agent.check_remote_metadata(it.name), "the loss")
    return "alive"


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_a_peer_that_is_killed_in_a_transfer(transport, operation):
    between_hosts = transport != "auto"
    assert run_two(kill_during, victim, operation, between_hosts, killed=[1])[0] == "alive"


def test_a_peer_that_comes_back(two):
    """The agent of this name is another one: old handles are refused, new ones work."""
    from onehop.nixl import nixl_agent

    stale, (local, remote) = two.transfer(), two.sides()
    run(two.a, stale)
    two.b = None
    gc.collect()
    until(lambda: not two.a.check_remote_metadata("B"), "the loss")
    two.b = nixl_agent("B")
    two.theirs = Area(two.b)
    two.a.add_remote_agent(two.b.get_agent_metadata())
    with pytest.raises(nixlNotFoundError):
        two.a.transfer(stale)
    with pytest.raises(nixlNotFoundError):
        two.a.make_prepped_xfer("WRITE", local, [0], remote, [0])
    run(two.a, two.transfer())
    assert two.theirs.bytes[:64].any()


# ---- A peer that stops


def release_while_stopped(side, operation):
    it = Attacker(side)
    agent = it.agent
    run(agent, it.make("READ", 1))
    it.area.bytes[:] = NEW
    stop(it.pid)
    made = it.make(operation)
    try:
        state = agent.transfer(made)
        released = True
        try:
            agent.release_xfer_handle(made)
        except nixlRepostActiveError:
            released = False
            assert agent.check_xfer_state(made) == "PROC"
        if released:
            # The application uses its memory for something else now.
            it.area.bytes[:] = CANARY
    finally:
        os.kill(it.pid, signal.SIGCONT)
    if not released:
        until(lambda: not_active(agent, made), "the release")
        it.area.bytes[:] = CANARY
    side.give("look")
    seen = side.take()
    time.sleep(0.2)
    assert (it.area.bytes == CANARY).all()
    # The link is as good as before.
    it.area.bytes[:] = NEW
    run(agent, it.make("WRITE"))
    side.give("end")
    return state, released, seen


def not_active(agent, handle):
    try:
        agent.release_xfer_handle(handle)
    except nixlRepostActiveError:
        return False
    return True


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_release_while_the_peer_is_stopped(transport, operation):
    (state, _, seen), end = run_two(release_while_stopped, victim, operation)
    # Without the peer's help it may end within the call.
    assert state == "PROC" or (state == "DONE" and transport == "auto")
    assert CANARY not in seen
    assert end == [NEW]


def deregister_while_stopped(side):
    it = Attacker(side)
    agent = it.agent
    run(agent, it.make("READ", 1))
    stop(it.pid)
    made = it.make("READ")
    try:
        agent.transfer(made)
        try:
            agent.deregister_memory(it.area.reg)
            gone = True
        except nixlRepostActiveError:
            gone = False
        if gone:
            it.area.bytes[:] = CANARY
    finally:
        os.kill(it.pid, signal.SIGCONT)
    if gone:
        time.sleep(0.2)
        assert (it.area.bytes == CANARY).all()
        with pytest.raises((nixlCancelledError, nixlNotFoundError)):
            agent.transfer(made)  # the memory is gone
    side.give("end")
    return gone


def test_deregister_with_a_transfer_in_flight(transport):
    run_two(deregister_while_stopped, victim)


# ---- The garbage collector


def drop_handles(side):
    it = Attacker(side)
    agent = it.agent
    run(agent, it.make("READ", 1))
    stop(it.pid)
    try:
        for operation in ("READ", "WRITE") * 3:
            made = it.make(operation)
            agent.transfer(made)
            del made
        gc.collect()
        parked = len(agent._core.active)
    finally:
        os.kill(it.pid, signal.SIGCONT)
    until(lambda: agent.get_new_notifs() is not None and not agent._core.active, "the sweep")
    run(agent, it.make("WRITE"))
    side.give("end")
    return parked


def test_handles_that_are_dropped_in_flight(transport):
    run_two(drop_handles, victim)


def drop_agent(side):
    it = Attacker(side)
    run(it.agent, it.make("READ", 1))
    stop(it.pid)
    try:
        made = it.make("READ")
        it.agent.transfer(made)
        it.agent = side.agent = None
        gc.collect()
        del made
        gc.collect()
        it.area.bytes[:] = CANARY
    finally:
        os.kill(it.pid, signal.SIGCONT)
    time.sleep(0.2)
    assert (it.area.bytes == CANARY).all()
    side.give("end")


def test_an_agent_that_is_dropped_in_flight(transport):
    run_two(drop_agent, victim)


# ---- Notifications to a peer that is stopped


def flood(side):
    it = Attacker(side)
    agent = it.agent
    made = it.make("READ", 1)
    run(agent, made)
    stop(it.pid)
    try:
        posted = 0
        while posted < 2000 and agent.transfer(made, b"x" * 1900) == "DONE":
            posted += 1
        state = agent.check_xfer_state(made)
        if state == "PROC":
            with pytest.raises(nixlRepostActiveError):
                agent.transfer(made)
    finally:
        os.kill(it.pid, signal.SIGCONT)
    finish(agent, made)
    side.give("end")
    return posted


def test_notifications_to_a_peer_that_is_stopped():
    """A read that is over stays in flight until its notification has gone; nothing blocks."""
    posted, _ = run_two(flood, victim)
    assert posted > 10


# ---- Many come and go


def add_and_remove(side, times):
    metadata, base, _ = side.take()
    area = Area(side.agent, SIZE, NEW)
    for _ in range(times):
        name = side.agent.add_remote_agent(metadata)
        local = side.agent.get_xfer_descs([area.at(0, 4096)], "DRAM")
        remote = side.agent.get_xfer_descs([(base, 4096, 0)], "DRAM")
        handle = side.agent.initialize_xfer("READ", local, remote, name)
        run(side.agent, handle)
        side.agent.release_xfer_handle(handle)
        side.agent.remove_remote_agent(name)
    side.give("end")


def keep_nothing(side, times):
    area = Area(side.agent, SIZE, OLD)
    before = len(os.listdir("/proc/self/fd"))
    side.give((side.agent.get_agent_metadata(), area.base, os.getpid()))
    assert side.take() == "end"
    until(
        lambda: (
            side.agent.get_new_notifs() == {}
            and len(os.listdir("/proc/self/fd")) < before + times // 2
        ),
        "the end of links that were removed",
    )


def test_links_that_were_removed_leave_nothing_at_the_target():
    run_two(add_and_remove, keep_nothing, 20)


# ---- One that stands still while it is connected to


def reach_the_stopped(side, meanwhile):
    metadata, base, pid = side.take()
    agent = side.agent
    area = Area(agent, SIZE, NEW)
    name = agent.add_remote_agent(metadata)
    stop(pid)
    with ThreadPoolExecutor() as executor:
        try:
            made = executor.submit(agent.make_connection, name)
            until(agent._core.remote(name.decode())._reaching.locked, "the connecting thread")
            start = time.monotonic()
            meanwhile(agent, metadata, name)
            assert time.monotonic() - start < 5
            assert not made.done()
        finally:
            os.kill(pid, signal.SIGCONT)
        if meanwhile is make_other_calls:
            made.result()
            local = agent.get_xfer_descs([area.at(0, 64)], "DRAM")
            remote = agent.get_xfer_descs([(base, 64, 0)], "DRAM")
            run(agent, agent.initialize_xfer("READ", local, remote, name))
        else:
            with pytest.raises(nixlNotFoundError):
                made.result()
    side.give("end")


def make_other_calls(agent, metadata, name):
    assert agent.add_remote_agent(metadata) == name
    agent.get_agent_metadata()
    assert agent.check_remote_metadata(name.decode())


def remove_it(agent, _, name):
    agent.remove_remote_agent(name)


@pytest.mark.parametrize("meanwhile", [make_other_calls, remove_it])
def test_an_agent_that_stands_still_stops_no_other_call(meanwhile):
    run_two(reach_the_stopped, victim, meanwhile)
