# SPDX-License-Identifier: Apache-2.0
"""Messages and one-sided operations between two hosts, over links of all sorts."""

import contextlib
import functools
import os
import socket
from pathlib import Path

import numpy as np
import onehop
import pytest
from hosts import INTERFACE, Network, any_way, expected_path, payload
from processes import finish

NO_DELAY = socket.TCP_NODELAY
SIZES = (0, 1, 400, 4096, (16 << 10) - 1, (64 << 10) + 1, 1 << 20, 17 << 20)


def send_one(side, size):
    side.peer.send(payload(size, side.number), tag=1, timeout=30)


def take_one(side, size, path):
    received = bytearray(size)
    message = side.peer.recv(received, tag=1, timeout=30)
    check(side, received, message, 1 - side.number, path)


def check(side, received, message, iteration, path):
    size = len(received)
    assert message.nbytes == size
    assert received == payload(size, iteration), f"{size} bytes, iteration {iteration}"
    expected = expected_path(side.peer, size, path)
    assert message.path == expected, f"{size} bytes came by {message.path}, not {expected}"


def talk(side, path):
    """Everything both ways: by turns, then all at once."""
    assert side.peer.info().path == path, side.peer.info()
    assert side.peer.info().label.startswith(f"host-{'ba'[side.number]}:")
    for size in SIZES:
        if side.number == 0:
            send_one(side, size)
            take_one(side, size, path)
        else:
            take_one(side, size, path)
            send_one(side, size)
    ours, theirs = 10 + side.number, 11 - side.number
    received = [bytearray(size) for size in SIZES]
    receives = [side.peer.irecv(buffer, tag=theirs) for buffer in received]
    sends = [side.peer.isend(payload(size, ours), tag=ours) for size in SIZES]
    finish(*receives, *sends)
    for buffer, request in zip(received, receives, strict=True):
        check(side, buffer, request.wait(timeout=30), theirs, path)


def test_messages_both_ways(network):
    network.run(talk, talk, network.way.path)


@pytest.mark.parametrize("interface", ["{ipv4}", "{ipv6}", "{ipv6},{ipv4}", f"lo,{INTERFACE}"])
def test_links_by_chosen_addresses_and_interfaces(network, interface):
    network.run(talk, talk, network.way.path, environment={"ONEHOP_INTERFACE": interface})


def say_which_way(side):
    return side.peer.info().path


def test_what_is_normal_between_hosts_is_no_warning(network):
    log = network.folder / "log"
    settings = {"ONEHOP_LOG": "info", "ONEHOP_LOG_FILE": str(log)}
    path = network.way.path
    assert network.run(say_which_way, say_which_way, environment=settings) == [path, path]
    lines = log.read_text().splitlines()
    assert [line for line in lines if " warn: " in line or " error: " in line] == []
    told = [line for line in lines if "goes over the control socket: UCX is switched off" in line]
    assert bool(told) == (path == "socket")


def send_wrong_bytes(side, path):
    side.peer.send(payload(5000, 7), tag=1, timeout=30)
    send_one(side, 5000)


def find_them(side, path):
    with pytest.raises(AssertionError, match="5000 bytes, iteration 1"):
        take_one(side, 5000, path)
    with pytest.raises(AssertionError, match="5000 bytes came"):
        take_one(side, 5000, "nowhere")


@any_way
def test_wrong_bytes_and_paths_are_found(network):
    network.run(find_them, send_wrong_bytes, network.way.path)


def delayed(side):
    """Which TCP connections of this process keep small messages back (Nagle)."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6):
                found.append((copy.getpeername(), copy.getsockopt(socket.IPPROTO_TCP, NO_DELAY)))
    side.sync()
    assert found
    return [peer for peer, no_delay in found if not no_delay]


def test_no_small_message_waits_for_more(network):
    assert network.run(delayed, delayed) == [[], []]


# ---- One-sided

SIZE = 4 << 20
BLOCKS = 700
LENGTH = 1000


def expose(side, path):
    memory = np.frombuffer(bytearray(payload(SIZE, 0)), "u1")
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    side.peer.wait_signal(3, 2, timeout=60)
    # Everything before the signals has arrived.
    assert bytes(memory[: 1 << 20]) == payload(1 << 20, 1)
    for block in range(BLOCKS):
        at = (2 << 20) + block * 2 * LENGTH
        assert bytes(memory[at : at + LENGTH]) == payload(LENGTH, 100 + block)
    side.peer.signal(4)
    side.sync()
    texts = [text for _, text in side.endpoint.notifications()]
    assert texts == [b"put", b"batch", b"", payload(2048, 5)]
    # The rest is as it was.
    assert bytes(memory[1 << 20 : 2 << 20]) == payload(SIZE, 0)[1 << 20 : 2 << 20]
    region.deregister(timeout=30)
    side.sync()


def work_on_it(side, path):
    remote = side.peer.attach(side.take(), timeout=30)
    whole = bytearray(SIZE)
    got = side.peer.get(whole, remote).wait(timeout=60)
    assert whole == payload(SIZE, 0)
    assert got.path == path
    ours = payload(1 << 20, 1)
    put = side.peer.put(ours, remote[: 1 << 20], notify=b"put").wait(timeout=60)
    assert (put.path, put.nbytes) == (path, 1 << 20)
    blocks = bytearray(b"".join(payload(LENGTH, 100 + block) for block in range(BLOCKS)))
    near = range(0, BLOCKS * LENGTH, LENGTH)
    far = range(2 << 20, (2 << 20) + BLOCKS * 2 * LENGTH, 2 * LENGTH)
    side.peer.put_batch(blocks, remote, near, far, LENGTH, notify=b"batch").wait(timeout=60)
    back = bytearray(BLOCKS * LENGTH)
    side.peer.get_batch(back, remote, near, far, LENGTH).wait(timeout=60)
    assert back == blocks
    side.peer.notify(b"", timeout=30)
    side.peer.notify(payload(2048, 5), timeout=30)
    side.peer.signal(3)
    side.peer.signal(3)
    side.peer.wait_signal(4, timeout=60)
    side.sync()
    side.sync()
    with pytest.raises(onehop.OperationError) as caught:
        side.peer.put(b"gone", remote[:4]).wait(timeout=30)
    assert caught.value.status is onehop.Status.RETIRED


def test_put_get_batches_notifications_and_signals(network):
    network.run(expose, work_on_it, network.way.path)


# ---- Bad links


def talk_and_put(first, side, path):
    talk(side, path)
    (expose if first else work_on_it)(side, path)


def work_on(way, wire):
    with Network(way, wire) as network:
        first, second = (functools.partial(talk_and_put, first) for first in (True, False))
        network.run(first, second, way.path)
        assert (network.wire.lost > 0) == ("loss" in wire)


@any_way
@pytest.mark.parametrize("wire", [{"delay": 0.005}, {"loss": 0.01}], ids=["late", "lossy"])
def test_bytes_are_right_on_a_link_that_is_late_or_lossy(way, wire):
    work_on(way, wire)


def test_bytes_are_right_on_a_link_that_is_late_and_lossy(way):
    work_on(way, {"delay": 0.002, "loss": 0.01})
