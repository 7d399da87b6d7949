# SPDX-License-Identifier: Apache-2.0
"""Batches of blocks: run `batches.py 0` in one terminal, `batches.py 1` in another.

Shown in docs/guides/batches.md.
"""

import sys

import numpy as np
import onehop

BLOCK, BLOCKS = 4096, 1000

rank = int(sys.argv[1])
other = 1 - rank
with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
    peer = comm.peer(other)
    pool = onehop.empty((BLOCKS, BLOCK), np.uint8)
    region = comm.endpoint.register(pool)
    # Exchange descriptors.
    descriptor = bytearray(1024)
    receive = peer.irecv(descriptor)
    peer.send(region.descriptor)
    remote = peer.attach(descriptor[: receive.wait(timeout=60).nbytes])
    if rank == 0:
        # --8<-- [start:put]
        pool[:] = np.arange(BLOCKS, dtype=np.uint64)[:, None] % 251
        mine = np.arange(0, 100 * BLOCK, BLOCK, dtype=np.uint64)  # offsets in bytes: blocks 0 to 99
        theirs = np.random.default_rng(1).permutation(BLOCKS)[:100].astype(np.uint64) * BLOCK
        done = peer.put_batch(region, remote, mine, theirs, BLOCK, notify=b"scattered").wait()
        print(f"100 blocks by {done.path}")
        # --8<-- [end:put]
        # --8<-- [start:strided]
        even = range(0, BLOCKS * BLOCK, 2 * BLOCK)  # every second block; no list is built
        peer.put_batch(region, remote, even, even, BLOCK).wait()
        # --8<-- [end:strided]
        # --8<-- [start:prepared]
        with peer.prepare_put(region, remote, mine, theirs, BLOCK) as batch:
            for step in range(3):
                pool[:100] = step
                batch.post(notify=b"step %d" % step).wait()
        # --8<-- [end:prepared]
        # --8<-- [start:send]
        peer.send_batch(region, mine, BLOCK, tag=4)
        # --8<-- [end:send]
    else:
        for _ in range(4):
            print(comm.endpoint.wait_notification(timeout=60)[1].decode())
        # --8<-- [start:recv]
        # The receiver decides where the bytes go; only the total lengths must fit.
        last = range((BLOCKS - 50) * BLOCK, BLOCKS * BLOCK, BLOCK)
        message = peer.recv_batch(
            region, list(last) + list(range(0, 50 * BLOCK, BLOCK)), BLOCK, tag=4
        )
        print(f"{message.nbytes} bytes as one message, by {message.path}")
        # --8<-- [end:recv]
    comm.barrier()
