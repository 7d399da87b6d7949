# SPDX-License-Identifier: Apache-2.0
"""Two processes whose kernels of numba-cuda exchange the borders of their halves of a field.

python numba_exchange.py: needs numba-cuda, and two GPUs that reach each other's memory, or one that
both processes share. Each kernel does all the steps of a diffusion along a line, in one launch.
Exits with 0 if the halves are those of a computation by one process. Shown in
docs/guides/kernels.md.
"""

import multiprocessing
import sys

import numpy as np
import onehop
import onehop.numba as oh
from numba import cuda

HALF = 1000  # values per process
STEPS = 50
THREADS = 256


# --8<-- [start:kernel]
@cuda.jit
def diffuse(lane, there, field, steps, rank, fault):  # noqa: ANN001, ANN201
    """Do the steps of one half: field[step % 2] is read, the other written, borders are the peer's.

    Value 0 and the last one of either are borders. The inner one belongs to the peer's outer value.
    """
    inner = field.shape[1] - 1 if rank == 0 else 0
    own = inner - 1 if rank == 0 else 1
    for step in range(steps):
        old, new = field[step % 2], field[1 - step % 2]
        for i in range(1 + cuda.threadIdx.x, old.size - 1, cuda.blockDim.x):
            new[i] = old[i] + (old[i - 1] - 2 * old[i] + old[i + 1]) / 4
        cuda.syncthreads()
        # Write to the same step's border of the peer, which waits for the signal after it.
        border = ((1 - step % 2) * old.size + old.size - 1 - inner) * old.itemsize
        found = oh.put(there, border, new[own : own + 1])
        found = max(found, oh.signal(lane, 0))
        found = max(found, oh.wait(lane, 0))
        if found != 0:
            fault[0] = found
            return


# --8<-- [end:kernel]
def start_of(size: int) -> np.ndarray:
    """Return the field at the start, with a border at each end."""
    field = np.zeros(size + 2)
    field[size // 3 : size // 2] = 1
    return field


def expected() -> np.ndarray:
    """Return the whole field at the end."""
    field = start_of(2 * HALF)
    for _ in range(STEPS):
        field[1:-1] += (field[:-2] - 2 * field[1:-1] + field[2:]) / 4
    return field


def run(rank: int, identity: bytes) -> None:
    """Compute one half."""
    device = rank % len(cuda.gpus)
    cuda.select_device(device)
    with onehop.Communicator(rank, 2, unique_id=identity, device=device, timeout=60) as comm:
        peer = comm.peer(1 - rank)
        begin = rank * HALF
        half = start_of(2 * HALF)[begin : begin + HALF + 2]
        # --8<-- [start:host]
        field = cuda.to_device(np.stack([half, half]))
        region = comm.endpoint.register(field)
        sent = comm.isend(region.descriptor, 1 - rank)
        descriptor = bytearray(4096)
        size = comm.recv(descriptor, 1 - rank).nbytes
        sent.wait()
        remote = peer.attach(descriptor[:size])  # keep it: it stays mapped
        lane = oh.to_device(peer.device_handle(0))
        fault = cuda.to_device(np.zeros(1, np.int32))
        diffuse[1, THREADS](lane, remote.device_memory(), field, STEPS, rank, fault)
        # --8<-- [end:host]
        assert fault.copy_to_host()[0] == 0, f"fault {fault.copy_to_host()[0]}"
        found = field.copy_to_host()[STEPS % 2]
        assert np.allclose(found, expected()[begin : begin + HALF + 2], rtol=1e-12)
        comm.barrier()
        print(f"rank {rank}: {STEPS} steps of {HALF} values, all right", flush=True)


def main() -> int:
    """Run both processes."""
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
