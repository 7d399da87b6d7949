# SPDX-License-Identifier: Apache-2.0
"""Communicators that meet by a store, as torch's, or by an MPI communicator, as mpi4py's."""

import onehop
import pytest
from processes import Group, _spawn
from stores import BareStore, PipeComm, WaitingStore


def ring(comm):
    """Everybody sends to the next."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    received = bytearray(1)
    request = comm.irecv(received, before)
    comm.send(bytes([comm.rank]), after, timeout=30)
    request.wait(timeout=30)
    comm.barrier(timeout=30)
    return received[0]


def meet(rank, size, store, times):
    values = []
    for _ in range(times):
        with onehop.Communicator(rank, size, store=store, timeout=30) as comm:
            assert (comm.rank, comm.size) == (rank, size)
            values.append(ring(comm))
    return values


@pytest.mark.parametrize(("kind", "times"), [(BareStore, 1), (WaitingStore, 3)])
def test_ranks_meet_by_a_store(tmp_path, kind, times):
    group = Group()
    for rank in range(3):
        group.start(meet, rank, 3, kind(tmp_path), times)
    assert group.join() == [[(rank - 1) % 3] * times for rank in range(3)]


def meet_by_comm(rank, end):
    with onehop.Communicator(comm=PipeComm(rank, end), timeout=30) as comm:
        assert (comm.rank, comm.size) == (rank, 2)
        return ring(comm)


def test_ranks_meet_by_an_mpi_communicator():
    group = Group()
    for rank, end in enumerate(_spawn.Pipe()):
        group.start(meet_by_comm, rank, end)
    assert group.join() == [1, 0]


def fails(*arguments, timeout=0.2, **options):
    with pytest.raises(onehop.Error) as caught:
        onehop.Communicator(*arguments, timeout=timeout, **options)
    return caught.value.status, str(caught.value)


@pytest.mark.parametrize("kind", [BareStore, WaitingStore])
def test_a_rank_0_that_does_not_come_to_the_store(tmp_path, kind):
    status, text = fails(1, 2, store=kind(tmp_path))
    assert status is onehop.Status.TIMEOUT
    assert text.startswith(
        "rank 1 of 2 waited 0.2 s for the unique id to pass from rank 0: onehop/"
    )
    assert f"in {kind.__name__}: " in text


def test_a_rank_that_does_not_come_to_the_store(tmp_path):
    status, text = fails(0, 3, store=WaitingStore(tmp_path), timeout=1)
    assert status is onehop.Status.TIMEOUT
    assert "for 2 of 3 ranks: 1 2;" in text


def test_a_rank_0_that_does_not_come_to_the_broadcast():
    _, end = _spawn.Pipe()
    status, text = fails(comm=PipeComm(1, end))
    assert status is onehop.Status.TIMEOUT
    assert "Ibcast has not ended" in text


def test_a_rank_0_that_can_make_no_id_tells_the_others(tmp_path, monkeypatch):
    store = WaitingStore(tmp_path)
    with monkeypatch.context() as broken:
        broken.setenv("ONEHOP_PORT_RANGE", "nonsense")
        status, _ = fails(0, 2, store=store)
    assert status is onehop.Status.CONFIG
    status, text = fails(1, 2, store=store)
    assert status is onehop.Status.REFUSED
    assert text.startswith("rank 0 could make no unique id: ")
    assert "ONEHOP_PORT_RANGE" in text


class BrokenStore(BareStore):
    def get(self, *_):
        msg = "the server is gone"
        raise ConnectionError(msg)

    set = get


def test_a_store_that_fails_and_one_that_has_something_else(tmp_path):
    for rank, call in ((1, "get"), (0, "set")):
        status, text = fails(rank, 2, store=BrokenStore(tmp_path))
        assert status is onehop.Status.UNREACHABLE
        assert f"{call} of onehop/communicator_1/unique_id in BrokenStore" in text
        assert "ConnectionError: the server is gone" in text
    store = BareStore(tmp_path)
    store.set("onehop/communicator_1/unique_id", "something else")
    status, text = fails(1, 2, store=store)
    assert status is onehop.Status.PROTOCOL
    assert "'something else'" in text


def test_a_communicator_of_one_needs_nothing_of_the_store(tmp_path):
    with onehop.Communicator(0, 1, store=BareStore(tmp_path)) as comm:
        comm.barrier(timeout=30)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments(tmp_path):
    store = BareStore(tmp_path)
    comm = PipeComm(0, None)
    for arguments, options, text in (
        ((), {}, "needs rank and size"),
        ((0,), {}, "needs rank and size"),
        ((), {"store": store}, "give rank and size"),
        ((0, 2), {"store": store, "comm": comm}, "give one of them"),
        ((0, 2), {"store": store, "rendezvous": "tcp://127.0.0.1:1"}, "give one of them"),
        ((1, 2), {"comm": comm}, "rank is 1, but 0 in comm"),
        ((0, 3), {"comm": comm}, "size is 3, but 2 in comm"),
        ((2, 2), {"store": store}, "ranks are 0 to size - 1"),
        ((0, 2), {"store": {}}, "store is of type dict, which has no set"),
        ((0, 2), {"comm": store}, "no Get_rank and no Get_size and no Ibcast"),
    ):
        with pytest.raises(onehop.InvalidArgument, match=text):
            onehop.Communicator(*arguments, **options)
    with pytest.raises(onehop.InvalidType, match="timeout is of type str"):
        onehop.Communicator(0, 2, store=store, timeout="1")
