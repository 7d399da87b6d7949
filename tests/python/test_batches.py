# SPDX-License-Identifier: Apache-2.0
"""Scatter, gather and prepared batches between two processes."""

import threading
import tracemalloc

import hosts
import numpy as np
import onehop
import pytest
from processes import run_pair

SIZE = 1 << 20
BLOCKS = 300
LENGTH = 512
KINDS = ["host", "shared"]


def memory(kind):
    return onehop.empty(SIZE, "u1") if kind == "shared" else np.zeros(SIZE, "u1")


def own(side, kind):
    """Show memory until the other side is through, and once more after its region is gone."""
    buffer = memory(kind)
    region = side.endpoint.register(buffer)
    side.give(region.descriptor)
    side.peer.wait_signal(1, timeout=30)
    side.sync()
    region.deregister(timeout=30)
    side.sync()
    side.peer.wait_signal(1, timeout=30)
    return [text for _, text in side.endpoint.notifications()]


def put_packed(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    sources, targets = places()
    side.peer.put_batch(filled(kind, 1), remote, sources, targets, LENGTH).wait(timeout=30)
    pools = side.endpoint.pools()
    side.peer.signal(1)
    side.sync()
    side.sync()
    side.peer.signal(1)
    return pools, side.peer.stats()


def test_pools_are_counted(monkeypatch):
    idle = onehop.PoolStats(0, 0, 0, 0, 0, 0)
    with onehop.Endpoint() as endpoint:
        assert endpoint.pools() == {"pipeline": idle, "staging": idle}
    if why := hosts.why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    monkeypatch.setenv("ONEHOP_TRANSPORT", "ucx")
    monkeypatch.setenv("UCX_TLS", "tcp")
    monkeypatch.setenv("UCX_NET_DEVICES", "lo")
    _, (pools, stats) = run_pair(own, put_packed, "host")
    assert pools["staging"] == idle
    pool = pools["pipeline"]
    assert 1 <= pool.peak <= pool.buffers <= pool.limit == 64
    assert (pool.in_use, pool.shortages) == (0, 0)
    assert pool.buffer_size >= LENGTH
    assert stats.packed == BLOCKS


def places():
    """Source and target offsets of blocks that lie apart, as arrays of either sign."""
    rng = np.random.default_rng(1)
    targets = rng.permutation(SIZE // LENGTH)[:BLOCKS] * LENGTH
    return np.arange(BLOCKS, dtype=np.uint64) * (LENGTH + 8), targets.astype(np.int64)


def filled(kind, seed):
    local = memory(kind)
    local[:] = np.random.default_rng(seed).integers(0, 256, SIZE)
    return local


def fetch(side, remote):
    seen = np.zeros(SIZE, "u1")
    side.peer.get(seen, remote).wait(timeout=30)
    return seen


def block(array, offset):
    return array[int(offset) : int(offset) + LENGTH]


def prepare_and_post(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    local = filled(kind, 1)
    sources, targets = places()
    lengths = np.full(BLOCKS, LENGTH)
    put = side.peer.prepare_put(local, remote, sources, targets, lengths)
    back = np.zeros(SIZE, "u1")
    get = side.peer.prepare_get(back, remote, list(sources), list(targets), LENGTH)
    # The arrays are the caller's again.
    lengths[:] = 0
    for seed in range(3):
        local[:] = filled(kind, seed)
        message = put.post(notify=b"round %d" % seed).wait(timeout=30)
        assert message.nbytes == BLOCKS * LENGTH
        seen = fetch(side, remote)
        get.post(after=None).wait(timeout=30)
        for source, target in zip(sources, targets, strict=True):
            assert (block(seen, target) == block(local, source)).all()
            assert (block(back, source) == block(local, source)).all()
        assert (back[LENGTH : LENGTH + 8] == 0).all()
    get.post(notify=b"read").wait(timeout=30)
    with side.peer.prepare_put(local, remote, range(0), range(0), 8) as nothing:
        assert nothing.post().wait(timeout=30).nbytes == 0
    with pytest.raises(onehop.InvalidArgument, match="closed"):
        nothing.post()
    assert repr(nothing) == "<onehop.PreparedBatch of puts, closed>"
    nothing.close()
    remote.detach()
    post_in_threads(put)
    end(side, [put, get])


def post_in_threads(put):
    failures = []

    def post():
        try:
            for _ in range(10):
                put.post().wait(timeout=30)
        except onehop.Error as failure:
            failures.append(failure)

    threads = [threading.Thread(target=post) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures


def end(side, prepared):
    side.peer.signal(1)
    side.sync()
    side.sync()
    for batch in prepared:
        with pytest.raises(onehop.OperationError) as caught:
            batch.post().wait(timeout=30)
        assert caught.value.status is onehop.Status.RETIRED
    side.peer.signal(1)


@pytest.mark.parametrize("kind", KINDS)
def test_prepared_batches(kind):
    notifications, _ = run_pair(own, prepare_and_post, kind)
    assert notifications == [b"round 0", b"round 1", b"round 2", b"read"]


def scatter_and_gather(side, kind):
    remote = side.peer.attach(side.take(), timeout=30)
    local = filled(kind, 4)
    _, targets = places()
    sent = local[: BLOCKS * LENGTH]
    message = side.peer.scatter(sent, remote, targets, LENGTH, notify=b"scattered").wait(timeout=30)
    assert message.nbytes == BLOCKS * LENGTH
    seen = fetch(side, remote)
    for i, target in enumerate(targets):
        assert (block(seen, target) == block(local, i * LENGTH)).all()
    got = np.zeros(BLOCKS * LENGTH, "u1")
    side.peer.gather(got, remote, list(targets), np.full(BLOCKS, LENGTH)).wait(timeout=30)
    assert (got == sent).all()
    # No list at all.
    strided = range(LENGTH, LENGTH + BLOCKS * 2 * LENGTH, 2 * LENGTH)
    side.peer.scatter(local, remote, strided, LENGTH).wait(timeout=30)
    got[:] = 0
    side.peer.gather(got, remote, strided, LENGTH).wait(timeout=30)
    assert (got == sent).all()
    with pytest.raises(onehop.OutOfRange, match="block 1"):
        side.peer.gather(got[: LENGTH + 1], remote, [0, 0], LENGTH)
    with pytest.raises(onehop.OutOfRange, match="block 2"):
        side.peer.scatter(local, remote, [0, 0, SIZE - 1], [1, 1, 2])
    with pytest.raises(onehop.InvalidArgument, match="2 remote offsets and 1 lengths"):
        side.peer.scatter(local, remote, [0, 1], [1])
    with pytest.raises(TypeError, match="remote_offsets is a NoneType"):
        side.peer.scatter(local, remote, None, 1)
    end(side, [])


@pytest.mark.parametrize("kind", KINDS)
def test_scatter_and_gather(kind):
    notifications, _ = run_pair(own, scatter_and_gather, kind)
    assert notifications == [b"scattered"]


def test_refused_when_prepared(pair):
    region = pair.endpoints[1].register(bytearray(1000))
    remote = pair.first.attach(region.descriptor)
    local = bytearray(1000)
    for prepare in (pair.first.prepare_put, pair.first.prepare_get):
        with pytest.raises(onehop.OutOfRange, match="block 1"):
            prepare(local, remote, [0, 0], [0, 999], 2)
        with pytest.raises(onehop.InvalidArgument, match="one entry per block"):
            prepare(local, remote, [0, 1], [0], 1)
        with pytest.raises(TypeError, match="local_offsets is a NoneType"):
            prepare(local, remote, None, [0], 1)
        with pytest.raises(onehop.InvalidArgument, match="whole remote region"):
            prepare(local, remote[:10], [0], [0], 1)
        with pytest.raises(onehop.InvalidArgument, match="at most 1048576"):
            prepare(local, remote, range(0, 1 << 40), range(0, 1 << 40), 1)
    with pytest.raises(onehop.InvalidArgument, match="read-only"):
        pair.first.prepare_get(b"constant", remote, [0], [0], 1)
    local.append(1)  # nothing holds it


class Unwalked:
    """A list of which nobody may look at the items."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        pytest.fail("it was walked")


def test_lists_are_counted_before_they_are_walked(pair):
    region = pair.endpoints[1].register(bytearray(1000))
    remote = pair.first.attach(region.descriptor)
    local = bytearray(1000)
    few, many = Unwalked(3), Unwalked(4)
    endless = Unwalked((1 << 20) + 1)
    prepare = pair.first.prepare_put
    for lists in ((many, few, few), (few, many, few), (few, few, many), (few, many, 1)):
        with pytest.raises(onehop.InvalidArgument, match="one entry per block"):
            prepare(local, remote, *lists)
    for lists in ((few, endless, few), (endless, few, 1), (few, few, endless)):
        with pytest.raises(onehop.InvalidArgument, match="more than 1048576 items"):
            prepare(local, remote, *lists)
    for lengths in (range(10**8), range(10**30), iter(range(10**8))):
        with pytest.raises(onehop.InvalidArgument, match="lengths has more than 1048576 items"):
            prepare(local, remote, [0], [0], lengths)
    for start in (-1, 1 << 64):
        with pytest.raises(onehop.InvalidArgument, match="whole numbers of bytes"):
            prepare(local, remote, range(start, start + 1), [0], 1)
    for nested in (np.zeros((1, 2), "i8"), np.zeros((2, 2), "i8").T[:1], [[0, 1]]):
        for lists in ((nested, [0], [1]), ([0], nested, [1]), ([0], [0], nested)):
            with pytest.raises(onehop.InvalidArgument, match="as an entry: give one dimension"):
                prepare(local, remote, *lists)
    with pytest.raises(onehop.OutOfRange):
        prepare(local, remote, range(1 << 63, (1 << 63) + 1), [0], 1)
    with pytest.raises(onehop.InvalidArgument, match="one entry per block"):
        pair.first.send_batch(local, few, many)
    with pytest.raises(onehop.InvalidArgument, match="offsets has more than 1048576 items"):
        pair.first.send_batch(local, endless, 1)


def test_a_prepared_batch_holds_what_it_needs(pair):
    region = pair.endpoints[1].register(bytearray(1000))
    local = bytearray(b"x" * 1000)
    batch = pair.first.prepare_put(
        local, pair.first.attach(region.descriptor), [0, 100], [500, 10], 50
    )
    with pytest.raises(BufferError):
        local.append(1)
    local[0:50] = b"y" * 50
    batch.post().wait(timeout=30)
    seen = bytearray(1000)
    pair.first.get(seen, pair.first.attach(region.descriptor)).wait(timeout=30)
    assert seen[500:550] == b"y" * 50
    assert seen[10:60] == b"x" * 50
    batch.close()
    local.append(1)


def test_no_object_per_block(pair):
    count = 100_000
    region = pair.endpoints[1].register(np.zeros(count * 16, "u1"))
    remote = pair.first.attach(region.descriptor)
    local = np.ones(count * 16, "u1")
    offsets = np.arange(count, dtype=np.uint64) * 16
    tracemalloc.start()
    try:
        pair.first.put_batch(local, remote, offsets, offsets, np.full(count, 8)).wait(timeout=30)
        allocated = tracemalloc.get_traced_memory()[1] - count * 8  # of the lengths
        with pair.first.prepare_put(local, remote, offsets, offsets, 8) as batch:
            tracemalloc.reset_peak()
            batch.post().wait(timeout=30)
            posted = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert allocated < count
    assert posted < count
    seen = np.zeros(count * 16, "u1")
    pair.first.get(seen, remote).wait(timeout=30)
    assert (seen.reshape(count, 16)[:, :8] == 1).all()
    assert (seen.reshape(count, 16)[:, 8:] == 0).all()


def test_a_post_in_the_background(pair):
    """Nobody but this thread makes progress: the bytes move when it tests the request."""
    size = 4 << 20
    there = np.zeros(size, "u1")
    region = pair.endpoints[1].register(there)
    remote = pair.first.attach(region.descriptor)
    local = np.ones(size, "u1")
    batch = pair.first.prepare_put(local, remote, [0, size // 2], [size // 2, 0], size // 2)
    posted = batch.post(notify=b"n", background=True)
    behind = pair.first.put(local[:8] + 1, remote[:8])
    assert not there.any()
    assert not posted.done
    assert posted.wait(timeout=30).nbytes == size
    assert behind.wait(timeout=30).seconds > 0
    assert posted.message.seconds > 0
    assert (there[8:] == 1).all()
    assert (there[:8] == 2).all()
    # Nothing is before it: this thread copies.
    assert pair.first.put(local[:8], remote[:8]).message.seconds == 0
    stopped = batch.post(background=True)
    assert stopped.cancel()
    assert stopped.status == onehop.Status.CANCELLED
    assert stopped.buffer_released
