# SPDX-License-Identifier: Apache-2.0
"""What comes to an engine's port: only who knows the secret gets an answer, and nothing hangs."""

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest
from mooncake_engines import HOST, Engine, pattern, until
from onehop.mooncake import TransferEngine, meeting
from processes import run_alone

SECRET = "a secret of tests, long enough"
MAGIC = b"OHMOON\x00\x01"


def port_of(engine):
    return engine.engine.get_rpc_port()


def call(engine):
    return socket.create_connection((HOST, port_of(engine)), timeout=20)


def say(sock, words):
    """Send this and no more. The other side may hang up as soon as it has read enough."""
    with contextlib.suppress(OSError):
        sock.sendall(words)
        sock.shutdown(socket.SHUT_WR)


def heard(sock):
    """Return all that comes until the other side hangs up."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            found += part
    return found


BAD_HELLOS = [
    b"",
    b"\x00",
    b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + b" " * 40,
    b"\xff" * 4096,
    b"OHMOON\x00\x02" + bytes(32),  # another version
    MAGIC,
    MAGIC + bytes(31),
]


@pytest.mark.parametrize("hello", BAD_HELLOS, ids=range(len(BAD_HELLOS)))
def test_what_is_no_hello(hello):
    ours, other = Engine(), Engine()
    with call(ours) as sock:
        say(sock, hello)
        assert heard(sock) == b""
    assert other.engine.send_probe(ours.session) == 0


def test_who_says_nothing(monkeypatch):
    monkeypatch.setenv("ONEHOP_HELLO_TIMEOUT", "0.5")
    ours = Engine()
    for said in (b"", MAGIC):
        with call(ours) as sock:
            sock.sendall(said)
            assert heard(sock) == b""


@pytest.mark.parametrize("size", [0, 16, 32, 200])
def test_who_does_not_know_the_key(monkeypatch, size):
    monkeypatch.setenv("ONEHOP_SECRET", SECRET)
    ours, other = Engine(), Engine()
    with call(ours) as sock:
        sock.sendall(MAGIC + os.urandom(32))
        challenge = sock.recv(72, socket.MSG_WAITALL)
        assert len(challenge) == 72
        # Its own proof sent back to it is none, either.
        say(sock, (challenge[40:] * 7)[:size])
        assert heard(sock) == b""
    assert other.engine.send_probe(ours.session) == 0


def probe_with(session, secret):
    if secret:
        os.environ["ONEHOP_SECRET"] = secret
    else:
        os.environ.pop("ONEHOP_SECRET", None)
    one = Engine(pattern(1))
    return one.engine.send_probe(session), one.write(session, one.base, one.base, 8)


def test_secrets_that_differ(monkeypatch, caplog):
    monkeypatch.setenv("ONEHOP_SECRET", SECRET)
    ours = Engine()
    assert run_alone(probe_with, ours.session, "another secret of tests") == (-104, -1)
    assert run_alone(probe_with, ours.session, None) == (-104, -1)
    assert run_alone(probe_with, ours.session, SECRET)[0] == 0
    monkeypatch.setenv("ONEHOP_SECRET", "short")
    assert TransferEngine().initialize(HOST, "P2PHANDSHAKE", "rdma", "") == -1
    assert "ONEHOP_SECRET" in caplog.text


def test_a_host_that_is_not_loopback_needs_a_secret(monkeypatch, caplog):
    # An address that nobody has (RFC 5737): it listens on all of ours, as behind a translation.
    monkeypatch.delenv("ONEHOP_SECRET", raising=False)
    assert TransferEngine().initialize("192.0.2.1", "P2PHANDSHAKE", "rdma", "") == -104
    assert "ONEHOP_SECRET" in caplog.text
    assert Engine().engine.send_probe("192.0.2.1:80") == -104
    monkeypatch.setenv("ONEHOP_SECRET", SECRET)
    engine = TransferEngine()
    assert engine.initialize("192.0.2.1", "P2PHANDSHAKE", "rdma", "") == 0
    assert Engine().engine.send_probe(f"{HOST}:{engine.get_rpc_port()}") == 0


def test_many_strangers_that_say_nothing():
    """They are bounded, and those who know the key are served beside them."""
    ours, other = Engine(), Engine()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(call(ours)) for _ in range(meeting._MOST_STRANGERS + 20)]
        assert heard(silent[0]) == b""
        assert other.engine.send_probe(ours.session) == 0
        server = ours.engine._made._server
        until(lambda: len(server._strangers) <= meeting._MOST_STRANGERS, "the end of the oldest")
    until(lambda: not server._strangers, "the end of all connections")


def test_who_reads_nothing_of_a_long_answer(monkeypatch):
    monkeypatch.setenv("ONEHOP_HELLO_TIMEOUT", "2")
    ours = Engine()
    server = ours.engine._made._server
    monkeypatch.setattr(server, "_describe", lambda: lambda: bytes(32 << 20))
    with call(ours) as sock:
        key = hmac.digest(b"", b"onehop mooncake", hashlib.sha256)
        hello = MAGIC + bytes(32)
        sock.sendall(hello)
        nonce = sock.recv(72, socket.MSG_WAITALL)[8:40]
        sock.sendall(hmac.digest(key, b"R" + hello + nonce, hashlib.sha256))
        until(lambda: not server._strangers, "the end of the connection")


# ---- Who answers instead of an engine


class Impostor:
    """Listens as an engine would, and answers what a test says."""

    def __init__(self, *answers, key=b"", hang_up=True) -> None:
        self.key = hmac.digest(key, b"onehop mooncake", hashlib.sha256)
        self.answers, self.hang_up = answers, hang_up
        self.listening = socket.create_server((HOST, 0))
        self.session = f"{HOST}:{self.listening.getsockname()[1]}"
        self.kept = []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                sock, _ = self.listening.accept()
            except OSError:
                return
            sock.settimeout(20)
            with contextlib.suppress(OSError):
                for answer in self.answers:
                    hello = sock.recv(1024)
                    sock.sendall(answer(self, hello) if callable(answer) else answer)
            if self.hang_up:
                sock.close()
            else:
                self.kept.append(sock)

    def mac(self, role, *said):
        return hmac.digest(self.key, b"".join((role, *said)), hashlib.sha256)


def proof(impostor, hello):
    impostor.hello, impostor.nonce = hello, bytes(32)
    return MAGIC + impostor.nonce + impostor.mac(b"S", hello, impostor.nonce)


def data(content, size=None, mac=None):
    def answer(impostor, _):
        good = impostor.mac(b"D", impostor.hello, impostor.nonce, content)
        return struct.pack("<I", len(content) if size is None else size) + (mac or good) + content

    return answer


IMPOSTORS = {
    "hangs up": ((), {}, -102),
    "says nothing": ((), {"hang_up": False}, -102),
    "http": ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), {}, -102),
    "noise": ((b"\xff" * 100,), {}, -102),
    "another version": ((b"OHMOON\x00\x02" + b"\xff" * 64,), {}, -102),
    "another key": ((proof,), {"key": b"x"}, -104),
    "half a proof": ((lambda *a: proof(*a)[:40],), {}, -102),
    "no metadata": ((proof, b""), {}, -102),
    "too long": ((proof, data(b"abc", size=2**32 - 1)), {}, -104),
    "shorter than it says": ((proof, data(b"abc", size=4)), {}, -102),
    "altered": ((proof, data(b"abc", mac=bytes(32))), {}, -104),
}


@pytest.mark.parametrize("name", IMPOSTORS)
def test_who_is_no_engine(name, monkeypatch):
    answers, options, code = IMPOSTORS[name]
    if name == "says nothing":
        monkeypatch.setenv("ONEHOP_HELLO_TIMEOUT", "0.5")
    impostor = Impostor(*answers, **options)
    ours = Engine()
    assert ours.engine.send_probe(impostor.session) == code
    assert ours.write(impostor.session, ours.base, ours.base, 8) == -1
    impostor.listening.close()


@pytest.mark.parametrize("content", [b"", b"abc", b"OHNXMD" + bytes(100), os.urandom(5000)])
def test_metadata_that_is_none(content):
    """One that knows the key and sends what no engine sends: an error, and no more."""
    impostor = Impostor(proof, data(content))
    ours = Engine()
    assert ours.write(impostor.session, ours.base, ours.base, 8) == -1
    assert ours.write(ours.session, ours.base, ours.base + 8, 8) == 0
    impostor.listening.close()


FORK = """
import os, signal, sys, time
sys.path[:0] = sys.argv[1:]
from mooncake_engines import Engine
one = Engine()
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(one.session, child, flush=True)
sys.stdin.readline()
os._exit(0)
"""


def test_a_child_of_fork_does_not_keep_the_port():
    folders = [os.path.dirname(__file__), os.path.dirname(os.path.dirname(__file__))]
    command = [sys.executable, "-c", FORK, *folders]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        session, child = process.stdout.readline().split()
        try:
            ours = Engine()
            assert ours.engine.send_probe(session) == 0
            process.stdin.write("end\n")
            process.stdin.flush()
            process.wait(30)  # the child has its output still
            assert ours.engine.send_probe(session) == -102
        finally:
            os.kill(int(child), 9)
