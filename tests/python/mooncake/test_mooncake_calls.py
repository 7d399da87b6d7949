# SPDX-License-Identifier: Apache-2.0
"""Each call: its integers, its arguments, and what the log says."""

import threading

import numpy as np
import onehop.mooncake
import pytest
from mooncake_engines import HOST, SIZE, Engine, pattern
from onehop.mooncake import TransferEngine, TransferOpcode
from posts import post_beside


@pytest.fixture
def two():
    return Engine(pattern(1)), Engine()


@pytest.fixture
def told(caplog):
    """Return what the logger onehop.mooncake has said."""
    return lambda: "\n".join(r.getMessage() for r in caplog.records if r.name == "onehop.mooncake")


# ---- Beginning


def test_before_initialize(told):
    engine = TransferEngine()
    one = np.zeros(8, "u1").ctypes.data
    assert engine.get_rpc_port() == -1
    assert engine.register_memory(one, 8) == engine.unregister_memory(one) == -1
    assert engine.transfer_sync_write(f"{HOST}:1", one, one, 8) == -1
    assert engine.send_probe(f"{HOST}:1") == -1
    assert "call initialize() first" in told()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((HOST, "etcd://127.0.0.1:2379", "rdma", ""), "needs no server"),
        (("", "P2PHANDSHAKE", "rdma", ""), "is no host"),
        (("no host", "P2PHANDSHAKE", "rdma", ""), "is no host"),
        (("does-not-exist.invalid", "P2PHANDSHAKE", "rdma", ""), "has no address"),
    ],
)
def test_initialize_that_fails(told, arguments, why):
    engine = TransferEngine()
    assert engine.initialize(*arguments) < 0
    assert why in told()
    assert engine.initialize(HOST, "P2PHANDSHAKE", "tcp", "mlx5_0,mlx5_1") == 0


def test_initialize_again(told):
    one = Engine()
    assert one.engine.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == -1
    assert "before" in told()
    assert f"{HOST}:{one.engine.get_rpc_port()}" == one.session


@pytest.mark.parametrize("host", ["localhost", f"{HOST}:12345", "::1", "[::1]", "[::1]:99"])
def test_hosts(host):
    engine = TransferEngine()
    assert engine.initialize(host, "P2PHANDSHAKE", "rdma", "") == 0
    other = Engine()
    name = "[::1]" if "::1" in host else "localhost" if host == "localhost" else HOST
    assert other.engine.send_probe(f"{name}:{engine.get_rpc_port()}") == 0


def test_the_time_a_transfer_may_take(monkeypatch, told):
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "soon")
    assert TransferEngine().initialize(HOST, "P2PHANDSHAKE", "rdma", "") == -1
    assert "MC_TRANSFER_TIMEOUT=soon" in told()
    monkeypatch.setenv("MC_TRANSFER_TIMEOUT", "7")
    assert TransferEngine().initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0


# ---- Memory


def test_registrations(two, told):
    engine = two[0].engine
    memory = np.zeros(4096, "u1")
    base = memory.ctypes.data
    assert engine.register_memory(base, 0) == -1
    assert engine.register_memory(base + 1024, 1024) == 0
    for start, size in ((1024, 1024), (1024, 1), (0, 1025), (2047, 1), (0, 4096)):
        assert engine.register_memory(base + start, size) == -7
    assert "overlap" in told()
    assert engine.register_memory(base, 1024) == 0
    assert engine.register_memory(base + 2048, 2048) == 0
    assert engine.unregister_memory(base + 1) == -3
    assert engine.unregister_memory(base + 1024) == 0
    assert engine.unregister_memory(base + 1024) == -3
    assert engine.register_memory(base + 1024, 512) == 0
    assert engine.register_memory(2**64 - 8, 64) == -1


def test_batches_of_registrations(two):
    engine = two[0].engine
    memory = np.zeros(4096, "u1")
    base = memory.ctypes.data
    starts = [base, base + 1024, base + 2048]
    assert engine.batch_register_memory(starts, [1024, 1024]) == -1
    assert engine.batch_register_memory(starts, [1024, 1025, 10]) == -7
    # None of them was: all can be.
    assert engine.batch_register_memory(starts, [1024, 1024, 0]) == -1
    assert engine.batch_register_memory(starts, [1024, 1024, 10], "cpu:0") == 0
    # All are tried.
    assert engine.batch_unregister_memory([starts[0], 1, starts[2]]) == -3
    assert engine.unregister_memory(starts[0]) == -3
    assert engine.batch_unregister_memory([starts[1]]) == 0
    assert engine.batch_register_memory([], []) == engine.batch_unregister_memory([]) == 0


# ---- Transfers


def test_write_and_read(two):
    ours, theirs = two
    assert ours.write(theirs.session, ours.base, theirs.base, SIZE) == 0
    assert (theirs.bytes == ours.bytes).all()
    theirs.bytes[:100] = 7
    assert ours.read(theirs.session, ours.base + 10, theirs.base, 100) == 0
    assert (ours.bytes[10:110] == 7).all()
    assert (ours.bytes[110:] == pattern(1)[110:]).all()


def test_by_opcode(two):
    ours, theirs = two
    engine = ours.engine
    opcodes = TransferEngine.TransferOpcode
    assert opcodes is TransferOpcode
    where = (theirs.session, ours.base, theirs.base)
    assert engine.transfer_sync(*where, 64, opcodes.Write) == 0
    assert (theirs.bytes[:64] == ours.bytes[:64]).all()
    theirs.bytes[:64] = 3
    lists = (theirs.session, [ours.base], [theirs.base])
    assert engine.batch_transfer_sync(*lists, [64], opcode=opcodes.Read) == 0
    assert (ours.bytes[:64] == 3).all()
    with pytest.raises(TypeError, match="notif"):
        engine.transfer_sync(*where, 64, opcodes.Write, notify=("a", "b"))
    assert engine.transfer_sync_write(*where, 64, transport_hint="rdma") == 0


def test_10000_blocks(two):
    ours, theirs = two
    count, block = 10_000, 96
    source, target = (np.random.default_rng(i).permutation(count) * block for i in (1, 2))
    addresses = [ours.base + int(at) for at in source], [theirs.base + int(at) for at in target]
    lengths = [block] * count
    engine = ours.engine
    assert engine.batch_transfer_sync_write(theirs.session, *addresses, lengths) == 0
    wanted = np.zeros(SIZE, "u1")
    steps = np.arange(block)
    wanted[target[:, None] + steps] = ours.bytes[source[:, None] + steps]
    assert (theirs.bytes == wanted).all()
    ours.bytes[:] = 0
    arrays = [np.array(one, np.uint64) for one in (*addresses, lengths)]
    assert engine.batch_transfer_sync_read(theirs.session, *arrays) == 0
    assert (ours.bytes[: count * block] == pattern(1)[: count * block]).all()


def test_blocks_of_many_registrations(two):
    ours, theirs = two
    areas = [np.zeros(256, "u1") for _ in range(50)]
    starts = [area.ctypes.data for area in areas]
    assert theirs.engine.batch_register_memory(starts, [256] * 50) == 0
    local = [ours.base + 256 * i for i in range(50)]
    assert ours.engine.batch_transfer_sync_write(theirs.session, local, starts, [256] * 50) == 0
    assert (np.concatenate(areas) == ours.bytes[: 256 * 50]).all()


def test_ourselves(two):
    ours, _ = two
    assert ours.write(ours.session, ours.base, ours.base + 4096, 4096) == 0
    assert (ours.bytes[:4096] == ours.bytes[4096:8192]).all()
    more = pattern(9, 512)
    assert ours.engine.register_memory(more.ctypes.data, 512) == 0
    assert ours.read(ours.session, ours.base, more.ctypes.data, 512) == 0
    assert (ours.bytes[:512] == more).all()


def test_ranges_that_are_not_registered(two, told):
    ours, theirs = two
    other = np.zeros(64, "u1")
    end = theirs.base + SIZE
    calls = [
        (other.ctypes.data, theirs.base, 64),
        (ours.base, other.ctypes.data, 64),
        (ours.base, end - 32, 64),
        (ours.base, end, 1),
        (ours.base + SIZE - 1, theirs.base, 2),
        (ours.base, theirs.base, 2**63),
        (ours.base, 2**64 - 8, 64),
    ]
    for call in calls:
        assert ours.write(theirs.session, *call) == -1
        assert ours.read(theirs.session, *call) == -1
    assert "lie in no registration" in told()
    # A batch of which one block is bad moves nothing.
    blocks = [ours.base, ours.base], [theirs.base, end], [64, 64]
    assert ours.engine.batch_transfer_sync_write(theirs.session, *blocks) == -1
    assert not theirs.bytes.any()
    assert ours.write(theirs.session, ours.base, theirs.base, 64) == 0


def test_lists_of_different_lengths(two, told):
    ours, theirs = two
    lists = [ours.base] * 2, [theirs.base], [8, 8]
    assert ours.engine.batch_transfer_sync_write(theirs.session, *lists) == -1
    assert "give as many" in told()
    assert ours.engine.batch_transfer_sync_write(theirs.session, [], [], []) == 0


def test_arguments_of_wrong_types(two):
    ours, theirs = two
    engine = ours.engine
    for bad in (-1, 1.5, "0", None, 2**64):
        with pytest.raises(TypeError):
            engine.register_memory(bad, 8)
        with pytest.raises(TypeError):
            ours.write(theirs.session, ours.base, bad, 8)
        with pytest.raises(TypeError):
            engine.batch_transfer_sync_write(theirs.session, [ours.base], [bad], [8])
        with pytest.raises(TypeError):
            engine.batch_unregister_memory([bad])
    with pytest.raises(TypeError):
        engine.batch_transfer_sync_write(theirs.session, [[ours.base]], [[theirs.base]], [[8]])
    with pytest.raises(TypeError):
        engine.send_probe(8)


def test_registered_again_at_the_same_place(two):
    """The region that the other side knows has ended; another is there."""
    ours, theirs = two
    for _ in range(3):
        assert ours.write(theirs.session, ours.base, theirs.base, 64) == 0
        assert theirs.engine.unregister_memory(theirs.base) == 0
        assert ours.write(theirs.session, ours.base, theirs.base, 64) == -1
        assert theirs.engine.register_memory(theirs.base, SIZE) == 0
    assert ours.write(theirs.session, ours.base, theirs.base, SIZE) == 0
    assert theirs.engine.unregister_memory(theirs.base) == 0
    assert theirs.engine.register_memory(theirs.base, SIZE) == 0
    theirs.bytes[:] = 0
    assert ours.write(theirs.session, ours.base, theirs.base, SIZE) == 0
    assert (theirs.bytes == ours.bytes).all()


def test_many_threads(two):
    """Registrations come and go beside transfers, and each thread's bytes arrive."""
    ours, theirs = two
    failures = []

    def work(number):
        scratch = np.zeros(4096, "u1")
        at = number * 4096
        for turn in range(20):
            local, remote = ours.base + at, theirs.base + at
            ours.bytes[at : at + 4096] = number + turn
            results = [
                ours.engine.register_memory(scratch.ctypes.data, 4096),
                ours.write(theirs.session, local, remote, 4096),
                ours.read(theirs.session, scratch.ctypes.data, remote, 4096),
                ours.engine.unregister_memory(scratch.ctypes.data),
            ]
            if results != [0] * 4 or not (scratch == number + turn).all():
                failures.append((number, turn, results))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failures == []


def test_memory_that_goes_beside_a_post(two, monkeypatch):
    """Its bytes move before unregister_memory() returns, or not at all."""
    ours, theirs = two

    def unregister():
        assert ours.engine.unregister_memory(ours.base) == 0
        ours.bytes[:] = 44

    def post():
        return ours.write(theirs.session, ours.base, theirs.base, 4096)

    assert post_beside(monkeypatch, unregister, post) == 0
    assert (theirs.bytes[:4096] == pattern(1)[:4096]).all()


def test_an_engine_that_is_let_go(two):
    ours, theirs = two
    session, base = theirs.session, theirs.base
    assert ours.write(session, ours.base, base, 64) == 0
    theirs.engine = None
    assert ours.engine.send_probe(session) == -102
    assert ours.write(session, ours.base, base, 64) == -1


def test_names():
    assert set(onehop.mooncake.__all__) == {"TransferEngine", "TransferOpcode", "install", "path"}
