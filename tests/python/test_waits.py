# SPDX-License-Identifier: Apache-2.0
"""Waiting for several requests, notifications and messages of unknown size, also in asyncio."""

import asyncio
import os
import resource
import signal
import threading
import time

import onehop
import pytest
from processes import run_pair

COUNT = 200


def test_all_requests_are_waited_for(pair):
    buffers = [bytearray(size) for size in (0, 5, 100_000)]
    requests = [pair.second.irecv(buffer, tag=i) for i, buffer in enumerate(buffers)]

    def send():
        for tag in (2, 1, 0):
            pair.first.send(bytes([tag]) * len(buffers[tag]), tag=tag, timeout=30)

    sender = threading.Thread(target=send)
    sender.start()
    messages = onehop.wait_all(requests, timeout=30)
    sender.join()
    assert [message.nbytes for message in messages] == [0, 5, 100_000]
    assert [message.tag for message in messages] == [0, 1, 2]
    assert buffers[1] == b"\1" * 5
    buffers[2].append(0)  # the requests have let go of it
    assert onehop.wait_all([], timeout=0) == []


def test_waiting_for_all_ends_them_at_the_deadline(pair):
    requests = [pair.second.irecv(bytearray(1), tag=tag) for tag in range(3)]
    pair.first.send(b"x", tag=1)
    with pytest.raises(onehop.TimeoutError):
        onehop.wait_all(requests, timeout=0.02)
    assert [request.done for request in requests] == [True] * 3
    assert requests[1].message.nbytes == 1


# Also where the wait spins for a part of it.
def test_timeouts_tell_the_length_of_the_deadline(monkeypatch, request):
    monkeypatch.setenv("ONEHOP_SPIN_US", "20000")
    pair = request.getfixturevalue("pair")

    def receives():
        return [pair.second.irecv(bytearray(1), tag=tag) for tag in range(2)]

    def in_vain(wait, *arguments):
        with pytest.raises(onehop.TimeoutError, match=r"the deadline passed after 0\.050 s: "):
            wait(*arguments, timeout=0.05)

    in_vain(pair.second.recv, bytearray(1))
    in_vain(receives()[0].wait)
    in_vain(onehop.wait_any, receives())
    ended = receives()
    in_vain(onehop.wait_all, ended)
    # Another wait does not change what they have ended with.
    for each in ended:
        with pytest.raises(onehop.TimeoutError, match=r"after 0\.(0[5-9]|\d\d)\d s: "):
            each.wait(timeout=7)


def test_waiting_for_any_names_one_and_leaves_the_others(pair):
    requests = [pair.second.irecv(bytearray(1), tag=tag) for tag in range(3)]
    with pytest.raises(onehop.TimeoutError, match="none of 3 requests has ended; they go on"):
        onehop.wait_any(requests, timeout=0.02)
    pair.first.send(b"x", tag=2)
    assert onehop.wait_any(requests, timeout=30) == 2
    assert not requests[0].done
    assert not requests[1].done
    requests[0].cancel()
    assert onehop.wait_any(requests, timeout=30) == 0
    with pytest.raises(onehop.OperationError):
        requests[0].wait()


def test_paths_are_those_of_a_peer():
    with pytest.raises(onehop.InvalidType, match="peer is of type int: give a Peer"):
        onehop.paths(5)


def test_wrong_arguments_are_named(pair):
    with pytest.raises(onehop.InvalidArgument, match="none of 0 requests"):
        onehop.wait_any([])
    for wrong in (3, None, [pair.first], [None]):
        with pytest.raises(TypeError, match=r"onehop\.Request"):
            onehop.wait_all(wrong)
        with pytest.raises(TypeError, match=r"onehop\.Request"):
            onehop.wait_any(wrong)
    with pytest.raises(onehop.InvalidArgument, match="slot 64"):
        pair.first.signal_ready(64)
    with pytest.raises(TypeError):
        pair.first.probe("tag")


def test_a_probe_tells_the_size(pair):
    with pytest.raises(onehop.TimeoutError, match="no message with tag 4 came"):
        pair.second.probe(4, timeout=0.02)
    request = pair.first.isend(bytes(70_000), tag=4)
    pair.first.send(b"short", tag=5)
    found = pair.second.probe(onehop.ANY_TAG, timeout=30)
    assert (found.nbytes, found.tag) == (70_000, 4)
    assert found.peer_id == pair.second.id
    assert pair.endpoints[1].probe(5, timeout=30).nbytes == 5
    buffer = bytearray(found.nbytes)
    receive = pair.second.irecv(buffer, tag=found.tag)
    onehop.wait_all([request, receive], timeout=30)
    assert receive.message.nbytes == 70_000


def test_a_communicator_probes_any_source():
    with onehop.Communicator(0, 1, unique_id=onehop.unique_id()) as comm:
        request = comm.isend(b"myself", 0, tag=3)
        found = comm.probe(onehop.ANY_SOURCE, tag=3, timeout=30)
        assert (found.source, found.nbytes) == (0, 6)
        assert comm.probe(0, tag=3, timeout=30).nbytes == 6
        comm.recv(bytearray(6), found.source, tag=3)
        request.wait()


def notifier(side):
    side.sync()
    for number in range(COUNT):
        side.peer.notify(b"%d" % number, timeout=30)
        time.sleep(0.001)
    side.sync()


def sleeper(side):
    endpoint = side.endpoint
    with pytest.raises(onehop.TimeoutError, match="no notification"):
        endpoint.wait_notification(timeout=0.01)
    side.sync()
    texts = [endpoint.wait_notification(timeout=30) for _ in range(COUNT)]
    assert [text for _, text in texts] == [b"%d" % number for number in range(COUNT)]
    assert {source for source, _ in texts} == {side.peer.id}
    assert endpoint.notifications() == []
    side.sync()


def test_notifications_are_waited_for():
    run_pair(notifier, sleeper)


async def gather_all(side):
    """One task an event, on one loop, without a thread each."""
    endpoint, peer = side.endpoint, side.peer
    threads = threading.active_count()
    tasks = [
        asyncio.create_task(peer.wait_signal_async(3, 2, timeout=30)),
        asyncio.create_task(endpoint.wait_notification_async(timeout=30)),
        asyncio.create_task(peer.probe_async(9, timeout=30)),
        asyncio.create_task(endpoint.accept_async(timeout=30)),
    ]
    await asyncio.sleep(0)
    assert threading.active_count() == threads
    side.sync()
    _, (source, text), message, accepted = await asyncio.gather(*tasks)
    assert (source, text) == (peer.id, b"done")
    assert (message.nbytes, message.tag) == (3, 9)
    assert peer.recv(bytearray(3), tag=9).nbytes == 3
    assert accepted.recv(bytearray(3), timeout=30).nbytes == 3


def waits_in_asyncio(side):
    side.give(side.endpoint.address)
    asyncio.run(gather_all(side))
    side.sync()


def acts(side):
    address = side.take()
    side.sync()
    side.peer.signal(3, 2)
    side.peer.notify(b"done")
    side.peer.send(b"abc", tag=9)
    second = asyncio.run(connect_in_asyncio(side.endpoint, address))
    second.send(b"def", timeout=30)
    side.sync()


async def connect_in_asyncio(endpoint, address):
    return await endpoint.connect_async(address, timeout=30)


def test_events_are_awaited():
    run_pair(acts, waits_in_asyncio)


def test_a_cancelled_task_takes_nothing(pair):
    async def run():
        waits = [
            asyncio.create_task(pair.second.wait_signal_async(1)),
            asyncio.create_task(pair.endpoints[1].wait_notification_async()),
            asyncio.create_task(pair.second.probe_async(1)),
            asyncio.create_task(pair.endpoints[1].accept_async()),
        ]
        await asyncio.sleep(0.01)
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert all(task.cancelled() for task in waits)

    asyncio.run(run())
    pair.first.signal(1)
    pair.first.notify(b"still here")
    pair.second.wait_signal(1, timeout=30)
    assert pair.endpoints[1].wait_notification(timeout=30)[1] == b"still here"


def test_asynchronous_waits_have_deadlines(pair):
    async def run():
        for wait in (
            pair.second.wait_signal_async(1, timeout=0.01),
            pair.endpoints[1].wait_notification_async(timeout=0.01),
            pair.second.probe_async(1, timeout=0.01),
            pair.endpoints[1].accept_async(timeout=0.01),
        ):
            with pytest.raises(onehop.TimeoutError, match=r"after 0.010 s"):
                await wait
        with pytest.raises(onehop.InvalidArgument):
            await pair.endpoints[0].connect_async(b"no address")

    asyncio.run(run())


def test_waiting_tasks_hear_that_the_peer_is_gone(pair):
    async def run():
        waits = [
            asyncio.create_task(pair.second.wait_signal_async(1, timeout=30)),
            asyncio.create_task(pair.second.probe_async(1, timeout=30)),
        ]
        await asyncio.sleep(0.01)
        pair.first.close()
        for task in waits:
            with pytest.raises(onehop.PeerLost):
                await task

    asyncio.run(run())


def test_waiting_tasks_hear_that_the_endpoint_is_closed():
    async def run():
        endpoint = onehop.Endpoint()
        waits = [
            asyncio.create_task(endpoint.accept_async(timeout=30)),
            asyncio.create_task(endpoint.wait_notification_async(timeout=30)),
        ]
        await asyncio.sleep(0.01)
        endpoint.close()
        for task in waits:
            with pytest.raises(onehop.Error):
                await task

    asyncio.run(run())


def parked(side):
    side.sync()
    begin = resource.getrusage(resource.RUSAGE_SELF)
    side.endpoint.wait_notification(timeout=30)
    end = resource.getrusage(resource.RUSAGE_SELF)
    used = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
    side.give(used)


def late(side):
    side.sync()
    time.sleep(1)
    side.peer.notify(b"late")
    # A thread that polled would have used all of the second.
    assert side.take() < 0.5


def test_waiting_for_a_notification_sleeps():
    run_pair(parked, late)


def test_ctrl_c_ends_the_waits(pair):
    request = pair.second.irecv(bytearray(1))
    for wait in (
        lambda: onehop.wait_all([request], timeout=30),
        lambda: onehop.wait_any([request], timeout=30),
        lambda: pair.endpoints[1].wait_notification(timeout=30),
        lambda: pair.second.probe(1, timeout=30),
    ):
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            wait()
        timer.join()
    assert not request.done
