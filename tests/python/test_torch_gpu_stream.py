# SPDX-License-Identifier: Apache-2.0
"""The stream domain on real GPUs, with torch: tensors, graphs, deaths, and the examples."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import onehop
import pytest
from onehop import patterns
from processes import Group, Side, _spawn, failure_of, run_pair, run_ranks, run_side

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs two GPUs and PyTorch",
)
GPUS = ("cuda:0", "cuda:1")
EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = (0, 1, 7, 393, 4096, 65_537, (1 << 20) + 3, 5_000_000)
POISON = 0xEE
REPLAYS = 1000
BOUND = 5.0  # seconds, for anything that takes milliseconds alone


def pattern(out, iteration, lane, sender):
    """Fill a tensor with what depends on iteration, its size, the lane and the sender.

    `iteration` may be a tensor of the GPU, and the calls may be captured.
    """
    size = out.numel()
    index = torch.arange(size, dtype=torch.int64, device=out.device)
    seed = iteration * 1_000_003 + (size * 31 + lane) * 7919 + sender
    mixed = (index + seed) * 2_654_435_761
    out.copy_(((mixed >> 13) ^ mixed).bitwise_and(0xFF).to(torch.uint8))


def tensor(side_number, size):
    return torch.full((size,), POISON, dtype=torch.uint8, device=f"cuda:{side_number}")


def assert_holds(into, size, iteration, lane, sender):
    expected = torch.empty(size, dtype=torch.uint8, device=into.device)
    pattern(expected, iteration, lane, sender)
    assert torch.equal(into[:size], expected), (size, iteration, lane)
    assert bool((into[size:] == POISON).all()), (size, iteration, lane)


def warm_torch(number):
    """Launch each kernel of the tests once: a first launch may wait for kernels that run."""
    torch.cuda.set_device(number)
    into = tensor(number, 16)
    pattern(into, torch.zeros((), dtype=torch.int64, device=into.device), 0, 0)
    pattern(into, 1, 0, 0)
    assert_holds(into, 16, 1, 0, 0)
    assert int((into[:4] * 0 + 1).sum().item()) == 4
    torch.cuda.synchronize()


# ---- Tensors


def exchange_tensors(comm):
    warm_torch(comm.rank)
    other = 1 - comm.rank
    comm.warmup(timeout=30)
    stream = torch.cuda.Stream()
    on = comm.on(stream)
    for iteration in range(3):
        for lane, size in enumerate(SIZES):
            out, into = tensor(comm.rank, size), tensor(comm.rank, size + 5)
            pattern(out, iteration, lane, comm.rank)
            stream.wait_stream(torch.cuda.current_stream())
            with onehop.group():
                on.send(out, other, lane=lane, timeout=30)
                on.recv(into, other, lane=lane, timeout=30)
            # It may be freed now: onehop keeps it for the stream.
            del out
            torch.cuda.current_stream().wait_stream(stream)
            assert_holds(into, size, iteration, lane, other)
    assert comm.peer(other).async_error() is None


ALLOCATORS = {
    "native": "",
    "expandable": "expandable_segments:True",
    "async": "backend:cudaMallocAsync",
}


@pytest.mark.parametrize("allocator", ALLOCATORS)
def test_tensors_of_every_allocator(allocator, monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    if setting := ALLOCATORS[allocator]:
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", setting)
    # torch reads it when it is loaded: before a process of the server gets its environment.
    run_ranks(2, exchange_tensors, devices=GPUS, context=_spawn)


def exchange_on_lanes(comm):
    """Lanes at once, both ways: all of them in one launch, then four with streams of their own."""
    warm_torch(comm.rank)
    other = 1 - comm.rank
    comm.warmup(timeout=30)
    size, lanes = 100_003, range(16)
    outs = [tensor(comm.rank, size) for _ in lanes]
    intos = [tensor(comm.rank, size) for _ in lanes]
    # No more streams than the GPU runs side by side for sure.
    streams = [torch.cuda.Stream() for _ in range(4)]
    for iteration in range(6):
        used = lanes if iteration % 2 == 0 else range(len(streams))
        for lane in used:
            pattern(outs[lane], iteration, lane, comm.rank)
            intos[lane].fill_(POISON)
        torch.cuda.synchronize()
        # The ranks begin at opposite ends: a lane waits for none but its own.
        order = used if comm.rank == 0 else reversed(used)
        with onehop.group():
            for lane in order:
                on = comm.on(streams[0 if len(used) == 16 else lane])
                on.send(outs[lane], other, lane=lane, timeout=30)
                on.recv(intos[lane], other, lane=lane, timeout=30)
        torch.cuda.synchronize()
        for lane in used:
            assert_holds(intos[lane], size, iteration, lane, other)
    assert comm.peer(other).async_error() is None


def test_all_lanes_at_once_in_both_directions():
    run_ranks(2, exchange_on_lanes, devices=GPUS)


# ---- Graphs


def replay(comm):
    warm_torch(comm.rank)
    other = 1 - comm.rank
    comm.warmup(timeout=30)
    sizes = {0: 1000, 1: 16_384, 2: 300_001}  # by lane
    outs = {lane: tensor(comm.rank, size) for lane, size in sizes.items()}
    intos = {lane: tensor(comm.rank, size) for lane, size in sizes.items()}
    checks = {lane: tensor(comm.rank, size) for lane, size in sizes.items()}
    iteration = torch.zeros((), dtype=torch.int64, device=f"cuda:{comm.rank}")
    wrong = torch.zeros((), dtype=torch.int64, device=f"cuda:{comm.rank}")
    stream = torch.cuda.Stream()

    def step():
        on = comm.on(stream)
        iteration.add_(1)
        for lane in sizes:
            pattern(outs[lane], iteration, lane, comm.rank)
            intos[lane].fill_(POISON)
        with onehop.group():
            for lane in sizes:
                on.send(outs[lane], other, lane=lane, timeout=30)
                on.recv(intos[lane], other, lane=lane, timeout=30)
        for lane in sizes:
            outs[lane].fill_(POISON)  # it may be written again
            pattern(checks[lane], iteration, lane, other)
            wrong.add_((checks[lane] != intos[lane]).sum())

    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    assert wrong.item() == 0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        step()
    with torch.cuda.stream(stream):
        for number in range(REPLAYS):
            graph.replay()
            if number % 100 == 99:
                stream.synchronize()
                assert wrong.item() == 0, number
    stream.synchronize()
    assert iteration.item() == 1 + REPLAYS
    assert wrong.item() == 0
    assert comm.peer(other).async_error() is None
    comm.barrier(timeout=30)


def test_a_graph_is_replayed_a_thousand_times():
    run_ranks(2, replay, devices=GPUS)


# ---- Patterns


def exchange_rows(comm):
    """Rows to all ranks, as many as only the GPU knows; our own part, too."""
    warm_torch(comm.rank)
    ranks = range(comm.size)
    comm.warmup(ranks, timeout=30)
    device = f"cuda:{comm.rank}"
    capacity, width = 512, 256
    out = torch.empty((comm.size, capacity, width), dtype=torch.float32, device=device)
    into = torch.empty_like(out)
    rows = torch.empty(comm.size, dtype=torch.int64, device=device)
    came = torch.empty_like(rows)
    stream = torch.cuda.Stream()
    for iteration in range(20):
        counts = [
            [(37 * a + 101 * b + 61 * iteration) % (capacity + 1) for b in ranks] for a in ranks
        ]
        rows.copy_(torch.tensor(counts[comm.rank]))
        for rank in ranks:
            out[rank].fill_(1000 * iteration + 10 * comm.rank + rank)
        into.fill_(-1)
        came.fill_(-1)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            sizes = rows * (width * 4)
            patterns.dispatch(comm, stream, out, sizes, into, came, timeout=30)
        stream.synchronize()
        for rank in ranks:
            count = counts[rank][comm.rank]
            assert came[rank].item() == count * width * 4, (iteration, rank)
            value = 1000 * iteration + 10 * rank + comm.rank
            assert bool((into[rank, :count] == value).all()), (iteration, rank)
            assert bool((into[rank, count:] == -1).all()), (iteration, rank)
    for rank in ranks:
        assert comm.peer(rank).async_error() is None


def test_rows_are_dispatched():
    run_ranks(2, exchange_rows, devices=GPUS)


# ---- Failures


def wait_in_vain(side):
    warm_torch(0)
    side.peer.warmup(timeout=30)
    stream = torch.cuda.Stream()
    into = tensor(0, 1000)
    torch.cuda.synchronize()
    side.peer.on(stream).recv(into, lane=2, timeout=0.1)
    stream.synchronize()
    assert isinstance(failure_of(side.peer), onehop.TimeoutError)
    assert bool((into == POISON).all())
    side.peer.reset_lane(2, timeout=30)
    side.sync()
    side.peer.on(stream).recv(into, lane=2, timeout=30)
    stream.synchronize()
    assert_holds(into, 1000, 1, 2, 1)
    assert side.peer.async_error() is None


def send_after_the_reset(side):
    warm_torch(1)
    side.peer.warmup(timeout=30)
    out = tensor(1, 1000)
    pattern(out, 1, 2, 1)
    torch.cuda.synchronize()
    side.sync()
    stream = torch.cuda.Stream()
    side.peer.on(stream).send(out, lane=2, timeout=30)
    stream.synchronize()


def test_a_deadline_and_a_reset():
    run_pair(wait_in_vain, send_after_the_reset, devices=GPUS)


def survive(number, pipe, next_pipe):
    warm_torch(0)
    side = Side(number, pipe, "cuda:0")
    side.peer.warmup(timeout=30)
    stream = torch.cuda.Stream()
    into = tensor(0, 100_000)
    torch.cuda.synchronize()
    victim = side.take()
    side.peer.on(stream).recv(into, lane=5, timeout=None)
    threading.Timer(0.5, os.kill, (victim, signal.SIGKILL)).start()
    begin = time.monotonic()
    stream.synchronize()
    assert time.monotonic() - begin < 0.5 + BOUND
    assert isinstance(failure_of(side.peer), onehop.PeerLost)
    with pytest.raises(onehop.PeerLost):
        side.peer.on(stream).recv(into, lane=5)
    # The context is as it was: torch works, and the endpoint does with another peer.
    assert torch.ones(1000, device="cuda:0").sum().item() == 1000
    side.pipe = next_pipe
    side.peer = side.endpoint.connect(side.take(), timeout=30)
    into.fill_(POISON)
    torch.cuda.synchronize()
    side.peer.on(stream).recv(into, lane=5, timeout=30)
    stream.synchronize()
    assert_holds(into, 100_000, 3, 5, 1)
    side.sync()
    side.endpoint.close()


def be_killed(side):
    side.peer.warmup(timeout=30)
    side.give(os.getpid())
    side.take()  # nothing comes


def send_once(side):
    warm_torch(1)
    out = tensor(1, 100_000)
    pattern(out, 3, 5, 1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    side.peer.on(stream).send(out, lane=5, timeout=30)
    stream.synchronize()


def test_the_peer_dies_while_a_stream_waits():
    group = Group()
    pipes, next_pipes = group.context.Pipe(), group.context.Pipe()
    group.start(survive, 0, pipes[0], next_pipes[0])
    group.start(run_side, 1, pipes[1], be_killed, (), "cuda:1")
    group.start(run_side, 1, next_pipes[1], send_once, (), "cuda:1")
    group.join(killed=(1,))


# ---- One-sided, in graphs

PAGES = 3000
PAGE = 737


def move_pages(side):
    """Put pages, get them back behind the peer's signal, and replay that as a graph."""
    warm_torch(side.number)
    side.peer.warmup(timeout=30)
    cache = tensor(side.number, PAGES * PAGE)
    region = side.endpoint.register(cache)
    side.give(region.descriptor)
    remote = side.peer.attach(side.take(), timeout=30)
    out, back = tensor(side.number, PAGES * PAGE), tensor(side.number, PAGES * PAGE)
    part = tensor(side.number, 100)
    step = torch.zeros((), dtype=torch.int64, device=out.device)
    offsets = [PAGE * page for page in range(0, PAGES, 2)]
    kept = torch.arange(PAGES * PAGE, device=out.device) // PAGE % 2 == 1

    def round_of():
        on = side.peer.on(torch.cuda.current_stream())
        step.add_(1)
        pattern(out, step, 0, side.number)
        on.put_batch(out, remote, offsets, offsets[::-1], PAGE)
        on.signal(4)
        on.wait_signal(4, timeout=30)
        on.get_batch(back, remote, offsets[::-1], offsets, PAGE)
        on.get(part, remote[7:107])
        on.signal(5)
        on.wait_signal(5, timeout=30)  # nobody puts into what is read

    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        round_of()
        stream.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            round_of()
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert int(step) == 21
    expected = tensor(side.number, PAGES * PAGE)
    for of, into in ((side.number, back), (1 - side.number, cache)):
        pattern(expected, 21, 0, of)
        pages = expected.view(PAGES, PAGE)
        pages[0::2] = pages[0::2].flip(0).clone() if into is cache else pages[0::2]
        expected[kept] = POISON
        assert torch.equal(into, expected)
    pattern(expected, 21, 0, side.number)
    assert torch.equal(part, expected.view(PAGES, PAGE)[PAGES - 2, 7:107])
    assert side.peer.async_error() is None
    side.sync()


def test_batches_and_gets_in_a_graph():
    run_pair(move_pages, move_pages, devices=GPUS)


# ---- The examples


def run_example(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_of_a_raw_kernel():
    said = run_example(sys.executable, str(EXAMPLES / "raw_kernel.py"))
    assert said.count("all right") == 2, said


def test_the_example_of_a_graph():
    said = run_example(sys.executable, str(EXAMPLES / "stream_graph.py"))
    assert said.count("all right") == 2, said


def test_the_example_of_a_kernel_in_cpp(tmp_path):
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if nvcc is None:
        pytest.skip("there is no nvcc to build examples/exchange.cu with")
    program = tmp_path / "exchange"
    library = onehop.get_library_dir()
    run_example(
        nvcc,
        "-std=c++20",
        "-arch=native",
        f"-I{onehop.get_include()}",
        str(EXAMPLES / "exchange.cu"),
        f"-L{library}",
        "-lonehop",
        "-Xlinker",
        f"-rpath={library}",
        "-o",
        str(program),
    )
    said = run_example(str(program))
    assert said.count("fault 0, 0 words wrong") == 2, said
