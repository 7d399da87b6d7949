# SPDX-License-Identifier: Apache-2.0
"""Operations in the order of a GPU's stream between two hosts, on the fake driver."""

import onehop
import pytest
import test_stream as streams
from hosts import on_host, with_environment
from processes import DEADLINE, _spawn, failure_of, run_side

pytestmark = pytest.mark.usefixtures("fake_gpus")


def tell_way(side, path):
    assert side.peer.info().path == path
    side.peer.warmup(timeout=30)
    info = side.peer.stream_info()
    assert (info.path, info.ready, info.why_not) == ("proxy", True, "")
    assert "no shared memory" in info.why_no_kernels
    streams.exchange(side, streams.LARGE)
    streams.exchange(side, 8)


def test_a_group_exchanges_in_both_directions(network):
    network.run(tell_way, tell_way, network.way.path, devices=streams.GPUS)


def test_captured_operations_are_replayed(network):
    network.run(streams.capture_sends, streams.capture_receives, devices=streams.GPUS)


def test_puts_come_before_the_signals_behind_them(network):
    network.run(streams.put_and_signal, streams.wait_and_look, devices=streams.GPUS)


def wait_for_a_dark_host(side, pipe):
    """Receive, send and wait, with a peer that was there until all of it had begun."""
    gpu, second, third = (streams.Gpu(side) for _ in range(3))
    streams.exchange(side, streams.LARGE)
    out, back = gpu.array(streams.pattern(streams.LARGE)), gpu.array(bytes(100))
    gpu.on.recv(back, lane=1, timeout=DEADLINE)
    second.on.send(out, lane=2, timeout=DEADLINE)
    third.on.wait_signal(3, timeout=DEADLINE)
    side.sync()
    pipe.send("waiting")
    for waiting in (gpu, second, third):
        waiting.synchronize()
    assert isinstance(failure_of(side.peer), onehop.PeerLost)
    with pytest.raises(onehop.PeerLost):
        gpu.on.send(out)


def test_a_host_that_goes_dark_ends_every_wait(network):
    group = network.group()
    pipes = _spawn.Pipe()
    ours = []
    for number, host in enumerate((network.a, network.b)):
        end, theirs = _spawn.Pipe()
        ours.append(end)
        side = (number, pipes[number], wait_for_a_dark_host, (theirs,), streams.GPUS[number])
        soon = with_environment(host, {"ONEHOP_PEER_TIMEOUT": "2", "ONEHOP_LOG": "error"})
        group.start(on_host, soon, run_side, *side)
    for end in ours:
        assert end.poll(DEADLINE), "the streams do not wait"
    network.down(network.a)
    group.join()
