# SPDX-License-Identifier: Apache-2.0
"""Batches by the kernel on real GPUs: bytes, the peer's death, and the application's other work."""

import os
import random
import signal
import threading
import time

import numpy as np
import onehop
import pytest
from processes import Group, Side, run_pair, run_side

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    torch.cuda.device_count() < 2 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs two GPUs and PyTorch",
)
SPACE = 64 << 20
BOUND = 5.0  # seconds, for anything that takes milliseconds alone


def mixed_blocks(count, seed=1):
    """Make (from, to, length) of blocks that lie apart and anyhow aligned."""
    chosen = random.Random(seed)
    sizes = [0, 1, 3, 15, 16, 17, 100, 511, 512, 513, 4096, 5001, 70_001]
    length = np.array([chosen.choice(sizes) for _ in range(count)], np.uint64)
    length[count // 2] = 9_000_001  # one huge among them
    gaps = np.array([[chosen.randrange(20) for _ in range(count)] for _ in range(2)], np.uint64)
    starts = np.cumsum(length + gaps, axis=1, dtype=np.uint64) - length
    assert starts.max() + 9_000_001 < SPACE
    return starts[0], starts[1], length


def even_blocks():
    starts = np.arange(1024, dtype=np.uint64) * 40_000
    return starts, starts, np.full(1024, 32_768, np.uint64)


def show_memory(side):
    """Register memory of this side's GPU and attach the other's: memory, region, remote region."""
    torch.cuda.set_device(side.number)
    memory = torch.randint(0, 256, (SPACE,), dtype=torch.uint8, device=f"cuda:{side.number}")
    torch.cuda.synchronize()
    region = side.endpoint.register(memory)
    side.give(region.descriptor)
    return memory, region, side.peer.attach(side.take(), timeout=30)


def serve(side):
    """Keep memory for the other side until it is done, or kills this process."""
    _kept = show_memory(side)
    side.give(os.getpid())
    assert side.take() == "done"


def move_blocks(side):
    memory, region, remote = show_memory(side)
    side.take()
    begin, there, length = mixed_blocks(5000)
    side.peer.put_batch(region, remote, begin, there, length).wait(timeout=30)
    back = torch.full((SPACE,), 0xEE, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    got = side.endpoint.register(back)
    side.peer.get_batch(got, remote, there, there, length).wait(timeout=30)
    sent = memory.cpu().numpy()
    expected = np.full(SPACE, 0xEE, np.uint8)
    for source, target, size in zip(begin, there, length, strict=True):
        expected[target : target + size] = sent[source : source + size]
    assert np.array_equal(back.cpu().numpy(), expected)
    side.give("done")


def survive(number, pipe, next_pipe):
    side = Side(number, pipe, "cuda:0")
    memory, region, remote = show_memory(side)
    starts, there, length = even_blocks()
    killer = threading.Timer(0.5, os.kill, (side.take(), signal.SIGKILL))
    killer.start()
    begin = time.monotonic()

    def put_always():
        while time.monotonic() - begin < 30:
            side.peer.put_batch(region, remote, starts, there, length).wait(timeout=30)

    with pytest.raises(onehop.PeerLost):
        put_always()
    assert time.monotonic() - begin < 0.5 + BOUND
    # The context is as it was: kernels run, and the endpoint works with another peer.
    assert int((memory[:100] * 0 + 1).sum().item()) == 100
    side.pipe = next_pipe
    side.peer = side.endpoint.connect(side.take(), timeout=30)
    _, region, remote = show_memory(side)
    side.take()
    side.peer.put_batch(region, remote, starts, there, length).wait(timeout=30)
    side.give("done")
    side.sync()
    side.endpoint.close()


def work_beside(side):
    memory, region, remote = show_memory(side)
    side.take()
    starts, there, length = even_blocks()
    stop = threading.Event()
    batches = 0

    def put_always():
        nonlocal batches
        while not stop.is_set():
            side.peer.put_batch(region, remote, starts, there, length).wait(timeout=30)
            batches += 1

    thread = threading.Thread(target=put_always)
    thread.start()
    while batches < 10:
        time.sleep(0.001)
    took = {}

    def bounded(name, call):
        begin = time.monotonic()
        call()
        took[name] = time.monotonic() - begin

    def capture():
        graph = torch.cuda.CUDAGraph()
        space = torch.zeros(1000, device="cuda:0")
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            space.add_(1)
        graph.replay()
        torch.cuda.synchronize()
        assert space[0].item() == 1

    large = [torch.zeros(1 << 26, device="cuda:0")]
    bounded("first launch", lambda: torch.topk(memory[:100_000], 5).values.sum().item())
    bounded("synchronize", torch.cuda.synchronize)
    large.clear()
    bounded("free", torch.cuda.empty_cache)
    bounded("capture", capture)
    stop.set()
    thread.join()
    side.give("done")
    assert max(took.values()) < BOUND, took


GPUS = ("cuda:0", "cuda:1")


def test_a_batch_moves_every_byte():
    run_pair(move_blocks, serve, devices=GPUS)


def test_other_work_goes_on_beside_batches():
    run_pair(work_beside, serve, devices=GPUS)


def test_the_peer_dies_under_batches():
    group = Group()
    pipes, next_pipes = group.context.Pipe(), group.context.Pipe()
    group.start(survive, 0, pipes[0], next_pipes[0])
    group.start(run_side, 1, pipes[1], serve, (), "cuda:1")
    group.start(run_side, 1, next_pipes[1], serve, (), "cuda:1")
    group.join(killed=(1,))
