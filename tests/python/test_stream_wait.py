# SPDX-License-Identifier: Apache-2.0
"""Request.stream_wait and wait_enqueued: streams that wait for requests, on the fake driver."""

import ctypes
import signal
import threading
import time

import fake_gpu
import onehop
import pytest
from fake_gpu import CudaArray, Driver, c_uint64, c_void_p
from processes import DEADLINE, LocalPair, finish, run_alone, run_pair

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZE = 5000
NOT_READY = 600
SENT = bytes(range(250)) * (SIZE // 250)


class Behind:
    """A stream that waits for a request, and then copies what was received."""

    def __init__(self, driver, request, array, make=int, *, enqueued=False):
        self.driver, self.stream = driver, driver.stream()
        self.copy = CudaArray(driver, bytes(SIZE))
        if enqueued:
            request.wait_enqueued(make(self.stream), timeout=DEADLINE / 2)
        else:
            request.stream_wait(make(self.stream))
        places = (c_uint64(self.copy.address), c_uint64(array.address))
        driver.call("cuMemcpyAsync", *places, ctypes.c_size_t(SIZE), c_void_p(self.stream))

    @property
    def waits(self):
        code = self.driver.library.cuStreamQuery(c_void_p(self.stream))
        assert code in (0, NOT_READY), code
        return code == NOT_READY

    def copied(self):
        """Wait, bounded, until the stream has gone on; return its copy."""
        end = time.monotonic() + DEADLINE / 2
        while self.waits:
            assert time.monotonic() < end, "the stream does not go on"
            time.sleep(0.001)
        return self.copy.bytes()


def wait_with_every_stream():
    driver = Driver()
    pair = LocalPair(0, 0)
    for make in fake_gpu.STREAMS:
        array = CudaArray(driver, bytes(SIZE))
        receive = pair.second.irecv(array)
        behind = [Behind(driver, receive, array, make) for _ in range(2)]
        # Nothing was sent: the call has returned, and the streams stand still.
        assert not receive.done
        assert all(each.waits for each in behind)
        finish(pair.first.isend(CudaArray(driver, SENT)))
        assert [each.copied() for each in behind] == [SENT, SENT]
        assert receive.test()
        # One that has ended holds nothing up.
        assert Behind(driver, receive, array, make).copied() == SENT


def test_streams_go_on_once_the_message_is_there():
    run_alone(wait_with_every_stream)


def receive_behind_streams(side):
    driver = Driver(side.number)
    arrays = [CudaArray(driver, bytes(SIZE)) for _ in range(50)]
    # The requests are dropped: the streams hear of their ends all the same.
    behind = [
        Behind(driver, side.peer.irecv(array, tag), array) for tag, array in enumerate(arrays)
    ]
    assert all(each.waits for each in behind)
    side.sync()
    assert [each.copied() for each in behind] == [SENT] * len(arrays)


def send_in_reverse(side):
    array = CudaArray(Driver(side.number), SENT)
    side.sync()
    for tag in reversed(range(50)):
        side.peer.send(array, tag, timeout=DEADLINE / 2)


@pytest.mark.parametrize("devices", [(0, 1), (1, 1)])
def test_another_process_lets_them_go(devices):
    run_pair(send_in_reverse, receive_behind_streams, devices=devices)


def wait_for_failures():
    driver = Driver()
    pair = LocalPair(0, 0)
    array = CudaArray(driver, bytes(SIZE))

    cancelled = pair.second.irecv(array)
    behind = Behind(driver, cancelled, array)
    assert cancelled.cancel()
    behind.copied()
    with pytest.raises(onehop.OperationError) as failure:
        cancelled.test()
    assert failure.value.status == onehop.Status.CANCELLED

    late = pair.second.irecv(array)
    behind = Behind(driver, late, array)
    with pytest.raises(onehop.TimeoutError):
        late.wait(0.01)
    behind.copied()

    closed = pair.second.irecv(array)
    behind = Behind(driver, closed, array)
    pair.endpoints[1].close()
    behind.copied()
    assert closed.done


def test_streams_go_on_however_it_ends():
    run_alone(wait_for_failures)


def wait_wrongly():
    driver = Driver()
    pair = LocalPair(0, 0)
    receive = pair.second.irecv(CudaArray(driver, bytes(SIZE)))
    stream = driver.stream()
    with driver.capture(stream), pytest.raises(onehop.InvalidArgument, match="captured"):
        receive.stream_wait(stream)
    with driver.capture(stream), pytest.raises(onehop.InvalidArgument, match="captured"):
        receive.wait_enqueued(stream)
    for wait in (receive.stream_wait, receive.wait_enqueued):
        with pytest.raises(onehop.InvalidType):
            wait("a stream")
    assert receive.cancel()
    host = LocalPair()
    receive = host.second.irecv(bytearray(8))
    with pytest.raises(onehop.InvalidArgument, match="has no device"):
        receive.stream_wait(stream)
    with pytest.raises(onehop.InvalidArgument, match="has no device"):
        receive.wait_enqueued(stream)
    assert receive.cancel()


def test_what_cannot_be_waited_for_is_told():
    run_alone(wait_wrongly)


def find_driver_failure():
    driver = Driver()
    pair = LocalPair(0, 0)
    array = CudaArray(driver, bytes(SIZE))
    receive = pair.second.irecv(array)
    driver.call("fake_cuda_fail", b"cuStreamWaitValue64_v2", 1, 2)
    with pytest.raises(onehop.Error, match="cuStreamWaitValue64"):
        Behind(driver, receive, array)
    # The request is well, and may be waited for again.
    behind = Behind(driver, receive, array)
    finish(pair.first.isend(CudaArray(driver, SENT)))
    assert behind.copied() == SENT


def test_a_wait_that_the_driver_refuses_leaves_the_request():
    run_alone(find_driver_failure)


# ---- wait_enqueued


def wait_until_enqueued():
    driver = Driver()
    pair = LocalPair(0, 0)
    for make in fake_gpu.STREAMS:
        array = CudaArray(driver, bytes(SIZE))
        receive = pair.second.irecv(array)
        with pytest.raises(onehop.TimeoutError):
            pair.second.irecv(array, 5).wait_enqueued(driver.stream(), 0.01)
        driver.library.fake_cuda_hold_all()
        send = pair.first.isend(CudaArray(driver, SENT))
        behind = [Behind(driver, receive, array, make, enqueued=True) for _ in range(2)]
        # The engine has the copy, and has not begun: the streams stand still.
        assert not receive.done
        assert all(each.waits for each in behind)
        send.wait_enqueued(driver.stream())
        driver.library.fake_cuda_release_all()
        assert [each.copied() for each in behind] == [SENT, SENT]
        assert receive.wait(DEADLINE / 2).nbytes == SIZE
        finish(send)
        # One that has ended holds nothing up; what it ended with is raised.
        assert Behind(driver, receive, array, make, enqueued=True).copied() == SENT
        cancelled = pair.second.irecv(array)
        assert cancelled.cancel()
        with pytest.raises(onehop.OperationError):
            cancelled.wait_enqueued(driver.stream())


def test_the_host_waits_until_a_message_is_enqueued():
    run_alone(wait_until_enqueued)


def receive_enqueued(side):
    driver = Driver(side.number)
    arrays = [CudaArray(driver, bytes(SIZE)) for _ in range(50)]
    requests = [side.peer.irecv(array, tag) for tag, array in enumerate(arrays)]
    side.sync()
    behind = []
    while requests:  # they are dropped one by one
        array = arrays[len(behind)]
        behind.append(Behind(driver, requests.pop(0), array, enqueued=True))
    assert [each.copied() for each in behind] == [SENT] * len(arrays)


@pytest.mark.parametrize("devices", [(0, 1), (1, 1)])
def test_another_process_enqueues(devices):
    run_pair(send_in_reverse, receive_enqueued, devices=devices)


def interrupt_wait():
    driver = Driver()
    pair = LocalPair(0, 0)
    array = CudaArray(driver, bytes(SIZE))
    receive = pair.second.irecv(array)
    stream = driver.stream()
    threading.Timer(0.1, signal.raise_signal, (signal.SIGINT,)).start()
    with pytest.raises(KeyboardInterrupt):
        receive.wait_enqueued(stream, None)
    # It is in flight, and may be waited for again.
    finish(pair.first.isend(CudaArray(driver, SENT)))
    assert Behind(driver, receive, array, enqueued=True).copied() == SENT


def test_ctrl_c_leaves_the_request():
    run_alone(interrupt_wait)
