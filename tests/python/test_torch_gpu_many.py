# SPDX-License-Identifier: Apache-2.0
"""The stream domain between all pairs of more than two real GPUs, with torch."""

import os

import onehop
import pytest
from onehop import patterns
from processes import run_ranks

torch = pytest.importorskip("torch")
COUNT = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(
    COUNT < 3 or "ONEHOP_CUDA_LIBRARY" in os.environ,
    reason="needs three GPUs or more and PyTorch",
)
SIZES = (0, 1, 393, 8_191, 65_537, 300_001, 5_000_000)
POISON = 0xEE
REPLAYS = 300


def pattern(out, iteration, sender, receiver):
    """Fill a tensor with what depends on the iteration, its size, and who sends to whom."""
    size = out.numel()
    index = torch.arange(size, dtype=torch.int64, device=out.device)
    seed = iteration * 1_000_003 + (size * 64 + sender) * 64 + receiver
    mixed = (index + seed) * 2_654_435_761
    out.copy_(((mixed >> 13) ^ mixed).bitwise_and(0xFF).to(torch.uint8))


def expect(into, iteration, sender, receiver):
    expected = torch.empty_like(into)
    pattern(expected, iteration, sender, receiver)
    assert torch.equal(into, expected), (into.numel(), iteration, sender)


def buffers(comm, size):
    device = f"cuda:{comm.rank}"
    return [torch.full((size,), POISON, dtype=torch.uint8, device=device) for _ in range(comm.size)]


def exchange(comm, on, outs, intos):
    with onehop.group():
        for rank in range(comm.size):
            if rank == comm.rank:
                continue
            on.send(outs[rank], rank, timeout=30)
            on.recv(intos[rank], rank, timeout=30)


def all_pairs(comm):
    torch.cuda.set_device(comm.rank)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    pattern(buffers(comm, 16)[0], torch.zeros((), dtype=torch.int64, device="cuda"), 0, 0)
    torch.cuda.synchronize()
    comm.warmup(range(comm.size), timeout=30)
    stream = torch.cuda.Stream()
    for iteration in range(3):
        for size in SIZES:
            outs, intos = buffers(comm, size), buffers(comm, size)
            for rank in others:
                pattern(outs[rank], iteration, comm.rank, rank)
            torch.cuda.synchronize()
            exchange(comm, comm.on(stream), outs, intos)
            torch.cuda.synchronize()
            for rank in others:
                expect(intos[rank], iteration, rank, comm.rank)
    for rank in others:
        assert comm.peer(rank).async_error() is None


def test_all_pairs_at_once():
    run_ranks(COUNT, all_pairs, devices=[f"cuda:{number}" for number in range(COUNT)])


def replay_all_pairs(comm):
    """The data of each replay is made within the graph, from a counter that it keeps."""
    torch.cuda.set_device(comm.rank)
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    comm.warmup(range(comm.size), timeout=30)
    outs, intos = buffers(comm, 20_000), buffers(comm, 20_000)
    counter = torch.zeros((), dtype=torch.int64, device="cuda")
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    expected = torch.empty_like(intos[0])
    for rank in range(comm.size):
        pattern(expected, counter, rank, comm.rank)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for rank in others:
            pattern(outs[rank], counter, comm.rank, rank)
            intos[rank].fill_(POISON)
        exchange(comm, comm.on(torch.cuda.current_stream()), outs, intos)
        for rank in others:
            pattern(expected, counter, rank, comm.rank)
            wrong.add_((intos[rank] != expected).sum())
        counter.add_(1)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    assert int(counter) == REPLAYS
    assert int(wrong) == 0


def test_all_pairs_in_a_graph():
    run_ranks(COUNT, replay_all_pairs, devices=[f"cuda:{number}" for number in range(COUNT)])


def parts_of_all(comm):
    """Rank s sends 1,000 * (s + 1) + r rows to rank r."""
    torch.cuda.set_device(comm.rank)
    comm.warmup(range(comm.size), timeout=30)
    stream = torch.cuda.Stream()

    def count(sender, receiver):
        return 1_000 * (sender + 1) + receiver

    out_counts = [count(comm.rank, rank) for rank in range(comm.size)]
    into_counts = [count(rank, comm.rank) for rank in range(comm.size)]
    starts = [sum(out_counts[:rank]) for rank in range(comm.size)]
    places = [sum(into_counts[:rank]) for rank in range(comm.size)]
    out = torch.empty(sum(out_counts), dtype=torch.uint8, device="cuda")
    into = torch.full((sum(into_counts),), POISON, dtype=torch.uint8, device="cuda")
    for rank in range(comm.size):
        pattern(out[starts[rank] : starts[rank] + out_counts[rank]], 1, comm.rank, rank)
    torch.cuda.synchronize()
    patterns.all_to_all_v(
        comm, stream, out, starts, out_counts, into, places, into_counts, timeout=30
    )
    torch.cuda.synchronize()
    for rank in range(comm.size):
        expect(into[places[rank] : places[rank] + into_counts[rank]], 1, rank, comm.rank)


def test_parts_of_all():
    run_ranks(COUNT, parts_of_all, devices=[f"cuda:{number}" for number in range(COUNT)])
