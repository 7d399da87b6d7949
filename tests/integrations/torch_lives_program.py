# SPDX-License-Identifier: Apache-2.0
"""Groups that are made, aborted, destroyed, and made again: `... CASE RENDEZVOUS_FILE`."""

import asyncio
import re
import sys
import threading
import time
from datetime import timedelta

import onehop.torch
import torch
import torch.distributed as dist
from torch_ranks import DEADLINE, Rank, join, listen, raises

# ---- Ranks that do not agree


def disagreeing(pipe, rank, rendezvous):
    text = raises(Exception, lambda: join(rank, 3 - rank, rendezvous, seconds=5))
    assert "rank 1 was given world_size 2, rank 0 3" in text, text
    assert "give all ranks the same" in text, text
    pipe.send("told")


def sizes(rendezvous):
    ranks = [Rank(disagreeing, rank, rendezvous) for rank in (0, 1)]
    for rank in ranks:
        rank.hears("told")
        rank.ends()


def alone(pipe, rank, rendezvous):
    text = raises(dist.DistBackendError, lambda: join(rank, 2, rendezvous, seconds=1))
    assert "rank 0" in text if rank else "1 of 2 ranks: 1" in text, text
    pipe.send("told")


def missing(rendezvous):
    for number in (0, 1):
        rank = Rank(alone, number, f"{rendezvous}{number}")
        rank.hears("told")
        rank.ends()


# ---- A device that is not there


def without_gpu(pipe, rank, rendezvous):
    device = torch.device("cuda", 0)
    # Some builds of torch refuse by themselves.
    text = raises(Exception, lambda: join(rank, 1, f"{rendezvous}0", device_id=device))
    assert "cuda:0" in text, text
    assert "accelerator" in text or "torch.cuda.is_available() is False" in text, text
    if dist.is_initialized():
        dist.destroy_process_group()
    join(rank, 1, f"{rendezvous}1")
    text = raises(RuntimeError, lambda: dist.group.WORLD._get_backend(device))
    assert "torch.cuda.is_available() is False" in text, text
    pipe.send("told")


def device(rendezvous):
    if torch.cuda.is_available():
        print("this machine has a GPU")
        return
    rank = Rank(without_gpu, 0, rendezvous)
    rank.hears("told")
    rank.ends()


# ---- Aborted


def aborting(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    group = dist.new_group()
    dist.all_reduce(torch.ones(1), group=group)  # the inner backend is there
    posts = [
        *(group.recv([torch.zeros(10)], 1 - rank, tag) for tag in range(20)),
        group.recv_anysource([torch.zeros(10)], 100),
        group.send([torch.zeros(10_000_000)], 1 - rank, 200),  # nobody receives it
    ]
    ended = []
    began = [threading.Event() for _ in posts]

    def wait(work, event):
        event.set()
        text = raises(dist.DistBackendError, work.wait)
        ended.append((time.monotonic(), text))

    threads = [threading.Thread(target=wait, args=each) for each in zip(posts, began, strict=True)]
    future = group.recv([torch.zeros(1)], 1 - rank, 300).get_future()
    for thread, event in zip(threads, began, strict=True):
        thread.start()
        assert event.wait(DEADLINE)
    pipe.send("waiting")
    listen(pipe, "abort")
    start = time.monotonic()
    group.abort()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    assert len(ended) == len(posts)
    raises(Exception, future.wait)
    for work in posts:
        raises(Exception, work.get_future().wait)
    raises(dist.DistBackendError, lambda: group.recv([torch.zeros(1)], 1 - rank, 0))
    text = raises(dist.DistBackendError, lambda: group.barrier().wait())
    assert "make another group" in text, text
    print(f"rank {rank}: {max(end for end, _ in ended) - start:.4f} s until the last wait ended")
    # The default group goes on.
    into = torch.zeros(1)
    work = dist.irecv(into, 1 - rank)
    dist.send(torch.ones(1), 1 - rank)
    work.wait()
    assert into[0] == 1
    dist.destroy_process_group()
    pipe.send("went on")


def aborted(rendezvous):
    ranks = [Rank(aborting, rank, rendezvous) for rank in (0, 1)]
    for rank in ranks:
        rank.hears("waiting")
    for rank in ranks:
        rank.pipe.send("abort")
    for rank in ranks:
        rank.hears("went on")
        rank.ends()


# ---- Again


def returning(pipe, rank, rendezvous):
    for life in range(3):
        join(rank, 2, f"{rendezvous}{life}")
        into = torch.zeros(1000)
        work = dist.irecv(into, 1 - rank)
        dist.send(torch.full((1000,), float(life)), 1 - rank)
        work.wait()
        assert (into == life).all()
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total[0] == 2
        pending = dist.irecv(into, 1 - rank)
        dist.barrier()
        dist.destroy_process_group()
        # torch 2.6 shuts down no group but NCCL's: it ends with its last reference there.
        if not torch.__version__.startswith("2.6."):
            assert pending.is_completed()
            assert not pending.is_success()
    pipe.send("lived")


def again(rendezvous):
    ranks = [Rank(returning, rank, rendezvous) for rank in (0, 1)]
    for rank in ranks:
        rank.hears("lived")
        rank.ends()


# ---- Again, with the store of the lives before


def exchange(group):
    """Use the group: a message to the next rank, and a collective."""
    rank, size = group.rank(), group.size()
    into = torch.zeros(1)
    work = group.recv([into], (rank - 1) % size, 0)
    group.send([torch.tensor([float(rank)])], (rank + 1) % size, 0)
    work.wait()
    assert into.item() == (rank - 1) % size
    total = torch.ones(1)
    group.allreduce([total]).wait()
    assert total.item() == size


def reusing(pipe, rank, port):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)

    # Groups without torch's own prefixes of keys, which differ once a rank has failed alone.
    def make(size, seconds=DEADLINE):
        return onehop.torch.ProcessGroup(store, rank, size, timedelta(seconds=seconds))

    while (what := heard(pipe)) != "end":
        if what == "early":
            text = raises(dist.DistBackendError, lambda: make(2, seconds=1))
            assert "rank 1 of 2 looked for rank 0" in text, text
        elif what == "disagree":
            text = raises(ValueError, lambda: make(3 - rank, seconds=3))
            assert "rank 1 was given world_size 2, rank 0 3" in text, text
        else:
            group = make(int(what))
            exchange(group)
            group.shutdown()
        pipe.send(what)


def heard(pipe):
    assert pipe.poll(DEADLINE), "the program says nothing"
    return pipe.recv()


def reused(rendezvous):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [Rank(reusing, rank, store.port) for rank in range(3)]
    # What the ranks before one have left there is not for those that come.
    for what, whose in (
        ("3", ranks),
        ("early", ranks[1:2]),
        ("2", ranks[:2]),
        ("disagree", ranks[:2]),
        ("2", ranks[:2]),
        ("3", ranks),
        ("end", ranks),
    ):
        for rank in whose:
            rank.pipe.send(what)
        for rank in whose:
            rank.ends() if what == "end" else rank.hears(what)


# ---- A future whose work ends by the group's timeout


def timing_out(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    dist.group.WORLD.set_timeout(timedelta(seconds=1))
    work = dist.group.WORLD.recv([torch.zeros(1)], 1 - rank, 5)
    text = raises(Exception, work.get_future().wait)
    seconds = re.search(r"the deadline passed after ([\d.]+) s", text)
    assert seconds, text
    assert float(seconds[1]) >= 1, text
    pipe.send("told")
    listen(pipe, "end")  # the other rank waits for its own deadline


def late(rendezvous):
    ranks = [Rank(timing_out, rank, rendezvous) for rank in (0, 1)]
    for rank in ranks:
        rank.hears("told")
    for rank in ranks:
        rank.pipe.send("end")
        rank.ends()


# ---- Futures, and tasks of asyncio that await requests of the communicator

ROUNDS = 300


def awaiting(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    peer = dist.group.WORLD.communicator.peer(1)

    async def main():
        for _ in range(ROUNDS):
            work = dist.group.WORLD.recv([torch.zeros(1)], 1, 0)
            ended = threading.Event()
            work.get_future().then(lambda _, ended=ended: ended.set())
            request = peer.irecv(bytearray(8), tag=1)
            task = asyncio.ensure_future(receive(request))
            await asyncio.sleep(0)
            peer.send(b"go", tag=2)
            await asyncio.wait_for(task, DEADLINE)
            assert ended.wait(DEADLINE), "no callback"

    async def receive(request):
        return await request

    asyncio.run(main())
    pipe.send("heard")
    dist.destroy_process_group()


def answering(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    peer = dist.group.WORLD.communicator.peer(0)
    for _ in range(ROUNDS):
        peer.recv(bytearray(2), tag=2)
        peer.send(bytes(8), tag=1)
        dist.send(torch.ones(1), 0)
    pipe.send("answered")
    dist.destroy_process_group()


def awaited(rendezvous):
    first, second = Rank(awaiting, 0, rendezvous), Rank(answering, 1, rendezvous)
    first.hears("heard")
    second.hears("answered")
    first.ends()
    second.ends()


# ---- A collective of torch's C++ code is the first of its group

FUNCTIONAL = {
    "all_reduce": lambda ops, name: ops.all_reduce(torch.ones(2), "sum", name),
    "broadcast": lambda ops, name: ops.broadcast(torch.ones(2), 0, name),
    "all_gather_into_tensor": lambda ops, name: ops.all_gather_into_tensor(torch.ones(1), 2, name),
    "all_gather_into_tensor_out": lambda ops, name: ops.all_gather_into_tensor_out(
        torch.ones(1), 2, name, out=torch.zeros(2)
    ),
    "reduce_scatter_tensor": lambda ops, name: ops.reduce_scatter_tensor(
        torch.ones(4), "sum", 2, name
    ),
    "all_to_all_single": lambda ops, name: ops.all_to_all_single(
        torch.ones(2), [1, 1], [1, 1], name
    ),
}


def beginning(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    ops = torch.ops._c10d_functional
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    for call, function in FUNCTIONAL.items():
        group = dist.new_group()
        # docs/integrations/torch.md: torch asks no group written in Python for this one.
        if call.endswith("_out") and version < (2, 14):
            dist.barrier(group)
        result = ops.wait_tensor(function(ops, group.group_name))
        right = 2 if call.startswith(("all_reduce", "reduce")) else 1
        assert result.tolist() == [right] * 2, (call, result)
    pipe.send("begun")
    dist.destroy_process_group()


def first(rendezvous):
    ranks = [Rank(beginning, rank, rendezvous) for rank in (0, 1)]
    for rank in ranks:
        rank.hears("begun")
    for rank in ranks:
        rank.ends()


# ---- The exit of the interpreter while callbacks of futures run


def leaving(pipe, rank, rendezvous, destroys):
    join(rank, 2, rendezvous)
    into = torch.ones(1000)
    post = dist.irecv if rank else dist.isend
    works = [post(into, 1 - rank) for _ in range(20)]
    numbers = [work.get_future().then(lambda _: torch.ones(200_000).sum()) for work in works]
    for work in works:
        work.wait()
    assert len(numbers) == 20
    pipe.send("leaves")
    if destroys:
        dist.destroy_process_group()


def exits(rendezvous):
    for life in range(10):
        ranks = [Rank(leaving, rank, f"{rendezvous}{life}", life % 2 == 0) for rank in (0, 1)]
        for rank in ranks:
            rank.hears("leaves")
            rank.ends()


# ---- A rank that has posted work and is elsewhere


MANY = 600  # more than a link's ring has room for


def posting(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    works = [dist.isend(torch.tensor([i]), 1) for i in range(MANY)]
    into = torch.zeros(1_000_000)
    works.append(dist.irecv(into))
    pipe.send("posted")
    listen(pipe, "received")  # outside of onehop
    for work in works:
        work.wait()
    assert into.eq(1).all()
    dist.destroy_process_group()


def receiving(pipe, rank, rendezvous):
    join(rank, 2, rendezvous)
    listen(pipe, "posted")
    into = torch.zeros(1, dtype=torch.int64)
    for i in range(MANY):
        dist.recv(into, 0)
        assert into.item() == i
    dist.send(torch.ones(1_000_000), 0)
    pipe.send("received")
    dist.destroy_process_group()


def elsewhere(rendezvous):
    first, second = Rank(posting, 0, rendezvous), Rank(receiving, 1, rendezvous)
    first.hears("posted")
    second.pipe.send("posted")
    second.hears("received")
    first.pipe.send("received")
    first.ends()
    second.ends()


CASES = {
    each.__name__: each
    for each in (
        sizes,
        missing,
        device,
        aborted,
        again,
        reused,
        late,
        awaited,
        first,
        exits,
        elsewhere,
    )
}

if __name__ == "__main__":
    CASES[sys.argv[1]](sys.argv[2])
    print("all is well")
