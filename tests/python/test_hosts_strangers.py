# SPDX-License-Identifier: Apache-2.0
"""Addresses of another host that are wrong, and strangers there that come and vanish."""

import os
import socket
import struct

import onehop
import pytest
from hosts import any_way, on_host, payload, with_environment
from processes import Side, _spawn

KEY = 40  # where it is in an address: docs/protocol.md
ENDPOINT = 24
TEXTS = 72
SHORT = 1.5


def checked(body):
    """An address with the sum that shows damage."""
    total = 0xCBF29CE484222325
    for byte in body:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return body + struct.pack("<Q", total)


def altered(address, place, replacement):
    body = address[:-8]
    return checked(body[:place] + replacement + body[place + len(replacement) :])


def port_of(address):
    """Where the TCP port is in an address, and which it is."""
    place = TEXTS
    for _ in range(3):
        place += 4 + struct.unpack_from("<I", address, place)[0]
    return place, struct.unpack_from("<H", address, place)[0]


def fails(endpoint, address, timeout=30):
    with pytest.raises(onehop.Error) as caught:
        endpoint.connect(address, timeout=timeout)
    return caught.value.status, str(caught.value)


def try_wrong_addresses(side):
    right = side.take()
    flipped = bytearray(right)
    flipped[KEY] ^= 1
    for mangled in (b"", right[:100], right[:-1], bytes(flipped), right + b"x", b"x" * 200):
        assert fails(side.endpoint, mangled)[0] is onehop.Status.INVALID
    status, text = fails(side.endpoint, altered(right, KEY, bytes(32)))
    assert status is onehop.Status.AUTH
    assert "key" in text
    status, text = fails(side.endpoint, altered(right, ENDPOINT, bytes(16)))
    assert status is onehop.Status.REFUSED
    assert "no endpoint" in text

    place, port = port_of(right)
    closed = altered(right, place, struct.pack("<H", port + 1))
    status, text = fails(side.endpoint, closed)
    assert status is onehop.Status.UNREACHABLE
    assert f":{port + 1}" in text
    # As long as the right one, or the lengths would not fit.
    nobody = right.replace(b"192.0.2.2", b"192.0.2.9")
    status, text = fails(side.endpoint, checked(nobody[:-8]), SHORT)
    assert status in (onehop.Status.TIMEOUT, onehop.Status.UNREACHABLE)
    assert "192.0.2.9" in text
    side.sync()
    # None of it has cost the link anything.
    assert side.endpoint.connect(right, timeout=30).info().label.startswith("host-b:")
    side.sync()


def be_addressed(side):
    side.give(side.endpoint.address)
    side.sync()
    # Whoever got no further than a wrong key never comes here.
    peer = side.endpoint.accept(timeout=30)
    assert peer.info().label.startswith("host-a:")
    with pytest.raises(onehop.TimeoutError):
        side.endpoint.accept(timeout=0.05)
    side.sync()


@any_way
def test_wrong_addresses(network):
    network.run(try_wrong_addresses, be_addressed, environment={"ONEHOP_INTERFACE": "{ipv4}"})


# ---- Strangers


def bother(pipe, host, port):
    """Connect, say something odd or nothing, and go."""
    hello = struct.pack("<IBB", 100, 1, 0)
    huge = struct.pack("<IBB", 2**31, 1, 0)
    for words in (b"", b"GET / HTTP/1.0\r\n\r\n", hello, hello + bytes(50), huge, bytes(100)):
        with socket.create_connection((host, port), timeout=30) as stranger:
            stranger.sendall(words)
    # These stay, and one resets.
    stay = [socket.create_connection((host, port), timeout=30) for _ in range(20)]
    reset = socket.create_connection((host, port), timeout=30)
    reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    reset.close()
    pipe.send("bothered")
    assert pipe.poll(60)
    for stranger in stay:
        stranger.close()


def connect_and_vanish(pipe, address):
    endpoint = onehop.Endpoint()
    endpoint.connect(address, timeout=30)
    pipe.send("connected")
    os._exit(0)


def serve(pair, pipe):
    side = Side(1, pair)
    pipe.send(side.endpoint.address)
    # It has vanished when we look, or does meanwhile.
    gone = side.endpoint.accept(timeout=30)
    with pytest.raises(onehop.PeerLost):
        gone.recv(bytearray(10), timeout=60)
    answer(side)


def answer(side):
    received = bytearray(1 << 20)
    side.peer.recv(received, timeout=60)
    side.peer.send(received, timeout=30)
    side.sync()


def ask(pair, pipe):
    side = Side(0, pair)
    pipe.send("linked")
    assert pipe.poll(60)
    side.peer.send(payload(1 << 20, 1), timeout=30)
    received = bytearray(1 << 20)
    side.peer.recv(received, timeout=60)
    assert received == payload(1 << 20, 1)
    side.sync()


def hear(pipe):
    assert pipe.poll(60)
    return pipe.recv()


def test_strangers_of_another_host_that_come_and_vanish(network):
    group = network.group()
    pair = _spawn.Pipe()
    (asks, its), (serves, whose) = _spawn.Pipe(), _spawn.Pipe()
    host_b = with_environment(network.b, {"ONEHOP_INTERFACE": "{ipv4}"})
    group.start(on_host, network.a, ask, pair[0], its)
    group.start(on_host, host_b, serve, pair[1], whose)
    assert hear(asks) == "linked"
    address = hear(serves)
    bothers, theirs = _spawn.Pipe()
    group.start(on_host, network.a, bother, theirs, network.b.ipv4, port_of(address)[1])
    assert hear(bothers) == "bothered"
    vanishes, theirs = _spawn.Pipe()
    group.start(on_host, network.a, connect_and_vanish, theirs, address)
    assert hear(vanishes) == "connected"
    asks.send("go on")
    bothers.send("go")
    group.join(killed=(3,))
