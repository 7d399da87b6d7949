# SPDX-License-Identifier: Apache-2.0
"""Communicators: how ranks meet, and what they do then."""

import os
import re
import signal
import socket
import threading
import time
from pathlib import Path

import hosts
import numpy as np
import onehop
import pytest
from processes import DEADLINE, Group, _spawn, run_ranks


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def all_to_all(comm):
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    received = {rank: np.zeros(3000, "i4") for rank in others}
    requests = {rank: comm.irecv(buffer, rank, tag=1) for rank, buffer in received.items()}
    for rank in others:
        comm.send(np.full(3000, 10 * comm.rank + rank, "i4"), rank, tag=1, timeout=30)
    for rank, request in requests.items():
        assert request.wait(timeout=30).source == rank
        assert (received[rank] == 10 * rank + comm.rank).all()
    comm.barrier(timeout=30)

    # Everybody tells rank 0, which does not ask who.
    if comm.rank:
        comm.isend(bytes([comm.rank]), 0, tag=2).wait(timeout=30)
    else:
        buffer = bytearray(1)
        sources = set()
        for _ in others:
            message = comm.recv(buffer, onehop.ANY_SOURCE, tag=onehop.ANY_TAG, timeout=30)
            assert buffer[0] == message.source
            sources.add(message.source)
        assert sources == set(others)
    comm.barrier(timeout=30)
    peer = comm.peer((comm.rank + 1) % comm.size)
    assert peer.rank == peer.info().rank == (comm.rank + 1) % comm.size
    return comm.rank, comm.size


def test_four_ranks_meet_by_unique_id():
    assert run_ranks(4, all_to_all) == [(rank, 4) for rank in range(4)]


def meet(rank, size, rendezvous, function):
    with onehop.Communicator(rank, size, rendezvous=rendezvous, timeout=30) as comm:
        value = function(comm)
        comm.barrier(timeout=30)
        return value


def test_four_ranks_meet_by_tcp():
    group = Group()
    rendezvous = f"tcp://127.0.0.1:{free_port()}"
    for rank in range(4):
        group.start(meet, rank, 4, rendezvous, all_to_all)
    assert group.join() == [(rank, 4) for rank in range(4)]


def put_to_the_next(comm):
    ours = onehop.empty(100, "u1")
    region = comm.endpoint.register(ours)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.isend(region.descriptor, before)
    descriptor = bytearray(4096)
    size = comm.recv(descriptor, after, timeout=30).nbytes
    peer = comm.peer(after)
    remote = peer.attach(descriptor[:size], timeout=30)
    peer.put(bytes([comm.rank] * 100), remote, notify=b"put").wait(timeout=30)
    peer.signal(0)
    comm.peer(before).wait_signal(0, timeout=30)
    assert (ours == before).all()
    assert comm.endpoint.notifications() == [(before, b"put")]
    comm.barrier(timeout=30)


def test_regions_of_a_communicator():
    run_ranks(3, put_to_the_next)


def miss_a_barrier(rank, identity):
    with onehop.Communicator(rank, 2, unique_id=identity, timeout=30) as comm:
        if rank == 1:
            comm.recv(bytearray(4), 0, timeout=30)
            return
        with pytest.raises(onehop.TimeoutError, match="all ranks need a new communicator"):
            comm.barrier(timeout=0.05)
        comm.send(b"over", 1, timeout=30)
        with pytest.raises(onehop.LinkError) as caught:  # that rank can come back
            comm.barrier(timeout=30)
        assert "all ranks" not in str(caught.value)


def test_a_barrier_that_fails_says_what_is_needed():
    group = Group()
    identity = onehop.unique_id()
    for rank in range(2):
        group.start(miss_a_barrier, rank, identity)
    group.join()


def test_a_communicator_of_one():
    with onehop.Communicator(0, 1) as comm:
        received = bytearray(2)
        request = comm.irecv(received, 0)
        comm.send(b"me", 0, timeout=30)
        assert request.wait(timeout=30).source == 0
        assert received == b"me"
        comm.barrier(timeout=30)


def come_twice(rank, identity):
    try:
        with onehop.Communicator(rank, 3, unique_id=identity, timeout=5):
            return None, "met"
    except onehop.Error as failure:
        return failure.status, str(failure)


def test_a_rank_that_is_taken_and_one_that_is_missing():
    group = Group()
    identity = onehop.unique_id()
    for rank in (0, 1, 1):
        group.start(come_twice, rank, identity)
    first, *others = group.join()
    others.sort()
    refused, in_vain = others
    assert refused[0] is onehop.Status.REFUSED
    assert "rank 1" in refused[1]
    # Those that came are told who did not, or has left again before them.
    for status, text in (first, in_vain):
        assert status is onehop.Status.TIMEOUT
        assert re.search(r"of 3 ranks: .*2;", text)


def test_a_secret_is_needed_off_the_host(monkeypatch):
    monkeypatch.delenv("ONEHOP_SECRET", raising=False)
    with pytest.raises(onehop.LinkError, match="ONEHOP_SECRET") as caught:
        onehop.Communicator(0, 2, rendezvous=f"tcp://192.0.2.1:{free_port()}", timeout=5)
    assert caught.value.status is onehop.Status.AUTH


def threads():
    """Return how many threads of the library there are."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            count += (task / "comm").read_text().startswith("onehop-")
        except OSError:
            continue  # it has ended meanwhile
    return count


def interrupt_when(condition):
    def wait():
        end = time.monotonic() + 30
        while not condition() and time.monotonic() < end:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def is_served(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def interrupted(rank, port):
    """Interrupt a rank that waits for the other."""
    rendezvous = f"tcp://127.0.0.1:{port}"
    for _ in range(3):
        before = len(list(Path("/proc/self/task").iterdir()))
        since = time.monotonic()
        thread = interrupt_when(
            lambda since=since: is_served(port) if rank == 0 else time.monotonic() > since + 0.2
        )
        with pytest.raises(KeyboardInterrupt):
            onehop.Communicator(rank, 2, rendezvous=rendezvous, timeout=60)
        thread.join()
        # A thread that has said its last word may not have gone yet.
        end = time.monotonic() + 30
        while threads() or len(list(Path("/proc/self/task").iterdir())) > before:
            assert time.monotonic() < end
            time.sleep(0.001)
        if rank == 0:
            with socket.create_server(("127.0.0.1", port)):
                pass


def meet_after(path, rank, size, port):
    while not path.exists():
        time.sleep(0.001)
    return meet(rank, size, f"tcp://127.0.0.1:{port}", all_to_all)


def interrupted_then_met(rank, port, path):
    interrupted(rank, port)
    path.touch()
    return meet(rank, 2, f"tcp://127.0.0.1:{port}", all_to_all)


@pytest.mark.parametrize("rank", [0, 1])
def test_an_interrupted_rank_leaves_nothing(rank, tmp_path):
    port = free_port()
    group = Group()
    group.start(interrupted_then_met, rank, port, tmp_path / "over")
    group.start(meet_after, tmp_path / "over", 1 - rank, 2, port)
    assert sorted(group.join()) == [(0, 2), (1, 2)]


def come_again(port, path):
    """Register as rank 1 of three, be interrupted, and register again: it is not taken."""
    rendezvous = f"tcp://127.0.0.1:{port}"
    for _ in range(5):
        since = time.monotonic()
        thread = interrupt_when(lambda since=since: time.monotonic() > since + 0.2)
        with pytest.raises(KeyboardInterrupt):
            onehop.Communicator(1, 3, rendezvous=rendezvous, timeout=60)
        thread.join()
    path.touch()
    return meet(1, 3, rendezvous, all_to_all)


def test_an_interrupted_rank_may_come_again(tmp_path):
    port = free_port()
    rendezvous = f"tcp://127.0.0.1:{port}"
    group = Group()
    group.start(meet, 0, 3, rendezvous, all_to_all)
    group.start(come_again, port, tmp_path / "over")
    group.start(meet_after, tmp_path / "over", 2, 3, port)
    assert group.join() == [(0, 3), (1, 3), (2, 3)]


def lose(comm, rank):
    """Return when the peer of a rank has been lost, which a new one follows."""
    with pytest.raises(onehop.LinkError, match=rf"comm\.reconnect\({rank}\)"):
        comm.recv(bytearray(1), rank, tag=99, timeout=30)
    former = comm.peer(rank)
    peer = comm.reconnect(rank, timeout=30)
    assert peer.id != former.id
    assert comm.peer(rank).id == peer.id
    with pytest.raises(onehop.LinkError):
        former.send(b"")


def close_and_reconnect(comm):
    all_to_all(comm)
    other = 1 - comm.rank
    if comm.rank == 0:
        comm.peer(1).close()
    lose(comm, other)
    return all_to_all(comm)


def test_a_closed_link_comes_back():
    assert run_ranks(2, close_and_reconnect) == [(0, 2), (1, 2)]


def test_a_closed_peer_is_an_error_of_the_link(pair):
    pair.first.close()
    with pytest.raises(onehop.LinkError, match=r"endpoint\.connect\(\)") as caught:
        pair.first.send(b"")
    assert caught.value.scope is onehop.Scope.LINK
    with pytest.raises(onehop.PeerLost, match=r"endpoint\.connect\(\)"):
        pair.second.recv(bytearray(1), timeout=30)


def refuse_links(pipe, identity):
    os.environ["ONEHOP_TRANSPORT"] = "ucx"
    with onehop.Communicator(0, 2, unique_id=identity, timeout=30):
        assert pipe.recv() == "done"


def be_refused(pipe, identity):
    os.environ["ONEHOP_TRANSPORT"] = "socket"
    with onehop.Communicator(1, 2, unique_id=identity, timeout=30) as comm:
        errors = []
        for _ in range(2):
            with pytest.raises(onehop.Error) as caught:
                comm.peer(0, timeout=5)
            errors.append(caught.value)
    pipe.send("done")
    assert [error.status for error in errors] == [onehop.Status.NOT_VIABLE] * 2
    assert "ONEHOP_TRANSPORT=ucx" in str(errors[1])


def test_a_link_that_the_acceptor_refuses_is_refused_again():
    if why := hosts.why_no_ucx():
        pytest.skip(f"no UCX: {why}")
    ours, theirs = _spawn.Pipe()
    identity = onehop.unique_id()
    group = Group()
    group.start(refuse_links, ours, identity)
    group.start(be_refused, theirs, identity)
    group.join()


def test_a_link_that_is_well_stays():
    with onehop.Communicator(0, 1) as comm:
        comm.peer(0)
        with pytest.raises(onehop.InvalidArgument, match="ranks 0 to 0"):
            comm.reconnect(1)
        assert comm.reconnect(0).id == comm.peer(0).id


def test_settings_that_come_too_late(monkeypatch, tmp_path):
    with onehop.Endpoint():
        monkeypatch.setenv("ONEHOP_SOCKET_DIR", str(tmp_path))
        with pytest.raises(onehop.EndpointError, match=r"ONEHOP_SOCKET_DIR=.* comes too late"):
            onehop.Endpoint()
        with pytest.raises(onehop.EndpointError, match="ONEHOP_SOCKET_DIR"):
            onehop.Communicator(0, 1)
    with onehop.Endpoint():
        assert len(list(tmp_path.iterdir())) == 1


def test_wrong_arguments():
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(onehop.InvalidArgument, match="0 to size - 1"):
            onehop.Communicator(rank, size)
    with pytest.raises(onehop.InvalidArgument, match="rendezvous"):
        onehop.Communicator(0, 2)
    with pytest.raises(onehop.InvalidArgument, match="tcp://HOST:PORT"):
        onehop.Communicator(0, 2, rendezvous="http://localhost")
    with onehop.Communicator(0, 1) as comm:
        with pytest.raises(onehop.InvalidArgument, match="ranks 0 to 0"):
            comm.send(b"", 1)
        with pytest.raises(onehop.InvalidArgument):
            comm.send(b"", onehop.ANY_SOURCE)
        with pytest.raises(TypeError, match="rank"):
            comm.send(b"", "1")
    with pytest.raises(onehop.EndpointError):
        comm.barrier()


def enter_a_barrier(rank, rendezvous, doomed, others):
    with onehop.Communicator(rank, 4, rendezvous=rendezvous) as comm:
        for other in range(4):
            comm.peer(other)
        comm.barrier()
        if rank == doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(onehop.PeerLost) as caught:
            comm.barrier(timeout=DEADLINE / 2)
        assert time.monotonic() - start < DEADLINE / 4
        others.wait(DEADLINE)  # that no rank closes before all have heard of the lost one
        return str(caught.value)


@pytest.mark.parametrize("doomed", range(4))
def test_a_rank_that_dies_ends_the_barrier_of_all(doomed):
    group, rendezvous = Group(), f"tcp://127.0.0.1:{free_port()}"
    others = group.context.Barrier(3)
    for rank in range(4):
        group.start(enter_a_barrier, rank, rendezvous, doomed, others)
    texts = group.join(killed=[doomed])
    for rank, text in enumerate(texts):
        assert rank == doomed or f"lost rank {doomed} " in text, texts
