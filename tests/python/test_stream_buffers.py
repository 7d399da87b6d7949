# SPDX-License-Identifier: Apache-2.0
"""How long the buffers of stream operations live, on the fake driver."""

import gc
import sys
import types
import weakref

import onehop
import pytest
from fake_gpu import CudaArray, DlpackArray, Driver, c_void_p, exported
from processes import LocalPair, run_alone

pytestmark = pytest.mark.usefixtures("fake_gpus")


class Held:
    """A stream that stands still, and what is given to it."""

    def __init__(self):
        self.driver = Driver(0)
        self.pair = LocalPair(0, 1)
        self.pair.first.warmup(timeout=30)
        self.stream = self.driver.stream()
        self.driver.call("fake_cuda_hold", c_void_p(self.stream))
        self.on = self.pair.first.on(self.stream)

    def array(self, kind=CudaArray):
        """Return an array, and what tells whether it is alive."""
        array = kind(self.driver, bytes(64))
        return array, weakref.ref(array)

    def is_kept(self, alive):
        self.on.signal(0)  # any call of a stream looks for what may go
        gc.collect()
        return alive() is not None

    def let_go(self):
        self.driver.let_go(self.stream)
        self.driver.synchronize(self.stream)

    def assert_kept_until_let_go(self, alive):
        assert self.is_kept(alive)
        self.let_go()
        assert not self.is_kept(alive)


def keep_one():
    held = Held()
    array, alive = held.array()
    held.on.send(array)
    del array
    held.assert_kept_until_let_go(alive)


def keep_of_group():
    held = Held()
    with onehop.group():
        array, alive = held.array()
        held.on.send(array)
        del array
        assert held.is_kept(alive)
    held.assert_kept_until_let_go(alive)


def keep_of_put():
    target = CudaArray(Driver(1), bytes(64))
    held = Held()
    region = held.pair.endpoints[1].register(target)
    remote = held.pair.first.attach(region.descriptor)
    array, alive = held.array(DlpackArray)
    held.on.put(array, remote)
    del array
    assert len(exported) == 1
    held.assert_kept_until_let_go(alive)
    assert not exported


def keep_of_batches():
    target = CudaArray(Driver(1), bytes(64))
    held = Held()
    region = held.pair.endpoints[1].register(target)
    remote = held.pair.first.attach(region.descriptor)
    one, one_lives = held.array()
    other, other_lives = held.array()
    held.on.put_batch(one, remote, [0, 32], [0, 32], 16)
    held.on.put_regions([other], [remote], None, [0, 16], None, [16, 48], [16, 16])
    del one, other
    assert held.is_kept(one_lives)
    held.assert_kept_until_let_go(other_lives)
    assert not held.is_kept(one_lives)


def keep_of_host_memory():
    target = CudaArray(Driver(1), bytes(64))
    held = Held()
    region = held.pair.endpoints[1].register(target)
    remote = held.pair.first.attach(region.descriptor)
    # With other memory the call blocks until the stream reaches the copy.
    arrays = [onehop.empty(64) for _ in range(3)]
    alive = [weakref.ref(array) for array in arrays]
    held.on.put(arrays[0], remote)
    held.on.get_batch(arrays[1], remote, [0, 32], [0, 32], 16)
    held.on.put_regions([arrays[2]], [remote], None, [0], None, [16], [16])
    del arrays
    for one in alive[:2]:
        assert held.is_kept(one)
    held.assert_kept_until_let_go(alive[2])
    assert not held.is_kept(alive[0])
    assert not held.is_kept(alive[1])


def keep_of_two_default_streams():
    # Both have the handle 0. Device 0 stands still. The driver's calls are for the device of the
    # last Driver.
    held = Held()
    held.pair.second.warmup(timeout=30)
    held.let_go()
    array, alive = held.array()
    held.driver.call("fake_cuda_hold", c_void_p(0))
    second = Driver(1)
    elsewhere = CudaArray(second, bytes(64))
    passed = weakref.ref(elsewhere)
    with onehop.group():
        held.pair.first.on(0).send(array)
        held.pair.second.on(0).send(elsewhere)
        del array, elsewhere
    second.synchronize(0)
    assert held.is_kept(alive)
    assert not held.is_kept(passed)
    first = Driver(0)
    first.let_go(0)
    first.synchronize(0)
    assert not held.is_kept(alive)


def keep_nothing_without_a_gpu():
    pair = LocalPair(None, None)
    region = pair.endpoints[1].register(bytearray(8))
    remote = pair.first.attach(region.descriptor)
    memory = bytearray(8)
    with pytest.raises(onehop.OperationError):
        pair.first.on(0).put(memory, remote)
    memory.append(1)  # which it refuses while its buffer is exported


def keep_until_closed():
    held = Held()
    array, alive = held.array()
    held.on.send(array)
    del array
    gc.collect()
    assert alive() is not None
    held.let_go()
    held.pair.first.close()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "case",
    [
        keep_one,
        keep_of_group,
        keep_of_put,
        keep_of_batches,
        keep_of_host_memory,
        keep_of_two_default_streams,
        keep_nothing_without_a_gpu,
        keep_until_closed,
    ],
)
def test_a_buffer_is_kept_until_the_stream_is_through(case):
    run_alone(case)


def capture_one():
    held = Held()
    held.let_go()
    array, alive = held.array()
    other, passed = held.array()
    stream = held.driver.stream()
    held.pair.first.on(stream).send(other, lane=1)
    held.driver.synchronize(stream)
    del other
    assert passed() is not None
    with held.driver.capture(held.stream) as graphs:
        held.on.send(array)
        # What a stream is through with goes meanwhile, and the capture is not disturbed.
        assert not held.is_kept(passed)
    assert graphs
    del array
    gc.collect()
    assert alive() is None


def test_of_a_captured_operation_nothing_is_kept():
    run_alone(capture_one)


def give_tensors():
    class Tensor(DlpackArray):
        recorded = ()

        def record_stream(self, stream):
            Tensor.recorded += (stream,)

    torch = types.ModuleType("torch")
    torch.Tensor = Tensor
    torch.cuda = types.SimpleNamespace(
        ExternalStream=lambda handle, device: (handle, device),
        default_stream=lambda device: ("default", device),
        current_stream=lambda device: types.SimpleNamespace(cuda_stream=0),
    )
    sys.modules["torch"] = torch

    class Stream:
        def __init__(self, handle):
            self.cuda_stream = handle

    held = Held()
    own = Stream(held.stream)
    for on in (held.on, held.pair.first.on(own), held.pair.first.on(0)):
        tensor, alive = held.array(Tensor)
        on.send(tensor)
        del tensor
        assert not held.is_kept(alive)
    assert Tensor.recorded == ((held.stream, 0), own, ("default", 0))
    with onehop.group():
        tensor, alive = held.array(Tensor)
        held.on.send(tensor)
        del tensor
        assert held.is_kept(alive)
        assert len(Tensor.recorded) == 3
    assert not held.is_kept(alive)
    assert len(Tensor.recorded) == 4
    held.let_go()


def test_tensors_of_torch_are_recorded():
    run_alone(give_tensors)
