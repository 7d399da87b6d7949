# SPDX-License-Identifier: Apache-2.0
"""Requests: testing, waiting, awaiting, cancelling, dropping."""

import asyncio
import gc
import selectors
import threading
import time
import weakref

import numpy as np
import onehop
import pytest
from processes import run_pair

MANY = 500


def test_life_of_a_request(pair):
    received = bytearray(5)
    request = pair.second.irecv(received, tag=1)
    assert not request.test()
    assert not request.done
    assert not request.buffer_released
    assert request.status is onehop.Status.IN_PROGRESS
    # It says so itself, whatever failed before.
    with pytest.raises(onehop.InvalidArgument):
        pair.second.irecv(received, tag=-2)
    with pytest.raises(onehop.OperationError, match="receive of 5 bytes has not ended") as caught:
        _ = request.message
    assert caught.value.status is onehop.Status.IN_PROGRESS
    with pytest.raises(BufferError):
        received.append(1)  # the request holds it
    pair.first.send(b"hello", tag=1)
    assert request.wait(timeout=30).nbytes == 5
    assert request.done
    assert request.test()
    assert request.buffer_released
    assert request.status is onehop.Status.OK
    assert request.message.tag == 1
    received.append(1)


def test_cancelling(pair):
    received = bytearray(5)
    request = pair.second.irecv(received)
    assert request.cancel()
    assert request.buffer_released
    with pytest.raises(onehop.OperationError) as caught:
        request.wait()
    assert caught.value.status is onehop.Status.CANCELLED
    assert request.status is onehop.Status.CANCELLED
    pair.first.send(b"later")
    assert pair.second.recv(received).nbytes == 5


def test_what_has_ended_is_not_cancelled(pair):
    received = bytearray(5)
    request = pair.second.irecv(received)
    pair.first.send(b"hello")
    assert not request.cancel()
    assert request.wait().nbytes == 5
    assert received == b"hello"
    assert not request.cancel()
    late = pair.second.irecv(received)
    with pytest.raises(onehop.TimeoutError):
        late.wait(timeout=0.001)
    assert not late.cancel()


def test_blocking_calls_keep_their_deadlines(pair):
    large = bytes(1_000_000)
    for wait in (
        lambda: pair.second.recv(bytearray(8), timeout=0.1),
        lambda: pair.first.send(large, timeout=0.1),
    ):
        times = []
        while not times or (min(times) > 0.15 and len(times) < 50):
            begin = time.monotonic()
            with pytest.raises(onehop.TimeoutError):
                wait()
            times.append(time.monotonic() - begin)
        assert 0.1 <= min(times) <= 0.15


class Watched(bytearray):
    """A buffer whose death can be seen."""


def test_a_dropped_request_keeps_its_buffer_until_it_ends(pair):
    received = Watched(100_000)
    alive = weakref.ref(received)
    request = pair.second.irecv(received)
    del received, request
    gc.collect()
    assert alive() is not None
    pair.first.send(bytes(100_000), timeout=30)
    pair.endpoints[1].progress()
    assert alive() is None


def test_dropped_requests_do_not_pile_up(pair):
    buffers = []
    for _ in range(1000):
        sent = Watched(100)
        buffers.append(weakref.ref(sent))
        pair.first.isend(sent)
        del sent
        pair.second.recv(bytearray(100), timeout=30)
    pair.endpoints[0].progress()
    assert not any(buffer() for buffer in buffers)


def test_closing_frees_what_was_dropped(pair):
    received = Watched(100)
    alive = weakref.ref(received)
    pair.second.irecv(received)
    del received
    pair.endpoints[1].close()
    assert alive() is None


def test_closing_ends_waits(pair):
    caught = []

    def wait():
        try:
            pair.second.recv(bytearray(1), timeout=30)
        except onehop.Error as failure:
            caught.append(failure)

    thread = threading.Thread(target=wait)
    thread.start()
    request = pair.second.irecv(bytearray(1))
    pair.endpoints[1].close()
    thread.join(30)
    assert not thread.is_alive()
    assert len(caught) == 1
    assert request.done
    with pytest.raises(onehop.EndpointError) as closed:
        pair.second.send(b"")
    assert closed.value.status is onehop.Status.CLOSED
    pair.endpoints[1].close()


def test_closing_ends_accept():
    endpoint = onehop.Endpoint()
    caught = []

    def accept():
        try:
            endpoint.accept(timeout=30)
        except onehop.EndpointError as failure:
            caught.append(failure.status)

    thread = threading.Thread(target=accept)
    thread.start()
    endpoint.close()
    thread.join(30)
    assert caught == [onehop.Status.CLOSED]


def test_a_deadline_counts_from_when_its_request_was_armed(pair):
    request = pair.second.irecv(bytearray(1))
    begin = time.monotonic()
    request.arm()
    time.sleep(0.02)
    with pytest.raises(onehop.TimeoutError):
        request.wait(timeout=0)
    longest = time.monotonic() - begin
    with pytest.raises(onehop.TimeoutError, match=r"deadline passed after 0\.\d+ s") as caught:
        request.test()
    seconds = float(str(caught.value).split(" after ")[1].split(" s:")[0])
    assert 0.02 <= seconds <= longest + 0.001  # rounded


# ---- asyncio


async def send_all(side):
    requests = [side.peer.isend(np.full(2000, i % 256, "u1"), tag=i % 3) for i in range(MANY)]
    messages = await asyncio.gather(*requests)
    assert [message.tag for message in messages] == [i % 3 for i in range(MANY)]


async def receive_all(side):
    buffers = [np.zeros(2000, "u1") for _ in range(MANY)]
    requests = [side.peer.irecv(buffer, tag=i % 3) for i, buffer in enumerate(buffers)]
    messages = await asyncio.wait_for(asyncio.gather(*requests), 30)
    assert all(message.nbytes == 2000 for message in messages)
    for i, buffer in enumerate(buffers):
        assert (buffer == i % 256).all()


def run_send_all(side):
    side.sync()
    asyncio.run(send_all(side))


def run_receive_all(side):
    async def both():
        task = asyncio.create_task(receive_all(side))
        await asyncio.sleep(0)  # its requests are posted and awaited
        await asyncio.to_thread(side.sync)
        await task

    asyncio.run(both())


def test_gathering_many_requests():
    run_pair(run_send_all, run_receive_all)


def test_no_reader_stays_when_nothing_waits(pair):
    removed = []

    async def main():
        loop = asyncio.get_running_loop()
        request = pair.second.irecv(bytearray(1))
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        pair.first.send(b"x")
        await task
        removed.append(loop.remove_reader(request.ended_fd))
        assert (await request).nbytes == 1  # once more, without waiting

    asyncio.run(main())
    assert removed == [False]


# However many wait, an end costs what it costs where one waits.
def test_an_end_asks_no_request_that_goes_on(pair):
    async def main():
        requests = [pair.second.irecv(bytearray(1), tag=tag) for tag in range(100)]
        tasks = [asyncio.ensure_future(request) for request in requests]
        await asyncio.sleep(0)
        assert requests[0].take_ended() == []
        pair.first.send(b"x", tag=70)
        pair.first.send(b"x", tag=7)
        requests[7].wait()
        assert requests[0].take_ended() == [requests[70].key, requests[7].key]
        assert requests[0].take_ended() == []
        for task in tasks:
            task.cancel()

    asyncio.run(main())


def test_two_tasks_wait_for_one_request(pair):
    async def main():
        request = pair.second.irecv(bytearray(1))

        async def receive():
            return await request

        tasks = [asyncio.ensure_future(receive()) for _ in range(2)]
        await asyncio.sleep(0)
        pair.first.send(b"x")
        return await asyncio.wait_for(asyncio.gather(*tasks), 30)

    assert [message.nbytes for message in asyncio.run(main())] == [1, 1]


def test_awaiting_raises_what_the_request_ended_with(pair):
    async def main():
        request = pair.second.irecv(bytearray(1))
        pair.first.isend(b"too long")
        await request

    with pytest.raises(onehop.OperationError) as caught:
        asyncio.run(main())
    assert caught.value.status is onehop.Status.TRUNCATED


def test_a_cancelled_task_cancels_its_request(pair):
    async def main():
        request = pair.second.irecv(bytearray(1))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(request, 0.05)
        return request

    assert asyncio.run(main()).status is onehop.Status.CANCELLED


def test_a_lost_peer_ends_what_is_awaited(pair):
    async def main():
        request = pair.second.irecv(bytearray(1))
        task = asyncio.ensure_future(request)
        await asyncio.sleep(0)
        pair.endpoints[0].close()
        await asyncio.wait_for(task, 30)

    with pytest.raises(onehop.PeerLost):
        asyncio.run(main())


@pytest.mark.parametrize("first", ["task", "other"])
def test_a_task_and_another_event_loop_share_an_endpoint(pair, first):
    """What one of them takes note of is still there for the other."""

    async def main():
        awaited, armed = (pair.second.irecv(bytearray(1), tag=tag) for tag in range(2))
        task = asyncio.ensure_future(awaited)
        armed.arm()
        await asyncio.sleep(0)
        for tag in range(2):
            pair.first.send(b"x", tag=tag)
        for request in (awaited, armed):
            request.wait(timeout=30)
        if first == "task":
            await asyncio.wait_for(task, 30)
        with selectors.DefaultSelector() as other:
            other.register(pair.endpoints[1].event_fd, selectors.EVENT_READ)
            assert other.select(30), "the other loop does not hear of its request"
        armed.clear_event()
        await asyncio.wait_for(task, 30)

    asyncio.run(main())


def test_several_loops_share_an_endpoint(pair):
    failures = []

    async def receive(tag):
        for _ in range(100):
            await asyncio.wait_for(pair.second.irecv(bytearray(8), tag=tag), 30)

    def loop(tag):
        try:
            asyncio.run(receive(tag))
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=loop, args=(tag,)) for tag in range(3)]
    for thread in threads:
        thread.start()
    for i in range(300):
        pair.first.send(bytes(8), tag=i % 3, timeout=30)
    for thread in threads:
        thread.join(60)
    assert not failures
    assert not any(thread.is_alive() for thread in threads)
