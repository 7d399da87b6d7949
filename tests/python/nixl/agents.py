# SPDX-License-Identifier: Apache-2.0
"""Agents of tests, with memory; in one process, or in processes of their own."""

from __future__ import annotations

import time

import numpy as np
from onehop.nixl import nixl_agent, nixl_agent_config
from processes import DEADLINE, Group, Meeting, _spawn

SIZE = 1 << 20


class Area:
    """Host memory that an agent has registered."""

    def __init__(self, agent, size=SIZE, fill=0) -> None:
        self.bytes = np.full(size, fill, "u1")
        self.base = self.bytes.ctypes.data
        self.size = size
        self.reg = agent.register_memory([(self.base, size, 0, "")], "DRAM")

    def at(self, offset, length):
        return (self.base + offset, length, 0)

    def blocks(self, count, length):
        """Return an N x 3 array of blocks, one behind the other."""
        rows = np.zeros((count, 3), np.uint64)
        rows[:, 0] = self.base + np.arange(count, dtype=np.uint64) * np.uint64(length)
        rows[:, 1] = length
        return rows


def until(condition, what="it"):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + DEADLINE / 2
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.0005)
    return value


def finish(agent, handle):
    """Wait for the end of a transfer that was posted."""
    until(lambda: agent.check_xfer_state(handle) == "DONE", "the end of the transfer")


def run(agent, handle, notif=b""):
    """Post a transfer and wait for its end."""
    assert agent.transfer(handle, notif) in ("DONE", "PROC")
    finish(agent, handle)


def notes(agent, count):
    """Wait for so many notifications; return them by sender."""
    found = {}

    def enough():
        for name, messages in agent.get_new_notifs().items():
            found.setdefault(name, []).extend(messages)
        return sum(map(len, found.values())) >= count

    until(enough, f"{count} notifications")
    return found


class Side(Meeting):
    """One of two processes, with an agent."""

    def __init__(self, name, pipe, **config) -> None:
        super().__init__(pipe)
        self.agent = nixl_agent(name, nixl_agent_config(**config))


def _run_side(name, pipe, function, arguments):
    return function(Side(name, pipe), *arguments)


def start_two(group, first, second, *arguments):
    """Start two processes with the agents "A" and "B"."""
    pipes = _spawn.Pipe()
    for name, pipe, function in zip("AB", pipes, (first, second), strict=True):
        group.start(_run_side, name, pipe, function, arguments)
        pipe.close()


def run_two(first, second, *arguments, killed=()):
    """Run two processes with the agents "A" and "B"; return their results."""
    group = Group()
    start_two(group, first, second, *arguments)
    return group.join(killed=killed)
