# SPDX-License-Identifier: Apache-2.0
"""Engines of tests, with memory; in one process, or in processes of their own."""

from __future__ import annotations

import time

import numpy as np
from onehop.mooncake import TransferEngine
from processes import DEADLINE, Group, Meeting, _spawn

HOST = "127.0.0.1"
SIZE = 1 << 20


def until(condition, what="it"):
    """Wait until a condition holds; return its value."""
    end = time.monotonic() + DEADLINE / 2
    while not (value := condition()):
        assert time.monotonic() < end, f"{what} did not come"
        time.sleep(0.0005)
    return value


def pattern(seed, size=SIZE):
    return np.random.default_rng(seed).integers(0, 256, size, dtype="u1")


class Engine:
    """An engine as SGLang makes it, and host memory that it has registered."""

    def __init__(self, content=None) -> None:
        self.engine = TransferEngine()
        assert self.engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0
        self.session = f"{HOST}:{self.engine.get_rpc_port()}"
        self.bytes = np.zeros(SIZE, "u1") if content is None else content
        self.base = self.bytes.ctypes.data
        assert self.engine.register_memory(self.base, len(self.bytes)) == 0

    def write(self, session, local, remote, length):
        return self.engine.transfer_sync_write(session, local, remote, length)

    def read(self, session, local, remote, length):
        return self.engine.transfer_sync_read(session, local, remote, length)


def _run_side(pipe, function, arguments):
    return function(Meeting(pipe), *arguments)


def start_two(group, first, second, *arguments):
    """Start two processes; each gets a Meeting with the other."""
    for pipe, function in zip(_spawn.Pipe(), (first, second), strict=True):
        group.start(_run_side, pipe, function, arguments)
        pipe.close()


def run_two(first, second, *arguments, killed=()):
    """Run two processes; return their results."""
    group = Group()
    start_two(group, first, second, *arguments)
    return group.join(killed=killed)
