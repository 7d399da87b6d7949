# SPDX-License-Identifier: Apache-2.0
"""Ranks that use onehop.torch as programs do: `torch_program.py RANKS RENDEZVOUS_FILE`."""

import sys
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing import spawn
from torch_ranks import join, raises

ODD_TYPES = (torch.bool, torch.complex64, torch.bfloat16, torch.float8_e4m3fn, torch.int8)


def batches(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    mine, theirs = torch.full((300_000,), float(rank)), torch.zeros(300_000)
    # Sends first everywhere, large ones: op by op, and no deadlock.
    ops = [dist.P2POp(dist.isend, mine, after), dist.P2POp(dist.irecv, theirs, before)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert (theirs == before).all()
    # 1,000 at once, as one batch; ranks post them in opposite orders.
    out = [torch.tensor([rank * 1000 + i]) for i in range(500)]
    into = [torch.zeros(1, dtype=torch.int64) for _ in out]
    ops = [dist.P2POp(dist.isend, each, after, tag=i) for i, each in enumerate(out)]
    ops += [dist.P2POp(dist.irecv, each, before, tag=i) for i, each in enumerate(into)]
    for work in dist.batch_isend_irecv(ops[:: -1 if rank % 2 else 1]):
        work.wait()
    assert [int(each) for each in into] == [before * 1000 + i for i in range(500)]
    # Asymmetric: rank 0 sends three, rank 1 receives them, the others take no part.
    if rank == 0:
        ops = [dist.P2POp(dist.isend, torch.tensor([i]), 1) for i in range(3)]
    else:
        into = [torch.zeros(1, dtype=torch.int64) for _ in range(3)]
        ops = [dist.P2POp(dist.irecv, each, 0) for each in into] if rank == 1 else []
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    assert rank != 1 or [int(each) for each in into] == [0, 1, 2]


def messages(rank, size):
    after, before = (rank + 1) % size, (rank - 1) % size
    theirs = torch.empty(10)
    work = dist.irecv(theirs, before)
    dist.isend(torch.full((10,), float(rank), requires_grad=True), after).wait()
    assert work.get_future().wait()[0][0] == before
    assert work.source_rank() == before
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None
    for kind in ODD_TYPES:
        mine, theirs = torch.ones(5).to(kind), torch.zeros(5).to(kind)
        work = dist.irecv(theirs, before)
        dist.isend(mine, after).wait()
        work.wait()
        assert torch.equal(theirs.view(torch.uint8), mine.view(torch.uint8)), kind
    work = dist.irecv(torch.empty(0), before)
    dist.send(torch.empty(0), after)
    work.wait()
    # Any source: rank 0 hears all others, twice.
    if rank == 0:
        heard = []
        for tag in (0, 0, 7, 7)[:: 1 if size > 2 else 2]:
            theirs = torch.zeros(1, dtype=torch.int64)
            heard.append(dist.recv(theirs, tag=tag))
            assert int(theirs) == heard[-1] * 10 + tag
        assert sorted(heard) == sorted([*range(1, size)] * 2)
    else:
        for tag in (0, 7):
            dist.send(torch.tensor([rank * 10 + tag]), 0, tag=tag)
    # A negative source is an error, not any source, and takes no message.
    if rank == 1:
        dist.send(torch.tensor([11]), 0)
    if rank == 0:
        theirs = torch.zeros(1, dtype=torch.int64)
        assert "from rank -1" in raises(ValueError, lambda: dist.recv(theirs, rank - 1))
        assert "from rank -2" in raises(ValueError, lambda: dist.irecv(theirs, rank - 2))
        assert dist.recv(theirs, 1) == 1
        assert int(theirs) == 11
    # Objects: pickled ones of any size.
    objects = [{"a": 1}, 2, bytes(100_000)]
    if rank == 0:
        dist.send_object_list(objects, 1)
    if rank == 1:
        got = [None] * 3
        assert dist.recv_object_list(got, 0) == 0
        assert got == objects
    assert "contiguous" in raises(ValueError, lambda: dist.send(torch.ones(4, 4).t(), after))
    assert "tag -1" in raises(ValueError, lambda: dist.send(torch.ones(1), after, tag=-1))


def groups(rank, size):
    pair, everyone = dist.new_group([0, 1]), dist.new_group()
    # The same ranks and tag, two groups: their messages do not mix.
    if rank == 0:
        dist.send(torch.tensor([1]), 1, group=pair)
        dist.send(torch.tensor([2]), 1, group=everyone)
    if rank == 1:
        first, second = torch.zeros(2, 1, dtype=torch.int64)
        dist.recv(second, 0, group=everyone)
        dist.recv(first, 0, group=pair)
        assert (int(first), int(second)) == (1, 2)
    # Ranks are those of the world, also in a group of the last two.
    last = dist.new_group([size - 2, size - 1])
    if rank == size - 2:
        dist.send(torch.tensor([5]), size - 1, group=last)
    if rank == size - 1:
        got = torch.zeros(1, dtype=torch.int64)
        assert dist.recv(got, group=last) == size - 2
        assert int(got) == 5
    if rank >= size - 2:
        dist.destroy_process_group(last)
    total = torch.ones(3)
    dist.all_reduce(total)
    assert (total == size).all()
    mesh = init_device_mesh("cpu", (size,))
    whole = torch.arange(12.0).reshape(6, 2)
    replicated = distribute_tensor(whole, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
    assert torch.equal(replicated.to_local(), whole)
    # A product whose inner dimension is sharded is a sum over ranks: partial, then reduced.
    square = torch.arange(36.0).reshape(6, 6)
    left, right = (distribute_tensor(square, mesh, [Shard(dim)]) for dim in (1, 0))
    assert torch.equal((left @ right).full_tensor(), square @ square)
    # Messages over the group of a mesh.
    theirs = torch.zeros(1)
    work = dist.irecv(theirs, (rank - 1) % size, group=mesh.get_group())
    dist.send(torch.tensor([float(rank)]), (rank + 1) % size, group=mesh.get_group())
    work.wait()
    assert theirs[0] == (rank - 1) % size


def ends(rank, size):
    into = torch.zeros(1)
    late = dist.irecv(into, (rank + 1) % size, tag=9)
    text = raises(dist.DistBackendError, lambda: late.wait(timedelta(seconds=0.2)))
    assert "deadline passed" in text
    assert "tag 9" in text
    dist.barrier()
    group = dist.new_group()
    waiting = [group.recv([torch.zeros(1)], (rank + 1) % size, tag) for tag in range(3)]
    failed = waiting[2].get_future()
    dist.barrier()  # all have posted
    texts = []
    threads = [
        threading.Thread(
            target=lambda w=w: texts.append(raises(dist.DistBackendError, lambda: w.wait()))
        )
        for w in waiting[:2]
    ]
    for thread in threads:
        thread.start()
    group.abort()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert len(texts) == 2
    raises(Exception, failed.wait)


def main(rank, size, rendezvous):
    join(rank, size, rendezvous)
    for part in (batches, messages, groups, ends):
        part(rank, size)
        dist.barrier()
    dist.destroy_process_group()
    print("all is well", flush=True)


if __name__ == "__main__":
    spawn(main, (int(sys.argv[1]), sys.argv[2]), nprocs=int(sys.argv[1]))
