# SPDX-License-Identifier: Apache-2.0
"""Links between hosts over UCX where its packets fare otherwise than the control connection's."""

import contextlib
import os
import socket
from pathlib import Path

import onehop
import pytest
from hosts import WAYS, on_host, payload, with_environment
from processes import Side, _spawn
from wire import tcp_ports

CONTROL = frozenset(range(56800, 56901))  # the ports of ONEHOP_PORT_RANGE
# UCX would notice by itself, some time.
NEVER = {"UCX_TCP_KEEPIDLE": "inf", "UCX_KEEPALIVE_INTERVAL": "inf"}

pytestmark = pytest.mark.parametrize("way", WAYS[1:], indirect=True, ids=lambda way: way.name)


def control_only(packet) -> bool:
    return any(port in CONTROL for port in tcp_ports(packet))


def break_ucx() -> int:
    """Shut down UCX's connections of this process; return how many there were."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6):
                continue
            if CONTROL.isdisjoint({copy.getsockname()[1], copy.getpeername()[1]}):
                copy.shutdown(socket.SHUT_RDWR)
                found += 1
    return found


def talk(side):
    """Let each side's UCX connect."""
    received = bytearray(100_000)
    receive = side.peer.irecv(received, tag=1)
    side.peer.send(payload(100_000, side.number), tag=1, timeout=30)
    receive.wait(timeout=30)
    assert received == payload(100_000, 1 - side.number)
    side.sync()


def lose_ucx(pair, pipe):
    side = Side(0, pair)
    talk(side)
    pipe.send("linked")
    assert pipe.recv() == "cut"
    assert break_ucx() > 0
    with pytest.raises(onehop.PeerLost, match=r"lost host-b:\d+: UCX"):
        side.peer.recv(bytearray(10), tag=2, timeout=60)
    # Its end would tell the other side as well.
    assert pipe.recv() == "heard"


def hear_of_it(pair, pipe):
    side = Side(1, pair)
    talk(side)
    pipe.send("linked")
    with pytest.raises(onehop.PeerLost, match=r"lost host-a:\d+: "):
        side.peer.recv(bytearray(10), tag=2, timeout=30)
    pipe.send("heard")


def test_both_sides_hear_that_one_has_lost_ucx(wired):
    group = wired.group()
    pair = _spawn.Pipe()
    (first, its), (second, whose) = _spawn.Pipe(), _spawn.Pipe()
    group.start(on_host, with_environment(wired.a, NEVER), lose_ucx, pair[0], its)
    group.start(on_host, with_environment(wired.b, NEVER), hear_of_it, pair[1], whose)
    assert all(pipe.poll(60) and pipe.recv() == "linked" for pipe in (first, second))
    wired.wire.firewall = control_only
    first.send("cut")
    assert second.poll(60)
    first.send(second.recv())
    group.join()


def log_of(side, folder):
    return (Path(folder) / f"log-{side.number}").read_text()


def two_links(side, folder):
    """A second link of the same process; what the log has of both."""
    assert side.peer.info().path == "socket"
    if side.number == 0:
        second = side.endpoint.connect(side.take(), timeout=30)
    else:
        side.give(side.endpoint.address)
        second = side.endpoint.accept(timeout=30)
    side.sync()
    second.close()
    side.peer.close()
    return log_of(side, folder)


def logging(side_host, number, folder, **more):
    log = {"ONEHOP_LOG": "debug", "ONEHOP_LOG_FILE": f"{folder}/log-{number}"}
    return with_environment(side_host, {**log, **more})


@pytest.mark.parametrize("transport", ["auto", "socket"])
def test_a_link_without_ucx_is_warned_of_once(wired, tmp_path, transport):
    """Unless it was asked for; the log has each choice and each end."""
    pair = _spawn.Pipe()
    group = wired.group()
    hosts = (
        logging(wired.a, 0, tmp_path, ONEHOP_TRANSPORT=transport),
        logging(wired.b, 1, tmp_path, ONEHOP_UCX_LIBRARY="off"),
    )
    for number, host in enumerate(hosts):
        group.start(on_host, host, side_of_two_links, number, pair[number], str(tmp_path))
    for number, log in enumerate(group.join()):
        warnings = [line for line in log.splitlines() if " warn: " in line]
        if transport == "socket" or number == 1:
            assert warnings == []
        else:
            assert len(warnings) == 1, log
            assert "goes over the control socket" in warnings[0]
            assert "ONEHOP_UCX_LIBRARY=off" in warnings[0]
            assert "install UCX" in warnings[0]
        other = "host-b" if number == 0 else "host-a"
        chosen = [line for line in log.splitlines() if " debug: link to " in line]
        choices = [line for line in chosen if "host memory by socket" in line]
        assert len(choices) == 2, log
        for line in choices:
            assert f"link to {other}" in line
            assert "; not shm: " in line
            assert "; not ucx: " in line
        assert any("closed from here" in line or ": lost: " in line for line in chosen), log


def side_of_two_links(number, pipe, folder):
    return two_links(Side(number, pipe), folder)


def fall_back(side):
    assert side.peer.info().path == "socket"
    talk(side)
    return [row.why for row in onehop.paths(side.peer) if row.path == "socket"]


def test_a_firewall_that_lets_no_ucx_through_costs_the_link_nothing_but_ucx(wired):
    wired.wire.firewall = control_only
    reasons, _ = wired.run(fall_back, fall_back, environment={"ONEHOP_HELLO_TIMEOUT": "1"})
    # The acceptor, which makes its end first, has waited for the initiator in vain.
    assert any("ucp_ep_create" in why or "is a firewall" in why for why in reasons), reasons
