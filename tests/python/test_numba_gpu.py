# SPDX-License-Identifier: Apache-2.0
"""onehop.numba on real GPUs; both sides share the only one."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_pair

cuda = pytest.importorskip("numba.cuda")
np = pytest.importorskip("numpy")
COUNT = len(cuda.gpus) if cuda.is_available() else 0
pytestmark = pytest.mark.skipif(
    COUNT < 1 or "ONEHOP_CUDA_LIBRARY" in os.environ, reason="needs a GPU and numba-cuda"
)
oh = pytest.importorskip("onehop.numba") if COUNT else None
kernels = importlib.import_module("numba_kernels") if COUNT else None

EXAMPLE = Path(__file__).parents[2] / "examples" / "numba_exchange.py"
GPUS = ("cuda:0", f"cuda:{1 % COUNT}" if COUNT else "")
LANE = 6
# A GPU that is shared changes between the processes at each turn.
STEPS = 200 if COUNT > 1 else 20
OK, RANGE, TIMEOUT = 0, 2, 3  # oh_lane_fault


def begin(side):
    cuda.select_device(side.number % COUNT)
    fault = cuda.to_device(np.zeros(1, np.int32))
    side.peer.warmup(timeout=30)
    return oh.to_device(side.peer.device_handle(LANE)), fault


def map_memory(side, size):
    """Return memory of ours, where the peer's is, and what ends both."""
    here = cuda.to_device(np.zeros(size, np.uint8))
    region = side.endpoint.register(here)
    side.give(region.descriptor)
    remote = side.peer.attach(side.take(), timeout=30)

    def leave():
        side.sync()
        remote.detach()
        side.sync()
        region.deregister(timeout=30)

    return here, remote.device_memory(), leave


def exchange(side, size):
    lane, fault = begin(side)
    out, into = (cuda.device_array(size, np.uint8) for _ in range(2))
    for threads in (32, 256):
        kernels.exchange[1, threads](lane, side.number, out, into, STEPS, fault)
        assert fault.copy_to_host()[0] == OK, threads
    side.sync()
    assert side.peer.async_error() is None


@pytest.mark.parametrize("size", [5000, 1_000_000])
def test_messages_in_turns(size):
    run_pair(exchange, exchange, size, devices=GPUS)


def put_and_get(side):
    lane, fault = begin(side)
    size = 100_003
    here, there, leave = map_memory(side, size)
    if side.number == 0:
        out, back = (cuda.device_array(size - 16, np.uint8) for _ in range(2))
        kernels.put_rounds[1, 256](lane, there, out, back, STEPS, fault)
    else:
        kernels.look_at_rounds[1, 128](lane, here, STEPS, fault)
    assert fault.copy_to_host()[0] == OK
    leave()


def test_puts_gets_and_every_signal():
    run_pair(put_and_get, put_and_get, devices=GPUS)


def be_refused(side):
    lane, fault = begin(side)
    _, there, leave = map_memory(side, 4096)
    faults = cuda.to_device(np.full(6, -1, np.int64))
    kernels.refused[1, 64](lane, there, cuda.device_array(64, np.uint8), faults)
    assert faults.copy_to_host().tolist() == [RANGE] * 5 + [OK]
    if side.number == 0:
        kernels.wait_alone[1, 64](lane, fault)
        assert fault.copy_to_host()[0] == TIMEOUT
    leave()


def test_what_is_refused_and_a_wait_that_ends(monkeypatch):
    monkeypatch.setenv("ONEHOP_TIMEOUT", "10")  # the sides have as long to meet
    run_pair(be_refused, be_refused, devices=GPUS)


def test_the_example():
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("all right") == 2, done.stdout
