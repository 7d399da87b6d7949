# SPDX-License-Identifier: Apache-2.0
"""All-to-all by one kernel in Triton: each rank writes its parts into the regions of all others.

python triton_all_to_all.py: needs PyTorch with Triton 3.6, and GPUs that reach each other's memory.
There is a rank for each of them; two ranks share the only one. Exits with 0 if all bytes were
right. Shown in docs/guides/kernels.md.
"""

import multiprocessing
import sys

import onehop
import onehop.triton as oh
import torch
import triton
import triton.language as tl

PART = 1_000_003  # values from each rank to each other rank
PROGRAMS = 4  # per other rank
STEPS = 10


# --8<-- [start:kernel]
@triton.jit
def all_to_all(
    comm: tl.tensor,
    regions: tl.tensor,
    data: tl.tensor,
    rank: tl.tensor,
    part: tl.tensor,
    fault: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Program (other, i) moves its share of our part for that rank, and waits for one of theirs."""
    other = tl.program_id(0)
    into = tl.load(regions + other).to(tl.pointer_type(tl.int32)) + rank * part
    mine = data + other * part
    for at in range(tl.program_id(1) * block, part, tl.num_programs(1) * block):
        places = at + tl.arange(0, block)
        tl.store(into + places, tl.load(mine + places, mask=places < part), mask=places < part)
    if other != rank:
        lane = oh.of_rank(comm, other)
        oh.signal(lane, 0)
        tl.atomic_max(fault, oh.wait(lane, 0))


@triton.jit
def meet(comm: tl.tensor, fault: tl.tensor) -> None:
    """One program waits for all ranks: behind it their regions may be written again."""
    tl.atomic_max(fault, oh.barrier(comm, 1))


# --8<-- [end:kernel]
def attach_all(comm: onehop.Communicator, region: onehop.Region) -> dict[int, onehop.RemoteRegion]:
    """Return the regions of all other ranks."""
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    sent = [comm.isend(region.descriptor, rank) for rank in others]
    remotes = {}
    for rank in others:
        descriptor = bytearray(4096)
        size = comm.recv(descriptor, rank).nbytes
        remotes[rank] = comm.peer(rank).attach(descriptor[:size])
    for request in sent:
        request.wait()
    return remotes


def values(size: int, step: int, source: int, target: int) -> torch.Tensor:
    """Return a part, which differs from step to step and from rank to rank."""
    index = torch.arange(size, dtype=torch.int32, device="cuda")
    return index * 1009 + step * 64 * 64 + source * 64 + target


def run(rank: int, size: int, identity: bytes) -> None:
    """Exchange parts with all other ranks."""
    device = rank % torch.cuda.device_count()
    torch.cuda.set_device(device)
    with onehop.Communicator(rank, size, unique_id=identity, device=device, timeout=60) as comm:
        # --8<-- [start:host]
        into = torch.empty((size, PART), dtype=torch.int32, device="cuda")
        region = comm.endpoint.register(into)
        remotes = attach_all(comm, region)  # keep them: they stay mapped
        addresses = {other: remote.device_memory()[0] for other, remote in remotes.items()}
        addresses[rank] = into.data_ptr()
        regions = torch.tensor([addresses[other] for other in range(size)], device="cuda")
        lanes = oh.to_device(comm.device_handle(0))
        fault = torch.zeros(1, dtype=torch.int32, device="cuda")
        # --8<-- [end:host]
        for step in range(STEPS):
            into.fill_(-1)
            meet[(1,)](lanes, fault)
            data = torch.stack([values(PART, step, rank, other) for other in range(size)])
            grid = (size, PROGRAMS)
            all_to_all[grid](lanes, regions, data, rank, PART, fault, block=4096)
            assert fault.item() == 0, f"fault {fault.item()} in step {step}"
            for other in range(size):
                assert torch.equal(into[other], values(PART, step, other, rank)), (step, other)
        comm.barrier()
        print(f"rank {rank}: {STEPS} steps with {size} ranks, all right", flush=True)


def main() -> int:
    """Run all ranks, a process each."""
    context = multiprocessing.get_context("spawn")
    identity, size = onehop.unique_id(), max(2, torch.cuda.device_count())
    ranks = [context.Process(target=run, args=(rank, size, identity)) for rank in range(size)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return 0 if all(process.exitcode == 0 for process in ranks) else 1


if __name__ == "__main__":
    sys.exit(main())
