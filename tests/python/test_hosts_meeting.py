# SPDX-License-Identifier: Apache-2.0
"""Communicators of ranks on two hosts: how they meet, and which path each pair takes."""

import onehop
import pytest
from hosts import any_way, expected_path, on_host, payload, with_environment
from stores import WaitingStore

PORT = 29400
SECRET = "a secret for the tests"
SIZES = (1, 400, 4096, 70_000, 3 << 20)


def start(network, function, ranks, *arguments, secrets=None):
    """Start function(rank, size, *arguments) for ranks on hosts, as in "aab"."""
    group = network.group()
    for rank, letter in enumerate(ranks):
        secret = secrets[rank] if secrets else SECRET
        host = with_environment(getattr(network, letter), {"ONEHOP_SECRET": secret})
        group.start(on_host, host, function, rank, len(ranks), *arguments)
    return group


def exchange(rank, size, hosts, path, meeting):
    """Messages among all, and puts from each to the next; the path fits the hosts."""
    with onehop.Communicator(rank, size, timeout=30, **meeting) as comm:
        others = [other for other in range(size) if other != rank]
        for turn, nbytes in enumerate(SIZES):
            received = {other: bytearray(nbytes) for other in others}
            requests = {other: comm.irecv(received[other], other, tag=turn) for other in others}
            for other in others:
                comm.send(payload(nbytes, 100 * rank + other), other, tag=turn, timeout=30)
            for other, request in requests.items():
                message = request.wait(timeout=30)
                assert received[other] == payload(nbytes, 100 * other + rank)
                between = "shm" if hosts[other] == hosts[rank] else path
                assert message.path == expected_path(comm.peer(other), nbytes, between)
        comm.barrier(timeout=30)
        put_to_the_next(comm)
        comm.barrier(timeout=30)
        return {hosts[other]: comm.peer(other).info().path for other in others}


def put_to_the_next(comm):
    ours = onehop.empty(100_000, "u1")
    region = comm.endpoint.register(ours)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    comm.isend(region.descriptor, before)
    descriptor = bytearray(4096)
    nbytes = comm.recv(descriptor, after, timeout=30).nbytes
    peer = comm.peer(after)
    remote = peer.attach(descriptor[:nbytes], timeout=30)
    peer.put(payload(100_000, comm.rank), remote, notify=b"put").wait(timeout=30)
    peer.signal(0)
    comm.peer(before).wait_signal(0, timeout=30)
    assert bytes(ours) == payload(100_000, before)


@pytest.mark.parametrize("host", ["{ipv4}", "[{ipv6}]"])
def test_three_ranks_on_two_hosts_meet_by_tcp(network, host):
    place = host.format(ipv4=network.a.ipv4, ipv6=network.a.ipv6)
    meeting = {"rendezvous": f"tcp://{place}:{PORT}"}
    group = start(network, exchange, "aab", "aab", network.way.path, meeting)
    way = network.way.path
    assert group.join() == [{"a": "shm", "b": way}, {"a": "shm", "b": way}, {"a": way}]


def test_three_ranks_on_two_hosts_meet_by_a_store(network):
    folder = network.folder / "store"
    folder.mkdir()
    way = network.way.path
    # The id's own key is what they need: no secret.
    group = start(
        network, exchange, "aba", "aba", way, {"store": WaitingStore(folder)}, secrets=[""] * 3
    )
    assert group.join() == [{"a": "shm", "b": way}, {"a": way}, {"a": "shm", "b": way}]


def fail_to_meet(rank, size, rendezvous, timeout):
    with pytest.raises(onehop.Error) as caught:
        onehop.Communicator(rank, size, rendezvous=rendezvous, timeout=timeout)
    return caught.value.status, str(caught.value)


@any_way
def test_a_wrong_secret_is_told(network):
    secrets = [SECRET, SECRET[::-1]]
    rendezvous = f"tcp://{network.a.ipv4}:{PORT}"
    group = start(network, fail_to_meet, "ab", rendezvous, 2, secrets=secrets)
    (waited, in_vain), (refused, why) = group.join()
    assert refused is onehop.Status.AUTH
    assert "ONEHOP_SECRET" in why
    assert waited is onehop.Status.TIMEOUT
    assert "for 1 of 2 ranks: 1;" in in_vain


@any_way
@pytest.mark.parametrize(
    ("rendezvous", "status", "text"),
    [
        # Nobody serves it, no such host answers, no such name.
        (f"tcp://192.0.2.1:{PORT}", onehop.Status.TIMEOUT, f"192.0.2.1:{PORT}"),
        (f"tcp://192.0.2.99:{PORT}", onehop.Status.TIMEOUT, f"192.0.2.99:{PORT}"),
        (f"tcp://nowhere.invalid:{PORT}", onehop.Status.UNREACHABLE, "nowhere.invalid"),
    ],
)
def test_a_rendezvous_that_is_not_there(network, rendezvous, status, text):
    group = network.group()
    host = with_environment(network.b, {"ONEHOP_SECRET": SECRET})
    group.start(on_host, host, fail_to_meet, 1, 2, rendezvous, 1)
    found, why = group.join()[0]
    assert found is status
    assert text in why


@any_way
def test_rank_0_cannot_serve_on_another_host(network):
    group = network.group()
    host = with_environment(network.b, {"ONEHOP_SECRET": SECRET})
    group.start(on_host, host, fail_to_meet, 0, 2, f"tcp://{network.a.ipv4}:{PORT}", 5)
    found, why = group.join()[0]
    assert found is not onehop.Status.TIMEOUT
    assert network.a.ipv4 in why
