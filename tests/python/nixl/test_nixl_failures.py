# SPDX-License-Identifier: Apache-2.0
"""Transfers that have failed: each check raises the failure, and nothing is left of them."""

import gc
import threading
import traceback
import weakref

import pytest
from agents import finish, until
from onehop.nixl import inbox
from onehop.nixl.bindings import nixlNotFoundError, nixlRemoteDisconnectError
from onehop.nixl.deferred import NotYet


@pytest.fixture(autouse=True)
def _no_thread_and_no_collector(monkeypatch):
    monkeypatch.setattr(inbox.Inbox, "_listen", lambda *_: None)
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def raised(call):
    """Return the class, the text, the cause's text and the traceback's depth of a failure."""
    try:
        call()
    except Exception as failure:
        depth = len(list(traceback.walk_tb(failure.__traceback__)))
        return type(failure), str(failure), str(failure.__cause__), depth
    return None


def at_once(two):
    made = two.transfer()
    until(lambda: two.a._core.remote("B").calls.idle, "the link")
    two.b.deregister_memory(two.theirs.reg)
    with pytest.raises(nixlNotFoundError):
        two.a.transfer(made)
    return made, two.a.check_xfer_state


def in_flight(two):
    made = two.transfer(count=16, length=1 << 16)
    until(lambda: two.a._core.remote("B").calls.idle, "the link")
    assert two.a.transfer(made) == "PROC"
    two.b.deregister_memory(two.theirs.reg)
    with pytest.raises(nixlNotFoundError):
        finish(two.a, made)
    return made, two.a.check_xfer_state


def not_prepared(two):
    made = two.transfer()

    def call(wait):
        if not wait:
            raise NotYet
        try:
            raise OSError("no answer")
        except OSError as failure:
            transfer = made.transfer  # the frame refers to it, as that of prepare() does
            raise nixlRemoteDisconnectError(f"reach {transfer.agent.name}") from failure

    calls = two.a._core.remote("B").calls
    hold(calls, lambda: calls.run(call, made.transfer.unprepared))
    return made, two.a.transfer


def in_its_turn(two):
    made = two.transfer()

    def post_and_remove():
        assert two.a.transfer(made) == "PROC"
        two.a.remove_remote_agent("B")

    hold(two.a._core.remote("B").calls, post_and_remove)
    return made, two.a.check_xfer_state


def hold(calls, meanwhile):
    """Call `meanwhile` while another call is first in the queue."""
    go = threading.Event()

    def wait_for_it(wait):
        if not wait:
            raise NotYet
        assert go.wait(30)

    calls.run(wait_for_it, print)
    meanwhile()
    go.set()
    until(lambda: calls.idle, "the end of the calls")


@pytest.mark.parametrize("fail", [at_once, in_flight, not_prepared, in_its_turn])
def test_a_failure_is_raised_anew_and_keeps_nothing(two, fail):
    made, check = fail(two)
    failures = {raised(lambda: check(made)) for _ in range(100)}
    assert len(failures) == 1
    assert None not in failures
    two.a.release_xfer_handle(made)
    transfer = weakref.ref(made.transfer)
    made = None
    assert transfer() is None
