# SPDX-License-Identifier: Apache-2.0
"""GPU memory between agents, on the fake driver: an endpoint for each device that is used."""

import logging

import numpy as np
import pytest
from agents import finish, notes, run, run_two
from fake_gpu import Driver
from onehop.nixl.bindings import nixlNotFoundError

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZE = 1 << 18
BLOCK = 1 << 12


def pattern(seed):
    return np.random.default_rng(seed).bytes(SIZE)


class GpuArea:
    def __init__(self, agent, device, seed) -> None:
        self.driver, self.device = Driver(device), device
        self.base = self.driver.allocate(pattern(seed))
        self.reg = agent.register_memory([(self.base, SIZE, device, "")], "VRAM")

    def bytes(self):
        return self.driver.read(self.base, SIZE)


def rows(area):
    made = np.zeros((SIZE // BLOCK, 3), np.uint64)
    made[:, 0] = area.base + np.arange(len(made), dtype=np.uint64) * np.uint64(BLOCK)
    made[:, 1], made[:, 2] = BLOCK, area.device
    return made


def own(side):
    areas = [GpuArea(side.agent, device, device) for device in (0, 1)]
    side.give((side.agent.get_agent_metadata(), [rows(area) for area in areas]))
    assert notes(side.agent, 1) == {"A": [b"written"]}
    found = [area.bytes() == pattern(10 + area.device) for area in areas]
    side.sync()
    assert notes(side.agent, 1) == {"A": [b"read"]}
    side.sync()
    for area in areas:
        side.agent.deregister_memory(area.reg)
    side.sync()
    side.sync()
    return found


def use(side):
    agent = side.agent
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("onehop.nixl").addHandler(handler)
    logging.getLogger("onehop.nixl").setLevel(logging.INFO)
    areas = [GpuArea(agent, device, 10 + device) for device in (0, 1)]
    host = np.zeros(SIZE, "u1")
    agent.register_memory([(host.ctypes.data, SIZE, 0, "")], "DRAM")
    metadata, theirs = side.take()
    name = agent.add_remote_agent(metadata)
    # Both devices in one transfer: several links, one notification behind all.
    ours = np.concatenate([rows(area) for area in areas])
    local = agent.prep_xfer_dlist("", ours, "VRAM")
    remote = agent.prep_xfer_dlist(name, np.concatenate(theirs), "VRAM")
    numbers = np.arange(len(ours))
    write = agent.make_prepped_xfer("WRITE", local, numbers, remote, numbers, b"written")
    agent.transfer(write)
    finish(agent, write)
    side.sync()
    # From the other's GPU into host memory.
    blocks = np.zeros((SIZE // BLOCK, 3), np.uint64)
    blocks[:, 0] = host.ctypes.data + np.arange(len(blocks), dtype=np.uint64) * np.uint64(BLOCK)
    blocks[:, 1] = BLOCK
    lists = agent.get_xfer_descs(blocks, "DRAM"), agent.get_xfer_descs(theirs[1], "VRAM")
    read = agent.initialize_xfer("READ", *lists, name, b"read")
    agent.transfer(read)
    finish(agent, read)
    assert host.tobytes() == pattern(11)
    side.sync()
    side.sync()
    with pytest.raises(nixlNotFoundError, match="deregistered"):
        run(agent, write)
    agent.release_xfer_handle(write)
    with pytest.raises(nixlNotFoundError, match="VRAM_SEG device 7"):
        agent.prep_xfer_dlist("", [(areas[0].base, 8, 7)], "VRAM")
    with pytest.raises(Exception, match="GPU 7") as caught:
        agent.register_memory([(areas[0].base, 8, 7, "")], "VRAM")
    assert type(caught.value).__name__.startswith("nixl")
    links = {(here, there) for here, there, _, _ in agent.explain(name).links}
    side.sync()
    return links, lines


def test_devices_of_two_processes():
    (links, lines), found = run_two(use, own)
    assert found == [True, True]
    assert links == {("GPU 0", "GPU 0"), ("GPU 1", "GPU 1"), ("host", "GPU 1")}
    assert sum("goes by cuda_ipc" in line for line in lines) == 2


def test_through_the_host_is_a_warning(monkeypatch):
    monkeypatch.setenv("ONEHOP_CUDA_IPC", "off")
    (_, lines), found = run_two(use, own)
    assert found == [True, True]
    assert any("travels through the host" in line for line in lines)
