# SPDX-License-Identifier: Apache-2.0
"""Put, get, batches, notifications and signals between two processes."""

import numpy as np
import onehop
import pytest
from processes import run_pair

SIZE = 1 << 20


def memory(kind):
    return onehop.empty(SIZE, "u1") if kind == "shared" else np.zeros(SIZE, "u1")


def expose(side, kind):
    """Register memory, let the other side work on it, return what it is then."""
    buffer = memory(kind)
    buffer[:] = np.arange(SIZE) % 251
    region = side.endpoint.register(buffer)
    side.give(region.descriptor)
    side.peer.wait_signal(1, timeout=30)
    side.sync()
    region.deregister(timeout=30)
    side.sync()
    return buffer[:4096].copy(), side.endpoint.notifications()


def put_and_get(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    expected = (np.arange(SIZE) % 251).astype("u1")
    assert len(remote) == SIZE
    whole = np.zeros(SIZE, "u1")
    assert side.peer.get(whole, remote).wait(timeout=30).nbytes == SIZE
    assert (whole == expected).all()

    region = side.endpoint.register(memory(kind))
    ours = np.frombuffer(b"0123456789", "u1")
    side.peer.put(ours, remote[100:110]).wait(timeout=30)
    side.peer.put(b"slices", remote[200:300][10:16], notify=b"layer 7").wait(timeout=30)
    side.peer.put(b"", remote[5:5]).wait(timeout=30)
    side.peer.get(region[1000:1010], remote[100:110]).wait(timeout=30)
    side.peer.put(region[1000:1010], remote[400:410]).wait(timeout=30)
    side.peer.notify(b"", timeout=30)
    side.peer.signal(1)
    out_of_range(side, remote, region)
    side.sync()
    side.sync()
    with pytest.raises(onehop.OperationError) as caught:
        side.peer.put(b"gone", remote[:4]).wait(timeout=30)
    assert caught.value.status is onehop.Status.RETIRED
    remote.detach()
    with pytest.raises(onehop.InvalidArgument, match="detached"):
        side.peer.put(b"gone", remote[:4])


def out_of_range(side, remote, region):
    for key in (slice(0, SIZE + 1), slice(-SIZE - 1, None), slice(5, 4)):
        with pytest.raises(IndexError):
            remote[key]
        with pytest.raises(onehop.OutOfRange):
            region[key]
    with pytest.raises(onehop.InvalidArgument, match="steps of 1"):
        remote[::2]
    with pytest.raises(TypeError, match="key is of type"):
        remote[3]
    with pytest.raises(onehop.OutOfRange, match="the same length"):
        side.peer.put(b"abc", remote[:4])
    with pytest.raises(onehop.InvalidArgument, match="descriptor of their own"):
        region[1:5].descriptor  # noqa: B018
    with pytest.raises(onehop.InvalidArgument, match="67108864"):
        side.peer.notify(bytes((64 << 20) + 1))
    with pytest.raises(onehop.InvalidArgument, match="slot"):
        side.peer.signal(64)
    with pytest.raises(onehop.InvalidArgument):
        side.peer.attach(b"no descriptor")


@pytest.mark.parametrize("kind", ["host", "shared"])
def test_put_and_get(kind):
    (seen, notifications), _ = run_pair(expose, put_and_get, kind)
    assert bytes(seen[100:110]) == b"0123456789"
    assert bytes(seen[210:216]) == b"slices"
    assert bytes(seen[400:410]) == b"0123456789"
    assert seen[99] == 99
    assert [text for _, text in notifications] == [b"layer 7", b""]


def expose_read_only(side, kind):
    buffer = memory(kind)
    buffer[:] = np.arange(SIZE) % 251
    buffer.flags.writeable = False  # as a checkpoint that is mapped from a file
    region = side.endpoint.register(buffer, access="r")
    side.give(region.descriptor)
    with pytest.raises(onehop.InvalidArgument, match='access="r"'):
        side.peer.recv(region[:10])
    side.peer.send(region[:10], tag=1, timeout=30)
    side.sync()
    return (buffer == np.arange(SIZE) % 251).all()


def read_only(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    assert remote.read_only
    for put in (
        lambda: side.peer.put(b"0123456789", remote[100:110], notify=b"done"),
        lambda: side.peer.put_batch(b"0123456789", remote, [0], [100], 10),
    ):
        with pytest.raises(onehop.OperationError, match="registered the region") as no:
            put()
        assert no.value.status is onehop.Status.READ_ONLY
    seen = np.zeros(SIZE, "u1")
    side.peer.get(seen, remote).wait(timeout=30)
    assert (seen == np.arange(SIZE) % 251).all()
    assert side.peer.recv(bytearray(10), tag=1, timeout=30).nbytes == 10
    side.sync()


@pytest.mark.parametrize("kind", ["host", "shared"])
def test_a_read_only_region(kind):
    unchanged, _ = run_pair(expose_read_only, read_only, kind)
    assert unchanged


ADDS = 200


def own_a_counter(side, kind):
    buffer = memory(kind)
    region = side.endpoint.register(buffer)
    side.give(region.descriptor)
    side.sync()
    return buffer[:32].view("u8").copy()


def count(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    word = remote[8:16]
    for number in range(ADDS):
        assert side.peer.fetch_add(word, 1, timeout=30) == number
    assert side.peer.compare_swap(word, 5, 6, timeout=30) == ADDS
    assert side.peer.compare_swap(word, ADDS, 2**64 - 1, timeout=30) == ADDS
    assert side.peer.fetch_add(word, np.uint64(3), timeout=30) == 2**64 - 1
    with pytest.raises(onehop.OutOfRange, match="slice it to 8"):
        side.peer.fetch_add(remote[8:24], 1)
    with pytest.raises(onehop.InvalidArgument, match="multiples of 8"):
        side.peer.fetch_add(remote[9:17], 1)
    for value in (-1, 2**64):
        with pytest.raises((onehop.InvalidArgument, OverflowError)):
            side.peer.fetch_add(word, value)
    with pytest.raises(TypeError, match="value"):
        side.peer.compare_swap(word, 1, 1.5)
    side.sync()


@pytest.mark.parametrize("kind", ["host", "shared"])
def test_atomics(kind):
    words, _ = run_pair(own_a_counter, count, kind)
    assert words.tolist() == [0, 2, 0, 0]


def test_the_access_to_a_region_is_checked():
    with onehop.Endpoint() as endpoint:
        with pytest.raises(onehop.InvalidArgument, match='access w: it is "r" or "rw"'):
            endpoint.register(bytearray(8), access="w")
        with pytest.raises(onehop.InvalidArgument, match="read-only"):
            endpoint.register(bytes(8))
        assert len(endpoint.register(bytes(8), access="r")) == 8


BLOCKS = 300
LENGTH = 512


def put_batches(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    local = memory(kind)
    rng = np.random.default_rng(1)
    local[:] = rng.integers(0, 256, SIZE)
    places = rng.permutation(SIZE // LENGTH)[:BLOCKS] * LENGTH
    sources = np.arange(BLOCKS, dtype=np.uint64) * LENGTH
    check = np.zeros(SIZE, "u1")

    def verify(targets):
        side.peer.get(check, remote).wait(timeout=30)
        for source, target in zip(sources, targets, strict=True):
            source, target = int(source), int(target)
            assert (check[target : target + LENGTH] == local[source : source + LENGTH]).all()

    # Arrays of either sign, a list, one length or many.
    batch = side.peer.put_batch(local, remote, sources, places, LENGTH, notify=b"batch")
    assert batch.wait(timeout=30).nbytes == BLOCKS * LENGTH
    verify(places)
    lengths = np.full(BLOCKS, LENGTH)
    side.peer.put_batch(local, remote, list(sources), places[::-1], lengths).wait(timeout=30)
    verify(places[::-1])
    # Strided: nothing but ranges.
    first, last = LENGTH, LENGTH + BLOCKS * 2 * LENGTH
    strided = range(first, last, 2 * LENGTH)
    side.peer.put_batch(local, remote, range(0, BLOCKS * LENGTH, LENGTH), strided, LENGTH).wait(30)
    verify(strided)
    got = np.zeros(BLOCKS * LENGTH, "u1")
    side.peer.get_batch(got, remote, sources, list(strided), LENGTH).wait(timeout=30)
    assert (got == local[: BLOCKS * LENGTH]).all()
    wrong_batches(side, local, remote)
    side.peer.signal(1)
    side.sync()
    side.sync()


def wrong_batches(side, local, remote):
    with pytest.raises(onehop.OutOfRange, match="block 1"):
        side.peer.put_batch(local, remote, [0, 0], [0, SIZE - 1], 2)
    with pytest.raises(onehop.OutOfRange, match="block 0"):
        side.peer.put_batch(local, remote, np.array([-8]), np.array([0]), np.array([8]))
    with pytest.raises(onehop.InvalidArgument, match="one entry per block"):
        side.peer.put_batch(local, remote, [0, 1], [0], 1)
    with pytest.raises(onehop.InvalidArgument, match="whole numbers"):
        side.peer.put_batch(local, remote, [-1], [0], 1)
    with pytest.raises(TypeError, match="local_offsets is a NoneType"):
        side.peer.put_batch(local, remote, None, [0], 1)
    with pytest.raises(onehop.InvalidArgument, match="whole remote region"):
        side.peer.put_batch(local, remote[:10], [0], [0], 1)


@pytest.mark.parametrize("kind", ["host", "shared"])
def test_batches(kind):
    (_, notifications), _ = run_pair(expose, put_batches, kind)
    assert [text for _, text in notifications] == [b"batch"]


def count_signals(side, other):
    for step in range(1, 20):
        side.peer.signal(side.number, n=step)
        side.peer.wait_signal(other - side.number, n=step, timeout=30)
    with pytest.raises(onehop.TimeoutError):
        side.peer.wait_signal(other - side.number, timeout=0.05)
    side.sync()


def test_signals_are_counted_and_consumed():
    run_pair(count_signals, count_signals, 1)


def test_a_region_keeps_its_buffer(pair):
    buffer = bytearray(100)
    region = pair.endpoints[1].register(buffer)
    part = region[10:20]
    remote = pair.first.attach(region.descriptor)
    del region
    with pytest.raises(BufferError):
        buffer.append(1)
    pair.first.put(b"0123456789", remote[10:20]).wait(timeout=30)
    assert len(part) == 10
    assert buffer[10:20] == b"0123456789"
    del part
    buffer.append(1)
    assert repr(remote[3:7]) == "<onehop.RemoteRegion bytes 3:7>"


def test_regions_belong_to_their_peer(pair):
    with onehop.Endpoint() as third:
        other = third.connect(pair.endpoints[1].address, timeout=30)
        region = pair.endpoints[1].register(bytearray(10))
        remote = other.attach(region.descriptor)
        with pytest.raises(onehop.InvalidArgument, match="another peer"):
            pair.first.put(bytes(10), remote)
