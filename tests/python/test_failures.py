# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, killed and stopped peers: waits end, others go on, buffers stay."""

import os
import signal
import threading
import time
import weakref

import numpy as np
import onehop
import pytest
from processes import DEADLINE, Group, Side, _spawn, run_pair, stop


class Interrupter:
    """Sends SIGINT to this process again and again until it has been noticed."""

    def __enter__(self):
        self.armed = threading.Event()
        self.noticed = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        return self

    def run(self):
        # Not before the main thread is where it expects it.
        self.armed.wait()
        # Whatever the main thread has come to by now, it blocks within a moment.
        while not self.noticed.wait(0.3):
            self.last = time.monotonic()
            os.kill(os.getpid(), signal.SIGINT)

    def __exit__(self, *_):
        self.noticed.set()
        self.armed.set()
        self.thread.join()


def interrupted(blocking):
    """Run a call that blocks; it must end by Ctrl-C, within a second or so."""
    with Interrupter() as interrupter:
        try:
            interrupter.armed.set()
            blocking()
        except KeyboardInterrupt:
            interrupter.noticed.set()
            return time.monotonic() - interrupter.last
    msg = "nothing was interrupted"
    raise AssertionError(msg)


def interrupt_everything(side):
    # What is started in the background of a shell ignores it, and so would we.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    received = bytearray(10)
    request = side.peer.irecv(bytearray(10), tag=60)
    calls = [
        lambda: side.peer.recv(received, tag=50),
        lambda: side.peer.recv(received, tag=50, timeout=None),
        lambda: side.peer.send(bytes(10_000_000), tag=50),
        lambda: side.endpoint.recv(received, tag=50),
        lambda: side.peer.wait_signal(1),
        lambda: side.endpoint.accept(),
        lambda: request.wait(),
        lambda: onehop.Communicator(0, 2, unique_id=onehop.unique_id()),
    ]
    delays = [interrupted(call) for call in calls]
    # The receive was cancelled and let go of its buffer; the request goes on.
    received.append(1)
    side.peer.send(b"go on", tag=7, timeout=30)
    assert side.peer.recv(received, tag=8, timeout=30).nbytes == 6
    assert request.wait(timeout=30).nbytes == 7
    return delays


def go_on(side):
    received = bytearray(10)
    assert side.peer.recv(received, tag=7, timeout=60).nbytes == 5
    side.peer.send(b"thanks", tag=8, timeout=30)
    side.peer.send(b"request", tag=60, timeout=30)


def test_ctrl_c_ends_every_wait_and_the_link_works_on():
    delays, _ = run_pair(interrupt_everything, go_on)
    assert max(delays) < 10, delays


def handle_and_go_on(side):
    count = []
    signal.signal(signal.SIGUSR1, lambda *_: count.append(1))
    side.give(os.getpid())
    received = bytearray(10)
    assert side.peer.recv(received, timeout=30).nbytes == 4
    return len(count)


def signal_and_send(side):
    process = side.take()
    os.kill(process, signal.SIGUSR1)
    # It waits: a message of ours that asks for a place has not been answered.
    with pytest.raises(onehop.TimeoutError):
        side.peer.send(bytes(100_000), tag=9, timeout=0.5)
    side.peer.send(b"done", timeout=30)


def test_other_signals_are_handled_during_a_wait():
    count, _ = run_pair(handle_and_go_on, signal_and_send)
    assert count == 1


# ---- Killed


def serve_three(pipes):
    """Talk to three peers; the first two die."""
    sides = [Side(0, pipe) for pipe in pipes]
    doomed, awaited, healthy = sides
    lost = []
    for side, wait in (
        (doomed, lambda: doomed.peer.recv(bytearray(10), timeout=30)),
        (awaited, lambda: awaited.peer.irecv(bytearray(10)).wait(timeout=30)),
    ):
        side.give("die")
        with pytest.raises(onehop.PeerLost) as caught:
            wait()
        lost.append(caught.value.status)
        with pytest.raises(onehop.LinkError):
            side.peer.send(bytes(100_000), timeout=30)
        received = bytearray(4)
        healthy.peer.send(b"ping", timeout=30)
        assert healthy.peer.recv(received, timeout=30).nbytes == 4
    return lost


def die_when_told(pipe):
    side = Side(1, pipe)
    assert side.take() == "die"
    os.kill(os.getpid(), signal.SIGKILL)


def answer_twice(pipe):
    side = Side(1, pipe)
    received = bytearray(4)
    for _ in range(2):
        side.peer.recv(received, timeout=60)
        side.peer.send(received, timeout=30)


def test_a_killed_peer_is_lost_and_the_others_go_on():
    pipes = [_spawn.Pipe() for _ in range(3)]
    group = Group()
    group.start(serve_three, [ours for ours, _ in pipes])
    group.start(die_when_told, pipes[0][1])
    group.start(die_when_told, pipes[1][1])
    group.start(answer_twice, pipes[2][1])
    lost, *_ = group.join(killed=(1, 2))
    assert lost == [onehop.Status.PEER_LOST] * 2


# ---- Stopped


def wait_for_a_stopped_peer(side):
    process = side.take()
    stop(process)
    try:
        with pytest.raises(onehop.OperationError) as caught:
            side.peer.recv(bytearray(10), tag=1, timeout=1.5)
        text = str(caught.value)
        unresponsive = side.peer.info().unresponsive
    finally:
        os.kill(process, signal.SIGCONT)
    assert side.peer.recv(bytearray(10), tag=2, timeout=30).nbytes == 5
    return text, unresponsive


def be_stopped(side):
    side.give(os.getpid())
    side.peer.send(b"awake", tag=2, timeout=30)


def test_a_stopped_peer_shows_in_the_timeout():
    (text, unresponsive), _ = run_pair(wait_for_a_stopped_peer, be_stopped)
    assert "no sign of life" in text
    assert unresponsive > 0


INSIDE = 64 << 20


def let_go_of_orphans():
    with onehop.Endpoint() as another:
        another.progress()


def is_inside(region):
    try:
        region.deregister(timeout=0.01)
    except onehop.TimeoutError:
        return True
    return False


def drop_a_region_with_a_peer_inside(side, close_first):
    buffer = np.asarray(onehop.empty(INSIDE))
    while True:
        region = side.endpoint.register(buffer)
        side.give(region.descriptor)
        process = side.take()
        stop(process)
        if is_inside(region):
            break
        os.kill(process, signal.SIGCONT)  # it was between two puts
    alive = weakref.ref(buffer)
    try:
        if close_first:
            side.endpoint.close()
            assert is_inside(region)
        start = time.monotonic()
        del buffer, region
        assert time.monotonic() - start < 0.05
        # Kept while the peer may write it.
        let_go_of_orphans()
        assert alive() is not None
    finally:
        os.kill(process, signal.SIGCONT)
    end = time.monotonic() + DEADLINE / 2
    while alive() is not None:
        assert time.monotonic() < end
        let_go_of_orphans()
        time.sleep(0.001)
    side.give(None)


def put_until_refused(data, remote, peer):
    while True:
        peer.put(data, remote).wait(timeout=30)


def put_until_told(side, _):
    data = bytearray(INSIDE)
    while (descriptor := side.take()) is not None:
        remote = side.peer.attach(descriptor, timeout=30)
        side.peer.put(data, remote).wait(timeout=30)
        side.give(os.getpid())
        with pytest.raises(onehop.Error) as caught:
            put_until_refused(data, remote, side.peer)
        assert caught.value.status in (onehop.Status.RETIRED, onehop.Status.PEER_LOST)


@pytest.mark.parametrize("close_first", [False, True])
def test_memory_of_a_region_that_is_dropped_with_a_stopped_peer_inside(close_first):
    run_pair(drop_a_region_with_a_peer_inside, put_until_told, close_first)


# ---- What is left of links that have ended


def count_descriptors():
    return len(os.listdir("/proc/self/fd"))


def serve_clients(pipe, clients):
    endpoint = onehop.Endpoint()
    counts = []
    for _ in range(clients):
        pipe.send(endpoint.address)
        peer = endpoint.accept(timeout=30)
        assert peer.recv(bytearray(8), timeout=30).nbytes == 2
        peer.send(b"ok", timeout=30)
        with pytest.raises(onehop.PeerLost):
            peer.recv(bytearray(8), timeout=30)
        del peer  # it is not closed
        counts.append(count_descriptors())
    # A link that another thread looked at as its last handle went goes with the next accept().
    least, end = min(counts[2:]), time.monotonic() + DEADLINE / 2
    while count_descriptors() > least and time.monotonic() < end:
        with pytest.raises(onehop.TimeoutError):
            endpoint.accept(timeout=0.01)
    return least, count_descriptors()


def be_clients(pipe, clients, how):
    for _ in range(clients):
        client = os.fork()
        if client == 0:
            endpoint = onehop.Endpoint()
            peer = endpoint.connect(pipe.recv(), timeout=30)
            peer.send(b"hi", timeout=30)
            peer.recv(bytearray(8), timeout=30)
            if how == "closed":
                endpoint.close()
            os._exit(0)
        assert os.waitpid(client, 0)[1] == 0


@pytest.mark.parametrize("how", ["closed", "gone"])
def test_a_server_that_drops_its_lost_peers_keeps_nothing_of_them(how):
    ours, theirs = _spawn.Pipe()
    group = Group()
    group.start(serve_clients, ours, 12)
    group.start(be_clients, theirs, 12, how)
    least, at_last = group.join()[0]
    assert at_last <= least


def test_messages_of_a_lost_peer_without_handle_are_received():
    ours, theirs = _spawn.Pipe()
    group = Group()
    group.start(receive_from_the_gone, ours)
    group.start(send_and_go, theirs)
    group.join()


def send_and_go(pipe):
    peer = onehop.Endpoint().connect(pipe.recv(), timeout=30)
    for i in range(4):
        peer.send(bytes([i]) * 100, tag=i, timeout=30)
    pipe.send("gone")


def receive_from_the_gone(pipe):
    endpoint = onehop.Endpoint()
    pipe.send(endpoint.address)
    peer = endpoint.accept(timeout=30)
    assert pipe.recv() == "gone"
    with pytest.raises(onehop.PeerLost):
        peer.recv(bytearray(8), tag=99, timeout=30)
    del peer
    with pytest.raises(onehop.TimeoutError):
        endpoint.accept(timeout=0.05)
    for i in range(4):
        got = bytearray(100)
        assert endpoint.recv(got, tag=i, timeout=30).nbytes == 100
        assert got == bytes([i]) * 100


@pytest.mark.parametrize("whole", [False, True])
def test_a_closed_link_within_the_process_is_noticed_at_once(whole):
    first, second = onehop.Endpoint(), onehop.Endpoint()
    peer = first.connect(second.address, timeout=30)
    other = second.accept(timeout=30)
    (first if whole else peer).close()
    for call in (
        lambda: other.send(b"x"),
        lambda: other.isend(b"x"),
        lambda: other.notify(b"x"),
        lambda: other.signal(1),
    ):
        with pytest.raises(onehop.PeerLost):
            call()
