# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces, and a link between them that tests can spoil.

    processes in namespace a                           processes in namespace b
             │                                                  │
       interface link0  ────  a veth pair, or a Wire  ────  interface link0

A process of a host sees only its own network, abstract sockets and folder of sockets, and has the
host's name. So a link between the two goes as it would between machines. The folder has the same
path on both, for an address names it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import onehop
import pytest
from processes import Group, _spawn, run_side
from wire import Wire, open_tun

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
MS_BIND = 0x1000
MS_REC_PRIVATE = 0x4000 | 1 << 18
INTERFACE = "link0"
SOCKET_BUFFER = 4 << 20  # bytes; of one side at most


@dataclass(frozen=True)
class Way:
    """How bytes travel between hosts, and what chooses it."""

    name: str
    environment: dict[str, str]
    path: str  # of everything that is not inline


# Each test between hosts runs once for each of these.
WAYS = (Way("socket", {"ONEHOP_UCX_LIBRARY": "off"}, "socket"), Way("ucx", {}, "ucx"))
# For tests of what comes before a link, or of the tests: one way will do.
any_way = pytest.mark.parametrize("way", WAYS[:1], indirect=True, ids=lambda way: way.name)


@dataclass(frozen=True)
class Host:
    """What a process needs to move to a host."""

    name: str
    namespace: str
    folder: str  # of its sockets: seen as that of ONEHOP_SOCKET_DIR
    ipv4: str
    ipv6: str
    environment: dict[str, str] = field(default_factory=dict)

    def enter(self) -> None:
        """Move this process there. Threads that it has already stay behind."""
        libc = ctypes.CDLL(None, use_errno=True)
        with Path("/run/netns", self.namespace).open() as namespace:
            _check(libc.setns(namespace.fileno(), CLONE_NEWNET), "setns")
        _check(libc.unshare(CLONE_NEWUTS | CLONE_NEWNS), "unshare")
        socket.sethostname(self.name)
        os.environ.update(self.environment)
        _check(libc.mount(None, b"/", None, MS_REC_PRIVATE, None), "mount")
        # UCX looks there for what network there is: a sysfs shows that of whoever mounted it.
        _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None), "mount")
        places = (os.fsencode(self.folder), os.fsencode(os.environ["ONEHOP_SOCKET_DIR"]))
        _check(libc.mount(*places, None, MS_BIND, None), "mount")


def _check(result, what):
    if result != 0:
        raise OSError(ctypes.get_errno(), what)


def on_host(host, function, *arguments):
    """Call a function on a host: for processes that have just begun."""
    host.enter()
    return function(*arguments)


def ip(*arguments):
    """Run the ip command; its complaint is the exception's text."""
    words = ["ip", *arguments]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode != 0:
        msg = f"{' '.join(words)}: {done.stderr.strip()}"
        raise OSError(msg)
    return done.stdout


@functools.cache
def why_not() -> str:
    """Why there can be no such hosts here; empty if there can."""
    if shutil.which("ip") is None:
        return "the ip command is not installed (Debian: iproute2)"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if not Path("/dev/net/tun").exists():
        return "there is no /dev/net/tun"
    name = f"onehop-probe-{os.getpid()}"
    try:
        ip("netns", "add", name)
        ip("-n", name, "link", "add", "probe0", "type", "veth", "peer", "name", "probe1")
    except OSError as failure:
        return str(failure)
    finally:
        with contextlib.suppress(OSError):
            ip("netns", "del", name)
    return ""


@functools.cache
def why_no_ucx() -> str:
    """Why UCX cannot be used here; empty if it can."""
    ucx = next(found for found in onehop.info().transports if found.name == "ucx")
    return "" if ucx.viable else ucx.why


class Network:
    """Two hosts and what runs on them. A context manager that leaves nothing of it."""

    def __init__(self, way: Way, wire: dict | None = None) -> None:
        """way: of WAYS. wire: arguments of a Wire that joins the hosts, instead of a veth pair."""
        self.way = way
        self.folder = Path(tempfile.mkdtemp(prefix="ohhosts-"))
        self.groups = []
        self.wire = None
        self.sockets = self.folder / "sockets"
        self.sockets.mkdir()
        self.a, self.b = (self._describe(letter, 1 + i) for i, letter in enumerate("ab"))
        try:
            self._make(wire)
        except BaseException:
            self.close()
            raise

    def _describe(self, letter, number) -> Host:
        folder = self.folder / letter
        folder.mkdir()
        return Host(
            name=f"host-{letter}",
            namespace=f"onehop-{os.getpid()}-{letter}",
            folder=str(folder),
            # Of the blocks for documentation, and for private use.
            ipv4=f"192.0.2.{number}",
            ipv6=f"fd00:6f6e:6568:6f70::{number}",
            environment={**self.way.environment, "ONEHOP_SOCKET_DIR": str(self.sockets)},
        )

    def _make(self, wire) -> None:
        for host in (self.a, self.b):
            ip("netns", "add", host.namespace)
        if wire is None:
            # With one number for both the kernel would take up to a second to tell of the carrier.
            names = (INTERFACE, "index", "77", "netns", self.a.namespace, "type", "veth")
            ip("link", "add", *names, "peer", "name", INTERFACE, "netns", self.b.namespace)
        else:
            ends = []
            for host in (self.a, self.b):
                # No name that the machine's own network could have.
                name = f"oh{host.name[-1]}{os.getpid()}"
                ends.append(open_tun(name))
                ip("link", "set", name, "netns", host.namespace, "name", INTERFACE)
            self.wire = Wire(ends, **wire)
        for host in (self.a, self.b):
            ip("-n", host.namespace, "address", "add", f"{host.ipv4}/24", "dev", INTERFACE)
            address = (f"{host.ipv6}/64", "dev", INTERFACE, "nodad")
            ip("-n", host.namespace, "-6", "address", "add", *address)
            # What the kernel takes for a process that does not read must not depend on the machine.
            for sizes in ("tcp_rmem", "tcp_wmem"):
                write = f"echo 4096 131072 {SOCKET_BUFFER} > /proc/sys/net/ipv4/{sizes}"
                ip("netns", "exec", host.namespace, "sh", "-c", write)
            ip("-n", host.namespace, "link", "set", "lo", "up")
            self.up(host)
        for host in (self.a, self.b):
            self._await_carrier(host)

    @staticmethod
    def _await_carrier(host) -> None:
        """Return when programs see that the link is up: UCX takes no other."""
        end = time.monotonic() + 30
        while "NO-CARRIER" in ip("-n", host.namespace, "link", "show", "dev", INTERFACE):
            if time.monotonic() > end:
                msg = f"the link of {host.name} does not come up"
                raise OSError(msg)
            time.sleep(0.005)

    def up(self, host) -> None:
        ip("-n", host.namespace, "link", "set", INTERFACE, "up")

    def down(self, host) -> None:
        ip("-n", host.namespace, "link", "set", INTERFACE, "down")

    def group(self) -> Group:
        """Processes that are gone when the network is."""
        self.groups.append(Group())
        return self.groups[-1]

    def run(self, first, second, *arguments, environment=None, devices=(None, None)):
        """Run functions on a and b in connected processes, as run_pair does."""
        pipes = _spawn.Pipe()
        group = self.group()
        for number, function in enumerate((first, second)):
            host = with_environment((self.a, self.b)[number], environment or {})
            side = (number, pipes[number], function, arguments, devices[number])
            group.start(on_host, host, run_side, *side)
        return group.join()

    def close(self) -> None:
        for group in self.groups:
            group.kill()
        if self.wire:
            self.wire.close()
        for host in (self.a, self.b):
            # With the last of a namespace its interfaces go.
            if Path("/run/netns", host.namespace).exists():
                ip("netns", "del", host.namespace)
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def with_environment(host: Host, environment: dict[str, str]) -> Host:
    """The same host for processes with these variables; {ipv4} and {ipv6} are its addresses."""
    filled = {key: value.format(**vars(host)) for key, value in environment.items()}
    return Host(**{**vars(host), "environment": {**host.environment, **filled}})


def payload(size, iteration) -> bytes:
    """The bytes of a message: a hash of both, so none passes for another."""
    return hashlib.shake_128(f"{size} {iteration}".encode()).digest(size)


def expected_path(peer: onehop.Peer, size: int, path: str) -> str:
    """How a message must have travelled to or from a peer on the other host."""
    return "inline" if size <= peer.info().max_inline else path
