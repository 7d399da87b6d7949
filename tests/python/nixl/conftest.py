# SPDX-License-Identifier: Apache-2.0
"""Two agents of this process, of which "A" knows "B"; and how two processes are joined."""

import numpy as np
import pytest
from agents import Area
from onehop.nixl import nixl_agent


class Two:
    def __init__(self) -> None:
        self.a, self.b = nixl_agent("A"), nixl_agent("B")
        self.ours, self.theirs = Area(self.a), Area(self.b)
        self.ours.bytes[:] = range_bytes(len(self.ours.bytes))
        assert self.a.add_remote_agent(self.b.get_agent_metadata()) == b"B"

    def sides(self, count=16, length=64):
        local = self.a.prep_xfer_dlist("", self.ours.blocks(count, length), "DRAM")
        remote = self.a.prep_xfer_dlist("B", self.theirs.blocks(count, length), "DRAM")
        return local, remote

    def transfer(self, operation="WRITE", notif=b"", count=16, length=64):
        local, remote = self.sides(count, length)
        numbers = list(range(count))
        return self.a.make_prepped_xfer(operation, local, numbers, remote, numbers, notif)


def range_bytes(size):
    return np.random.default_rng(size).integers(0, 256, size, dtype="u1")


@pytest.fixture
def two():
    return Two()
