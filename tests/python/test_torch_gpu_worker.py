# SPDX-License-Identifier: Apache-2.0
"""The worker on real GPUs: bytes, and the application's other work under traffic without an end.

Run with -s it prints how long that work takes, with the worker and without.
"""

import os
import signal
import statistics
import sys
import threading
import time

import onehop
import pytest
from onehop.records import Counter
from processes import Group, Side, run_pair, run_side

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs two GPUs and PyTorch",
)
SIZE = 1024
BOUND = 5.0  # seconds, for anything that takes milliseconds alone
GPUS = ("cuda:0", "cuda:1")
STOP, DATA = 1, 2  # tags
NONE = Counter(0, 0)


@pytest.fixture(params=["1", "0"], ids=["worker", "engine"])
def worker(request, monkeypatch):
    monkeypatch.setenv("ONEHOP_WORKER", request.param)
    return request.param == "1"


class Traffic:
    """Messages to and fro, each with other bytes, in a thread of their own."""

    def __init__(self, side):
        torch.cuda.set_device(side.number)
        device = f"cuda:{side.number}"
        # Rows that are told apart by their first bytes.
        self.rows = torch.arange(256, dtype=torch.uint8, device=device).repeat(SIZE, 1).T
        self.rows = self.rows.contiguous()
        self.came = torch.zeros(SIZE, dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
        self.out = side.endpoint.register(self.rows)
        self.into = side.endpoint.register(self.came)
        self.peer = side.peer
        self.rounds = 0
        self.stopped = threading.Event()
        self.failure = None

    def round(self, first):
        begin = self.rounds % 256 * SIZE
        for sends in (first, not first):
            if sends:
                self.peer.send(self.out[begin : begin + SIZE], tag=DATA, timeout=30)
            else:
                self.peer.recv(self.into, tag=DATA, timeout=30)
        self.rounds += 1

    def check(self):
        """Compare what came last; nobody may write meanwhile."""
        assert self.came.cpu().tolist() == [(self.rounds - 1) % 256] * SIZE

    def lead(self):
        """Go on until stopped; the other side hears of it after every hundred rounds."""
        try:
            while self.hundred():
                pass
        except onehop.Error as failure:
            self.failure = failure

    def hundred(self):
        for _ in range(100):
            self.round(first=True)
        more = not self.stopped.is_set()
        self.peer.send(bytes([more]), tag=STOP, timeout=30)
        return more

    def share(self):
        """Of the messages sent so far, those by the worker."""
        sent = self.peer.stats().sent
        by_worker, by_engine = (sent.get(path, NONE).operations for path in ("worker", "cuda_ipc"))
        return by_worker / (by_worker + by_engine)

    def follow(self):
        note = bytearray([1])
        while note[0]:
            for _ in range(100):
                self.round(first=False)
            if self.rounds % 10_000 == 100:
                self.check()
            self.peer.recv(note, tag=STOP, timeout=30)


def echo(side, _worker=None):
    traffic = Traffic(side)
    side.give(os.getpid())
    traffic.follow()
    traffic.check()


UNARY = ("erfinv", "lgamma", "digamma", "i0", "sinc", "expm1", "log1p", "asinh", "acosh", "atanh")


def first_launches():
    space = torch.full((1000,), 0.5, device="cuda:0")
    for name in UNARY:
        yield lambda name=name: getattr(torch, name)(space).sum().item()


def frees():
    for _ in range(20):
        kept = [torch.empty(1 << 26, device="cuda:0")]
        kept.clear()
        yield torch.cuda.empty_cache


def synchronizes():
    for _ in range(100):
        yield torch.cuda.synchronize


def captures():
    space = torch.zeros(1000, device="cuda:0")

    def capture():
        graph = torch.cuda.CUDAGraph()
        before = space[0].item()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            space.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert space[0].item() == before + 1

    for _ in range(10):
        yield capture


def products():
    a = torch.randn(4096, 4096, device="cuda:0")

    def product():
        for _ in range(10):
            torch.mm(a, a)
        torch.cuda.synchronize()

    product()
    for _ in range(30):
        yield product


ACTIONS = (first_launches, frees, synchronizes, captures, products)


def work_beside(side, worker):
    sys.setswitchinterval(0.0005)
    traffic = Traffic(side)
    side.take()
    # Alone it goes fast enough for the worker; beside other threads of Python it may not.
    while traffic.rounds < 3000:
        traffic.hundred()
    alone = traffic.share()
    assert (alone > 0) == worker
    thread = threading.Thread(target=traffic.lead)
    thread.start()
    took = {}
    for action in ACTIONS:
        took[action.__name__] = times = []
        for call in action():
            begin = time.monotonic()
            call()
            times.append(time.monotonic() - begin)
    traffic.stopped.set()
    thread.join()
    assert traffic.failure is None, traffic.failure
    traffic.check()
    print(
        f"\nworker={worker}: {traffic.rounds} rounds; by the worker {alone:.2f}, then beside other"
    )
    print(f"work {traffic.share():.2f} of all")
    for name, times in took.items():
        p50, most = statistics.median(times) * 1e3, max(times) * 1e3
        print(f"  {name:16} {len(times):4} times, p50 {p50:8.3f} ms, most {most:8.3f} ms")
        assert max(times) < BOUND, name


def test_other_work_goes_on_beside_the_worker(worker):
    run_pair(work_beside, echo, worker, devices=GPUS)


def survive(number, pipe, next_pipe):
    side = Side(number, pipe, "cuda:0")
    traffic = Traffic(side)
    killer = threading.Timer(0.5, os.kill, (side.take(), signal.SIGKILL))
    killer.start()
    begin = time.monotonic()
    traffic.lead()
    assert isinstance(traffic.failure, onehop.PeerLost)
    assert time.monotonic() - begin < 0.5 + BOUND
    side.pipe = next_pipe
    side.peer = side.endpoint.connect(side.take(), timeout=30)
    traffic = Traffic(side)
    side.take()
    traffic.stopped.set()
    traffic.lead()
    assert traffic.failure is None, traffic.failure
    traffic.check()
    side.sync()
    side.endpoint.close()


def test_the_peer_dies_under_traffic(worker):
    group = Group()
    pipes, next_pipes = group.context.Pipe(), group.context.Pipe()
    group.start(survive, 0, pipes[0], next_pipes[0])
    group.start(run_side, 1, pipes[1], echo, (), "cuda:1")
    group.start(run_side, 1, next_pipes[1], echo, (), "cuda:1")
    group.join(killed=(1,))
