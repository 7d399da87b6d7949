# SPDX-License-Identifier: Apache-2.0
"""The benchmark's loops in Python: latency. Only the package lies between looks at the clock."""

from __future__ import annotations

from time import perf_counter_ns

from onehop import _bench
from onehop.cli.python_flows import batch, one_sided_flow, send_flow
from onehop.cli.python_link import Found, Link, LinkedLoops, new_array, previous, seed_of, spoil
from onehop.cli.python_pingpong import Exchange, HostMemory, ping_pong

_SLOT = 0


def _messages(link: Link, spec: _bench.Spec) -> Exchange:
    peer = link.peer
    out, inbox = HostMemory(spec), HostMemory(spec)
    source, target = out.data, inbox.data
    return Exchange(out, inbox, lambda: peer.send(source), lambda: str(peer.recv(target).path))


def _signalled_puts(link: Link, spec: _bench.Spec) -> Exchange:
    peer = link.peer
    out, inbox = HostMemory(spec), HostMemory(spec)
    source = out.data
    region, remote = link.swap_region(inbox.data)
    path = "none"

    def give() -> None:
        nonlocal path
        put = peer.put(source, remote)
        peer.signal(_SLOT)
        path = put.wait().path

    def take() -> str:
        peer.wait_signal(_SLOT)
        return path

    return Exchange(out, inbox, give, take, overwritten=True, kept=region)


def one_sided(link: Link, spec: _bench.Spec) -> Found:
    """Put or get again and again, each until it is complete."""
    found = Found()
    put = spec.mode == _bench.Mode.PUT
    array = new_array(spec.size, spec)
    region, remote = link.swap_region(array)
    seed = seed_of(spec, 0 if put else 1, 0)
    total = spec.warmup + spec.iterations
    if link.first == put:
        _bench.fill(array, seed)
    if not link.first and not put:
        _bench.stamp(array, seed, _bench.NO_ITERATION, 0)
        spoil(spec, array, last=True)
    link.sync()
    for i in range(total if link.first else 0):
        if put:
            _bench.stamp(array, seed, previous(i), i)
            spoil(spec, array, last=i + 1 == total)
        else:
            _bench.poison_stamps(array, 0)
        start = perf_counter_ns()
        request = link.peer.put(region, remote) if put else link.peer.get(region, remote)
        found.path = request.wait().path
        passed = perf_counter_ns() - start
        if not put:
            found.wrong += _bench.check_stamps(array, 0)
        if i >= spec.warmup:
            found.add(passed, spec.size)
    link.sync()
    if link.first != put:
        found.wrong += _bench.check_message(array, seed, total - 1 if put else 0)
    link.sync()
    return found


class PythonLoops(LinkedLoops):
    """Loops with memory of the host: see _bench.Side."""

    def latency(self, spec: _bench.Spec) -> Found:
        """Measure single operations."""
        if spec.mode == _bench.Mode.SENDRECV:
            return ping_pong(self.link, spec, _messages(self.link, spec))
        if spec.mode == _bench.Mode.PUT_SIGNAL:
            return ping_pong(self.link, spec, _signalled_puts(self.link, spec))
        return one_sided(self.link, spec)

    def bandwidth(self, spec: _bench.Spec) -> Found:
        """Measure many in flight, in one direction."""
        flow = send_flow if spec.mode == _bench.Mode.SENDRECV else one_sided_flow
        return flow(self.link, spec)

    def batch(self, spec: _bench.Spec) -> Found:
        """Measure many blocks by one call."""
        return batch(self.link, spec)
