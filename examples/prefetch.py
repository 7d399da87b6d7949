# SPDX-License-Identifier: Apache-2.0
"""Prefetch: run `prefetch.py 0` in one terminal, `prefetch.py 1` in another.

Rank 0 keeps weights in host memory; rank 1 fetches each layer while it computes with the one
before. Shown in docs/guides/one-sided.md.
"""

import sys

import numpy as np
import onehop

LAYERS, LAYER = 8, 1 << 20  # bytes per layer

rank = int(sys.argv[1])
with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
    peer = comm.peer(1 - rank)
    if rank == 0:
        weights = onehop.empty(LAYERS * LAYER, np.uint8)
        weights.reshape(LAYERS, LAYER)[:] = np.arange(LAYERS, dtype=np.uint8)[:, None]
        region = comm.endpoint.register(weights, access="r")
        peer.send(region.descriptor)
        comm.endpoint.wait_notification(timeout=60)
    else:
        descriptor = bytearray(1024)
        message = peer.recv(descriptor)
        remote = peer.attach(descriptor[: message.nbytes])
        sums = []
        # --8<-- [start:prefetch]
        layers = [remote[i * LAYER : (i + 1) * LAYER] for i in range(LAYERS)]
        buffers = [np.empty(LAYER, np.uint8) for _ in range(2)]
        ahead = peer.get(buffers[0], layers[0])
        for i in range(LAYERS):
            ahead.wait(timeout=60)
            if i + 1 < LAYERS:  # in flight while layer i is used
                ahead = peer.get(buffers[(i + 1) % 2], layers[i + 1])
            sums.append(int(buffers[i % 2].sum()))
        # --8<-- [end:prefetch]
        print(f"{LAYERS} layers, sums {[value // LAYER for value in sums]}")
        peer.notify(b"done")
    comm.barrier()
