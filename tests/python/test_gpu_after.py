# SPDX-License-Identifier: Apache-2.0
"""What a transfer of GPU memory waits for: streams and events, on the fake driver."""

import fake_gpu
import onehop
import pytest
from fake_gpu import CudaArray, DlpackArray, Driver, ExchangedArray, Library
from processes import LocalPair, finish, run_alone

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZE = 5000
# Polls without a result that say that something waits; the other side is at its end long before.
POLLS = 500


class Late:
    """An array that a stream, which stands still, is to fill with `value`."""

    def __init__(self, driver, works_on, value, kind=CudaArray, **given):
        self.driver = driver
        self.stream = works_on
        self.value = value
        self.array = kind(driver, bytes(SIZE), **given)
        driver.fill_later(works_on, self.array.address, value, SIZE)


def start(pair, late, options):
    received = CudaArray(late.driver, bytes(SIZE))
    return received, [
        pair.second.irecv(received, after=None),
        pair.first.isend(late.array, **options),
    ]


def assert_waits(pair, late, **options):
    received, requests = start(pair, late, options)
    assert not any(request.done for _ in range(POLLS) for request in requests)
    late.driver.let_go(late.stream)
    finish(*requests)
    assert received.bytes() == bytes([late.value]) * SIZE
    late.driver.call("cuStreamSynchronize", fake_gpu.c_void_p(late.stream))


def assert_goes_at_once(pair, late, **options):
    received, requests = start(pair, late, options)
    finish(*requests)
    assert received.bytes() == bytes(SIZE)
    late.driver.let_go(late.stream)
    late.driver.call("cuStreamSynchronize", fake_gpu.c_void_p(late.stream))


def wait_for_given_streams():
    driver = Driver()
    pair = LocalPair(0, 0)
    stream = driver.stream()
    for make in fake_gpu.STREAMS:
        late = Late(driver, stream, 7)
        assert_waits(pair, late, after=make(stream))
    for make in fake_gpu.EVENTS:
        late = Late(driver, stream, 8)
        event = driver.event()
        driver.record(event, stream)
        assert_waits(pair, late, after=make(event))
    assert_goes_at_once(pair, Late(driver, stream, 9), after=None)
    other = driver.stream()
    assert_goes_at_once(pair, Late(driver, stream, 9), after=other)
    # An event of torch that was never recorded.
    late = Late(driver, stream, 9)
    assert_goes_at_once(pair, late, after=fake_gpu.TorchEvent(0))


def test_streams_and_events_that_are_given():
    run_alone(wait_for_given_streams)


def wait_for_current_streams():
    driver = Driver()
    pair = LocalPair(0, 0)
    stream = driver.stream()
    # Arrays that tell their stream, and a library that does.
    assert_waits(pair, Late(driver, stream, 1, stream=stream))
    Library.stream = stream
    assert_waits(pair, Late(driver, stream, 2, ExchangedArray))
    current = onehop.CURRENT_STREAM
    assert_waits(pair, Late(driver, stream, 3, ExchangedArray), after=current)
    Library.stream = driver.stream()
    assert_goes_at_once(pair, Late(driver, stream, 3, ExchangedArray))
    # Those that do not: the default stream, by whichever of its names.
    for given in [{"stream": None}, {"stream": 1}, {}]:
        assert_waits(pair, Late(driver, None, 4, **given))
        assert_goes_at_once(pair, Late(driver, stream, 4, **given))
    assert_waits(pair, Late(driver, None, 5, DlpackArray))


def test_the_current_stream_is_waited_for():
    run_alone(wait_for_current_streams)


def wait_with_regions():
    driver = Driver()
    pair = LocalPair(0, 0)
    stream = driver.stream()
    for kind in (CudaArray, ExchangedArray):
        array = kind(driver, bytes(SIZE))
        region = pair.endpoints[0].register(array)
        # What is current is asked for now, not when it was registered.
        array.given["stream"] = Library.stream = stream
        driver.fill_later(stream, array.address, 6, SIZE)
        late = Late.__new__(Late)
        late.driver, late.stream, late.value, late.array = driver, stream, 6, region[:]
        assert_waits(pair, late)


def test_regions_wait_for_the_stream_of_their_array():
    run_alone(wait_with_regions)


def wait_before_receiving():
    driver = Driver()
    pair = LocalPair(0, 0)
    stream = driver.stream()
    for receive in (pair.first.irecv, pair.endpoints[0].irecv):
        late = Late(driver, stream, 5)
        requests = [receive(late.array, after=stream), pair.second.isend(bytes([3]) * SIZE)]
        assert not any(requests[0].done for _ in range(POLLS))
        driver.let_go(stream)
        finish(*requests)
        # Had it not waited, the stream would have written last.
        driver.call("cuStreamSynchronize", fake_gpu.c_void_p(stream))
        assert late.array.bytes() == bytes([3]) * SIZE


def test_receives_wait_too():
    run_alone(wait_before_receiving)


def wait_before_puts():
    driver = Driver()
    pair = LocalPair(0, 0)
    stream = driver.stream()
    array = CudaArray(driver, bytes(SIZE))
    region = pair.endpoints[1].register(array)
    remote = pair.first.attach(region.descriptor)
    blocks = range(0, SIZE, 1000)
    source = CudaArray(driver, bytes(SIZE))
    event = driver.event()
    # Nobody lets the stream go while a put waits for it: it works on its own, but slowly.
    driver.call("fake_cuda_delay", 20_000)

    def fill(buffer, value):
        driver.fill_later(stream, buffer.address, value, SIZE)
        driver.record(event, stream)
        driver.let_go(stream)

    fill(source, 1)
    pair.first.put(source, remote, after=stream).wait(timeout=30)
    assert array.bytes() == bytes([1]) * SIZE
    fill(source, 2)
    after = fake_gpu.DerivedEvent(event)
    pair.first.put_batch(source, remote, blocks, blocks, 1000, after=after).wait(timeout=30)
    assert array.bytes() == bytes([2]) * SIZE
    fill(source, 3)
    pair.first.get(source, remote, after=stream).wait(timeout=30)
    assert source.bytes() == bytes([2]) * SIZE
    fill(source, 4)
    pair.first.get_batch(source, remote, blocks, blocks, 1000, after=stream).wait(timeout=30)
    assert source.bytes() == bytes([2]) * SIZE
    with pair.first.prepare_put(source, remote, blocks, blocks, 1000) as batch:
        for value in (5, 6):
            fill(source, value)
            batch.post(after=stream).wait(timeout=30)
            assert array.bytes() == bytes([value]) * SIZE


def test_puts_and_gets_wait():
    run_alone(wait_before_puts)


def wait_for_nothing_else():
    pair = LocalPair(0, None)
    request = pair.second.irecv(bytearray(4))
    for wrong in [True, 1.5, "stream", object(), b"1"]:
        with pytest.raises(onehop.InvalidType, match=r"after is of type.*CURRENT_STREAM"):
            pair.first.send(b"1234", after=wrong)
    # The host waits for the GPU when it is told to.
    driver = Driver()
    stream = driver.stream()
    pair.first.send(b"1234", after=stream)
    assert request.wait(timeout=30).nbytes == 4
    with pytest.raises(onehop.InvalidArgument, match="device"):
        pair.second.send(b"1234", after=stream)
    pair.second.isend(b"1234", after=None)
    assert pair.first.recv(bytearray(4), timeout=30, after=onehop.CURRENT_STREAM).nbytes == 4


def test_what_host_memory_waits_for():
    run_alone(wait_for_nothing_else)


def test_the_default_has_a_name():
    assert repr(onehop.CURRENT_STREAM) == "onehop.CURRENT_STREAM"
    assert "after: onehop.devices.After = CURRENT_STREAM" in onehop.Peer.send.__doc__
    with pytest.raises(TypeError):
        onehop.CurrentStream()
