# SPDX-License-Identifier: Apache-2.0
"""GPU memory on the fake driver: a trainer and an engine, each in a process, on a device each."""

import sys
import threading
import time
import types
from ctypes import c_size_t, c_uint64, c_void_p

import numpy as np
import onehop
import pytest
from fake_gpu import CudaArray, Driver, TorchStream
from onehop.weights import Publisher, Subscriber
from trainers import Remote

pytestmark = pytest.mark.usefixtures("fake_gpus")
SHAPE = (48, 32)


class TorchLike:
    """A tensor of torch in the fake driver's memory: a view of an allocation."""

    def __init__(self, storage, offset, shape) -> None:
        self.storage, self.offset, self.shape = storage, offset, shape
        self.dtype, self.layout = "torch.bfloat16", "torch.strided"
        self.device = types.SimpleNamespace(type="cuda")
        self.is_quantized = False

    def data_ptr(self):
        return self.storage.address + self.offset

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.storage.address)

    def element_size(self):
        return 2

    def is_contiguous(self):
        return True

    def is_conj(self):
        return False

    is_neg = is_conj

    @property
    def __cuda_array_interface__(self):
        place = {"data": (self.data_ptr(), False), "strides": None, "version": 3}
        return {"shape": self.shape, "typestr": "<u2", **place}


class GpuTrainer:
    """Has "w" in columns, and two views of one allocation."""

    def __init__(self) -> None:
        self.driver = Driver(0)
        self.endpoint = onehop.Endpoint(0)
        self.publisher = Publisher(self.endpoint, "trainer", timeout=30)
        content = np.arange(SHAPE[0] * SHAPE[1], dtype="<i4").reshape(SHAPE)
        self.halves = []
        for first in (0, 16):
            data = np.ascontiguousarray(content[:, first : first + 16]).tobytes()
            half = CudaArray(self.driver, data, shape=(SHAPE[0], 16), typestr="<i4")
            self.publisher.add("w", half, global_shape=SHAPE, start=(0, first))
            self.halves.append(half)
        self.flat = CudaArray(self.driver, bytes(range(200)))
        for number, offset in enumerate((0, 128)):
            self.publisher.add(f"view{number}", TorchLike(self.flat, offset, (4, 8)))
        self.table = self.publisher.seal()
        self.publisher.commit(1)
        self.stream = self.driver.stream()

    def regions(self):
        return len(self.publisher._regions)

    def fill_later(self, value):
        """Begin a version whose writes the stream does later, and commit behind it."""
        self.publisher.begin(stream=TorchStream(self.stream))
        for half in self.halves:
            self.driver.fill_later(self.stream, half.address, value, half.size)
        # The stream is held: the version must not be readable.
        thread = threading.Thread(target=self.publisher.commit, args=(2,))
        thread.start()
        thread.join(0.2)
        held = thread.is_alive(), self.publisher.version
        self.driver.let_go(self.stream)
        thread.join(30)
        return (*held, self.publisher.version)

    def close(self):
        self.publisher.close()
        self.endpoint.close()


class GpuEngine:
    """Wants rows of "w" in its GPU's memory, and the views."""

    def __init__(self, table, device) -> None:
        self.driver = Driver(device)
        self.endpoint = onehop.Endpoint(device)
        self.subscriber = Subscriber(self.endpoint, [table], name="engine", timeout=30)
        rows = CudaArray(self.driver, bytes(24 * SHAPE[1] * 4), shape=(24, 32), typestr="<i4")
        self.subscriber.want("w", rows, start=(24, 0))
        self.rows = rows
        self.views = CudaArray(self.driver, bytes(128))
        for number in (0, 1):
            view = TorchLike(self.views, 64 * number, (4, 8))
            self.subscriber.want(f"view{number}", view)
        self.subscriber.prepare()

    def pull(self):
        pull = self.subscriber.pull(after=None)
        rows = np.frombuffer(self.rows.bytes(), "<i4").reshape(24, 32)
        return pull, rows.copy(), self.views.bytes()

    def explain(self):
        return self.subscriber.prepare().explain()

    def close(self):
        self.subscriber.close()
        self.endpoint.close()


class TwoBuffers:
    """Pulls in parts into two buffers of one allocation, which torch's current stream reads."""

    def __init__(self, table) -> None:
        self.driver = Driver(0)
        self.stream = self.driver.stream()
        torch = types.ModuleType("torch")
        torch.cuda = types.SimpleNamespace(current_stream=lambda device: TorchStream(self.stream))
        sys.modules["torch"] = torch
        self.endpoint = onehop.Endpoint(0)
        self.subscriber = Subscriber(self.endpoint, [table], name="engine", timeout=30)
        self.buffers = CudaArray(self.driver, bytes(128))
        self.read = CudaArray(self.driver, bytes(64))
        for part, (view, buffer) in enumerate([(0, 0), (1, 1), (1, 0)]):
            place = TorchLike(self.buffers, 64 * buffer, (4, 8))
            self.subscriber.want(f"view{view}", place, part=part)

    def read_first(self):
        """Return what a stream that is late reads of the first part, and has then of the last."""
        parts = self.subscriber.pull_parts()
        assert next(parts) == 0
        self.driver.call("fake_cuda_hold", c_void_p(self.stream))
        places = (c_uint64(self.read.address), c_uint64(self.buffers.address), c_size_t(64))
        self.driver.call("cuMemcpyAsync", *places, c_void_p(self.stream))
        thread = threading.Thread(target=self.let_go)
        thread.start()
        assert list(parts) == [1, 2]
        thread.join()
        self.driver.synchronize(self.stream)
        return self.read.bytes(), self.buffers.bytes()[:64]

    def let_go(self):
        """Let the stream go once the buffer that it reads has changed, or had the time to."""
        for _ in range(100):
            if self.buffers.bytes()[:64] != bytes(range(64)):
                break
            time.sleep(0.001)
        self.driver.let_go(self.stream)

    def close(self):
        self.subscriber.close()
        self.endpoint.close()


def test_a_pull_waits_until_torchs_current_stream_has_read_its_buffer(cluster):
    trainer = Remote(GpuTrainer)
    cluster.all.append(trainer)
    trainer.ready()
    engine = Remote(TwoBuffers, trainer.table)
    cluster.all.append(engine)
    engine.ready()
    assert engine.read_first() == (bytes(range(64)), bytes(range(128, 192)))


@pytest.mark.parametrize("device", [0, 1])
def test_between_gpus(cluster, device):
    trainer = Remote(GpuTrainer)
    cluster.all.append(trainer)
    trainer.ready()
    assert trainer.regions() == 3, "views of one allocation are one region"
    engine = Remote(GpuEngine, trainer.table, device)
    cluster.all.append(engine)
    engine.ready()
    pull, rows, views = engine.pull()
    assert pull.version == 1
    whole = np.arange(SHAPE[0] * SHAPE[1], dtype="<i4").reshape(SHAPE)
    np.testing.assert_array_equal(rows, whole[24:])
    assert views == bytes(range(64)) + bytes(range(128, 192))
    assert "trainer: " in engine.explain()
    assert trainer.fill_later(7) == (True, 1, 2)
    pull, rows, _ = engine.pull()
    assert pull.version == 2
    assert (rows == 0x07070707).all()
