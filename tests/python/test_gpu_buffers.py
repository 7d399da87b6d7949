# SPDX-License-Identifier: Apache-2.0
"""GPU memory in and out of Python: every way in which a library shows it, on the fake driver."""

import gc
import weakref

import fake_gpu
import numpy as np
import onehop
import pytest
from fake_gpu import CudaArray, DlpackArray, Driver, ExchangedArray, Library
from processes import LocalPair, finish, run_alone, run_pair, run_ranks

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZES = [0, 1, 1000, 65_536, (1 << 20) + 3]


def pattern(size, seed=1):
    return np.random.default_rng(seed).bytes(size)


# ---- Within a process


def send_locally(name, devices):
    kind = getattr(fake_gpu, name)
    drivers = [Driver(0), Driver(1)] if devices[0] != devices[1] else [Driver(0)] * 2
    pair = LocalPair(*devices)
    for size in SIZES:
        sent = kind(drivers[0], pattern(size))
        received = kind(drivers[1], bytes(size))
        request = pair.second.irecv(received)
        pair.first.send(sent, timeout=30)
        message = request.wait(timeout=30)
        assert message.nbytes == sent.size
        assert received.bytes() == sent.bytes()
        # The other way round, blocking on both sides.
        back = pair.second.isend(received, tag=3)
        assert pair.first.recv(sent, tag=3, timeout=30).nbytes == sent.size
        back.wait(timeout=30)
    return message.path


@pytest.mark.parametrize("kind", [kind.__name__ for kind in fake_gpu.KINDS])
def test_messages_within_a_process(kind):
    assert run_alone(send_locally, kind, (0, 0)) == "local"


def test_messages_between_devices_of_a_process():
    assert run_alone(send_locally, "CudaArray", ("cuda:0", "cuda:1")) == "local"


def send_to_the_host():
    driver = Driver()
    pair = LocalPair(0, None)
    array = CudaArray(driver, pattern(100_000))
    received = bytearray(100_000)
    finish(pair.second.irecv(received), pair.first.isend(array))
    assert received == array.bytes()
    finish(pair.first.irecv(array), pair.second.isend(pattern(100_000, seed=2)))
    assert array.bytes() == pattern(100_000, seed=2)
    # An endpoint on a GPU moves host memory too.
    assert finish(pair.second.irecv(received), pair.first.isend(b"host")).nbytes == 4


def test_between_device_and_host_memory():
    run_alone(send_to_the_host)


# ---- Between processes


def send_all(side, name):
    driver = Driver()
    for size in SIZES:
        side.peer.send(getattr(fake_gpu, name)(driver, pattern(size)), timeout=30)
        side.sync()


def receive_all(side, name):
    driver = Driver()
    paths = {}
    for size in SIZES:
        array = getattr(fake_gpu, name)(driver, bytes(size))
        paths[size] = side.peer.recv(array, timeout=30).path
        assert array.bytes() == pattern(size)
        side.sync()
    return paths


@pytest.mark.parametrize("kind", [kind.__name__ for kind in fake_gpu.KINDS])
def test_messages_between_processes(kind):
    _, paths = run_pair(send_all, receive_all, kind, devices=(0, 0))
    assert paths[SIZES[-1]] == "cuda_ipc"


def expose(side):
    array = ExchangedArray(Driver(), bytes(4096))
    region = side.endpoint.register(array)
    side.give(region.descriptor)
    side.sync()
    region.deregister(timeout=30)
    return array.bytes()


def put_and_get(side):
    driver = Driver()
    remote = side.peer.attach(side.take(), timeout=30)
    array = CudaArray(driver, pattern(4096))
    region = side.endpoint.register(array)
    assert side.peer.put(region[:2048], remote[:2048]).wait(timeout=30).path == "cuda_ipc"
    side.peer.put(DlpackArray(driver, pattern(1024, 2)), remote[2048:3072]).wait(timeout=30)
    blocks = range(0, 1024, 128)
    targets = range(3072, 4096, 128)
    side.peer.put_batch(array, remote, blocks, targets, 128, after=None).wait(timeout=30)
    got = CudaArray(driver, bytes(4096))
    side.peer.get(got, remote).wait(timeout=30)
    again = CudaArray(driver, bytes(1024))
    side.peer.get_batch(again, remote, blocks, targets, 128).wait(timeout=30)
    assert again.bytes() == pattern(4096)[:1024]
    side.sync()
    return got.bytes()


def test_put_and_get_between_processes():
    exposed, got = run_pair(expose, put_and_get, devices=("cuda", 0))
    expected = pattern(4096)[:2048] + pattern(1024, 2) + pattern(4096)[:1024]
    assert exposed == expected
    assert got == expected


def pass_around(comm):
    driver = Driver()
    array = CudaArray(driver, bytes([comm.rank]) * 5000)
    request = comm.irecv(received := CudaArray(driver, bytes(5000)), onehop.ANY_SOURCE)
    comm.send(array, (comm.rank + 1) % comm.size, after=None)
    source = request.wait(timeout=30).source
    assert received.bytes() == bytes([source]) * 5000
    back = comm.isend(array, source, tag=1)
    message = comm.recv(received, (comm.rank + 1) % comm.size, tag=1, timeout=30)
    back.wait(timeout=30)
    assert received.bytes() == bytes([message.source]) * 5000
    return source


def test_a_communicator_on_gpus():
    assert run_ranks(2, pass_around, device="cuda:0") == [1, 0]


# ---- Regions as buffers, of host memory too


def send_regions(device):
    pair = LocalPair(device, device)
    driver = Driver()

    def make(data):
        return bytearray(data) if device is None else CudaArray(driver, data)

    def bytes_of(made):
        return bytes(made) if device is None else made.bytes()

    sent, received = make(pattern(9000)), make(bytes(9000))
    ours = pair.endpoints[0].register(sent)
    theirs = pair.endpoints[1].register(received)
    request = pair.second.irecv(theirs[1000:2000])
    pair.first.send(ours[5000:6000], timeout=30)
    assert request.wait(timeout=30).nbytes == 1000
    request = pair.first.isend(ours[:500])
    pair.second.recv(theirs[8000:], timeout=30)
    request.wait(timeout=30)
    request = pair.endpoints[1].irecv(theirs[500:700], tag=onehop.ANY_TAG)
    assert finish(request, pair.first.isend(ours[-200:], tag=9)).tag == 9
    with pytest.raises(onehop.OperationError) as caught:
        finish(pair.second.irecv(theirs[:10]), pair.first.isend(ours[:11]))
    assert caught.value.status is onehop.Status.TRUNCATED
    whole = pattern(9000)
    expected = bytes(500) + whole[-200:] + bytes(300) + whole[5000:6000] + bytes(6000)
    expected += whole[:500] + bytes(500)
    # What was too long may have come as far as it fitted.
    assert bytes_of(received)[10:] == expected[10:]


@pytest.mark.parametrize("device", [None, 0])
def test_regions_and_their_slices_are_buffers(device):
    run_alone(send_regions, device)


def hold_until_the_end():
    driver = Driver()
    pair = LocalPair(0, 0)
    for kind in fake_gpu.KINDS:
        array = kind(driver, pattern(5000))
        alive = weakref.ref(array)
        request = pair.first.isend(array)
        del array
        gc.collect()
        assert alive() is not None
        received = CudaArray(driver, bytes(5000))
        pair.second.recv(received, timeout=30)
        assert request.wait(timeout=30).nbytes == 5000
        assert received.bytes() == pattern(5000)
        gc.collect()
        assert alive() is None
    assert not fake_gpu.exported


def test_a_request_keeps_its_array():
    run_alone(hold_until_the_end)


# ---- Ways into a tensor


def choose_ways():
    driver = Driver()
    pair = LocalPair(0, 0)

    def move(array):
        Library.calls.clear()
        DlpackArray.streams.clear()
        received = CudaArray(driver, bytes(array.size))
        request = pair.second.irecv(received, after=None)
        pair.first.send(array, timeout=30)
        request.wait(timeout=30)
        assert received.bytes() == array.bytes()
        return Library.calls + DlpackArray.streams

    data = pattern(5000)
    # Reading needs no more than the description; writing asks for the flags.
    assert move(ExchangedArray(driver, data)) == ["tensor", "stream"]
    finish(pair.second.irecv(target := ExchangedArray(driver, bytes(4))), pair.first.isend(b"four"))
    assert target.bytes() == b"four"
    assert Library.calls == ["tensor", "stream", "managed", "stream"]
    # Of exporters that do not tell their stream, data that is ready for the default stream.
    assert move(DlpackArray(driver, data)) == [1]
    assert move(fake_gpu.JaxArray(driver, data)) == [1]
    # An older table behind a newer one; a number, as previews had it; one without the short way.
    older = fake_gpu.exchange(previous=fake_gpu.exchange(), version=(2, 0))
    assert move(fake_gpu.exchanged_type(older)(driver, data)) == ["tensor", "stream"]
    lacking = fake_gpu.exchange(tensor_from=fake_gpu.TENSOR_FROM())
    assert move(fake_gpu.exchanged_type(lacking)(driver, data)) == ["managed", "stream"]
    # What does not fit is left alone.
    for api in [
        fake_gpu.exchange(version=(2, 0)),
        fake_gpu.exchange(managed_from=fake_gpu.MANAGED_FROM()),
        fake_gpu.exchange(current_stream=fake_gpu.STREAM()),
        fake_gpu.capsule(fake_gpu.exchange(), b"another name"),
        None,
        "text",
        0,
    ]:
        assert move(fake_gpu.exchanged_type(api)(driver, data)) == [1]
    # What fails is asked in the usual way.
    Library.fails = True
    assert move(ExchangedArray(driver, data)) == ["tensor", "stream", -1]
    Library.fails = False
    # Other kinds of elements, shapes and memory.
    shaped = {"shape": (5, 1, 500), "strides": (500, 77, 1), "dtype": (4, 16, 1)}
    for kind in (DlpackArray, ExchangedArray):
        move(kind(driver, data, **shaped))
        move(kind(driver, data, shape=(10_000,), dtype=(17, 4, 1)))
    move(CudaArray(driver, data, shape=(50, 25), typestr="<f4", strides=(100, 4)))


def test_the_ways_into_a_tensor():
    run_alone(choose_ways)


def use_managed_memory():
    driver = Driver()
    address = fake_gpu.c_uint64()
    driver.call("cuMemAllocManaged", fake_gpu.byref(address), fake_gpu.ctypes.c_size_t(4096), 1)
    driver.write(address.value, pattern(4096))
    for devices in [(0, 0), (None, None)]:
        pair = LocalPair(*devices)
        managed = DlpackArray(driver, b"", kind=fake_gpu.CUDA_MANAGED)
        managed.address, managed.size = address.value, 4096
        received = bytearray(4096)
        finish(pair.second.irecv(received), pair.first.isend(managed))
        assert received == pattern(4096)


def test_managed_memory_is_for_both():
    run_alone(use_managed_memory)


# ---- What is refused


def refuse_on_the_host():
    driver = Driver()
    pair = LocalPair()
    for kind in fake_gpu.KINDS:
        array = kind(driver, b"1234")
        with pytest.raises(onehop.OperationError, match=r"GPU memory.*device=0") as caught:
            pair.first.send(array)
        assert caught.value.status is onehop.Status.NOT_VIABLE
        with pytest.raises(onehop.OperationError, match="GPU memory"):
            pair.endpoints[0].register(array)
        with pytest.raises(onehop.OperationError, match=r"notification.*copy it to the host"):
            pair.first.notify(array)
    with onehop.Endpoint(0) as endpoint:
        region = endpoint.register(CudaArray(driver, b"1234"))
        with pytest.raises(onehop.OperationError, match=r"Region is GPU memory.*device=0"):
            pair.first.send(region)
        with pytest.raises(onehop.OperationError, match="GPU memory"):
            endpoint.connect(CudaArray(driver, pair.endpoints[0].address))


def test_gpu_memory_on_an_endpoint_for_the_host():
    run_alone(refuse_on_the_host)


def refuse_arrays():
    driver = Driver()
    pair = LocalPair(0, 0)

    def refused(array, match, error=onehop.InvalidArgument, call=pair.first.send):
        with pytest.raises(error, match=match):
            call(array, timeout=5)

    data = bytes(16)
    strides = {"shape": (2, 2), "strides": (4, 1)}
    for kind in (DlpackArray, ExchangedArray, CudaArray):
        refused(kind(driver, data, **strides), "not C-contiguous")
    frozen = [kind(driver, data, flags=1) for kind in (DlpackArray, ExchangedArray)]
    frozen.append(fake_gpu.JaxArray(driver, data))
    frozen.append(CudaArray(driver, data, data=(driver.allocate(data), True)))
    for array in frozen:
        refused(array, "read-only", call=pair.second.recv)
        with pytest.raises(onehop.InvalidArgument, match="read-only"):
            pair.endpoints[1].register(array)
    refused(DlpackArray(driver, data, kind=10), "device type 10", onehop.OperationError)
    refused(DlpackArray(driver, data, version=(2, 0)), "DLPack 2")
    refused(DlpackArray(driver, data, dtype=(3, 64, 1)), "Python objects")
    refused(CudaArray(driver, data, data=(0, False)), "no memory behind its 16 bytes")
    for kind in (DlpackArray, ExchangedArray):
        copy = kind(driver, data, flags=2)
        refused(copy, "shows a copy", call=pair.second.recv)
        finish(pair.second.irecv(bytearray(16)), pair.first.isend(copy))
    for wrong, match in [
        ({"data": None}, "no data"),
        ({"data": ("text", False)}, "cannot be read"),
        ({"shape": 3}, "no shape"),
        ({"shape": (-1,)}, "negative"),
        ({"typestr": "<f"}, "typestr"),
        ({"typestr": None}, "typestr"),
        ({"typestr": "|O8"}, "Python objects"),
        ({"strides": (1, 1)}, "another shape"),
        ({"mask": 1}, "mask"),
        ({"stream": "text"}, "cannot be read"),
    ]:
        refused(CudaArray(driver, data, **wrong), match)
    assert not fake_gpu.exported


def test_arrays_that_cannot_be_moved():
    run_alone(refuse_arrays)


# ---- Devices by name


class Device:
    def __init__(self, kind, index):
        self.type = kind
        self.index = index


def name_devices():
    driver = Driver()
    array = CudaArray(driver, b"1234")
    good = [0, 1, np.int64(1), "cuda", "cuda:1", Device("cuda", 1), Device("cuda", None)]
    for device in good:
        with onehop.Endpoint(device=device) as endpoint:
            endpoint.register(array)
    for device in [None, "host", Device("cpu", None), Device("cpu", 0)]:
        with onehop.Endpoint(device) as endpoint, pytest.raises(onehop.OperationError):
            endpoint.register(array)
    for device in [2, "cuda:7", "gpu", "GPU-0000", Device("xpu", 0)]:
        with pytest.raises(onehop.Error, match=str(getattr(device, "type", device))):
            onehop.Endpoint(device=device)
    with pytest.raises(onehop.InvalidArgument, match="counted from 0"):
        onehop.Endpoint(device=-1)
    for device in [True, 1.5, b"cuda", object()]:
        with pytest.raises(onehop.InvalidType, match="device is of type"):
            onehop.Endpoint(device=device)


def test_devices_by_name():
    run_alone(name_devices)
