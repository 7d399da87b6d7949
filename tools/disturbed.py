#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the links of a process under disturbance by other processes.

One process, the server, has a link to an idle process for each death to be measured, and one to a
process that exchanges 8-byte messages with it. Others connect and disconnect, over its Unix socket
and over TCP, and rest 10 ms in between. Meanwhile one of these disturbs it:

  attackers  processes without the key of its address connect as fast as they can: of three, one
             hangs up, one stays silent and keeps 500 connections, and one sends half a hello and
             keeps as many. With --alike all of them hang up.
  streamer   a process sends it messages of 8 MiB without a pause
  spinners   as many processes as there would be attackers compute: the loss of the others is due
             to sharing the CPUs alone
  nobody     for comparison

The time of a death is from the signal to the failure of the server's waiting receive; of a round
from a send to the answer; of a connect from the call to its return.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import socket
import statistics
import struct
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event
from typing import Any

import onehop

OVER = {
    "socket": {"ONEHOP_SEGMENT": "off", "ONEHOP_TRANSPORT": "socket"},
    "ucx": {"ONEHOP_TRANSPORT": "ucx", "UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
    "shm": {},
}
DISTURBANCES = ("nobody", "spinners", "attackers", "streamer")
MESSAGE = 8 << 20
KEPT = 500  # connections that an attacker keeps open
TIMEOUT = 30  # seconds; of every operation
TEXTS = 72  # offset of the texts in an address: docs/protocol.md

_spawn = multiprocessing.get_context("spawn")


def cut(address: bytes) -> tuple[list[bytes], bytes, int]:
    """Return the texts of an address, the bytes after them, and the TCP port."""
    at = TEXTS
    texts = []
    for _ in range(3):
        (size,) = struct.unpack_from("<I", address, at)
        texts.append(address[at + 4 : at + 4 + size])
        at += 4 + size
    return texts, address[at:-8], struct.unpack_from("<H", address, at)[0]


def tcp_only(address: bytes) -> bytes:
    """Return the same address without its Unix sockets."""
    (label, _, _), rest, _ = cut(address)
    body = address[:TEXTS] + struct.pack("<I", len(label)) + label + bytes(8) + rest
    total = 0xCBF29CE484222325
    for byte in body:
        total = (total ^ byte) * 0x100000001B3 % 2**64
    return body + struct.pack("<Q", total)


# ---- The server


def echo(peer: onehop.Peer) -> None:
    """Echo each 8-byte message until the link ends."""
    word = bytearray(8)
    with contextlib.suppress(onehop.Error):
        while True:
            peer.recv(word, timeout=None)
            peer.send(word)


def take_in(peer: onehop.Peer) -> None:
    """Receive large messages until the link ends."""
    message = bytearray(MESSAGE)
    with contextlib.suppress(onehop.Error):
        while True:
            peer.recv(message, timeout=None)


def watch(peer: onehop.Peer, pipe: Connection) -> None:
    """Report when the peer is lost."""
    with contextlib.suppress(onehop.PeerLost):
        peer.recv(bytearray(8), timeout=None)
    pipe.send(time.monotonic_ns())


def serve(pipe: Connection, roles: Sequence[str], environment: dict[str, str]) -> None:
    """Run the server until it is killed: one link for each role, then all others."""
    os.environ.update(environment)
    endpoint = onehop.Endpoint()
    pipe.send(endpoint.address)
    bodies = {"echo": echo, "stream": take_in, "death": lambda peer: watch(peer, pipe)}
    for role in roles:
        peer = endpoint.accept(timeout=TIMEOUT)
        threading.Thread(target=bodies[role], args=(peer,), daemon=True).start()
        pipe.send(role)
    while True:
        with contextlib.suppress(onehop.Error):
            endpoint.accept(timeout=None).close()


# ---- Legitimate processes


def partner(
    pipe: Connection,
    address: bytes,
    role: str,
    environment: dict[str, str],
    stop: Event,
    start: Event,
) -> None:
    """Open a link to the server, and use it as the role requires."""
    os.environ.update(environment)
    endpoint = onehop.Endpoint()
    peer = endpoint.connect(address, timeout=TIMEOUT)
    pipe.send(role)
    if role == "death":
        signal.pause()
    start.wait()
    times = []
    message = bytes(MESSAGE if role == "stream" else 8)
    answer = bytearray(8)
    while not stop.is_set():
        begin = time.monotonic_ns()
        peer.send(message, timeout=TIMEOUT)
        if role == "echo":
            peer.recv(answer, timeout=TIMEOUT)
        times.append(time.monotonic_ns() - begin)
    pipe.send(times)


def connect(
    pipe: Connection, address: bytes, environment: dict[str, str], stop: Event, start: Event
) -> None:
    """Connect and close repeatedly."""
    os.environ.update(environment)
    endpoint = onehop.Endpoint()
    start.wait()
    times, failures = [], []
    while not stop.is_set():
        begin = time.monotonic_ns()
        try:
            endpoint.connect(address, timeout=TIMEOUT).close()
        except onehop.Error as failure:
            failures.append(f"{type(failure).__name__}: {failure}")
        else:
            times.append(time.monotonic_ns() - begin)
        time.sleep(0.01)
    pipe.send((times, failures))


# ---- Disturbing processes


def attack(pipe: Connection, name: bytes, port: int, way: str, stop: Event, start: Event) -> None:
    """Connect as fast as possible, alternating between the Unix socket and TCP."""
    half = struct.pack("<IBBHH", 2 + 60, 1, 0, 1, 0)
    kept: list[socket.socket] = []
    count = 0
    start.wait()
    while not stop.is_set():
        count += 1
        by_unix = count % 2
        family = socket.AF_UNIX if by_unix else socket.AF_INET
        stranger = socket.socket(family, socket.SOCK_STREAM)
        stranger.settimeout(1)
        try:
            stranger.connect(b"\0" + name if by_unix else ("127.0.0.1", port))
            if way == "half":
                stranger.sendall(half)
        except OSError:
            stranger.close()
            continue
        if way == "connect":
            stranger.close()
            continue
        kept.append(stranger)
        if len(kept) > KEPT:
            kept.pop(0).close()
    pipe.send(count)


def spin(_: Connection, stop: Event, start: Event) -> None:
    """Compute continuously."""
    start.wait()
    while not stop.is_set():
        sum(range(10_000))


# ---- The measurement


def told(pipe: Connection) -> Any:  # noqa: ANN401
    """Return the next report, or fail at the timeout."""
    if not pipe.poll(2 * TIMEOUT):
        msg = "a process has told nothing"
        raise TimeoutError(msg)
    return pipe.recv()


class Run:
    """The processes of one measurement; the context manager ends them all."""

    def __init__(self) -> None:
        self.stop, self.start = _spawn.Event(), _spawn.Event()
        self.processes: list[Any] = []

    def begin(self, function: Callable[..., None], *arguments: object) -> tuple[Connection, int]:
        """Start a process; return its pipe and its pid."""
        ours, theirs = _spawn.Pipe()
        process = _spawn.Process(target=function, args=(theirs, *arguments), daemon=True)
        process.start()
        self.processes.append(process)
        return ours, process.pid

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def measure(options: argparse.Namespace) -> None:
    """Run all processes for the given time, and print their results."""
    environment = {**OVER[options.over], "ONEHOP_INTERFACE": "127.0.0.1", "ONEHOP_LOG": "error"}
    roles = ["echo", *["stream"] * options.streamers, *["death"] * options.deaths]
    with Run() as run:
        server, _ = run.begin(serve, roles, environment)
        address = told(server)
        partners = []
        for role in roles:
            arguments = (address, role, environment, run.stop, run.start)
            partners.append(run.begin(partner, *arguments))
            told(partners[-1][0])
            told(server)
        connectors = {
            what: run.begin(connect, to, environment, run.stop, run.start)[0]
            for what, to in (("connect, unix", address), ("connect, tcp", tcp_only(address)))
        }
        (_, name, _), _, port = cut(address)
        ways = ["connect"] * 3 if options.alike else ["connect", "silent", "half"]
        attacks = []
        for i in range(options.attackers):
            if options.by == "attackers":
                arguments = (attack, name, port, ways[i % 3], run.stop, run.start)
                attacks.append(run.begin(*arguments)[0])
            elif options.by == "spinners":
                run.begin(spin, run.stop, run.start)
        run.start.set()
        deaths = []
        for _, process in partners[1 + options.streamers :]:
            time.sleep(options.seconds / (options.deaths + 1))
            begin = time.monotonic_ns()
            os.kill(process, signal.SIGKILL)
            deaths.append(told(server) - begin)
        time.sleep(options.seconds / (options.deaths + 1))
        run.stop.set()
        rows = {"death": deaths, "round of 8 bytes": told(partners[0][0])}
        failures = []
        for what, pipe in connectors.items():
            rows[what], failed = told(pipe)
            failures += failed
        streamed = sum(len(told(pipe)) for pipe, _ in partners[1 : 1 + options.streamers])
        attacked = [told(pipe) for pipe in attacks]
    print(f"over {options.over}, {options.seconds} s, disturbed by {options.by}", end="")
    if attacks:
        print(f": {len(attacks)} attackers made {sum(attacked)} connections", end="")
    if streamed:
        print(f": {streamed * MESSAGE / options.seconds / 1e9:.2f} GB/s", end="")
    print(f"\n{'ms':<18}{'count':>8}{'median':>10}{'99 %':>10}{'worst':>10}")
    for what, times in rows.items():
        ordered = sorted(t / 1e6 for t in times) or [float("nan")]
        late = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
        middle = statistics.median(ordered)
        print(f"{what:<18}{len(times):>8}{middle:>10.2f}{late:>10.2f}{ordered[-1]:>10.2f}")
    print(f"connects that failed: {len(failures)}")
    for text in sorted(set(failures))[:5]:
        print(f"  {text}")


def main() -> None:
    """Read the command line and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--by", choices=DISTURBANCES, default="attackers")
    parser.add_argument("--over", choices=tuple(OVER), default="socket", help="all links go")
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--deaths", type=int, default=10)
    parser.add_argument("--attackers", type=int, default=3)
    parser.add_argument("--alike", action="store_true", help="attackers only connect and hang up")
    options = parser.parse_args()
    options.streamers = 1 if options.by == "streamer" else 0
    measure(options)


if __name__ == "__main__":
    main()
