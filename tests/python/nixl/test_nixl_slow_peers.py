# SPDX-License-Identifier: Apache-2.0
"""Peers that stand still: no call of an engine's loop waits for them."""

import gc
import logging
import os
import signal
import time
from contextlib import contextmanager

import numpy as np
import pytest
from agents import Area, notes, run, run_two, until
from onehop.nixl import outbox
from onehop.nixl.bindings import (
    nixlBackendError,
    nixlCancelledError,
    nixlNotFoundError,
    nixlRemoteDisconnectError,
    nixlRepostActiveError,
)
from processes import stop

SIZE = 1 << 20
OLD, NEW = 11, 22


def target(side, *_):
    """Own memory, and tell what has come, when the other side asks."""
    area = Area(side.agent, SIZE, OLD)
    side.give((side.agent.get_agent_metadata(), area.base, os.getpid()))
    while (count := side.take()) != "end":
        found = notes(side.agent, count) if count else side.agent.get_new_notifs()
        side.give((found, np.unique(area.bytes).tolist()))


class Caller:
    """The other side: it knows the agent "B" and has not connected yet."""

    def __init__(self, side) -> None:
        self.side, self.agent = side, side.agent
        metadata, self.base, self.pid = side.take()
        self.name = self.agent.add_remote_agent(metadata)
        self.area = Area(self.agent, SIZE, NEW)

    def make(self, operation="WRITE", notif=b""):
        local = self.agent.get_xfer_descs([self.area.at(0, SIZE)], "DRAM")
        remote = self.agent.get_xfer_descs([(self.base, SIZE, 0)], "DRAM")
        return self.agent.initialize_xfer(operation, local, remote, self.name, notif)

    @contextmanager
    def stopped(self):
        stop(self.pid)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def ask(self, count=0):
        """Return what has come at the other side: notifications, and the values in its memory."""
        self.side.give(count)
        return self.side.take()

    def fails(self, made, error):
        """Wait until a transfer fails; it raises this error from then on."""

        def failed():
            try:
                return self.agent.check_xfer_state(made) != "PROC"
            except error:
                return True

        until(failed, "the failure")
        with pytest.raises(error):
            self.agent.check_xfer_state(made)


# ---- Before there is a link


def start_on_the_stopped(side, operation):
    it = Caller(side)
    with it.stopped():
        made = it.make(operation, b"first")
        again = it.make(operation, b"second")
        assert it.agent.transfer(made) == "PROC"
        assert it.agent.check_xfer_state(made) == "PROC"
        with pytest.raises(nixlRepostActiveError):
            it.agent.transfer(made)
        it.agent.send_notif(it.name, b"third")
        assert it.agent.transfer(again) == "PROC"
    for one in (made, again):
        until(lambda one=one: it.agent.check_xfer_state(one) == "DONE", "the end")
    found, values = it.ask(3)
    assert found["A"] == [b"first", b"third", b"second"]
    assert values == ([NEW] if operation == "WRITE" else [OLD])
    assert np.unique(it.area.bytes).tolist() == values
    run(it.agent, made)
    side.give("end")


@pytest.mark.parametrize("operation", ["WRITE", "READ"])
def test_what_is_posted_to_it_begins_when_it_goes_on(operation):
    run_two(start_on_the_stopped, target, operation)


def end_before_it_goes_on(side, how):
    it = Caller(side)
    with it.stopped():
        made = it.make(notif=b"never")
        assert it.agent.transfer(made) == "PROC"
        if how == "release":
            it.agent.release_xfer_handle(made)
        elif how == "drop":
            del made
            gc.collect()
        elif how == "deregister":
            it.agent.deregister_memory(it.area.reg)
            it.fails(made, nixlCancelledError)
        elif how == "remove":
            it.agent.remove_remote_agent(it.name)
    if how == "remove":
        it.fails(made, nixlNotFoundError)
    else:
        it.agent.send_notif(it.name, b"behind it")
        found, values = it.ask(1)
        assert (found, values) == ({"A": [b"behind it"]}, [OLD])
        assert it.agent._core.active == {} or until(
            lambda: it.agent.get_new_notifs() == {} and not it.agent._core.active
        )
    side.give("end")


@pytest.mark.parametrize("how", ["release", "drop", "deregister", "remove"])
def test_what_has_not_begun_can_be_ended(how):
    run_two(end_before_it_goes_on, target, how)


def kill_the_stopped(side):
    it = Caller(side)
    stop(it.pid)
    made = it.make()
    assert it.agent.transfer(made) == "PROC"
    os.kill(it.pid, signal.SIGKILL)
    it.fails(made, nixlRemoteDisconnectError)
    it.agent.release_xfer_handle(made)


def test_one_that_dies_before_it_goes_on():
    run_two(kill_the_stopped, target, killed=(1,))


def time_out_on_the_stopped(side):
    it = Caller(side)
    it.agent._core.remote(it.name.decode()).within = {"timeout": 1.0}
    with it.stopped():
        made = [it.make() for _ in range(4)]
        for one in made:
            assert it.agent.transfer(one) == "PROC"
        begin = time.monotonic()
        for one in made:
            it.fails(one, nixlBackendError)
        assert time.monotonic() - begin < 3.0
    run(it.agent, it.make())
    side.give("end")


def test_one_that_does_not_answer_fails_all_that_waits_for_it_at_once():
    run_two(time_out_on_the_stopped, target)


# ---- Over a link


class Records(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def lose_notifications(side):
    it = Caller(side)
    records = Records()
    logging.getLogger("onehop.nixl").addHandler(records)
    it.agent.make_connection(it.name)
    stop(it.pid)
    for _ in range(500):
        it.agent.send_notif(it.name, b"x" * 1000)
    os.kill(it.pid, signal.SIGKILL)
    until(lambda: not it.agent.check_remote_metadata(it.name), "the loss")
    found = [text for text in records.texts if "were lost with its link" in text]
    assert len(found) == 1
    assert 0 < int(found[0].split()[0]) < 500


def test_notifications_that_are_lost_with_a_peer_are_logged():
    run_two(lose_notifications, target, killed=(1,))


def flood_the_stopped(side, count):
    it = Caller(side)
    it.agent.send_notif(it.name, b"first")
    it.ask(1)
    sent = [b"%d" % number * (1 + number % 700) for number in range(count)]
    with it.stopped():
        for message in sent:
            it.agent.send_notif(it.name, message)
    found, _ = it.ask(count)
    assert found == {"A": sent}
    side.give("end")


def test_notifications_wait_for_room_without_their_sender():
    run_two(flood_the_stopped, target, 2000)


def send_and_remove(side):
    it = Caller(side)
    it.agent.make_connection(it.name)
    with it.stopped():
        for _ in range(500):
            it.agent.send_notif(it.name, b"x" * 1000)
        it.agent.remove_remote_agent(it.name)
    until(lambda: it.agent.get_new_notifs() == {} and not it.agent._core._retired)
    found, _ = it.ask(500)
    assert len(found["A"]) == 500
    side.give("end")


def test_notifications_reach_an_agent_that_was_removed_behind_them():
    run_two(send_and_remove, target)


def send_until_it_fails(it):
    for sent in range(1000):
        try:
            it.agent.send_notif(it.name, b"x" * 100_000)
        except nixlBackendError as failure:
            return sent, str(failure)
    raise AssertionError


def flood_over_the_limit(side):
    it = Caller(side)
    it.agent.make_connection(it.name)
    outbox._UNSENT_MAX = 1 << 20
    with it.stopped():
        sent, failure = send_until_it_fails(it)
    assert failure.startswith("send a notification of 100000 bytes to agent 'B': the deadline")
    assert len(it.ask(sent)[0]["A"]) == sent
    it.agent.send_notif(it.name, b"again")
    assert it.ask(1)[0] == {"A": [b"again"]}
    side.give("end")


def test_a_sender_waits_for_room_when_too_many_are_on_their_way(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "1")
    run_two(flood_over_the_limit, target)
