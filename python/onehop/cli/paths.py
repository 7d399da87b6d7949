# SPDX-License-Identifier: Apache-2.0
"""The doctor's check of every path: between two processes, within one, and among ranks.

Each kind of GPU memory is used in messages, puts, gets and a batch, at the start of an allocation
and within it. All bytes are checked, and the paths that they took are reported.
"""

from __future__ import annotations

import os
import socket
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns

import onehop
from onehop import _bench
from onehop.cli.between import Host, Play, run_between
from onehop.cli.gpus import NO_DEVICES, Gpus, Pair, facts, version
from onehop.cli.measure import Job, link, unlink
from onehop.cli.output import STATES, Finding, State
from onehop.cli.rows import percentile
from onehop.cli.sides import Placement, Side, SideError, current_cpu, run_sides, shared_cpu
from onehop.cli.sizes import format_size

SILENCE = 60.0
_NOTE = b"onehop doctor"
REPORT = "this is a fault of onehop: report it, with the output of onehop info"


@dataclass(frozen=True)
class Check:
    """Jobs that run over a link and form one finding."""

    name: str
    jobs: tuple[Job, ...]
    path: str = ""  # the path that the bytes must take; empty: any
    slow: str = ""  # why they are slow by nature; empty: a slow path is reported


@dataclass(frozen=True)
class Case:
    """One way to make a link, and the checks that run over it."""

    name: str
    checks: Sequence[Check]
    within: bool = False
    devices: Pair = NO_DEVICES
    # Whether one side can access the other's memory; None: not checked.
    single_copy: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    ways: bool = False  # whether to report the path of each kind of operation
    advice: str = REPORT  # remedy if it cannot run

    @property
    def on_gpu(self) -> bool:
        """Whether GPU memory is checked."""
        return self.devices != NO_DEVICES


def _checks(path: str, *, shared: bool = False) -> tuple[Check, ...]:
    base = Job("latency", "c", "sendrecv", 65536, 100, shared=shared)
    batch = replace(base, op="batch", size=4096, blocks=64)
    return (
        Check("message 8", (replace(base, size=8),), "inline"),
        Check("message 8K", (replace(base, size=8192),), path),
        Check("message 1M", (replace(base, size=2**20, iterations=20),), path),
        Check("put 64K", (replace(base, mode="put"),), path),
        Check("get 64K", (replace(base, mode="get"),), path),
        Check("put + signal 64K", (replace(base, mode="put_signal"),), path),
        Check("put batch of 64 x 4K", (replace(batch, mode="put"),), path),
        Check("get batch of 64 x 4K", (replace(batch, mode="get"),), path),
    )


CASES = (
    Case("within a process", _checks("local"), within=True),
    Case("shm, private memory", _checks("shm"), single_copy=True),
    Case("shm, shared blocks", _checks("shm", shared=True)),
    Case("shm without process_vm", _checks("shm"), env={"ONEHOP_CMA": "off"}),
    # Suppresses the warning that this path is slow.
    Case("control socket", _checks("socket"), env={"ONEHOP_SEGMENT": "off", "ONEHOP_LOG": "error"}),
)
# If UCX is available: as between hosts, over TCP on this one.
UCX = Case("UCX over TCP", _checks("ucx"), env={"ONEHOP_TRANSPORT": "ucx", "UCX_TLS": "tcp"})
# To another host.
BETWEEN = Case(
    "the link",
    (
        *_checks(""),
        Check(
            "put 1M, 16 in flight",
            (Job("bandwidth", "c", "put", 2**20, 200, window=16),),
        ),
    ),
    ways=True,
    advice="look at what `onehop bench --listen` shows there, and at docs/guides/two-hosts.md",
)


def drive(case: Case, connect: str = "") -> Iterator[Finding]:
    """Check one case and yield the findings; `connect`: the place of side 1 on another host.

    If GPU memory breaks the link, the remaining checks use a new one.
    """
    left = list(case.checks)
    placement = Placement(within=case.within, env=case.env, silence=SILENCE, connect=connect)
    while left:
        halves: dict[str, Finding] = {}
        try:
            rest = replace(case, checks=left)
            reports = (
                run_between(DOCTOR, rest, placement)
                if connect
                else run_sides(case_role, rest, placement)
            )
            for number, finding in reports:
                if isinstance(finding, Host):
                    yield Finding(case.name, "other side", "ok", str(finding))
                    continue
                if (other := halves.pop(finding.check, None)) is None:
                    halves[finding.check] = finding
                    continue
                del left[:1]
                # Side 0 measures; side 1 reports only faults and worse states.
                first, second = (finding, other) if number == 0 else (other, finding)
                worse = STATES.index(second.state) > STATES.index(first.state)
                told = second if worse or second.state == "fault" else first
                cpus = [one.shared_cpu for one in (first, second) if one.shared_cpu is not None]
                yield replace(told, shared_cpu=None if connect else shared_cpu(cpus))
        except SideError as failure:
            if not case.on_gpu:
                yield Finding(case.name, "drive", "fault", str(failure), case.advice)
                return
            broken = left.pop(0).name if left else "closing"
            yield Finding(case.name, broken, "fault", str(failure), REPORT)
        else:
            return


def case_role(side: Side, case: Case) -> None:
    """Run one side of a case."""
    loops = _bench.Side(side.number, case.devices[side.number])
    link(side, loops)
    for check in case.checks:
        found = _drive(loops, side.number, case, check)
        side.report(replace(found, shared_cpu=current_cpu()))
    unlink(side, loops)
    if case.on_gpu:
        return
    with onehop.Endpoint() as endpoint:
        if side.number == 1:
            side.tell(endpoint.address)
            peer = endpoint.accept()
        else:
            peer = endpoint.connect(side.hear())
        side.report(_notify(case, side, endpoint, peer))
        if case.single_copy is not None:
            side.report(_single_copy(case, peer))
        if case.ways:
            for operation in ("message", "put/get"):
                side.report(_way(case, peer, operation))
        side.tell("done")
        side.hear()


DOCTOR = Play("doctor", case_role, Case, Finding)


def _drive(loops: _bench.Side, number: int, case: Case, check: Check) -> Finding:
    paths: dict[str, None] = {}
    wrong: list[str] = []
    p50 = None
    rate = ""
    for job in check.jobs:
        found = loops.run(job.spec(number))
        if job.op == "bandwidth" and found.seconds:
            rate = f", {found.bytes / found.seconds / 1e9:,.3f} GB/s"
        if found.path != "none":
            paths[found.path] = None
        if found.wrong:
            what = f"{job.mode} {job.op} {format_size(job.size)} at offset {job.offset}: "
            wrong.append(f"{what if len(check.jobs) > 1 else ''}{found.wrong} bytes are wrong")
        if p50 is None and found.samples_us:
            p50 = percentile(found.samples_us, 0.5)
    went = ", ".join(paths)
    if wrong:
        return Finding(case.name, check.name, "fault", "; ".join(wrong), REPORT, p50)
    if check.path and went not in (check.path, ""):
        detail = f"went by {went}, not by {check.path}"
        return Finding(case.name, check.name, "fault", detail, REPORT, p50)
    if case.on_gpu and any(path in _SLOW for path in paths) and not check.slow:
        remedy = "onehop.paths(peer) names the reason in the row of such memory"
        return Finding(case.name, check.name, "slow", f"by {went}, through the host", remedy, p50)
    slow = f": {check.slow}" if any(path in _SLOW for path in paths) else ""
    return Finding(case.name, check.name, "ok", f"by {went}{rate}{slow}", p50_us=p50)


def _notify(case: Case, side: Side, endpoint: onehop.Endpoint, peer: onehop.Peer) -> Finding:
    """Exchange notifications; a signal after each announces it."""
    times = []
    wrong = 0
    for i in range(20):
        note = _NOTE + bytes([i])
        start = perf_counter_ns()
        if side.number == 0:
            peer.notify(note)
            peer.signal(1)
        peer.wait_signal(1)
        wrong += [text for _, text in endpoint.notifications()] != [note]
        if side.number == 1:
            peer.notify(note)
            peer.signal(1)
        times.append((perf_counter_ns() - start) / 2e3)
    state: State = "fault" if wrong else "ok"
    detail = f"{wrong} of 20 notes did not come, or not in time" if wrong else "notes and signals"
    p50 = statistics.median(times) if side.number == 0 else None
    return Finding(case.name, "notify + signal", state, detail, REPORT if wrong else "", p50)


def _way(case: Case, peer: onehop.Peer, operation: str) -> Finding:
    """Report the paths of host memory; the socket is slower than UCX."""
    rows = [
        row
        for row in onehop.paths(peer)
        if row.operation == operation and row.source == row.target == "host" and row.last > 0
    ]
    detail = "; ".join(f"{row.sizes}: {row.path}, {row.why}" for row in rows)
    check = f"paths of {operation}"
    if any(row.path == "socket" for row in rows):
        remedy = "install UCX on both hosts, and open its ports: docs/guides/two-hosts.md"
        return Finding(case.name, check, "slow", detail, remedy)
    return Finding(case.name, check, "ok", detail)


def _single_copy(case: Case, peer: onehop.Peer) -> Finding:
    if peer.info().single_copy:
        return Finding(case.name, "single copy", "ok", "each side reads the other's memory")
    why = next(
        (
            row.why
            for row in onehop.paths(peer)
            if row.source == row.target == "host" and row.method == "stream"
        ),
        "the other side cannot be reached",
    )
    return Finding(
        case.name,
        "single copy",
        "slow",
        why,
        "see the check process_vm; use buffers of onehop.empty, which need no rights",
    )


def meet(ranks: int) -> Finding:
    """Let ranks meet at a rendezvous on loopback and pass a message around the ring."""
    place, check = "rendezvous", f"{ranks} ranks over loopback"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    placement = Placement(count=ranks, silence=SILENCE)
    try:
        found = [value for _, value in run_sides(rank_role, f"tcp://127.0.0.1:{port}", placement)]
    except SideError as failure:
        return Finding(place, check, "fault", str(failure), "look at TCP ports and loopback")
    wrong = sum(bad for bad, _ in found)
    if wrong or len(found) != ranks:
        return Finding(place, check, "fault", f"{wrong} of {ranks} messages are wrong", REPORT)
    slowest = max(us for _, us in found)
    return Finding(place, check, "ok", f"met and connected in {slowest / 1e3:,.1f} ms")


def rank_role(side: Side, rendezvous: str) -> None:
    """Run one rank: send to the next, receive from the previous one."""
    size = side.placement.count
    start = perf_counter_ns()
    comm = onehop.Communicator(side.number, size, rendezvous=rendezvous)
    after, before = (side.number + 1) % size, (side.number - 1) % size
    inbox = bytearray(1)
    request = comm.irecv(inbox, before)
    comm.send(bytes([side.number]), after)
    request.wait()
    passed = (perf_counter_ns() - start) / 1e3
    comm.barrier()
    side.report((inbox[0] != before, passed))
    comm.close()


# ---- Memory of GPUs

_GPUS = "GPUs"
# An offset that is a multiple neither of a page nor of a GPU's access width.
_INTERIOR = 4096 + 24
# Many of the chunks in which bytes are staged through the host.
_LARGE = 5 * 2**20 + 8
# Spans several chunks of VMM memory, none of them completely.
_CHUNKS = 21 * 2**20 + 8
_SLOW = ("relay", "staged")


_NO_EXPORT = "this memory has no handle that another process could open"
_HOST = "the bytes have to cross to the host"
_PENDING = "messages that wait for an event cross the link's own pinned memory"


def _kind(name: str, memory: Pair, slow: str = "", *, shared: bool = False) -> Check:
    """Return the jobs with one kind of memory on either side."""
    # Each large transfer is prepared and checked several times.
    large = _CHUNKS if "cuda-vmm" in memory else _LARGE
    base = Job("latency", "c", "sendrecv", 65536, 20, memory=memory, shared=shared)
    interior = replace(base, offset=_INTERIOR)
    jobs = [base, replace(interior, size=1000), replace(interior, size=large, iterations=2)]
    for mode in ("put", "get"):
        jobs += [
            replace(base, mode=mode),
            replace(interior, mode=mode, size=large, iterations=2),
            replace(interior, op="batch", mode=mode, size=4096, blocks=64, iterations=4),
        ]
    if "host" not in memory:
        jobs.append(replace(base, mode="event"))
    return Check(name, tuple(jobs), slow=slow)


KINDS = (
    _kind("cudaMalloc", ("cuda", "cuda")),
    _kind("VMM, several chunks", ("cuda-vmm", "cuda-vmm")),
    _kind("exportable pool", ("cuda-pool", "cuda-pool")),
    _kind("cudaMallocAsync", ("cuda-async", "cuda-async"), _NO_EXPORT),
    _kind("managed", ("cuda-managed", "cuda-managed"), _NO_EXPORT),
    _kind("pinned host", ("pinned", "pinned"), _HOST),
    _kind("device to host", ("cuda", "host"), _HOST),
    _kind("host to device", ("host", "cuda"), _HOST),
    _kind("device to pinned", ("cuda", "pinned"), _PENDING),
    _kind("device to shared host", ("cuda", "host"), shared=True),
    _kind("cudaMalloc to VMM", ("cuda", "cuda-vmm")),
)


def driver() -> tuple[Gpus | None, Finding]:
    """Find the driver; a machine without one is not a fault."""
    found = facts()
    check = "CUDA driver"
    if isinstance(found, str):
        named = os.environ.get("ONEHOP_CUDA_LIBRARY", "")
        state: State = "slow" if named not in ("", "off") else "ok"
        return None, Finding(
            _GPUS, check, state, f"host memory only: {found}", "correct ONEHOP_CUDA_LIBRARY"
        )
    count = len(found.devices)
    names = " + ".join(device.name for device in found.devices)
    apart = [
        f"{a} to {b}"
        for a, links in enumerate(found.machine.links)
        for b, joined in enumerate(links)
        if a != b and not joined.peer_access
    ]
    detail = f"{found.library}, {version(found)}, {count} devices: {names}"
    if apart:
        return found, Finding(
            _GPUS,
            check,
            "slow",
            f"{detail}; without peer access: {', '.join(apart)}",
            "look at nvidia-smi topo -p2p r; transfers between these go through host memory",
        )
    return found, Finding(_GPUS, check, "ok", detail)


def drive_gpus(count: int) -> Iterator[Finding]:
    """Check all kinds of memory on one GPU, and between the first two if there are two."""
    quiet = {"ONEHOP_LOG": "error"}
    pairs = [("cuda:0", "cuda:0")] + ([("cuda:0", "cuda:1")] if count > 1 else [])
    for within in (False, True):
        for devices in pairs:
            where = "one GPU" if devices[0] == devices[1] else "two GPUs"
            name = f"{where}, {'one process' if within else 'two processes'}"
            yield from drive(Case(name, KINDS, within, devices, env=quiet))
    for kind in KINDS:
        memory = kind.jobs[0].memory
        if "host" in memory:
            first, second = ("" if one == "host" else "cuda:0" for one in memory)
            yield from drive(
                Case("endpoint of the host", [kind], devices=(first, second), env=quiet)
            )
