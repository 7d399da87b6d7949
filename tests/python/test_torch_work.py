# SPDX-License-Identifier: Apache-2.0
"""onehop.torch's Work with CUDA tensors: what wait() leaves to a stream, on the fake driver.

Torch has no device here: a stand-in for a tensor says that it is on one.
"""

import importlib.util
import logging
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
from fake_gpu import CudaArray, Driver, c_void_p
from processes import DEADLINE, LocalPair, finish, run_alone

pytestmark = [
    pytest.mark.usefixtures("fake_gpus"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed"),
]
SENT = bytes(range(250)) * 20


class Ranks:
    """Works of receives, and the stream that is current."""

    def __init__(self):
        import torch
        from onehop.torch.completions import Completions

        self.driver = Driver()
        self.pair = LocalPair(0, 0)
        self.stream = self.driver.stream()
        torch.cuda.current_stream = lambda _device: self.stream
        self.completions = Completions(self.pair.endpoints[1])
        self.array = CudaArray(self.driver, bytes(len(SENT)))
        self.sent = CudaArray(self.driver, SENT)

    def receive(self):
        from onehop.torch.work import Work

        tensor = SimpleNamespace(is_cuda=True, device="cuda:0", shape=(5000,), dtype="uint8")
        request = self.pair.second.irecv(self.array)
        what = ("receive", tensor, "from", 0, 0)
        return Work(request, tensor, what, DEADLINE / 2, self.completions)

    def hold(self):
        self.driver.library.fake_cuda_hold_all()

    def release(self):
        self.driver.library.fake_cuda_release_all()

    @property
    def waits(self):
        return self.driver.library.cuStreamQuery(c_void_p(self.stream)) != 0


def go_on_behind_wait():
    ranks = Ranks()
    ranks.hold()
    send = ranks.pair.first.isend(ranks.sent)
    work = ranks.receive()
    assert work.wait()
    assert work.is_enqueued
    assert not work.is_completed()
    assert ranks.waits
    threading.Timer(0.1, ranks.release).start()
    ranks.completions.settle()
    assert work.is_success()
    assert ranks.array.bytes() == SENT
    ranks.driver.synchronize(ranks.stream)
    finish(send)
    # With a timeout, and once it has ended, it is the host that waits.
    send = ranks.pair.first.isend(ranks.sent)
    work = ranks.receive()
    assert work.wait(timedelta(seconds=DEADLINE / 4))
    assert work.is_success()
    assert work.wait()
    assert not work.is_enqueued
    finish(send)


def test_wait_leaves_the_message_to_the_stream():
    run_alone(go_on_behind_wait)


def eventually(condition):
    end = time.monotonic() + DEADLINE / 2
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def fail_behind_wait():
    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("onehop").addHandler(handler)
    ranks = Ranks()
    ranks.hold()
    send = ranks.pair.first.isend(ranks.sent)
    work = ranks.receive()
    work.wait()
    ranks.pair.endpoints[1].close()
    ranks.release()
    ranks.driver.synchronize(ranks.stream)  # it goes on
    assert "receive of (5000,)" in str(work.exception())
    assert eventually(lambda: told)
    assert "receive of (5000,)" in told[0]
    with pytest.raises(Exception, match="receive of"):
        work.wait()
    assert eventually(lambda: send.done)  # well, if the engine was faster than the news


def test_what_fails_behind_wait_is_told():
    run_alone(fail_behind_wait)
