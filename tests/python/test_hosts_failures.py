# SPDX-License-Identifier: Apache-2.0
"""Links between hosts that go down, peers there that die or stop, each in the middle of a message.

The wire between them stops when so many bytes of the message have passed; what happens then happens
in the middle of it, on any machine. Each test tells its processes by pipes how far it is.
"""

import os
import re
import signal
import time
from contextlib import suppress

import onehop
import pytest
from hosts import on_host, payload, with_environment
from processes import DEADLINE, Failed, Side, _spawn, stop

SIZE = 17 << 20  # more than the sockets of both sides hold: SOCKET_BUFFER
PASSED = 3 << 20  # bytes of it that get through at first
SHORT = 1.0  # seconds; of waits that are to end at their deadline


class Pipe:
    """The test's end of a pipe to a process, or the process's."""

    def __init__(self, end) -> None:
        self.end = end

    def give(self, value) -> None:
        self.end.send(value)

    def take(self):
        if not self.end.poll(DEADLINE):
            msg = "the other side gave nothing"
            raise Failed(msg)
        return self.end.recv()


def ours_and_theirs():
    ours, theirs = _spawn.Pipe()
    return Pipe(ours), Pipe(theirs)


class Middle:
    """A sender on host a and a receiver on host b, caught in the middle of one message."""

    def __init__(self, network, send, receive, *more) -> None:
        self.network = network
        self.group = network.group()
        pair = _spawn.Pipe()
        self.sender, theirs = ours_and_theirs()
        self.processes = [
            self.group.start(on_host, network.a, send, pair[0], theirs, *more),
        ]
        self.receiver, theirs = ours_and_theirs()
        self.processes.append(self.group.start(on_host, network.b, receive, pair[1], theirs))
        for pipe in (self.sender, self.receiver):
            assert pipe.take() == "linked"
        network.wire.stop_after(PASSED)
        for pipe in (self.receiver, self.sender):
            pipe.give("begin")
        assert network.wire.stopped.wait(DEADLINE)

    def tell(self, value) -> None:
        self.sender.give(value)
        self.receiver.give(value)

    def hear(self, *pipes) -> None:
        """All of these have timed out. Of one that failed the group knows why."""
        try:
            assert {pipe.take() for pipe in pipes} == {"timed out"}
        except EOFError:
            self.group.join()
            raise


def linked(number, pair, pipe):
    side = Side(number, pair)
    pipe.give("linked")
    assert pipe.take() == "begin"
    return side


def begin_send(pair, pipe):
    side = linked(0, pair, pipe)
    return side, side.peer.isend(payload(SIZE, 1), tag=1)


def begin_recv(pair, pipe):
    side = linked(1, pair, pipe)
    received = bytearray(SIZE)
    return side, received, side.peer.irecv(received, tag=1)


def wait_until(happened):
    end = time.monotonic() + DEADLINE
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def ends_at_deadline(side, request, what):
    """Wait in vain; return what the error says. It names what was tried, and with whom."""
    # UCX sends from the user's memory, and reads there until it gets through or the link is lost.
    lent = side.peer.info().path == "ucx" and what == "send"
    with pytest.raises(onehop.Error) as caught:
        request.wait(timeout=SHORT)
    text = str(caught.value)
    assert caught.value.status is (onehop.Status.IN_DOUBT if lent else onehop.Status.TIMEOUT), text
    assert re.match(rf"the deadline passed after \d+\.\d{{3}} s: {what} of {SIZE} bytes", text)
    assert f"peer {side.peer.info().label};" in text
    assert request.buffer_released is not lent
    return text


def talk_after_all(side):
    """One message each way, behind whatever became of the others."""
    if side.number == 0:
        side.peer.send(payload(100_000, 2), tag=2, timeout=30)
        received = bytearray(100_000)
        side.peer.recv(received, tag=2, timeout=30)
        assert received == payload(100_000, 3)
    else:
        received = bytearray(100_000)
        side.peer.recv(received, tag=2, timeout=30)
        assert received == payload(100_000, 2)
        side.peer.send(payload(100_000, 3), tag=2, timeout=30)
    side.sync()


# ---- The link goes down


def be_neighbour(pipe, path):
    side = Side(1, pipe)
    assert side.peer.info().path == path
    received = bytearray(1 << 20)
    for _ in range(2):
        side.peer.recv(received, timeout=60)
        side.peer.send(received, timeout=30)
    side.sync()


def ask_neighbour(near, iteration):
    near.peer.send(payload(1 << 20, iteration), timeout=30)
    received = bytearray(1 << 20)
    near.peer.recv(received, timeout=30)
    assert received == payload(1 << 20, iteration)


def send_into_silence(pair, pipe, near_pipe):
    near = Side(0, near_pipe)
    side, request = begin_send(pair, pipe)
    assert pipe.take() == "down"
    ends_at_deadline(side, request, "send")
    ask_neighbour(near, 1)
    with pytest.raises(onehop.TimeoutError, match=r"receive of 10 bytes .* peer host-b:"):
        side.peer.recv(bytearray(10), tag=9, timeout=SHORT)
    ask_neighbour(near, 2)
    near.sync()
    pipe.give("timed out")
    assert pipe.take() == "up"
    talk_after_all(side)
    wait_until(lambda: request.buffer_released)


def receive_from_silence(pair, pipe):
    side, _, request = begin_recv(pair, pipe)
    assert pipe.take() == "down"
    ends_at_deadline(side, request, "receive")
    pipe.give("timed out")
    assert pipe.take() == "up"
    talk_after_all(side)


def test_waits_end_while_the_link_is_down_and_others_go_on(wired):
    near = _spawn.Pipe()
    neighbours = wired.group()
    neighbours.start(on_host, wired.a, be_neighbour, near[1], "shm")
    middle = Middle(wired, send_into_silence, receive_from_silence, near[0])
    wired.down(wired.b)
    middle.tell("down")
    middle.hear(middle.sender, middle.receiver)
    wired.wire.go_on()
    wired.up(wired.b)
    middle.tell("up")
    middle.group.join()
    neighbours.join()


def send_all_of_it(pair, pipe):
    side, request = begin_send(pair, pipe)
    assert request.wait(timeout=60).nbytes == SIZE
    talk_after_all(side)


def receive_all_of_it(pair, pipe):
    side, received, request = begin_recv(pair, pipe)
    assert request.wait(timeout=60).nbytes == SIZE
    assert received == payload(SIZE, 1)
    talk_after_all(side)


def test_a_message_goes_on_when_the_link_is_up_again(wired):
    middle = Middle(wired, send_all_of_it, receive_all_of_it)
    wired.down(wired.a)
    wired.wire.go_on()
    wired.up(wired.a)
    middle.group.join()


# ---- The peer dies, or stops


def send_to_the_dead(pair, pipe):
    _, request = begin_send(pair, pipe)
    with pytest.raises(onehop.PeerLost, match="host-b:"):
        request.wait(timeout=60)


def receive_from_the_dead(pair, pipe):
    _, _, request = begin_recv(pair, pipe)
    with pytest.raises(onehop.PeerLost, match="host-a:"):
        request.wait(timeout=60)


@pytest.mark.parametrize("doomed", [0, 1], ids=["sender", "receiver"])
def test_a_peer_that_is_killed_in_the_middle_is_lost(wired, doomed):
    middle = Middle(wired, send_to_the_dead, receive_from_the_dead)
    os.kill(middle.processes[doomed].pid, signal.SIGKILL)
    wired.wire.go_on()
    middle.group.join(killed=(doomed,))


def send_to_a_dark_host(pair, pipe):
    side, request = begin_send(pair, pipe)
    assert pipe.take() == "dark"
    assert "no sign of life" in ends_at_deadline(side, request, "send")
    assert side.peer.info().unresponsive > 0
    pipe.give("timed out")
    # Its host is back, and does not know us.
    with pytest.raises(onehop.PeerLost):
        side.peer.recv(bytearray(10), tag=9, timeout=60)
    wait_until(lambda: request.buffer_released)


def test_a_host_that_goes_dark_and_comes_back(wired):
    middle = Middle(wired, send_to_a_dark_host, receive_from_the_dead)
    os.kill(middle.processes[1].pid, signal.SIGKILL)
    middle.sender.give("dark")
    middle.hear(middle.sender)
    wired.wire.go_on()
    middle.group.join(killed=(1,))


def send_to_the_stopped(pair, pipe, other_pipe):
    other = Side(0, other_pipe)
    side, request = begin_send(pair, pipe)
    assert pipe.take() == "stopped"
    assert "no sign of life" in ends_at_deadline(side, request, "send")
    ask_neighbour(other, 1)
    ask_neighbour(other, 2)
    other.sync()
    for seconds in (0.5, 1.0):
        wait_until(lambda: side.peer.info().unresponsive > seconds)  # noqa: B023
    pipe.give("timed out")
    talk_after_all(side)
    # It asks each time, so it is 0 only between an answer and the next question.
    wait_until(lambda: side.peer.info().unresponsive < 0.5)


def be_stopped(pair, pipe):
    side, _, _ = begin_recv(pair, pipe)
    talk_after_all(side)


def test_a_peer_that_is_stopped_in_the_middle(wired):
    # On the same host.
    other = _spawn.Pipe()
    others = wired.group()
    others.start(on_host, wired.b, be_neighbour, other[1], wired.way.path)
    middle = Middle(wired, send_to_the_stopped, be_stopped, other[0])
    process = middle.processes[1].pid
    stop(process)
    try:
        wired.wire.go_on()
        middle.sender.give("stopped")
        middle.hear(middle.sender)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGCONT)
    middle.group.join()
    others.join()


# ---- Nothing comes any more, for ever


def send_for_ever(pair, pipe):
    side, request = begin_send(pair, pipe)
    with pytest.raises(onehop.PeerLost, match=r"lost host-b:\d+: "):
        request.wait(timeout=60)
    wait_until(lambda: request.buffer_released)
    with pytest.raises(onehop.PeerLost, match="host-b:"):
        side.peer.send(b"more", timeout=60)


def receive_for_ever(pair, pipe):
    side, _, request = begin_recv(pair, pipe)
    with pytest.raises(onehop.PeerLost, match=r"lost host-a:\d+: "):
        request.wait(timeout=60)
    with pytest.raises(onehop.PeerLost, match="host-a:"):
        side.peer.wait_signal(0, timeout=60)


def test_a_host_that_is_dark_for_good_is_lost(wired):
    # One side waits for what it has sent to be acknowledged, the other has sent nothing.
    soon = {"ONEHOP_PEER_TIMEOUT": "2"}
    wired.a, wired.b = (with_environment(host, soon) for host in (wired.a, wired.b))
    Middle(wired, send_for_ever, receive_for_ever).group.join()


def close_in_the_dark(side, request):
    side.endpoint.close()
    with pytest.raises(onehop.Error) as caught:
        request.wait(timeout=SHORT)
    assert caught.value.status is onehop.Status.CANCELLED
    assert "the link to host-" in str(caught.value)
    assert request.buffer_released


def send_and_close(pair, pipe):
    side, request = begin_send(pair, pipe)
    assert pipe.take() == "dark"
    close_in_the_dark(side, request)


def receive_and_close(pair, pipe):
    side, _, request = begin_recv(pair, pipe)
    assert pipe.take() == "dark"
    close_in_the_dark(side, request)


def test_endpoints_close_in_the_dark(wired):
    middle = Middle(wired, send_and_close, receive_and_close)
    middle.tell("dark")
    middle.group.join()
