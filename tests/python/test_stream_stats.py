# SPDX-License-Identifier: Apache-2.0
"""A peer's counters of operations of streams, on the fake driver: two processes, a GPU each."""

import time

import pytest
from fake_gpu import CudaArray, Driver
from onehop.records import Counter
from processes import DEADLINE, run_pair

pytestmark = pytest.mark.usefixtures("fake_gpus")
LARGE = 5_000_000
SMALL = 9
ROOM = 10


def send_until_put(side):
    driver = Driver(side.number)
    stream = driver.stream()
    on = side.peer.on(stream)
    large, small = CudaArray(driver, bytes(LARGE)), CudaArray(driver, bytes(SMALL))
    sent = 0
    # The receive's memory is mapped soon after it was told of.
    end = time.monotonic() + DEADLINE / 2
    while side.peer.stats().stream_put < 2:
        assert time.monotonic() < end, "no message was put"
        side.give("more")
        on.send(large)
        on.send(small, lane=5)
        driver.synchronize(stream)
        sent += 1
    side.give("done")
    stats = side.peer.stats()
    assert stats.stream_put + stats.stream_staged == sent
    assert stats.sent["nvlink"] == Counter(2 * sent, (LARGE + SMALL) * sent)
    assert "nvlink" not in stats.received


def receive(side):
    driver = Driver(side.number)
    stream = driver.stream()
    on = side.peer.on(stream)
    large, small = CudaArray(driver, bytes(LARGE)), CudaArray(driver, bytes(ROOM))
    came = 0
    while side.take() == "more":
        on.recv(large)
        on.recv(small, lane=5)
        driver.synchronize(stream)
        came += 1
    stats = side.peer.stats()
    assert stats.received["nvlink"] == Counter(2 * came, (LARGE + ROOM) * came)
    assert (stats.stream_put, stats.stream_staged) == (0, 0)


def test_streams_are_counted():
    run_pair(send_until_put, receive, devices=(0, 1))
