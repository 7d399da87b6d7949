# SPDX-License-Identifier: Apache-2.0
"""One-sided transfers: run `put_notify.py 0` in one terminal, `put_notify.py 1` in another.

Rank 0 owns the memory; rank 1 writes and reads it. Shown in docs/guides/one-sided.md.
"""

import sys

import numpy as np
import onehop

LAYERS, LAYER = 4, 65_536  # bytes per layer

rank = int(sys.argv[1])
with onehop.Communicator(rank, 2, rendezvous="tcp://127.0.0.1:29400") as comm:
    peer = comm.peer(1 - rank)
    if rank == 0:
        # --8<-- [start:owner]
        cache = onehop.empty(LAYERS * LAYER, np.uint8)  # memory that peers can map
        region = comm.endpoint.register(cache)
        peer.send(region.descriptor)
        for _ in range(LAYERS):
            source, text = comm.endpoint.wait_notification(timeout=60)
            layer = int(text)
            print(f"layer {layer} is here: {cache[layer * LAYER]}")
        peer.wait_signal(5, timeout=60)  # all layers were read back
        region.deregister()  # no peer accesses the memory any more
        # --8<-- [end:owner]
    else:
        # --8<-- [start:initiator]
        descriptor = bytearray(1024)
        message = peer.recv(descriptor)
        remote = peer.attach(descriptor[: message.nbytes])
        for layer in range(LAYERS):
            data = np.full(LAYER, 10 + layer, np.uint8)
            place = remote[layer * LAYER : (layer + 1) * LAYER]
            done = peer.put(data, place, notify=str(layer).encode()).wait(timeout=60)
        print(f"wrote {LAYERS} layers by {done.path}")

        copy = np.empty(LAYER, np.uint8)
        peer.get(copy, remote[LAYER : 2 * LAYER]).wait(timeout=60)
        print(f"layer 1 holds {copy[0]}")
        peer.signal(5)
        # --8<-- [end:initiator]
    comm.barrier()
