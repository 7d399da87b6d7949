# SPDX-License-Identifier: Apache-2.0
"""Memory that is deregistered while a peer is inside it, and calls of other threads meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onehop
import pytest
from agents import Area, run, until
from onehop.nixl import nixl_agent, transfers
from onehop.nixl.bindings import (
    nixlBackendError,
    nixlNotFoundError,
    nixlRepostActiveError,
)
from posts import post_beside

CANARY = 44


class Entered:
    """A region that a stopped peer is inside of, until `left`."""

    def __init__(self, region) -> None:
        self.region = region
        self.left = False

    def deregister(self, timeout=None):
        self.region.deregister()  # it refuses peers before it waits
        if not self.left:
            raise onehop.TimeoutError(onehop.Status.TIMEOUT, "a peer is still inside")


class Waiting:
    """A region whose deregistration waits for an event."""

    def __init__(self, region) -> None:
        self.region = region
        self.begun, self.go = threading.Event(), threading.Event()
        self.timeout = None

    def deregister(self, timeout=None):
        self.timeout = timeout
        self.region.deregister()
        self.begun.set()
        assert self.go.wait(30)


def enter(agent, area, kind=Entered):
    (registration,) = agent._core.memory.find(area.reg)
    registration.region = kind(registration.region)
    return registration.region


def joined(*areas):
    return [(area.base, area.size, 0, "") for area in areas]


@pytest.fixture
def three(two):
    """Three areas of B; a peer is inside the second one."""
    areas = [Area(two.b) for _ in range(3)]
    two.a.add_remote_agent(two.b.get_agent_metadata())
    return two, areas, enter(two.b, areas[1])


def fail(agent, areas):
    every = agent.get_reg_descs(joined(*areas), "DRAM")
    with pytest.raises(nixlBackendError, match="a peer is still inside"):
        agent.deregister_memory(every)
    return every


def write(two, area):
    """Write all of an area of B from A, which knows what B tells now."""
    two.a.add_remote_agent(two.b.get_agent_metadata())
    local = two.a.get_xfer_descs([two.ours.at(0, area.size)], "DRAM")
    remote = two.a.get_xfer_descs([area.at(0, area.size)], "DRAM")
    run(two.a, two.a.initialize_xfer("WRITE", local, remote, "B"))
    assert (area.bytes == two.ours.bytes).all()


def test_a_call_that_failed_can_be_made_again(three):
    two, areas, entered = three
    every = fail(two.b, areas)
    fail(two.b, areas)
    entered.left = True
    two.b.deregister_memory(every)
    for area in areas:
        with pytest.raises(nixlNotFoundError, match="not registered"):
            two.b.deregister_memory(area.reg)
        two.b.register_memory(area.reg)
        write(two, area)


def test_a_region_that_refuses_peers_is_shown_to_none(three):
    two, areas, _ = three
    fail(two.b, areas)
    two.a.add_remote_agent(two.b.get_agent_metadata())
    for area in areas:  # those behind the one that failed, too
        inside = two.a.get_xfer_descs([area.at(0, 8)], "DRAM")
        assert not two.a.check_remote_metadata("B", inside)
        with pytest.raises(nixlNotFoundError, match="not registered"):
            two.b.get_partial_agent_metadata(area.reg)
        with pytest.raises(nixlNotFoundError, match="no registration"):
            two.b.prep_xfer_dlist("", [area.at(0, 8)], "DRAM")


def test_memory_whose_deregistration_failed_can_be_registered_again(three):
    two, areas, entered = three
    fail(two.b, areas)
    two.b.register_memory(areas[1].reg)
    write(two, areas[1])
    two.b.deregister_memory(areas[1].reg)  # one of two
    write(two, areas[1])
    # The last one waits for whoever is inside the former region, too.
    fail(two.b, areas[1:2])
    entered.left = True
    two.b.deregister_memory(areas[1].reg)
    with pytest.raises(nixlNotFoundError, match="not registered"):
        two.b.deregister_memory(areas[1].reg)


def test_a_registration_that_fails_leaves_a_former_one_as_it_was(three):
    two, areas, entered = three
    fail(two.b, areas)
    with pytest.raises(nixlBackendError, match="address 0"):
        two.b.register_memory([*joined(areas[1], areas[1]), (0, 8, 0, "")], "DRAM")
    with pytest.raises(nixlNotFoundError, match="not registered"):
        two.b.get_partial_agent_metadata(areas[1].reg)
    entered.left = True
    two.b.deregister_memory(areas[1].reg)
    with pytest.raises(nixlNotFoundError, match="not registered"):
        two.b.deregister_memory(areas[1].reg)


def test_more_uses_than_there_are():
    """Nothing is deregistered then."""
    agent = nixl_agent("A")
    area = Area(agent, 4096)
    agent.register_memory(area.reg)
    rows = np.array([[area.base, area.size, 0]] * 3, np.uint64)
    with pytest.raises(nixlNotFoundError, match="once for each registration"):
        agent.deregister_memory(agent.get_reg_descs(rows, "DRAM"))
    agent.deregister_memory(agent.get_reg_descs(rows[:2], "DRAM"))
    with pytest.raises(nixlNotFoundError):
        agent.deregister_memory(area.reg)


# ---- Other threads


def test_no_other_call_waits_meanwhile(two):
    more = Area(two.a)
    waiting = enter(two.a, more, Waiting)
    ours = two.a.get_xfer_descs([two.ours.at(0, 64)], "DRAM")
    theirs = two.a.get_xfer_descs([two.theirs.at(0, 64)], "DRAM")
    calls = [
        lambda: two.a.send_notif("B", b"x"),
        lambda: two.a.prep_xfer_dlist("", ours),
        lambda: two.a.get_agent_metadata(),
        lambda: run(two.a, two.a.initialize_xfer("WRITE", ours, theirs, "B")),
        lambda: two.a.deregister_memory(two.a.register_memory(joined(two.theirs), "DRAM")),
    ]
    with ThreadPoolExecutor(len(calls) + 1) as executor:
        ending = executor.submit(two.a.deregister_memory, more.reg)
        try:
            assert waiting.begun.wait(30)
            for call in [executor.submit(call) for call in calls]:
                call.result(20)
            assert not ending.done()
        finally:
            waiting.go.set()
        ending.result(20)
    assert 0 < waiting.timeout <= two.a._core._timeout


def test_memory_is_registered_again_meanwhile(two):
    area = Area(two.b)
    waiting = enter(two.b, area, Waiting)
    with ThreadPoolExecutor(2) as executor:
        ending = executor.submit(two.b.deregister_memory, area.reg)
        try:
            assert waiting.begun.wait(30)
            executor.submit(two.b.register_memory, area.reg).result(20)
            write(two, area)
        finally:
            waiting.go.set()
        ending.result(20)
    write(two, area)
    two.b.deregister_memory(area.reg)
    with pytest.raises(nixlNotFoundError, match="not registered"):
        two.b.deregister_memory(area.reg)


# ---- Posts of other threads


def test_a_post_that_began_before_is_stopped(two, monkeypatch):
    made = two.transfer(count=16, length=64)
    until(lambda: two.a._core.remote("B").calls.idle, "the link")
    source = two.ours.bytes[: 16 * 64].copy()

    def deregister():
        two.a.deregister_memory(two.ours.reg)
        two.ours.bytes[:] = CANARY  # the application uses its memory for something else now

    assert post_beside(monkeypatch, deregister, lambda: two.a.transfer(made)) == "DONE"
    assert (two.theirs.bytes[: 16 * 64] == source).all()


def test_a_post_that_begins_later_fails(two):
    made = two.transfer()
    until(lambda: two.a._core.remote("B").calls.idle, "the link")
    waiting = enter(two.a, two.ours, Waiting)
    with ThreadPoolExecutor(1) as executor:
        ending = executor.submit(two.a.deregister_memory, two.ours.reg)
        try:
            assert waiting.begun.wait(30)
            with pytest.raises(nixlNotFoundError, match="deregistered"):
                two.a.transfer(made)
            assert two.a._core.active == {}
        finally:
            waiting.go.set()
        ending.result(20)
    assert not two.theirs.bytes.any()


def test_posts_go_on_after_a_deregistration_that_could_not_begin(two, monkeypatch):
    made, other = two.transfer(), two.transfer()
    two.a._core.active[0] = other.transfer  # as if it was in flight
    with monkeypatch.context() as patch:
        why = nixlRepostActiveError("it cannot be cancelled")
        patch.setattr(transfers.Transfer, "stop", lambda _: throw(why))
        with pytest.raises(nixlRepostActiveError):
            two.a.deregister_memory(two.ours.reg)
    del two.a._core.active[0]
    run(two.a, made)
    two.a.deregister_memory(two.ours.reg)
    with pytest.raises(nixlNotFoundError, match="deregistered"):
        two.a.transfer(made)


def throw(failure):
    raise failure
