# SPDX-License-Identifier: Apache-2.0
"""Agents that end where a lock of theirs is held: in a thread of their own, and after fork()."""

import gc
import threading
import weakref

from agents import until
from onehop.nixl import inbox, nixl_agent
from processes import exit_in_child_beside, run_alone


def end_in_the_listening_thread():
    gc.disable()
    a, b = nixl_agent("A"), nixl_agent("B")
    a.add_remote_agent(b.get_agent_metadata())
    a.make_connection("B")
    core = weakref.ref(b._core)
    sort, collected = inbox.Inbox._sort, threading.Event()

    def sort_and_collect(self, *arguments):
        sort(self, *arguments)
        gc.collect()  # as if it was due now
        collected.set()

    b._core.itself = b._core  # only the collector ends it
    b = None
    inbox.Inbox._sort = sort_and_collect
    a.send_notif("B", b"x")
    assert collected.wait(20)
    until(lambda: not a.check_remote_metadata("B"), "the end of B")
    return core() is None


def test_an_agent_that_its_listening_thread_collects():
    assert run_alone(end_in_the_listening_thread)


def end_after_fork():
    agent = nixl_agent("A")
    locks = agent._core.inbox._lock, agent._core.memory._lock

    def let_go():
        nonlocal agent
        core = weakref.ref(agent._core)
        del agent
        gc.collect()
        return core() is not None

    return exit_in_child_beside(locks, let_go)


def test_an_agent_that_a_child_of_fork_lets_go():
    assert run_alone(end_after_fork) == 0
