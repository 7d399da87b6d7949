# SPDX-License-Identifier: Apache-2.0
"""Two processes exchange arrays: run `pair.py 0` in one terminal, `pair.py 1` in another."""

import sys

import numpy as np
import onehop

rank = int(sys.argv[1])
with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
    array = np.full(1_000_000, rank, dtype=np.float32)
    if rank == 0:
        comm.send(array, 1, tag=7)
        message = comm.recv(array, 1, tag=7)
        print(f"{message.nbytes} bytes came back by {message.path}, first value {array[0]}")
        print(onehop.paths(comm.peer(1)))
    else:
        message = comm.recv(array, 0, tag=7)
        comm.send(array + 1, 0, tag=7)
        print(f"received {message.nbytes} bytes from rank {message.source} by {message.path}")
    comm.barrier()
