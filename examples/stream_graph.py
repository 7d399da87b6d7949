# SPDX-License-Identifier: Apache-2.0
"""Exchanges in the order of a CUDA stream, captured into a graph and replayed.

python stream_graph.py: needs PyTorch and two GPUs. Exits with 0 if all bytes were right. Shown in
docs/guides/streams-and-graphs.md.
"""

import multiprocessing
import sys

import onehop

STEPS = 5


# --8<-- [start:exchange]
def exchange(
    comm: onehop.Communicator, stream: onehop.Stream, out: onehop.Buffer, into: onehop.Buffer
) -> None:
    """Enqueue one exchange with the other rank; the call does not wait for it."""
    on = comm.on(stream)
    with onehop.group():  # both start together, whatever their size
        on.send(out, 1 - comm.rank)
        on.recv(into, 1 - comm.rank)


# --8<-- [end:exchange]
# --8<-- [start:signals]
def hand_over(
    peer: onehop.Peer, stream: onehop.Stream, local: onehop.Buffer, remote: onehop.RemoteRegion
) -> None:
    """Put by the copy engine, then tell the peer's stream, which waits in take_over."""
    on = peer.on(stream)
    on.put(local, remote)
    on.signal(3)


def take_over(peer: onehop.Peer, stream: onehop.Stream) -> None:
    """Let the stream wait until the peer's bytes are in our region."""
    peer.on(stream).wait_signal(3)


# --8<-- [end:signals]
# --8<-- [start:batches]
def hand_over_pages(
    peer: onehop.Peer,
    stream: onehop.Stream,
    cache: onehop.Buffer,
    remote: onehop.RemoteRegion,
    offsets: onehop.Offsets,
    page: int,
) -> None:
    """Put pages of `page` bytes at these offsets into the same places of the peer's cache."""
    on = peer.on(stream)
    on.put_batch(cache, remote, offsets, offsets, page)
    on.signal(3)


# --8<-- [end:batches]
def run(rank: int, identity: bytes) -> None:
    """Exchange tensors with the other rank, on the GPU of the same number."""
    import torch

    torch.cuda.set_device(rank)
    with onehop.Communicator(rank, 2, unique_id=identity, device=rank, timeout=60) as comm:
        # --8<-- [start:capture]
        comm.warmup()  # a capture must not connect
        out = torch.empty(1 << 20, dtype=torch.int32, device="cuda")
        into = torch.empty_like(out)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            exchange(comm, torch.cuda.current_stream(), out, into)
        for step in range(STEPS):
            out.fill_(10 * step + rank)
            graph.replay()
            assert (into == 10 * step + 1 - rank).all(), f"step {step}: wrong bytes"
        failure = comm.peer(1 - rank).async_error()  # a failure after the calls returned
        assert failure is None, failure
        # --8<-- [end:capture]
        comm.barrier()
        print(f"rank {rank}: {STEPS} replays, all right", flush=True)


def main() -> int:
    """Run both ranks, a process each."""
    context = multiprocessing.get_context("spawn")
    identity = onehop.unique_id()
    ranks = [context.Process(target=run, args=(rank, identity)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return 0 if all(process.exitcode == 0 for process in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
