# SPDX-License-Identifier: Apache-2.0
"""Batches over many local buffers and many regions, between two processes."""

import hosts
import numpy as np
import onehop
import pytest
from processes import run_pair

LOCALS, REGIONS, SIZE = 3, 5, 1 << 16
BLOCK = 64
KINDS = ["host", "shared", "socket", "ucx"]


def memory(kind, count):
    if kind == "shared":
        return [onehop.empty(SIZE, "u1") for _ in range(count)]
    return [np.zeros(SIZE, "u1") for _ in range(count)]


def over(kind, monkeypatch):
    if kind == "socket":
        monkeypatch.setenv("ONEHOP_TRANSPORT", "socket")
    if kind == "ucx":
        if why := hosts.why_no_ucx():
            pytest.skip(f"no UCX: {why}")
        monkeypatch.setenv("ONEHOP_TRANSPORT", "ucx")
        monkeypatch.setenv("UCX_TLS", "tcp")
        monkeypatch.setenv("UCX_NET_DEVICES", "lo")


def places(blocks):
    """Where each block is on both sides: index and offset; no two share a byte."""
    rng = np.random.default_rng(7)
    here = rng.permutation(LOCALS * SIZE // BLOCK)[:blocks]
    there = rng.permutation(REGIONS * SIZE // BLOCK)[:blocks]
    return (
        (here % LOCALS).astype(np.uint32),
        (here // LOCALS * BLOCK).astype(np.uint64),
        (there % REGIONS).astype(np.uint32),
        (there // REGIONS * BLOCK).astype(np.int64),
    )


def content(seed, count):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, SIZE).astype("u1") for _ in range(count)]


def own(side, kind):
    buffers = memory(kind, REGIONS)
    regions = [side.endpoint.register(buffer) for buffer in buffers]
    for region in regions:
        side.give(region.descriptor)
    local, here, remote, there = places(2000)
    sent = content(1, LOCALS)
    came = []
    for _ in range(3):
        came.append(side.endpoint.wait_notification(timeout=30)[1])
        for i in range(len(local)):
            target = buffers[remote[i]][int(there[i]) :][:BLOCK]
            assert (target == sent[local[i]][int(here[i]) :][:BLOCK]).all()
        for buffer in buffers:
            buffer[:] = 0
        side.sync()
    for buffer, bytes_ in zip(buffers, content(2, REGIONS), strict=True):
        buffer[:] = bytes_
    side.sync()
    came.append(side.endpoint.wait_notification(timeout=30)[1])
    side.sync()
    # Runs of blocks: every other one of each region.
    for buffer, bytes_ in zip(buffers, content(3, REGIONS), strict=True):
        assert (buffer.reshape(-1, 2, BLOCK)[:, 0] == bytes_.reshape(-1, 2, BLOCK)[:, 0]).all()
    return came


def move(side, kind):
    remotes = [side.peer.attach(side.take(), timeout=30) for _ in range(REGIONS)]
    locals_ = memory(kind, LOCALS)
    for buffer, bytes_ in zip(locals_, content(1, LOCALS), strict=True):
        buffer[:] = bytes_
    local, here, remote, there = places(2000)
    lengths = np.full(2000, BLOCK)
    lists = (local, here, remote, there, lengths)
    message = side.peer.put_regions(locals_, remotes, *lists, notify=b"put").wait(timeout=30)
    assert message.nbytes == 2000 * BLOCK
    side.sync()
    # The same lists as Python's integers.
    plain = [list(map(int, one)) for one in lists]
    side.peer.put_regions(locals_, remotes, *plain, notify=b"again").wait(timeout=30)
    side.sync()
    with side.peer.prepare_put_regions(locals_, remotes, *lists) as prepared:
        prepared.post(notify=b"p" * 100_000).wait(timeout=30)
    side.sync()
    side.sync()
    for buffer in locals_:
        buffer[:] = 0
    with side.peer.prepare_get_regions(locals_, remotes, *lists) as prepared:
        prepared.post(notify=b"got").wait(timeout=30)
    wanted = content(2, REGIONS)
    for i in range(2000):
        seen = locals_[local[i]][int(here[i]) :][:BLOCK]
        assert (seen == wanted[remote[i]][int(there[i]) :][:BLOCK]).all()
    # A run for each region, from an own buffer each.
    sources = content(3, REGIONS)
    each, zeros = np.arange(REGIONS, dtype=np.uint32), np.zeros(REGIONS, np.uint64)
    strides = np.full(REGIONS, 2 * BLOCK)
    side.peer.put_regions(
        sources,
        remotes,
        each,
        zeros,
        each,
        zeros,
        np.full(REGIONS, BLOCK),
        counts=np.full(REGIONS, SIZE // BLOCK // 2),
        local_strides=strides,
        remote_strides=strides,
    ).wait(timeout=30)
    side.sync()


@pytest.mark.parametrize("kind", KINDS)
def test_every_block_is_moved(kind, monkeypatch):
    over(kind, monkeypatch)
    came, _ = run_pair(own, move, kind)
    assert came == [b"put", b"again", b"p" * 100_000, b"got"]


def test_what_does_not_fit_is_refused(pair):
    target = np.zeros(100, "u1")
    region = pair.endpoints[1].register(target)
    remote = pair.first.attach(region.descriptor)
    source = np.ones(100, "u1")
    put = pair.first.put_regions
    one = ([0], [0], [0], [0], [100])
    with pytest.raises(onehop.OutOfRange, match="local piece 1 of 1"):
        put([source], [remote], [1], [0], [0], [0], [100])
    with pytest.raises(onehop.OutOfRange, match="remote region 3 of 1"):
        put([source], [remote], [0], [0], [3], [0], [100])
    with pytest.raises(onehop.OutOfRange, match="block 1"):
        put([source], [remote], None, [0, 50], None, [0, 50], [50, 51])
    with pytest.raises(onehop.InvalidArgument, match="1 lengths and 2 local_offsets"):
        put([source], [remote], None, [0, 1], None, [0], [1])
    with pytest.raises(onehop.InvalidArgument, match="strides beside counts"):
        put([source], [remote], *one, counts=[1])
    with pytest.raises(onehop.InvalidArgument, match="not a slice"):
        put([source], [remote[1:]], *one)
    with pytest.raises(onehop.InvalidArgument, match="4294967296"):
        put([source], [remote], [1 << 32], [0], [0], [0], [1])
    with pytest.raises(TypeError, match="give a RemoteRegion"):
        put([source], [region], *one)
    with pytest.raises(TypeError, match="locals is a int"):
        put(3, [remote], *one)
    assert (target == 0).all()
    assert put([], [], None, [], None, [], []).wait(timeout=30).nbytes == 0
    put([source], [remote], *one).wait(timeout=30)
    assert (target == 1).all()
    region.deregister()
    with pytest.raises(onehop.OperationError) as failure:
        put([source], [remote], *one).wait(timeout=30)
    assert failure.value.status is onehop.Status.RETIRED
