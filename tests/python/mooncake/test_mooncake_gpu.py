# SPDX-License-Identifier: Apache-2.0
"""GPU memory between engines, on the fake driver: its device is known by the pointer."""

import numpy as np
import pytest
from fake_gpu import Driver
from mooncake_engines import HOST, pattern, run_two
from onehop.mooncake import TransferEngine
from onehop.mooncake.pointers import device_of

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZE = 1 << 18
BLOCK = 1 << 12


def start():
    made = TransferEngine()
    assert made.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0
    return made, f"{HOST}:{made.get_rpc_port()}"


def areas(made, seed):
    """Return memory of two GPUs and of the host, registered."""
    drivers, gpus = [], []
    for device in (0, 1):
        drivers.append(Driver(device))  # its context is the current one
        gpus.append(drivers[-1].allocate(pattern(seed + device, SIZE).tobytes()))
    host = pattern(seed + 2, SIZE)
    assert [device_of(gpu) for gpu in gpus] == [0, 1]
    assert device_of(gpus[1] + SIZE - 1) == 1
    assert device_of(host.ctypes.data) == -1
    bases = [*gpus, host.ctypes.data]
    assert made.batch_register_memory(bases, [SIZE] * 3) == 0
    return drivers, host, bases


def content(drivers, host, bases):
    return [d.read(b, SIZE) for d, b in zip(drivers, bases, strict=False)] + [host.tobytes()]


def own(other):
    assert device_of(np.zeros(8, "u1").ctypes.data) == -1  # no driver is loaded yet
    made, session = start()
    drivers, host, bases = areas(made, 10)
    other.give((session, bases))
    assert other.take() == "written"
    found = content(drivers, host, bases)
    other.give("looked")
    assert other.take() == "read"
    assert made.batch_unregister_memory(bases) == 0
    other.give("gone")
    return [one == pattern(20 + i, SIZE).tobytes() for i, one in enumerate(found)]


def use(other):
    made, _ = start()
    drivers, host, bases = areas(made, 20)
    session, theirs = other.take()
    # Memory of both GPUs and of the host in one batch, block by block in any order.
    order = np.random.default_rng(1).permutation(3 * SIZE // BLOCK)
    local = [bases[i * BLOCK // SIZE] + i * BLOCK % SIZE for i in order.tolist()]
    remote = [theirs[i * BLOCK // SIZE] + i * BLOCK % SIZE for i in order.tolist()]
    lengths = [BLOCK] * len(order)
    assert made.batch_transfer_sync_write(session, local, remote, lengths) == 0
    other.give("written")
    assert other.take() == "looked"
    # From their GPU 1 into our GPU 0, and into the host's memory.
    for target in (bases[0], bases[2]):
        assert made.transfer_sync_read(session, target, theirs[1], SIZE) == 0
    found = content(drivers, host, bases)
    assert found == [pattern(21, SIZE).tobytes()] * 3
    # Beyond its end, and memory that was never allocated.
    assert made.transfer_sync_read(session, bases[0], theirs[1] + SIZE - 8, 16) == -1
    assert made.register_memory(bases[1] + SIZE - 8, 1 << 40) < 0
    other.give("read")
    assert other.take() == "gone"
    assert made.transfer_sync_write(session, bases[0], theirs[0], SIZE) == -1
    assert made.batch_unregister_memory(bases) == 0
    return True


def test_devices_of_two_processes():
    assert run_two(use, own) == [True, [True, True, True]]


def test_through_the_host(monkeypatch):
    monkeypatch.setenv("ONEHOP_CUDA_IPC", "off")
    assert run_two(use, own) == [True, [True, True, True]]
