# SPDX-License-Identifier: Apache-2.0
"""Operations in the order of a GPU's stream, on the fake driver: two processes, a GPU each."""

import struct

import fake_gpu
import numpy as np
import onehop
import pytest
from fake_gpu import CudaArray, Driver
from processes import LocalPair, failure_of, run_alone, run_pair, run_ranks

pytestmark = pytest.mark.usefixtures("fake_gpus")
SIZES = [0, 1, 7, 1000, 4096, 65_537, (1 << 20) + 3, 5_000_000]
LARGE = 5_000_000
GPUS = (0, 1)


def pattern(size, seed=1):
    return np.random.default_rng(seed).bytes(size)


class Gpu:
    """The side's device and a stream of it."""

    def __init__(self, side):
        self.driver = Driver(side.number)
        self.stream = self.driver.stream()
        self.on = side.peer.on(self.stream)

    def array(self, content):
        return CudaArray(self.driver, content)

    def synchronize(self):
        self.driver.synchronize(self.stream)


# ---- Messages


def send_sizes(side):
    gpu = Gpu(side)
    arrays = [gpu.array(pattern(size, seed)) for seed, size in enumerate(SIZES)]
    for seed, array in enumerate(arrays):
        gpu.on.send(array, lane=3 * seed % 16)
    gpu.synchronize()
    for array in arrays:
        gpu.on.send(array)
    gpu.synchronize()
    assert side.peer.async_error() is None


def receive_sizes(side):
    gpu = Gpu(side)
    for lane in (lambda seed: 3 * seed % 16, lambda _: 0):
        arrays = [gpu.array(bytes(size)) for size in SIZES]
        for seed, array in enumerate(arrays):
            gpu.on.recv(array, lane=lane(seed))
        gpu.synchronize()
        for seed, array in enumerate(arrays):
            assert array.bytes() == pattern(SIZES[seed], seed), SIZES[seed]
    assert side.peer.async_error() is None


def test_messages_of_any_size_on_lanes():
    run_pair(send_sizes, receive_sizes, devices=GPUS)


def send_with_every_stream(side):
    gpu = Gpu(side)
    for seed, make in enumerate([*fake_gpu.STREAMS, None]):
        stream = 0 if make is None else make(gpu.stream)
        for kind in fake_gpu.KINDS:
            side.peer.on(stream).send(kind(gpu.driver, pattern(100, seed)))
        gpu.driver.synchronize(gpu.stream if make else None)
    region = side.endpoint.register(gpu.array(pattern(100)))
    gpu.on.send(region[10:20])
    gpu.synchronize()


def receive_many(side):
    gpu = Gpu(side)
    for seed in range(len(fake_gpu.STREAMS) + 1):
        for _ in fake_gpu.KINDS:
            array = gpu.array(bytes(100))
            gpu.on.recv(array)
            gpu.synchronize()
            assert array.bytes() == pattern(100, seed)
    array = gpu.array(bytes(10))
    gpu.on.recv(array)
    gpu.synchronize()
    assert array.bytes() == pattern(100)[10:20]


def test_streams_and_arrays_of_all_libraries():
    run_pair(send_with_every_stream, receive_many, devices=GPUS)


def send_sized(side):
    gpu = Gpu(side)
    array = gpu.array(pattern(1000))
    word = gpu.array(struct.pack("<q", 300))
    gpu.on.send(array, size_from=word)
    gpu.synchronize()
    for wrong in [gpu.array(bytes(4)), bytearray(8)]:
        with pytest.raises(onehop.InvalidArgument, match=r"64 bits|host memory"):
            gpu.on.send(array, size_from=wrong)


def receive_sized(side):
    gpu = Gpu(side)
    array = gpu.array(bytes(1000))
    word = gpu.array(bytes(8))
    gpu.on.recv(array, size_to=word)
    gpu.synchronize()
    assert struct.unpack("<q", word.bytes()) == (300,)
    assert array.bytes() == pattern(1000)[:300] + bytes(700)


def test_sizes_in_the_memory_of_the_gpu():
    run_pair(send_sized, receive_sized, devices=GPUS)


# ---- Atomic operations


def change_words(side):
    gpu = Gpu(side)
    side.peer.warmup(timeout=30)
    remote = side.peer.attach(side.take(), timeout=30)
    before = gpu.array(bytes(16))
    words = [fake_gpu.CudaArray(gpu.driver, bytes(8)) for _ in range(3)]
    gpu.on.fetch_add(remote[8:16], np.uint64(2**64 - 1), before=words[0])
    gpu.on.fetch_add(remote[8:16], 3, words[1])
    gpu.on.compare_swap(remote[16:24], 5, 6, before=words[2])
    gpu.on.compare_swap(remote[16:24], 0, 7)
    gpu.synchronize()
    found = [struct.unpack("<Q", word.bytes())[0] for word in words]
    assert found == [0, 2**64 - 1, 0]
    for wrong, error in [(before, "16 bytes"), (bytearray(8), "host memory")]:
        with pytest.raises(onehop.InvalidArgument, match=error):
            gpu.on.fetch_add(remote[8:16], 1, before=wrong)
    with pytest.raises(onehop.OutOfRange, match="slice it to 8"):
        gpu.on.fetch_add(remote[8:24], 1)
    with pytest.raises(onehop.InvalidArgument, match="multiples of 8"):
        gpu.on.compare_swap(remote[4:12], 1, 1)
    assert side.peer.async_error() is None
    side.sync()


def show_words(side):
    gpu = Gpu(side)
    side.peer.warmup(timeout=30)
    array = gpu.array(bytes(24))
    region = side.endpoint.register(array)
    side.give(region.descriptor)
    side.sync()
    assert struct.unpack("<3Q", array.bytes()) == (0, 2, 7)


def test_atomic_operations():
    run_pair(change_words, show_words, devices=GPUS)


# ---- Groups


def exchange(side, size):
    gpu = Gpu(side)
    other = 1 - side.number
    sent = [gpu.array(pattern(size, 10 * side.number + lane)) for lane in range(4)]
    received = [gpu.array(bytes(size)) for _ in sent]
    with onehop.group():
        for lane, (to, back) in enumerate(zip(sent, received, strict=True)):
            with onehop.group():
                gpu.on.send(to, lane=lane)
            gpu.on.recv(back, lane=lane)
    gpu.synchronize()
    for lane, back in enumerate(received):
        assert back.bytes() == pattern(size, 10 * other + lane), lane
    assert side.peer.async_error() is None


@pytest.mark.parametrize("size", [8, LARGE])
def test_a_group_exchanges_in_both_directions(size):
    run_pair(exchange, exchange, size, devices=GPUS)


def raise_within(side):
    gpu = Gpu(side)
    array = gpu.array(pattern(100))

    def send_and_raise():
        with onehop.group():
            gpu.on.send(array)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        send_and_raise()
    # What was given has begun, and the group is over.
    gpu.on.send(array)
    gpu.synchronize()


def receive_twice(side):
    gpu = Gpu(side)
    for _ in range(2):
        array = gpu.array(bytes(100))
        gpu.on.recv(array)
        gpu.synchronize()
        assert array.bytes() == pattern(100)


def test_a_group_ends_when_its_body_raises():
    run_pair(raise_within, receive_twice, devices=GPUS)


# ---- Batches

BLOCKS = 1200
STEP = 131


def blocks_of(content):
    """Return places of many blocks, and what they make of zeros."""
    offsets = np.arange(BLOCKS, dtype=np.uint64) * STEP
    lengths = np.random.default_rng(3).integers(0, STEP, BLOCKS).astype(np.uint64)
    expected = bytearray(len(content))
    for at, length in zip(offsets.tolist(), lengths.tolist(), strict=True):
        expected[at : at + length] = content[at : at + length]
    return offsets, lengths, bytes(expected)


def batches_to(side):
    gpu = Gpu(side)
    remote = side.peer.attach(side.take(), timeout=30)
    content = pattern(BLOCKS * STEP)
    out, into = gpu.array(content), gpu.array(bytes(len(content)))
    offsets, lengths, expected = blocks_of(content)
    gpu.on.put_batch(out, remote, offsets, offsets, lengths)
    gpu.on.signal(1)
    gpu.on.get_batch(into, remote, offsets, offsets, lengths)
    gpu.synchronize()
    assert into.bytes() == expected
    gpu.on.wait_signal(2, timeout=30)
    packed = gpu.array(bytes(40))
    gpu.on.scatter(gpu.array(bytes(range(40))), remote, range(0, 400, 100), 10)
    gpu.on.gather(packed, remote, [300, 0, 100, 200], [10, 10, 10, 10])
    gpu.synchronize()
    assert packed.bytes() == bytes([*range(30, 40), *range(30)])
    gpu.on.get_regions([into, packed], [remote], [1, 0], [5, 7], None, [100, 200], [10, 10])
    gpu.synchronize()
    assert packed.bytes()[5:15] == bytes(range(10, 20))
    assert into.bytes()[7:17] == bytes(range(20, 30))
    gpu.on.put_regions([packed], [remote], None, [5], None, [0], [10])
    gpu.on.signal(1)
    gpu.synchronize()
    with pytest.raises(onehop.OutOfRange, match="block 1"):
        gpu.on.put_batch(out, remote, [0, 0], [0, len(content)], 1)
    with pytest.raises(onehop.InvalidArgument, match="one entry per block"):
        gpu.on.get_batch(out, remote, [0, 0], [0], 1)
    with pytest.raises(onehop.InvalidArgument, match="whole remote region"):
        gpu.on.put_batch(out, remote[1:], [0, 5], [0, 5], 5)
    assert side.peer.async_error() is None


def batches_from(side):
    gpu = Gpu(side)
    memory = gpu.array(bytes(BLOCKS * STEP))
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    gpu.on.wait_signal(1, timeout=30)
    gpu.synchronize()
    assert memory.bytes() == blocks_of(pattern(BLOCKS * STEP))[2]
    gpu.on.signal(2)
    gpu.on.wait_signal(1, timeout=30)
    gpu.synchronize()
    assert memory.bytes()[:10] == bytes(range(10, 20))
    assert side.peer.async_error() is None
    region.deregister(timeout=30)


def test_batches_come_in_the_order_of_the_stream():
    run_pair(batches_to, batches_from, devices=GPUS)


# ---- Host memory at one end


def shared(content):
    memory = onehop.empty(len(content))
    memory[:] = content
    return memory


HOST_KINDS = [shared, bytearray]


def offload(side, _in_host):
    gpu = Gpu(side)
    remote = side.peer.attach(side.take(), timeout=30)
    offsets, lengths, expected = blocks_of(pattern(BLOCKS * STEP))
    for number, make in enumerate(HOST_KINDS):
        content = pattern(BLOCKS * STEP, number)
        out, into = make(content), make(bytes(len(content)))
        gpu.on.put(out, remote[:])
        gpu.on.get(into, remote[:])
        gpu.synchronize()
        assert bytes(into) == content
        gpu.on.put(gpu.array(bytes(len(content))), remote[:])
        gpu.on.put_batch(make(pattern(BLOCKS * STEP)), remote, offsets, offsets, lengths)
        gpu.on.get_batch(into, remote, [0, STEP], [0, STEP], STEP)
        gpu.on.signal(1)
        gpu.on.wait_signal(2, timeout=30)
        gpu.synchronize()
        assert bytes(into) == expected[: 2 * STEP] + content[2 * STEP :]
        gpu.on.put_regions(
            [out, gpu.array(b"x" * 9)], [remote], [0, 1], [0, 0], None, [0, 50], [20, 9]
        )
        gpu.on.get_regions([into], [remote], None, [0], None, [0], [60])
        gpu.synchronize()
        assert bytes(into[:20]) == content[:20]
        assert bytes(into[50:59]) == b"x" * 9
        gpu.on.signal(1)
    assert side.peer.async_error() is None


def be_offloaded_to(side, in_host):
    gpu = Gpu(side)
    memory = (shared if in_host else gpu.array)(bytes(BLOCKS * STEP))
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    expected = blocks_of(pattern(BLOCKS * STEP))[2]
    for _ in HOST_KINDS:
        gpu.on.wait_signal(1, timeout=30)
        gpu.synchronize()
        assert (bytes(memory) if in_host else memory.bytes()) == expected
        gpu.on.signal(2)
        gpu.on.wait_signal(1, timeout=30)
        gpu.synchronize()
    region.deregister(timeout=30)


@pytest.mark.parametrize("in_host", [False, True])
def test_puts_and_gets_take_host_memory(in_host):
    run_pair(offload, be_offloaded_to, in_host, devices=GPUS)


# ---- Puts and signals


def put_and_signal(side):
    gpu = Gpu(side)
    remote = side.peer.attach(side.take(), timeout=30)
    for step in range(3):
        gpu.on.wait_signal(1)
        gpu.on.put(gpu.array(pattern(LARGE, step)), remote[100 : 100 + LARGE])
        gpu.on.signal(2, n=3)
    gpu.synchronize()
    with pytest.raises(onehop.OutOfRange, match="same length"):
        gpu.on.put(gpu.array(bytes(10)), remote[:9])


def get_behind_a_signal(side):
    gpu = Gpu(side)
    remote = side.peer.attach(side.take(), timeout=30)
    for step in range(3):
        into = gpu.array(bytes(LARGE))
        gpu.on.wait_signal(1)
        gpu.on.get(into, remote[100 : 100 + LARGE])
        gpu.on.signal(2)
        gpu.synchronize()
        assert into.bytes() == pattern(LARGE, step)
    with pytest.raises(onehop.OutOfRange, match="same length"):
        gpu.on.get(into, remote[:9])
    with pytest.raises(onehop.InvalidArgument):
        gpu.on.get(bytes(LARGE), remote[:LARGE])


def write_and_signal(side):
    gpu = Gpu(side)
    memory = gpu.array(bytes(LARGE + 200))
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    for step in range(3):
        gpu.driver.write(memory.address, bytes(100) + pattern(LARGE, step))
        gpu.on.signal(1)
        gpu.on.wait_signal(2)
        gpu.synchronize()
    assert side.peer.async_error() is None


def wait_and_look(side):
    gpu = Gpu(side)
    memory = gpu.array(bytes(LARGE + 200))
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    for step in range(3):
        gpu.on.signal(1)
        gpu.on.wait_signal(2)
        gpu.on.wait_signal(2, n=2, timeout=30)
        gpu.synchronize()
        assert memory.bytes() == bytes(100) + pattern(LARGE, step) + bytes(100)
    assert side.peer.async_error() is None
    region.deregister(timeout=30)


def test_puts_come_before_the_signals_behind_them():
    run_pair(put_and_signal, wait_and_look, devices=GPUS)


def test_gets_come_behind_the_signals_before_them():
    run_pair(get_behind_a_signal, write_and_signal, devices=GPUS)


# ---- Failures


def wait_in_vain(side):
    gpu = Gpu(side)
    side.peer.warmup(timeout=30)
    gpu.on.wait_signal(5, timeout=0.1)
    gpu.synchronize()
    assert isinstance(failure_of(side.peer), onehop.TimeoutError)
    assert side.peer.async_error() is None
    array = gpu.array(bytes(100))
    gpu.on.recv(array, lane=2, timeout=0.1)
    gpu.synchronize()
    assert isinstance(failure_of(side.peer), onehop.TimeoutError)
    side.peer.reset_lane(2, timeout=30)
    side.sync()
    gpu.on.recv(array, lane=2)
    gpu.synchronize()
    assert array.bytes() == pattern(100)


def send_after_the_reset(side):
    gpu = Gpu(side)
    side.sync()
    gpu.on.send(gpu.array(pattern(100)), lane=2)
    gpu.synchronize()


def test_a_wait_ends_at_its_timeout_and_is_told():
    run_pair(wait_in_vain, send_after_the_reset, devices=GPUS)


def receive_too_little(side):
    gpu = Gpu(side)
    array = gpu.array(bytes(10))
    gpu.on.recv(array)
    gpu.synchronize()
    assert failure_of(side.peer).status == onehop.Status.TRUNCATED
    gpu.on.recv(array)  # the lane goes on
    gpu.synchronize()
    assert array.bytes() == pattern(10, 2)


def send_too_much(side):
    gpu = Gpu(side)
    gpu.on.send(gpu.array(pattern(100)))
    gpu.on.send(gpu.array(pattern(10, 2)))
    gpu.synchronize()


def test_a_longer_message_is_told():
    run_pair(receive_too_little, send_too_much, devices=GPUS)


def refuse_arguments(side):
    gpu = Gpu(side)
    event = fake_gpu.Event(gpu.driver.event())
    for wrong in [None, True, 1.5, "stream", object(), event, onehop.CURRENT_STREAM]:
        with pytest.raises(onehop.InvalidType, match="stream is of type"):
            side.peer.on(wrong)
    for call in [gpu.on.send, gpu.on.recv]:
        with pytest.raises(onehop.InvalidArgument, match="bytearray is host memory"):
            call(bytearray(10))
        with pytest.raises(onehop.InvalidArgument, match="16"):
            call(gpu.array(bytes(10)), lane=16)
    with pytest.raises(onehop.InvalidArgument, match="64"):
        gpu.on.signal(64)
    with pytest.raises(onehop.InvalidArgument):
        side.peer.device_handle(16)


def test_arguments_that_are_refused():
    run_pair(refuse_arguments, refuse_arguments, devices=GPUS)


def stream_of_the_host():
    pair = LocalPair(None, None)
    with pytest.raises(onehop.OperationError) as failure:
        pair.first.warmup(timeout=30)
    assert failure.value.status in (onehop.Status.NOT_VIABLE, onehop.Status.INVALID)
    info = pair.first.stream_info()
    assert (info.path, info.ready) == ("none", False)
    assert info.why_not


def test_host_memory_has_no_streams():
    run_alone(stream_of_the_host)


# ---- Capture


def capture_sends(side):
    gpu = Gpu(side)
    array = gpu.array(bytes(100))
    with gpu.driver.capture(gpu.stream), pytest.raises(onehop.InvalidArgument, match="warmup"):
        gpu.on.send(array)
    side.peer.warmup(timeout=30)
    assert side.peer.stream_info().ready
    with gpu.driver.capture(gpu.stream) as graphs:
        gpu.on.send(array, lane=4)
    for seed in range(3):
        gpu.driver.write(array.address, pattern(100, seed))
        gpu.driver.launch(graphs[0], gpu.stream)
        gpu.synchronize()


def capture_receives(side):
    gpu = Gpu(side)
    array = gpu.array(bytes(100))
    side.peer.warmup(timeout=30)
    with gpu.driver.capture(gpu.stream) as graphs:
        gpu.on.recv(array, lane=4)
    for seed in range(3):
        gpu.driver.launch(graphs[0], gpu.stream)
        gpu.synchronize()
        assert array.bytes() == pattern(100, seed)


def test_captured_operations_are_replayed():
    run_pair(capture_sends, capture_receives, devices=GPUS)


# ---- Communicators


def exchange_between_ranks(comm):
    driver = Driver(comm.rank)
    stream = driver.stream()
    other = 1 - comm.rank
    comm.warmup([other], timeout=30)
    comm.warmup(timeout=30)
    on = comm.on(stream)
    sent = CudaArray(driver, pattern(LARGE, comm.rank))
    received = CudaArray(driver, bytes(LARGE))
    with onehop.group():
        on.send(sent, other, lane=1)
        on.recv(received, other, lane=1)
    driver.synchronize(stream)
    assert received.bytes() == pattern(LARGE, other)
    with pytest.raises(onehop.InvalidArgument, match="rank 2"):
        on.send(sent, 2)
    with pytest.raises(onehop.InvalidArgument, match="rank 2"):
        comm.warmup([2])
    with pytest.raises(onehop.InvalidType, match="ranks"):
        comm.warmup(1)


def test_between_ranks():
    run_ranks(2, exchange_between_ranks, devices=GPUS)
