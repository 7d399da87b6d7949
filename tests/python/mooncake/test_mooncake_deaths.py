# SPDX-License-Identifier: Apache-2.0
"""Peers that die, stop, or come back at the same session."""

import gc
import os
import signal
import socket
import threading
import weakref

import numpy as np
import pytest
from mooncake_engines import HOST, Engine, pattern, run_two, until
from onehop.mooncake import TransferEngine
from processes import Group, _spawn, exit_in_child_beside, run_alone, stop

SIZE = 4 << 20


def victim(other, *_):
    area = Engine(np.zeros(SIZE, "u1"))
    other.give((area.session, area.base, os.getpid()))
    other.take()


def kill_during(other, operation):
    session, base, pid = other.take()
    ours = Engine(pattern(3, SIZE))
    move = getattr(ours, operation)
    assert move(session, ours.base, base, SIZE) == 0
    # Stopped, it takes nothing that needs it; killed meanwhile, the call has an end.
    stop(pid)
    killer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
    killer.start()
    results = [move(session, ours.base, base, SIZE) for _ in range(2)]
    killer.join()
    until(lambda: move(session, ours.base, base, SIZE) == -1, "the loss")
    assert ours.engine.send_probe(session) == -102
    assert move(session, ours.base, base, SIZE) == -1
    # Its memory is free, and it can be used with others.
    assert ours.engine.unregister_memory(ours.base) == 0
    return results


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_target_that_is_killed_in_a_transfer(transport, operation):
    results = run_two(kill_during, victim, operation, killed=[1])[0]
    assert set(results) <= {0, -1}
    # Between hosts no transfer ends well without the other side.
    assert transport == "auto" or results[1] == -1


def stopped(other):
    session, base, pid = other.take()
    ours = Engine(pattern(3, SIZE))
    stop(pid)
    os.environ["ONEHOP_HELLO_TIMEOUT"] = "0.5"
    try:
        # Before there is a link: nobody answers at its port.
        results = [ours.engine.send_probe(session), ours.write(session, ours.base, base, 64)]
    finally:
        os.kill(pid, signal.SIGCONT)
    os.environ["ONEHOP_HELLO_TIMEOUT"] = "30"
    results.append(ours.write(session, ours.base, base, 64))
    other.give("end")
    return results


def test_a_target_that_stops():
    assert run_two(stopped, victim)[0] == [-102, -1, 0]


# ---- The same session again


def serve_at(ports, pipe, seed):
    """Own an engine at the second of two ports, until the end comes or this is killed."""
    os.environ["ONEHOP_PORT_RANGE"] = ports
    area = Engine(pattern(seed, SIZE))
    pipe.send((area.session, area.base, os.getpid()))
    pipe.poll(60)


def restart(ours_at, ports):
    os.environ["ONEHOP_PORT_RANGE"] = ours_at  # none of the two
    ours = Engine(np.zeros(SIZE, "u1"))
    group, results, sessions = Group(), [], []
    for seed in (1, 2):
        mine, theirs = _spawn.Pipe()
        group.start(serve_at, ports, theirs, seed)
        theirs.close()
        assert mine.poll(30)
        session, base, pid = mine.recv()
        sessions.append(session)
        if seed == 2:
            # The first call hears that the former one has gone, the next finds the new one.
            results.append(ours.read(session, ours.base, base, SIZE))
        assert ours.read(session, ours.base, base, SIZE) == 0
        assert (ours.bytes == pattern(seed, SIZE)).all()
        if seed == 1:
            os.kill(pid, signal.SIGKILL)
        else:
            mine.send("end")
    group.join(killed=[0])
    assert sessions[0] == sessions[1]
    return results


def test_a_session_that_is_served_by_a_successor(ports):
    ranges = f"{ports[0]}-{ports[-3]}", f"{ports[-2]}-{ports[-1]}"
    assert run_alone(restart, *ranges) == [-1]


# ---- Bad sessions


@pytest.mark.parametrize(
    "session",
    [
        *("", "host", ":80", f"{HOST}:0", f"{HOST}:65536", f"{HOST}:-1", f"{HOST}:8a"),
        *(f" {HOST}:80", f"{HOST}:80\n", f"{HOST}:1:2", "::1:80", "[::1]", "[]:80", "a/b:80"),
    ],
)
def test_what_is_no_session(session):
    ours = Engine()
    assert ours.engine.send_probe(session) == -1
    assert ours.write(session, ours.base, ours.base, 8) == -1


def test_nobody_at_a_session():
    ours = Engine()
    made = TransferEngine()
    assert made.initialize(HOST, "P2PHANDSHAKE", "rdma", "") == 0
    session = f"{HOST}:{made.get_rpc_port()}"
    del made
    for _ in range(2):
        assert ours.engine.send_probe(session) == -102
        assert ours.write(session, ours.base, ours.base, 8) == -1
    assert ours.engine.send_probe("does-not-exist.invalid:80") == -101


# ---- Engines that end where a lock of theirs is held


def end_in_its_own_thread():
    gc.disable()
    ours, theirs = Engine(), Engine()
    session, node = theirs.session, weakref.ref(theirs.engine._made)
    ended = threading.Event()

    class Strangers(list):
        def remove(self, sock):
            list.remove(self, sock)
            gc.collect()  # as if it was due now
            ended.set()

    node()._server._strangers = Strangers()
    theirs.itself = theirs  # only the collector ends it
    theirs = None
    assert ours.engine.send_probe(session) == 0
    assert ended.wait(20)
    until(lambda: ours.engine.send_probe(session) == -102, "the end of its port")
    return node() is None


def test_an_engine_that_its_own_thread_collects():
    assert run_alone(end_in_its_own_thread)


def end_after_fork():
    ours = Engine()
    server = ours.engine._made._server

    def let_go():
        nonlocal ours
        node = weakref.ref(ours.engine._made)
        del ours
        gc.collect()
        return node() is not None

    return exit_in_child_beside([server._lock], let_go)


def test_an_engine_that_a_child_of_fork_lets_go():
    assert run_alone(end_after_fork) == 0


def test_connections_end_with_their_engine():
    ours = Engine()
    server = ours.engine._made._server
    with socket.create_connection((HOST, server.port), timeout=20) as sock:
        until(lambda: server._strangers, "the connection")
        ours.engine = None
        assert sock.recv(1) == b""
