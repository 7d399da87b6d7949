# SPDX-License-Identifier: Apache-2.0
"""The doctor's drive along every path: between two processes, within one, and among ranks.

Each kind of GPU memory is driven by messages, puts, gets and a batch, from the beginning of an
allocation and from within it, and all bytes are checked; which path they took is told.
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
from onehop.cli.findings import Finding, State
from onehop.cli.gpus import Pair, facts, version
from onehop.cli.measure import Job, link, unlink
from onehop.cli.rows import percentile
from onehop.cli.sides import Placement, Role, Side, SideError, run_sides
from onehop.cli.sizes import format_size

SILENCE = 60.0
_NOTE = b"onehop doctor"
REPORT = "this is a fault of onehop: report it, with the output of onehop info"


@dataclass(frozen=True)
class Step:
    """One operation on a path, and the path it has to take."""

    op: str
    mode: str
    size: int
    path: str
    iterations: int = 100

    @property
    def name(self) -> str:
        """Return how the step is shown."""
        verb = {"sendrecv": "message", "put_signal": "put + signal"}.get(self.mode, self.mode)
        batch = " batch of 64 x" if self.op == "batch" else ""
        return f"{verb}{batch} {format_size(self.size)}"


@dataclass(frozen=True)
class Case:
    """One way to make a link, and what is driven over it.

    Attributes:
        single_copy: whether one side should reach the other's memory; None: not looked at.

    """

    name: str
    steps: Sequence[Step]
    within: bool = False
    shared: bool = False
    single_copy: bool | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def _steps(path: str) -> tuple[Step, ...]:
    return (
        Step("latency", "sendrecv", 8, "inline"),
        Step("latency", "sendrecv", 8192, path),
        Step("latency", "sendrecv", 2**20, path, 20),
        Step("latency", "put", 65536, path),
        Step("latency", "get", 65536, path),
        Step("latency", "put_signal", 65536, path),
        Step("batch", "put", 4096, path),
        Step("batch", "get", 4096, path),
    )


CASES = (
    Case("within a process", _steps("local"), within=True),
    Case("shm, private memory", _steps("shm"), single_copy=True),
    Case("shm, shared blocks", _steps("shm"), shared=True),
    Case("shm without process_vm", _steps("shm"), env={"ONEHOP_CMA": "off"}),
    # The warning that this path is slow would be no news here.
    Case("control socket", _steps("socket"), env={"ONEHOP_SEGMENT": "off", "ONEHOP_LOG": "error"}),
)
# Where UCX is found: as between hosts, over TCP on this one.
UCX = Case("UCX over TCP", _steps("ucx"), env={"ONEHOP_TRANSPORT": "ucx", "UCX_TLS": "tcp"})


def _both(role: Role, argument: object, placement: Placement) -> Iterator[tuple[Finding, Finding]]:
    """Yield what the two sides found of each check."""
    halves: dict[str, Finding] = {}
    for number, finding in run_sides(role, argument, placement):
        other = halves.pop(finding.check, None)
        if other is None:
            halves[finding.check] = finding
        else:
            yield (finding, other) if number == 0 else (other, finding)


def drive(case: Case) -> Iterator[Finding]:
    """Drive one case and yield what was found."""
    placement = Placement(within=case.within, env=case.env, silence=SILENCE)
    try:
        for first, second in _both(case_role, case, placement):
            # Side 1 speaks only of what it found wrong.
            yield first if second.state == "ok" else second
    except SideError as failure:
        yield Finding(case.name, "drive", "fault", str(failure), REPORT)


def case_role(side: Side, case: Case) -> None:
    """Be one side of a case."""
    loops = _bench.Side(side.number)
    link(side, loops)
    for step in case.steps:
        side.report(_drive_step(loops, case, step))
    unlink(side, loops)
    with onehop.Endpoint() as endpoint:
        if side.number == 1:
            side.tell(endpoint.address)
            peer = endpoint.accept()
        else:
            peer = endpoint.connect(side.hear())
        side.report(_notify(case, side, endpoint, peer))
        if case.single_copy is not None:
            side.report(_single_copy(case, peer))
        side.tell("done")
        side.hear()


def _drive_step(loops: _bench.Side, case: Case, step: Step) -> Finding:
    blocks = 64 if step.op == "batch" else 1
    job = Job(
        step.op, "c", step.mode, step.size, step.iterations, blocks=blocks, shared=case.shared
    )
    found = loops.run(job.spec(0))
    p50 = percentile(found.samples_us, 0.5) if found.samples_us else None
    state: State = "ok"
    detail, remedy = f"by {found.path}", ""
    if found.wrong:
        state, detail, remedy = "fault", f"{found.wrong} bytes are wrong", REPORT
    elif found.path not in (step.path, "none"):
        state, detail, remedy = "fault", f"went by {found.path}, not by {step.path}", REPORT
    return Finding(case.name, step.name, state, detail, remedy, p50)


def _notify(case: Case, side: Side, endpoint: onehop.Endpoint, peer: onehop.Peer) -> Finding:
    """Send notes to and fro; a signal behind each says when to look for it."""
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
        "see process_vm above; use buffers of onehop.empty, which need no rights",
    )


def meet(ranks: int) -> Finding:
    """Let ranks meet at a rendezvous on loopback and pass a message round."""
    place, check = "rendezvous", f"{ranks} ranks over loopback"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    placement = Placement(count=ranks, silence=SILENCE)
    try:
        found = [value for _, value in run_sides(rank_role, f"tcp://127.0.0.1:{port}", placement)]
    except SideError as failure:
        return Finding(place, check, "fault", str(failure), "look at TCP ports and loopback above")
    wrong = sum(bad for bad, _ in found)
    if wrong or len(found) != ranks:
        return Finding(place, check, "fault", f"{wrong} of {ranks} messages are wrong", REPORT)
    slowest = max(us for _, us in found)
    return Finding(place, check, "ok", f"met and connected in {slowest / 1e3:,.1f} ms")


def rank_role(side: Side, rendezvous: str) -> None:
    """Be one rank: send to the next, receive from the one before."""
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
# Neither a multiple of a page nor of what a GPU copies at once.
_INTERIOR = 4096 + 24
# Many of the pieces in which bytes travel through the host.
_LARGE = 5 * 2**20 + 8
# More than one chunk of VMM memory, and none of its chunks whole.
_CHUNKS = 21 * 2**20 + 8
_SLOW = ("relay", "staged")


@dataclass(frozen=True)
class Kind:
    """One kind of memory at either side.

    Attributes:
        name: how it is shown.
        slow: why it is slow by nature; empty: a slow path is worth a word.

    """

    name: str
    memory: Pair
    slow: str = ""

    @property
    def large(self) -> int:
        """Return bytes of the large transfers: each is laid out and checked several times."""
        return _CHUNKS if "cuda-vmm" in self.memory else _LARGE


_NO_EXPORT = "this memory has no handle that another process could open"
_HOST = "the bytes have to cross to the host"

KINDS = (
    Kind("cudaMalloc", ("cuda", "cuda")),
    Kind("VMM, several chunks", ("cuda-vmm", "cuda-vmm")),
    Kind("exportable pool", ("cuda-pool", "cuda-pool")),
    Kind("cudaMallocAsync", ("cuda-async", "cuda-async"), _NO_EXPORT),
    Kind("managed", ("cuda-managed", "cuda-managed"), _NO_EXPORT),
    Kind("pinned host", ("pinned", "pinned"), _HOST),
    Kind("device to host", ("cuda", "host"), _HOST),
    Kind("host to device", ("host", "cuda"), _HOST),
    Kind("device to pinned", ("cuda", "pinned"), _HOST),
    Kind("cudaMalloc to VMM", ("cuda", "cuda-vmm")),
)


@dataclass(frozen=True)
class GpuCase:
    """Two endpoints, and the kinds of memory that are driven over their link."""

    name: str
    devices: Pair
    within: bool
    kinds: Sequence[Kind]


def driver() -> tuple[_bench.GpuFacts | None, Finding]:
    """Look for the driver; a machine without one is as good as any."""
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
        for a, device in enumerate(found.devices)
        for b, reached in enumerate(device.peers)
        if not reached
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
    """Drive all kinds of memory on one GPU, and between the first two if there are."""
    pairs = [("cuda:0", "cuda:0")] + ([("cuda:0", "cuda:1")] if count > 1 else [])
    for within in (False, True):
        for devices in pairs:
            where = "one GPU" if devices[0] == devices[1] else "two GPUs"
            name = f"{where}, {'one process' if within else 'two processes'}"
            yield from _drive_kinds(GpuCase(name, devices, within, KINDS))
    hosts = [kind for kind in KINDS if "host" in kind.memory]
    for kind in hosts:
        first, second = ("" if one == "host" else "cuda:0" for one in kind.memory)
        yield from _drive_kinds(GpuCase("endpoint of the host", (first, second), False, [kind]))


def _drive_kinds(case: GpuCase) -> Iterator[Finding]:
    """Drive the kinds of a case; after a kind that breaks the link, the rest on a new one."""
    left = list(case.kinds)
    while left:
        placement = Placement(within=case.within, silence=SILENCE, env={"ONEHOP_LOG": "error"})
        try:
            for first, second in _both(gpu_role, replace(case, kinds=left), placement):
                left.pop(0)
                yield second if second.state == "fault" else first
        except SideError as failure:
            broken = left.pop(0).name if left else "closing"
            yield Finding(case.name, broken, "fault", str(failure), REPORT)
        else:
            return


def gpu_role(side: Side, case: GpuCase) -> None:
    """Be one side of a case."""
    loops = _bench.Side(side.number, case.devices[side.number])
    link(side, loops)
    for kind in case.kinds:
        side.report(_drive_kind(loops, side.number, case, kind))
    unlink(side, loops)


def _jobs(kind: Kind) -> Iterator[Job]:
    base = Job("latency", "c", "sendrecv", 65536, 20, memory=kind.memory)
    interior = replace(base, offset=_INTERIOR)
    yield base
    yield replace(interior, size=1000)
    yield replace(interior, size=kind.large, iterations=2)
    for mode in ("put", "get"):
        yield replace(base, mode=mode)
        yield replace(interior, mode=mode, size=kind.large, iterations=2)
        yield replace(interior, op="batch", mode=mode, size=4096, blocks=64, iterations=4)
    if "host" not in kind.memory:
        yield replace(base, mode="event")


def _drive_kind(loops: _bench.Side, number: int, case: GpuCase, kind: Kind) -> Finding:
    paths: dict[str, None] = {}
    wrong: list[str] = []
    p50 = None
    for job in _jobs(kind):
        found = loops.run(job.spec(number))
        if found.path != "none":
            paths[found.path] = None
        if found.wrong:
            what = f"{job.mode} {job.op} {format_size(job.size)}"
            wrong.append(f"{what} at offset {job.offset}: {found.wrong} bytes are wrong")
        if p50 is None and found.samples_us:
            p50 = percentile(found.samples_us, 0.5)
    if wrong:
        return Finding(case.name, kind.name, "fault", "; ".join(wrong), REPORT)
    detail = f"by {', '.join(paths)}"
    if any(path in _SLOW for path in paths):
        if kind.slow:
            return Finding(case.name, kind.name, "ok", f"{detail}: {kind.slow}", p50_us=p50)
        remedy = "see the library's warning: run with ONEHOP_LOG=warn"
        return Finding(case.name, kind.name, "slow", f"{detail}, through the host", remedy, p50)
    return Finding(case.name, kind.name, "ok", detail, p50_us=p50)
